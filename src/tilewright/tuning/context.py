"""What all parts of a tuning run share: the program, the device, the database, the budget."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from tilewright.errors import TRACEBACK
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.measurement_key import MeasurementKey
from tilewright.store import Database, RunRecord, RunStatus
from tilewright.trial import Configuration
from tilewright.tuning.deadlines import Deadlines
from tilewright.tuning.events import PhaseEnded, PhaseStarted
from tilewright.tuning.opening import OpenProgram

# Under what a run's record has `more_threads`, beside its options.
MORE_THREADS = "more_threads"
# What a mistake in tilewright itself raises: not what the user can mend, nor a disk that is full,
# memory that there is too little of, or a run that is ended.
_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


class Interrupted(Exception):
    """The user asked the run to stop, and nothing worth writing out has been found yet."""


@dataclass(kw_only=True)
class RunContext(OpenProgram):
    """An opened program with what a run needs besides; handed to every part of the run.

    `compilers` and `benchmark` never work at the same time: on a CPU the compiler would disturb
    what is measured. `run_id` is the run's in the database, once it is there, and `measured_on`
    what its measurements hold for (None: it is not known). `phase_s` collects seconds by phase,
    `deadlines` says by when phases must end. `suggested`: by the key of a workload what is tried of
    it before anything else; `settled`: keys of those of which nothing more is tried.
    `more_threads`: how many there are where the program is tuned for fewer; else 0. `rounds`:
    whether it is still to be found out what rounding to integers does to the program's results.
    """

    benchmark: Benchmark
    store: Database
    run_id: int = -1
    started: float = field(default_factory=time.monotonic)
    phase_s: dict[str, float] = field(default_factory=dict)
    stopping: bool = False
    measured_on: MeasurementKey | None = None
    suggested: Mapping[str, Sequence[Configuration]] = field(default_factory=dict)
    settled: frozenset[str] = frozenset()
    more_threads: int = 0
    rounds: bool = False
    deadlines: Deadlines = field(init=False)

    def __post_init__(self) -> None:
        self.deadlines = Deadlines(self.options.time_limit_s, self.started)

    def begin(self, digest: str, what: str, trials: str = "trials") -> None:
        """Begin a run in the database, or go on with the unfinished one where `--resume` is given.

        Args:
            digest: of all that must be equal for a run to be resumed.
            what: the run in words, for the note that there is none.
            trials: what the run's trials are called.

        Raises:
            UserError: another process still goes on with that run.
        """
        record = RunRecord(
            program=str(self.program.source),
            program_digest=self.program.digest,
            target=self.target.key,
            compiler=self.compiler_version,
            options=self.options.to_json() | {MORE_THREADS: self.more_threads},
            options_digest=digest,
            seed=self.options.seed,
        )
        self.measured_on = self.benchmark.measurement_key(self.target)
        if self.measured_on is not None:
            self.store.put_machine(self.measured_on.digest, self.measured_on.to_json())
            record = replace(record, machine=self.measured_on.digest)
        if self.options.resume:
            found = self.store.find_resumable(
                record.program_digest, record.target, record.compiler, digest
            )
            if found is not None:
                self.run_id = self.store.resume_run(found.id).id
                done = self.store.count_trials(self.run_id)
                self.note(f"going on with run {self.run_id}, which has {done} {trials}")
                return
            self.note(f"no unfinished {what}; starting anew")
        self.run_id = self.store.begin_run(record)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """The run is interrupted in the database where what is done inside fails."""
        try:
            yield
        except BaseException:
            # Whatever ended the run is what the user must hear of, not a database that is full too.
            with suppress(Exception):
                self.store.finish_run(self.run_id, RunStatus.INTERRUPTED)
            raise

    @contextmanager
    def containing(self, what: str) -> Iterator[None]:
        """A fault of tilewright inside ends a part of the run, not the run: what was found until
        then is confirmed and handed back. The user is told.

        Args:
            what: the part, in words.

        Raises:
            Exception: whatever is no fault of tilewright; what is, too, where the variable
                `TRACEBACK` is set.
        """
        try:
            yield
        except _FAULTS as fault:
            if os.environ.get(TRACEBACK):
                raise
            at = traceback.extract_tb(fault.__traceback__)[-1]
            where = f"{os.path.basename(at.filename)}:{at.lineno}"
            self.note(
                f"{what} ended before its end ({type(fault).__name__}: {fault} at {where}, a fault "
                f"of tilewright: set {TRACEBACK}=1 and run it again for the traceback to report); "
                "the run goes on with what was found until then",
                warning=True,
            )

    @contextmanager
    def phase(self, name: str, detail: str = "") -> Iterator[None]:
        """Tell that a phase begins and ends, and add up its seconds.

        Args:
            name: of the phase; `phase_s` has it.
            detail: what is done in it, in words.
        """
        self.emit(PhaseStarted(name, detail))
        begin = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - begin
            self.add_seconds(name, seconds)
            self.emit(PhaseEnded(name, seconds))

    def add_seconds(self, phase: str, seconds: float) -> None:
        """Count seconds as spent in a phase.

        Args:
            phase: its name in `phase_s`.
            seconds: by the clock.
        """
        self.phase_s[phase] = self.phase_s.get(phase, 0.0) + seconds

    def request_stop(self) -> None:
        """End the search at the next candidate; what was found is confirmed and written out."""
        self.stopping = True

    @property
    def left_s(self) -> float | None:
        """Seconds until the time limit; 0 when the user waits for the end, None without a limit."""
        return self.left_for("finish")

    def left_for(self, phase: str) -> float | None:
        """Seconds until a phase must end so that those after it fit into the time limit.

        Args:
            phase: of :data:`tilewright.tuning.deadlines.PHASES`.

        Returns:
            0 when the time has passed or the user waits for the end, None without a limit.
        """
        return 0.0 if self.stopping else self.deadlines.left_s(phase)

    @property
    def out_of_time(self) -> bool:
        """Whether the search must end: the user asked for it, or its deadline has passed."""
        return self.left_for("search") == 0.0
