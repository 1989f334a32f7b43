"""What all parts of a tuning run share: target, workers, database, budget, listener."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.measure.benchmark import Benchmark
from tilewright.measure.pool import WorkerPool
from tilewright.store import Database
from tilewright.target import Target
from tilewright.toolchain import Toolchain
from tilewright.tuning.events import Event, Listener, Note, PhaseEnded, PhaseStarted
from tilewright.tuning.options import TuneOptions


class Interrupted(Exception):
    """The user asked the run to stop, and nothing worth writing out has been found yet."""


@dataclass
class RunContext:
    """Handed to every part of a run.

    `compilers` and `benchmark` never work at the same time: on a CPU the compiler would disturb
    what is measured. `phase_s` collects seconds by phase. `arguments`: the shape or value of each
    of the program's arguments, once they are known and if its own types leave sizes open.
    """

    options: TuneOptions
    target: Target
    toolchain: Toolchain
    compilers: WorkerPool
    benchmark: Benchmark
    store: Database
    run_id: int
    compiler_version: str
    work: Path
    listener: Listener
    started: float = field(default_factory=time.monotonic)
    phase_s: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    stopping: bool = False
    arguments: tuple[tuple[int, ...] | int | None, ...] = ()

    def emit(self, event: Event) -> None:
        self.listener(event)

    def note(self, text: str, warning: bool = False) -> None:
        """Tell the user something, and keep it for the log."""
        self.notes.append(text)
        self.emit(Note(text, warning))

    @contextmanager
    def phase(self, name: str, detail: str = "") -> Iterator[None]:
        """Tell that a phase begins and ends, and add up its seconds."""
        self.emit(PhaseStarted(name, detail))
        begin = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - begin
            self.phase_s[name] = self.phase_s.get(name, 0.0) + seconds
            self.emit(PhaseEnded(name, seconds))

    def request_stop(self) -> None:
        """End the search at the next candidate; what was found is confirmed and written out."""
        self.stopping = True

    @property
    def search_deadline(self) -> float | None:
        """When the search must end (monotonic) so that the rest fits into the time limit.

        A quarter of the limit, at most two minutes, is kept for confirming and writing.
        """
        limit = self.options.time_limit_s
        if limit is None:
            return None
        return self.started + limit - min(120.0, 0.25 * limit)

    @property
    def left_s(self) -> float | None:
        """Seconds until the time limit; 0 when the user waits for the end, None without a limit."""
        limit = self.options.time_limit_s
        if self.stopping:
            return 0.0
        return None if limit is None else max(0.0, self.started + limit - time.monotonic())

    @property
    def out_of_time(self) -> bool:
        deadline = self.search_deadline
        return self.stopping or (deadline is not None and time.monotonic() >= deadline)
