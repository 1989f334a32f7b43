"""A search with stages of one's own: which flags of iree-compile make a program fastest?

Candidates are sets of flags; each is compiled and measured as a whole program. The pool of workers,
the budget, the database and resuming are tilewright's: run it again with a larger --trials (or
after a kill -9) and it goes on where it ended.

python examples/custom_stages.py --trials 12 --db flags.db
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.argument import ArgumentType
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.compile_worker import CompileRequest, compile_pool, compile_source
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.inputs import InputSet, random_inputs
from tilewright.measure.pool import Job, Result, WorkerFailure, WorkerPool
from tilewright.search import create_strategy
from tilewright.space import ChoiceKnob, SearchSpace
from tilewright.store import Database, RunRecord, TaskKey
from tilewright.target import parse_target
from tilewright.toolchain import installed_version
from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning.search_loop import SearchLoop
from tilewright.tuning.stages import CompiledCandidate, FastestFirst, Stages
from tilewright.workload import Workload

PROGRAM = Path(__file__).resolve().parent / "matmul.mlir"
FUNCTION = "matmul"
ARGUMENTS = (ArgumentType("f32", (196, 256)), ArgumentType("f32", (256, 1024)))
TARGET = parse_target("cpu")
KNOBS = [
    ChoiceKnob("opt-level", ("O0", "O1", "O2", "O3")),
    ChoiceKnob("opt-data-tiling", ("false", "true")),
    ChoiceKnob("llvmcpu-enable-ukernels", ("none", "all")),
    ChoiceKnob("llvmcpu-slp-vectorization", ("false", "true")),
]
SPACE = SearchSpace("flags", KNOBS, [], Configuration.of({k.name: k.values[0] for k in KNOBS}))


def flags_of(one: Configuration) -> tuple[str, ...]:
    return (*TARGET.flags, *(f"--iree-{name}={value}" for name, value in one.items))


@dataclass
class FlagCompiler:
    """Compiles the program with each candidate's flags, in the pool's warm workers."""

    pool: WorkerPool
    folder: Path

    def compile(self, configurations: Sequence[Configuration]) -> list[CompiledCandidate]:
        return [self._outcome(r) for r in self.pool.run([self._job(c) for c in configurations])]

    def _job(self, one: Configuration) -> Job[CompileRequest, bytes | Path]:
        name = hashlib.sha256(repr(one).encode()).hexdigest()[:16]
        target = self.folder / f"{name}.vmfb"
        request = CompileRequest(PROGRAM, flags_of(one), destination=target)
        return Job(compile_source, request, tag=one)

    def _outcome(self, result: Result[bytes | Path]) -> CompiledCandidate:
        if result.failure is not None:
            return CompiledCandidate.of(result)
        vmfb = result.value
        assert isinstance(vmfb, Path)
        # Programs with equal digests are measured once.
        return CompiledCandidate.of(result, vmfb, hashlib.sha256(vmfb.read_bytes()).hexdigest())


@dataclass
class ProgramMeasurer:
    """Times the whole program on random inputs."""

    benchmark: Benchmark
    inputs: InputSet

    def measure(self, compiled: CompiledCandidate, best_s: float | None) -> Trial:
        vmfb, one = str(compiled.artifact), compiled.configuration
        found = self.benchmark.time(vmfb, self.inputs, best_s=best_s, function=FUNCTION)
        if isinstance(found, WorkerFailure):
            return Trial(one, found.run_status, message=found.message)
        return Trial(one, Status.OK, found.time_s, found.samples, binary=compiled.digest)


class OnePerLevel:
    """Selects the fastest trial of each optimisation level."""

    def select(self, trials: Sequence[Trial], count: int) -> list[Trial]:
        best: dict[object, Trial] = {}
        for trial in FastestFirst().select(trials, len(trials)):
            best.setdefault(trial.configuration["opt-level"], trial)
        return list(best.values())[:count]


def open_run(store: Database) -> tuple[int, int]:
    """The unfinished run of this program, or a new one, and the task that its trials belong to."""
    digest = hashlib.sha256(PROGRAM.read_bytes()).hexdigest()
    compiler = installed_version("iree-base-compiler")
    found = store.find_resumable(digest, TARGET.key, compiler, SPACE.name)
    if found is not None:
        run = store.resume_run(found.id).id
    else:
        run = store.begin_run(
            RunRecord(PROGRAM.name, digest, TARGET.key, compiler, options_digest=SPACE.name)
        )
    program = Workload("other", (), (), (), body=digest)
    return run, store.task_id(TaskKey(program, TARGET.key, compiler, SPACE.name))


def show(trial: Trial, best_s: float | None) -> None:
    outcome = f"{trial.time_s * 1e3:.3f} ms" if trial.time_s else trial.message
    print(outcome, *(value for _, value in trial.configuration.items))


def main(arguments: list[str] | None = None) -> list[Trial]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--db", type=Path, default=Path("flags.db"))
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory() as scratch,
        Database.open(options.db) as store,
        compile_pool(TARGET.cores) as pool,
        Benchmark(DeviceOptions.cpu(TARGET.cores)) as benchmark,
    ):
        run, task = open_run(store)
        known = store.trials(run, task)
        print(f"run {run} has {len(known)} trials already")
        source = create_strategy("random", SPACE, seed=0, known=known)
        inputs = random_inputs(Path(scratch), ARGUMENTS)
        stages = Stages(
            source, FlagCompiler(pool, Path(scratch)), ProgramMeasurer(benchmark, inputs)
        )

        def record(trial: Trial) -> None:
            store.record_trial(run, task, trial)

        loop = SearchLoop(stages, record, observe=show, known=known)
        while not loop.exhausted and (left := options.trials - len(loop.trials)) > 0:
            loop.batch(min(4, left))
    finalists = OnePerLevel().select(loop.trials, 2)
    for trial in finalists:
        print("finalist:", *flags_of(trial.configuration))
    return finalists


if __name__ == "__main__":
    main()
