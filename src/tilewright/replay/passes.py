"""Measuring every program of a recording several times, at moments far apart.

What else runs on a machine slows whatever is measured just then, by a factor that differs between
programs, so that nothing can correct it. But it comes and goes: a program is as fast as in the
second fastest of its passes (the fastest may have been lucky, the clock for a moment higher), and
samples of passes that were disturbed are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tilewright.measure.benchmark import Benchmark
from tilewright.measure.pool import WorkerFailure
from tilewright.measure.timing import TimingPolicy
from tilewright.store import Database
from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning.stages import CompiledCandidate, DispatchCompiler
from tilewright.tuning.task import DispatchTask

_KIND = "replay.pass"
# A pass whose lower quartile is above the program's time by more than this was disturbed.
_DISTURBED = 0.1
_TIMEOUT_S = 60.0


@dataclass
class ProgramCache:
    """The compiled programs of a recording by digest, kept between passes."""

    paths: dict[str, Path] = field(default_factory=dict)

    def keep(self, compiled: CompiledCandidate) -> None:
        """Keep a program that was compiled, if there is none equal to it yet."""
        if compiled.artifact is None:
            return
        if compiled.digest and compiled.digest not in self.paths:
            self.paths[compiled.digest] = compiled.artifact
        elif self.paths.get(compiled.digest) != compiled.artifact:
            compiled.artifact.unlink(missing_ok=True)


@dataclass
class Passes:
    """Further passes over the trials of a recording; what is measured is in the database at once.

    `stop` is asked before each program.
    """

    store: Database
    run_id: int
    task: DispatchTask
    compiler: DispatchCompiler
    benchmark: Benchmark
    programs: ProgramCache
    policy: TimingPolicy
    seed: int
    stop: Callable[[], bool] = lambda: False

    def measure(self, trials: Mapping[Configuration, Trial], number: int) -> bool:
        """Pass `number` over every program that has a time; False when stopped before its end."""
        kind = f"{_KIND}.{number}"
        done = {m.name for m in self.store.measurements(self.run_id, kind)}
        first = {t.binary: t for t in trials.values() if t.ok and t.binary}
        waiting = sorted(digest for digest in first if digest not in done)
        for i in np.random.default_rng([self.seed, number]).permutation(len(waiting)):
            if self.stop():
                return False
            digest = waiting[i]
            path = self._path(digest, first[digest].configuration)
            if path is None:
                continue
            measured = self.benchmark.time(
                str(path),
                self.task.inputs,
                repeats=self.task.repeats,
                policy=self.policy,
                timeout_s=_TIMEOUT_S,
            )
            if not isinstance(measured, WorkerFailure):
                self.store.record_measurement(self.run_id, kind, digest, list(measured.samples))
        return True

    def _path(self, digest: str, configuration: Configuration) -> Path | None:
        """The program; compiled again when it was so in a part of the run that was interrupted."""
        if digest not in self.programs.paths:
            (compiled,) = self.compiler.compile([configuration])
            if compiled.status is not Status.OK or compiled.digest != digest:
                return None
            self.programs.keep(compiled)
        return self.programs.paths[digest]

    def combined(
        self, trials: Mapping[Configuration, Trial], last: int
    ) -> dict[Configuration, Trial]:
        """The trials with the time of their second fastest pass, and the samples of all passes that
        were not disturbed."""
        further: dict[str, list[list[float]]] = {}
        for number in range(2, last + 1):
            for measured in self.store.measurements(self.run_id, f"{_KIND}.{number}"):
                samples = measured.data
                if isinstance(samples, list):
                    further.setdefault(measured.name, []).append(
                        [float(s) for s in samples if isinstance(s, int | float)]
                    )
        return {
            configuration: _combine(trial, further.get(trial.binary, []))
            for configuration, trial in trials.items()
        }


def _combine(trial: Trial, further: Sequence[Sequence[float]]) -> Trial:
    if not trial.ok:
        return trial
    passes = [p for p in (trial.samples, *further) if len(p)]
    quartiles = [float(np.quantile(p, 0.25)) for p in passes]
    time_s = sorted(quartiles)[min(1, len(quartiles) - 1)]
    calm = [p for p, q in zip(passes, quartiles, strict=True) if q <= time_s * (1 + _DISTURBED)]
    return replace(trial, time_s=time_s, samples=tuple(s for p in calm for s in p))
