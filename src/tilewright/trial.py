"""A trial: one configuration with what became of it. Status is a value, never an exception."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

Value = int | str | bool | tuple[int, ...]


class Status(enum.StrEnum):
    """What became of a candidate. A candidate can do nothing that ends a tuning run."""

    OK = "ok"
    INVALID = "invalid"
    COMPILE_ERROR = "compile_error"
    COMPILE_TIMEOUT = "compile_timeout"
    RUN_ERROR = "run_error"
    RUN_TIMEOUT = "run_timeout"
    CRASHED = "crashed"
    WRONG_RESULT = "wrong_result"


@dataclass(frozen=True)
class Configuration:
    """One value for every knob; equal configurations are equal whatever their order of knobs."""

    items: tuple[tuple[str, Value], ...]

    @staticmethod
    def of(values: Mapping[str, Value]) -> Configuration:
        """The configuration with these values.

        Args:
            values: of the knobs, by name.
        """
        return Configuration(tuple(sorted(values.items())))

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    @property
    def values(self) -> Mapping[str, Value]:
        return MappingProxyType(dict(self.items))


@dataclass(frozen=True)
class Trial:
    """A configuration with its status, measurement and the seconds that each phase took.

    `time_s` is the lower quartile of `samples`, corrected for drift (seconds for one execution of
    the dispatch), None unless the status is `ok`.
    """

    configuration: Configuration
    status: Status
    time_s: float | None = None
    samples: tuple[float, ...] = ()
    message: str = ""
    binary: str = ""
    origin: str = ""
    phase_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.status is Status.OK and self.time_s is not None
