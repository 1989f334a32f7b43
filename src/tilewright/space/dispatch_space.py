"""The search space of a dispatch and the way from its configurations to the compiler."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.space.interface import Restriction, Space
from tilewright.tiling import CompilationInfo
from tilewright.trial import Configuration, Value


class DispatchSpace(ABC):
    """`space` is what strategies search; `lower` gives the form in which candidates are compiled
    and specs carry a configuration. `own` names the pipeline of the compiler's own choice, and
    `members` has what each pipeline's configurations are made by.
    """

    space: Space
    own: str
    members: Mapping[str, Any]

    @property
    def default(self) -> Configuration:
        return self.space.default

    @property
    def restrictable(self) -> set[str]:
        """What a user may restrict."""
        return {knob.name for knob in self.space.knobs}

    def restrict(self, values: Mapping[str, Sequence[Value]]) -> Restriction:
        """The space with the named knobs held to the given values; see `Space.restrict`."""
        return self.space.restrict(values)

    @abstractmethod
    def admits(self, knob: str, value: Value) -> bool:
        """Whether a user may hold the knob to this value in any of the pipelines."""

    @abstractmethod
    def lower(self, configuration: Configuration) -> CompilationInfo:
        """What the compiler reads for a configuration; its own choice, exactly, for the default."""
