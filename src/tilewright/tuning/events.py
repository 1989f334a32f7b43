"""What a tuning run tells while it goes on. The live view, the log and API clients listen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.trial import Trial


@dataclass(frozen=True)
class Event:
    """Base of all events."""


@dataclass(frozen=True)
class RunStarted(Event):
    """The first event: what is tuned for which target, within how many seconds, where to, and by
    which process."""

    program: str
    target: str
    output: str
    time_limit_s: float | None
    versions: dict[str, str]
    pid: int


@dataclass(frozen=True)
class RunEnded(Event):
    """The last event. `status` is `finished`, `interrupted` (nothing was written) or `failed`, with
    the reason as `message`; of a finished one milliseconds of the program as the compiler makes it
    and tuned."""

    status: str
    message: str = ""
    default_ms: float | None = None
    tuned_ms: float | None = None


@dataclass(frozen=True)
class PhaseStarted(Event):
    """A part of the run begins: `compile`, `variants`, `dispatches`, `search`, `confirm`, …."""

    name: str
    detail: str = ""


@dataclass(frozen=True)
class PhaseEnded(Event):
    """The part of the run is over; `seconds` is what it took by the clock."""

    name: str
    seconds: float


@dataclass(frozen=True)
class Note(Event):
    """A sentence for the user. `warning` marks what may need attention."""

    text: str
    warning: bool = False


@dataclass(frozen=True)
class ProgramMeasured(Event):
    """A whole program was measured. `error` is set instead of `time_s` when it did not run."""

    variant: str
    time_s: float | None
    verified: bool | None = None
    error: str = ""


@dataclass(frozen=True)
class DispatchRow:
    """One line of the table of dispatches: times in seconds of one execution, share of the run."""

    name: str
    workload: str
    count: int
    share: float
    default_s: float | None
    gflops: float | None
    space: float | None
    note: str = ""


@dataclass(frozen=True)
class DispatchesRanked(Event):
    """The dispatches of a variant with their times, the largest share first."""

    variant: str
    rows: tuple[DispatchRow, ...]


@dataclass(frozen=True)
class TrialDetail:
    """What a trial was of, for who wants to see each: `command` compiles it, `flops` are the
    operations of one execution."""

    workload: str
    configuration: str
    command: str
    flops: int


@dataclass(frozen=True)
class TrialDone(Event):
    """A candidate was tried. `done` and `limit` count trials of the whole run. Dispatches of
    different variants may have the same name: `variant` tells them apart. `detail`: of verbose
    runs."""

    task: str
    trial: Trial
    best_s: float | None
    default_s: float
    done: int
    limit: int
    variant: str = ""
    detail: TrialDetail | None = None


@dataclass(frozen=True)
class WinnerFound(Event):
    """A dispatch's finalists were compared with the default: the winner, or that there is none."""

    task: str
    speedup: float
    low: float
    high: float
    configuration: str
    kept: bool
    reason: str = ""
    variant: str = ""


Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """A listener that does nothing.

    Args:
        event: not looked at.
    """
