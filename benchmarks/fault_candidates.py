"""Tuning runs of which a third of the candidates do harm; see `fault_tasks` for what they do.

The runs are real: the session, its workers, the check of results, the database, the result folder.
Only the compile stage is of one's own, and asks the workers for harm every third time. What costs
nothing but time is left out: workers are forked from a process that has done its imports, a program
that a candidate became in one run is taken in the next as it was (one in `_ANEW` is compiled all
the same), and what hangs is waited for no longer than one can tell that it does.
"""

from __future__ import annotations

import collections
import csv
import itertools
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import warm_start
from fault_seeds import product
from fault_tasks import BODIES, COMPILERS, HarmRequest, OnceRequest, compile_once, do_harm
from tilewright.argument import ArgumentType
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.inputs import write_inputs
from tilewright.measure.pool import Job, WorkerFailure
from tilewright.measure.timing import TimingPolicy
from tilewright.store import Database
from tilewright.trial import Configuration, Status
from tilewright.tuning.context import RunContext
from tilewright.tuning.events import ignore
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.session import TuningSession
from tilewright.tuning.session_stages import CompileCandidates, ConfirmFinalists
from tilewright.tuning.stages import (
    CandidateMeasurer,
    CompiledCandidate,
    CompileStage,
    DispatchCompiler,
    MeasureStage,
)
from tilewright.tuning.task import DispatchTask
from tilewright.tuning.variants import DEFAULT_VARIANT

#: Candidates of one run.
RUN = 250
M, N, K = 192, 160, 256
# A candidate that hangs in its compiler is given up after `_HANG_S`, others after `_COMPILE_S`;
# both in processor time, and after five times as long by the clock.
_COMPILE_S, _HANG_S, _RUN_S = 6.0, 0.5, 3.0
# Of so many harmless candidates one is compiled anew.
_ANEW = 20
# Runs have one of so many orders of candidates; what does harm among them differs from run to run.
_ORDERS = 2
# Where in the result harm is done: in one of so many elements.
_PLACES = 4
_QUICK = TimingPolicy(
    warmup_max_s=0.002, warmup_max_calls=2, min_samples=3, max_samples=5, max_s=0.01
)
Line = dict[str, Any]
# Harm that need not show: both processes answer alike, or nothing is touched that counts.
_MAY_PASS = {
    *("forks", "forks and stays", "prints gigabytes", "writes far away", "reads at zero"),
    *("writes before its result", "writes behind its result", "a program with flipped bits"),
}
_HANGS = {
    *("the compiler sleeps, holding the lock", "noise for an answer", "the compiler spins"),
    *("the worker closes its connection", "the compiler prints gigabytes"),
}
# What costs the whole of a limit, or seconds of the disk's time, comes less often.
_SLOW = {
    *_HANGS,
    *("spins for ever", "writes far away", "prints gigabytes", "the compiler fills the disk"),
}


def kinds() -> list[str]:
    """All kinds of harm, those that take a limit's time once and the others four times."""
    every = [*COMPILERS, *(BODIES if shutil.which("cc") else ())]
    return [kind for kind in every for _ in range(1 if kind in _SLOW else 4)]


@dataclass
class HarmfulCompiler:
    """Compiles as the stage inside; every third candidate does harm."""

    inner: DispatchCompiler
    chance: random.Random
    made: Path
    did: dict[Configuration, str] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def compile(self, configurations: Sequence[Configuration]) -> list[CompiledCandidate]:
        """See :meth:`CompileStage.compile`."""
        jobs: list[Job[Any, Any]] = []
        for job in self.inner.jobs(configurations):
            number = next(self._numbers)
            harmful, anew = self.chance.random() < 1 / 3, self.chance.randrange(_ANEW) == 0
            if harmful:
                kind = self.chance.choice(kinds())
                self.did[job.tag] = kind
                place = self.chance.randrange(_PLACES) * (M * N // _PLACES)
                target = self.inner.task.target
                request = HarmRequest(
                    kind, number, job.request, self.made, target, (M, N, K), place
                )
                job = replace(job, task=do_harm, request=request)
                if kind in _HANGS:
                    job = replace(job, timeout_s=_HANG_S, first_s=0.0)
            elif not anew:
                request = OnceRequest(job.request, self.made)
                job = replace(job, task=compile_once, request=request)
            jobs.append(job)
        return self.inner.compiled(self.inner.pool.run(jobs))


@dataclass
class HarmfulCompile:
    """The compile stage of a session."""

    seed: int
    made: Path
    compilers: list[HarmfulCompiler] = field(default_factory=list)

    def compiler(self, context: RunContext, task: DispatchTask) -> CompileStage:
        """See :meth:`Compiling.compiler`."""
        inner = CompileCandidates(timeout_s=_COMPILE_S).compiler(context, task)
        assert isinstance(inner, DispatchCompiler)
        self.compilers.append(HarmfulCompiler(inner, random.Random(self.seed), self.made))
        return self.compilers[-1]


class QuickMeasure:
    """Measures as the built-in stage, with few samples and a short limit."""

    def measurer(self, context: RunContext, task: DispatchTask) -> MeasureStage:
        """See :meth:`Measuring.measurer`."""
        # Programs that do harm have no function that runs them many times over.
        tester = replace(task.tester(context.benchmark, _RUN_S), repeats=1)
        return CandidateMeasurer(tester, _QUICK, None, task.name)


def run(folder: Path, seed: int, count: int = RUN, made: Path | None = None) -> Iterator[Line]:
    """One tuning run, and a line for each of its candidates.

    Args:
        folder: for its files; made anew.
        seed: of the candidates and of what they do.
        count: candidates.
        made: a folder for what candidates become, which later runs take; by default the run's own.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "program.mlir").write_text(product(M, N, K))
    options = TuneOptions(
        effort="quick",
        max_trials=count,
        strategy="random",
        kernels="off",
        variants=(DEFAULT_VARIANT,),
        db=folder / "trials.db",
        output=folder / "tuned",
        seed=seed % _ORDERS,
    )
    made = made or folder / "made"
    made.mkdir(parents=True, exist_ok=True)
    harmful = HarmfulCompile(seed, made)
    stages = (harmful, QuickMeasure(), ConfirmFinalists())
    ended = ""
    try:
        with warm_start.warm_workers():
            TuningSession(folder / "program.mlir", options, ignore, stages).run()
    except Exception as error:
        ended = f"the run ended: {type(error).__name__}: {error}"
    did = {c: kind for one in harmful.compilers for c, kind in one.did.items()}
    of_run = [ended] if ended else [*_shipped_wrong(folder), *_lost(folder, count)]
    with Database.open(folder / "trials.db") as store:
        stored_trials = store.trials(1)
    for number in range(count):
        trial = stored_trials[number] if number < len(stored_trials) else None
        kind = did.get(trial.configuration, "does no harm") if trial is not None else "lost"
        line: dict[str, Any] = {
            "group": kind,
            "status": trial.status.value if trial is not None else "lost",
            "message": trial.message[:200] if trial is not None else "",
            "faults": [] if trial is not None or ended else ["lost"],
        }
        if trial is not None and kind in did.values() and kind not in _MAY_PASS and trial.ok:
            line["faults"].append("passed for right")
        if number == 0:
            line["faults"] += of_run
        yield line


def _shipped_wrong(folder: Path) -> list[str]:
    """Whether the program that was handed back computes something else."""
    rng = np.random.default_rng(7)
    kinds_ = [ArgumentType("f32", (M, K)), ArgumentType("f32", (K, N))]
    with Benchmark(DeviceOptions("local-sync")) as benchmark:
        for case in range(2):
            values = [rng.standard_normal(k.shape, np.float32) for k in kinds_]
            inputs = write_inputs(folder / f"inputs-{case}", kinds_, values)
            vmfb = str(folder / "tuned" / "program.vmfb")
            found = benchmark.run(vmfb, inputs, folder / "outputs.npz")
            if isinstance(found, WorkerFailure):
                return [f"what was handed back does not run: {found.message}"]
            if not np.allclose(found[0], values[0] @ values[1], atol=1e-3):
                return ["what was handed back is wrong"]
    return []


def _lost(folder: Path, count: int) -> list[str]:
    """Whether trials.csv has each candidate once, as the database has."""
    with (folder / "tuned" / "trials.csv").open() as file:
        rows = [row["knobs"] for row in csv.DictReader(file)]
    with Database.open(folder / "trials.db") as store:
        kept = store.trials(1)
    found = []
    if len(kept) != count or len(rows) != count:
        found.append(f"{len(kept)} trials are stored and {len(rows)} listed, of {count}")
    for what, of in (("stored", [t.configuration for t in kept]), ("listed", rows)):
        double = sum(n > 1 for n in collections.Counter(of).values())
        if double:
            found.append(f"{double} are {what} twice")
    if not any(trial.status is Status.OK for trial in kept):
        found.append("no candidate was right")
    return found
