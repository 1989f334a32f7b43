"""What the database holds, as frozen dataclasses.

Times are in seconds; points in time are seconds since the epoch (UTC), as `time.time` gives them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.trial import Configuration, Trial
from tilewright.workload import Workload

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class RunStatus(enum.StrEnum):
    """Where a tuning run stands."""

    RUNNING = "running"
    """Begun and not ended: going on now, or killed (see :meth:`Store.find_resumable`)."""
    INTERRUPTED = "interrupted"
    """Stopped by the user or by an error; can be resumed."""
    FINISHED = "finished"
    IMPORTED = "imported"
    """Came unfinished from another database; without its checkpoints it cannot be resumed."""


@dataclass(frozen=True)
class RunRecord:
    """One tuning run. `id` is this database's, `uid` is the same wherever the run is imported.

    `machine` is the digest of what it was measured under (see :meth:`Database.put_machine`); ''
    where that is not known. `options` is what the user asked for, to be shown; `options_digest` is
    what must be equal for the run to be resumed. The fields from `status` on are filled in by the
    database.
    """

    program: str
    program_digest: str
    target: str
    compiler: str
    options: Mapping[str, Json] = field(default_factory=dict)
    options_digest: str = ""
    seed: int = 0
    status: RunStatus = RunStatus.RUNNING
    id: int = 0
    uid: str = ""
    created: float = 0.0
    finished: float | None = None
    owner: str = ""
    machine: str = ""


@dataclass(frozen=True)
class TaskKey:
    """What is tuned: equal keys mean that results may be exchanged.

    `flags` stands for everything else that decides which code runs and how fast: the variant, the
    compile flags, the number of threads (usually a digest of them).
    """

    workload: Workload
    target: str
    compiler: str
    flags: str = ""


@dataclass(frozen=True)
class TaskRecord:
    """A task as stored; `default_s` is what the compiler's own choice took when last measured.

    `space` is what its search space is made from, as JSON; None where it was never told.
    """

    id: int
    key: TaskKey
    default_s: float | None = None
    space: Json = None


@dataclass(frozen=True)
class TrialRecord:
    """A trial with its place: `ordinal` counts the trials of a run from 0 in the order stored."""

    run_id: int
    task_id: int
    ordinal: int
    created: float
    trial: Trial


@dataclass(frozen=True)
class TaskResult:
    """The outcome of tuning a task.

    `configuration` is the verified winner, or None when the compiler's own choice stays.
    `speedup_low` and `speedup_high` bound `default_s / tuned_s`. `verification` says how the
    outputs were checked. `trials` is how many trials are behind the result, so that a caller can
    decide whether they were enough. `run_id` is None when that run has been pruned. `machine` is
    the digest of what it was measured under, '' where that is not known.
    """

    configuration: Configuration | None
    default_s: float
    tuned_s: float
    speedup_low: float
    speedup_high: float
    verification: str = ""
    trials: int = 0
    run_id: int | None = None
    created: float = 0.0
    machine: str = ""

    @property
    def speedup(self) -> float:
        return self.default_s / self.tuned_s


@dataclass(frozen=True)
class KnownResult:
    """A result with the task that it is of; `measured_on` is what it was measured under, as JSON,
    None where that is not known."""

    task: TaskRecord
    result: TaskResult
    measured_on: Mapping[str, Json] | None


@dataclass(frozen=True)
class ProgramMeasurement:
    """A measurement of a whole program or variant, as the session described it."""

    run_id: int
    kind: str
    name: str
    data: Json
    created: float


@dataclass(frozen=True)
class ListingRow:
    """One task as `tilewright db list` shows it; `last` is when something was last stored."""

    task_id: int
    workload: str
    target: str
    compiler: str
    flags: str
    runs: int
    trials: int
    ok: int
    best_s: float | None
    result: TaskResult | None
    last: float | None


@dataclass(frozen=True)
class Filter:
    """Which tasks to list or export; what is None does not restrict.

    `workload` is a part of the workload's name (such as `contraction` or `512x512`); `since` keeps
    trials and results stored at that time or later.
    """

    target: str | None = None
    compiler: str | None = None
    workload: str | None = None
    since: float | None = None


@dataclass(frozen=True)
class RowCounts:
    """How many rows of each kind an export wrote, an import added or a prune removed."""

    runs: int = 0
    tasks: int = 0
    trials: int = 0
    results: int = 0
    measurements: int = 0
