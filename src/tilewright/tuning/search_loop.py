"""The search of one task: ask, compile, measure, store, tell, a batch at a time.

Knows nothing of IREE: it drives whatever stages it is given, and keeps the promises that hold for
any of them. A trial is stored before the next is measured, no configuration is tried twice, equal
programs are measured once, and a candidate that fails is a trial like any other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning.stages import CompiledCandidate, Stages

Recorder = Callable[[Trial], object]
Observer = Callable[[Trial, float | None], object]

_ASKS = 8
"""How often a source that proposes what was tried before is asked again for one batch."""


@dataclass
class SearchLoop:
    """A search that can be continued batch by batch.

    record: stores a trial; it returns when the trial is safe, and only then is the next measured.
    observe: told every trial with the best time so far.
    known: trials of an earlier part of the run: neither their configurations nor programs equal to
        theirs are measured again.
    stop: asked between candidates; true ends the batch.
    discard: called with every compiled candidate when it is no longer needed.
    """

    stages: Stages
    record: Recorder
    observe: Observer = lambda trial, best: None
    stop: Callable[[], bool] = lambda: False
    discard: Callable[[CompiledCandidate], None] = lambda compiled: None
    known: list[Trial] = field(default_factory=list)
    seconds: dict[str, float] = field(
        default_factory=lambda: {"compile": 0.0, "measure": 0.0, "search": 0.0}
    )
    trials: list[Trial] = field(default_factory=list, init=False)
    best_s: float | None = field(default=None, init=False)
    exhausted: bool = field(default=False, init=False)
    _by_binary: dict[str, Trial] = field(default_factory=dict, init=False)
    _tried: dict[Configuration, Trial] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for trial in self.known:
            self._remember(trial)

    def _remember(self, trial: Trial) -> None:
        self.trials.append(trial)
        self._tried[trial.configuration] = trial
        if trial.binary:
            self._by_binary.setdefault(trial.binary, trial)
        if trial.ok and trial.time_s is not None:
            self.best_s = trial.time_s if self.best_s is None else min(self.best_s, trial.time_s)

    def batch(self, count: int) -> list[Trial]:
        """Try up to `count` candidates; fewer when stopped, none when none are left to propose.

        A configuration that was tried before is not tried again: the source is told what became of
        it, and asked for another. `exhausted` is set when no new one comes.

        Args:
            count: candidates, compiled together and measured one by one.

        Returns:
            What became of those that were tried.
        """
        with self._timed("search"):
            fresh = self._ask(count)
        if not fresh:
            self.exhausted = True
            return []
        return self.try_all(fresh)

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - begin

    def _ask(self, count: int) -> list[Configuration]:
        fresh: dict[Configuration, None] = {}
        for _ in range(_ASKS):
            proposed = self.stages.source.ask(count - len(fresh))
            if not proposed:
                break
            again = [self._tried[c] for c in proposed if c in self._tried]
            fresh.update(dict.fromkeys(c for c in proposed if c not in self._tried))
            if again:
                self.stages.source.tell(again)
            if len(fresh) >= count:
                break
        return list(fresh)[:count]

    def try_all(self, configurations: list[Configuration], origin: str = "") -> list[Trial]:
        """Compile, measure and store the given configurations, and tell the source.

        Args:
            configurations: different ones that were not tried before.
            origin: what the trials say of where they come from.

        Returns:
            What became of them; fewer when stopped.
        """
        with self._timed("compile"):
            compiled = self.stages.compiler.compile(configurations)
        done: list[Trial] = []
        waiting = list(compiled)
        self._prepare(compiled)
        try:
            while waiting and not self.stop():
                trial = self._settle(waiting.pop(0), origin)
                done.append(trial)
                self.observe(trial, self.best_s)
        finally:
            for one in waiting:
                self.discard(one)
        if done:
            with self._timed("search"):
                self.stages.source.tell(done)
        return done

    def _prepare(self, compiled: Sequence[CompiledCandidate]) -> None:
        """Tell the measurer of all that are to be measured, if it wants to know."""
        prepare = getattr(self.stages.measurer, "prepare", None)
        if prepare is not None:
            new = [c for c in compiled if c.status is Status.OK and c.digest not in self._by_binary]
            with self._timed("measure"):
                prepare(new, self.best_s)

    def _settle(self, compiled: CompiledCandidate, origin: str) -> Trial:
        """Measure one candidate and store the trial."""
        with self._timed("measure"):
            try:
                trial = self._outcome(compiled)
            finally:
                self.discard(compiled)
        if origin:
            trial = replace(trial, origin=origin)
        self.record(trial)
        self._remember(trial)
        return trial

    def _outcome(self, compiled: CompiledCandidate) -> Trial:
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
