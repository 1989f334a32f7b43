"""The search of one task: ask, compile, measure, store, tell, a batch at a time.

Knows nothing of IREE: it drives whatever stages it is given.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning.stages import Compiled, Stages

Recorder = Callable[[Trial], None]
Observer = Callable[[Trial, float | None], None]


@dataclass
class SearchLoop:
    """A search that can be continued batch by batch.

    record: stores a trial; it returns when the trial is safe, and only then is the next measured.
    observe: told every trial with the best time so far.
    known: trials of an earlier part of the run; their programs are not measured again.
    stop: asked between candidates; true ends the batch.
    discard: called with a compiled candidate when it is no longer needed.
    """

    stages: Stages
    record: Recorder
    observe: Observer = lambda trial, best: None
    stop: Callable[[], bool] = lambda: False
    discard: Callable[[Compiled], None] = lambda compiled: None
    known: list[Trial] = field(default_factory=list)
    seconds: dict[str, float] = field(
        default_factory=lambda: {"compile": 0.0, "measure": 0.0, "search": 0.0}
    )
    trials: list[Trial] = field(default_factory=list, init=False)
    best_s: float | None = field(default=None, init=False)
    exhausted: bool = field(default=False, init=False)
    _by_binary: dict[str, Trial] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for trial in self.known:
            self._remember(trial)

    def _remember(self, trial: Trial) -> None:
        self.trials.append(trial)
        if trial.binary and trial.status in (Status.OK, Status.WRONG_RESULT):
            self._by_binary.setdefault(trial.binary, trial)
        if trial.ok and trial.time_s is not None:
            self.best_s = trial.time_s if self.best_s is None else min(self.best_s, trial.time_s)

    def batch(self, count: int) -> list[Trial]:
        """Try up to `count` candidates; fewer when stopped, none when none are left to propose."""
        begin = time.perf_counter()
        configurations = self.stages.source.ask(count)
        self.seconds["search"] += time.perf_counter() - begin
        if not configurations:
            self.exhausted = True
            return []
        return self.try_all(configurations)

    def try_all(self, configurations: list[Configuration], origin: str = "") -> list[Trial]:
        """Compile, measure and store the given configurations, and tell the source."""
        begin = time.perf_counter()
        compiled = self.stages.compiler.compile(configurations)
        self.seconds["compile"] += time.perf_counter() - begin
        done: list[Trial] = []
        for one in compiled:
            if self.stop():
                self.discard(one)
                continue
            begin = time.perf_counter()
            trial = self._outcome(one)
            if origin:
                trial = replace(trial, origin=origin)
            self.seconds["measure"] += time.perf_counter() - begin
            self.discard(one)
            self.record(trial)
            self._remember(trial)
            done.append(trial)
            self.observe(trial, self.best_s)
        begin = time.perf_counter()
        if done:
            self.stages.source.tell(done)
        self.seconds["search"] += time.perf_counter() - begin
        return done

    def _outcome(self, compiled: Compiled) -> Trial:
        if compiled.status is not Status.OK:
            return Trial(
                compiled.configuration,
                compiled.status,
                message=compiled.message,
                phase_s={"compile": compiled.seconds},
            )
        same = self._by_binary.get(compiled.digest) if compiled.digest else None
        if same is not None:
            return replace(
                same,
                configuration=compiled.configuration,
                origin="same program as an earlier trial",
                phase_s={"compile": compiled.seconds},
            )
        return self.stages.measurer.measure(compiled, self.best_s)
