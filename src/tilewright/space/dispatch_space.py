"""The search space of a dispatch and the way from its configurations to the compiler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.space.interface import Restriction
from tilewright.space.pipeline import Pipeline
from tilewright.space.union import MEMBER_KNOB, UnionSpace
from tilewright.tiling import CompilationInfo, DispatchTemplate
from tilewright.trial import Configuration, Value


class DispatchSpace:
    """The union over the pipelines that fit a dispatch.

    `space` is what strategies search; `lower` gives the form in which candidates are compiled and
    specs carry a configuration. `own` names the pipeline of the compiler's own choice, and
    `members` has the pipelines by name.
    """

    def __init__(self, pipelines: Sequence[Pipeline], own: str, template: DispatchTemplate) -> None:
        self.members = {pipeline.name: pipeline for pipeline in pipelines}
        self.own = own
        self.space = UnionSpace("dispatch", [p.space for p in pipelines], default=own)
        self._template = template

    @property
    def default(self) -> Configuration:
        """The compiler's own choice."""
        return self.space.default

    @property
    def restrictable(self) -> set[str]:
        """What a user may restrict."""
        return set(self.space.restrictable)

    def restrict(self, values: Mapping[str, Sequence[Value]]) -> Restriction:
        """The space with the named knobs held to the given values; see `Space.restrict`."""
        return self.space.restrict(values)

    def admits(self, knob: str, value: Value) -> bool:
        """Whether a user may hold the knob to this value in any of the pipelines."""
        return self.space.admits(knob, value)

    def lower(self, configuration: Configuration) -> CompilationInfo:
        """What the compiler reads for a configuration; its own choice, exactly, for the default."""
        if configuration == self.default:
            return self._template.default
        values = dict(configuration.items)
        return self.members[str(values.pop(MEMBER_KNOB))].configure(Configuration.of(values))
