"""The search of a schedule template: which of its choices run fastest.

The stages are those of any other search: a strategy proposes, a pool of workers compiles, a worker
of its own runs and checks, the database keeps every trial. What a template makes is compared with
the unscheduled expression, which computes the numbers that every candidate has to match.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright import scratch
from tilewright.errors import UserError
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.comparison import Finalist
from tilewright.measure.compile_worker import compile_pool, compile_source
from tilewright.measure.inputs import InputSet, random_inputs, write_outputs
from tilewright.measure.pool import Job, Result, WorkerFailure, WorkerPool
from tilewright.schedule import build
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.lower import Lowered, lower
from tilewright.schedule.schedule import create_schedule
from tilewright.schedule.template import Template
from tilewright.search import DEFAULT_STRATEGY, create_strategy
from tilewright.space.search_space import SearchSpace
from tilewright.store import Database, RunRecord, RunStatus, TaskKey, TaskResult
from tilewright.target import Target
from tilewright.targets import parse_target
from tilewright.toolchain import installed_version
from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning.search_loop import SearchLoop
from tilewright.tuning.stages import CompiledCandidate, FastestFirst, Stages
from tilewright.workload import Workload

_BATCH = 8
_FINALISTS = 3
_COMPILE_S = 60.0


@dataclass(frozen=True)
class TemplateResult:
    """The outcome of :func:`tune_template`.

    configuration: the fastest that was found; the template's default where nothing beat it by more
        than the noise.
    default_s, best_s: medians of the interleaved comparison, in seconds.
    speedup: the default's time over the best's, with its interval.
    trials: everything that was tried.
    """

    template: Template
    arguments: tuple[Any, ...]
    target: Target
    configuration: Configuration
    default_s: float
    best_s: float
    speedup: float
    speedup_low: float
    speedup_high: float
    trials: tuple[Trial, ...] = field(repr=False, default=())

    def build(self) -> build.Function:
        """The compiled function of the best configuration."""
        schedule, tensors = self.template.schedule(*self.arguments, config=self.configuration)
        return build.build(schedule, tensors, self.target)

    def __str__(self) -> str:
        chosen = ", ".join(f"{k}={v}" for k, v in self.configuration.items)
        return (
            f"{self.template.name}: {self.best_s * 1e3:.4g} ms, {self.speedup:.2f} times the "
            f"default's speed ({self.speedup_low:.2f} to {self.speedup_high:.2f}), "
            f"{len(self.trials)} trials: {chosen}"
        )


def tune_template(
    template: Template,
    *args: Any,
    target: str | Target = "cpu",
    trials: int = 64,
    strategy: str = DEFAULT_STRATEGY,
    options: Mapping[str, object] | None = None,
    seed: int = 0,
    database: str | Path | None = None,
    reference: Callable[..., Any] | None = None,
    threads: int | None = None,
    observe: Callable[[Trial, float | None], None] = lambda trial, best: None,
) -> TemplateResult:
    """Searches the choices of a template: compiles, checks and measures candidates.

    args: what the template's function takes after `cfg`.
    trials: how many candidates are tried, those of an earlier, unfinished run in the database
        included.
    strategy, options, seed: as for `tilewright tune`.
    database: file that every trial is stored in; without one nothing is kept.
    reference: gives the expected outputs of the inputs, as NumPy arrays; without one the
        expression, unscheduled, does.
    threads: of the CPU. observe: told every trial, with the best time so far.

    Every candidate's outputs are compared with the reference before it is timed; the fastest are
    compared with the template's default in interleaved rounds.
    """
    chosen = parse_target(target, threads) if isinstance(target, str) else target
    space = template.space(*args)
    with ExitStack() as stack:
        folder = stack.enter_context(scratch.folder())
        pool = stack.enter_context(compile_pool(chosen.cores, timeout_s=_COMPILE_S))
        bench = stack.enter_context(Benchmark(build.device_options(chosen)))
        store = stack.enter_context(Database.open(database or folder / "trials.db"))
        session = _Session(template, args, chosen, folder, pool, bench)
        session.set_up(seed, reference)
        run, task = _open_run(store, session, space, seed, trials)
        known = store.trials(run, task)
        source = create_strategy(strategy, space, seed, options or {}, known)
        loop = SearchLoop(
            Stages(source, session, session),
            lambda trial: _record(store, run, task, trial),
            observe,
            known=known,
        )
        if space.default not in {t.configuration for t in known}:
            loop.try_all([space.default], origin="default")
        while not loop.exhausted and (left := trials - len(loop.trials)) > 0:
            loop.batch(min(_BATCH, left))
        result = session.confirmed(space.default, loop.trials)
        store.record_result(
            task,
            TaskResult(
                result.configuration if result.configuration != space.default else None,
                result.default_s,
                result.best_s,
                result.speedup_low,
                result.speedup_high,
                "compared with the reference on random inputs",
                len(result.trials),
            ),
            run,
        )
        store.finish_run(run, RunStatus.FINISHED)
    return result


def _record(store: Database, run: int, task: int, trial: Trial) -> None:
    store.record_trial(run, task, trial)


def _open_run(
    store: Database, session: _Session, space: SearchSpace, seed: int, trials: int
) -> tuple[int, int]:
    """The unfinished run of this template, sizes and target, or a new one, and its task."""
    compiler = installed_version("iree-base-compiler")
    knobs = repr([(k.name, k.allowed()) for k in space.knobs])
    digest = hashlib.sha256(f"{session.plain.text}\n{knobs}".encode()).hexdigest()
    target = session.target.key
    found = store.find_resumable(digest, target, compiler, space.name)
    if found is not None:
        run = store.resume_run(found.id).id
    else:
        record = RunRecord(
            session.template.name,
            digest,
            target,
            compiler,
            {"arguments": repr(session.args), "trials": trials},
            options_digest=space.name,
            seed=seed,
        )
        run = store.begin_run(record)
    workload = Workload("schedule", (), (), (), body=digest, root=space.name)
    return run, store.task_id(TaskKey(workload, target, compiler, space.name))


@dataclass
class _Session:
    """Compiles and measures configurations of a template."""

    template: Template
    args: tuple[Any, ...]
    target: Target
    folder: Path
    pool: WorkerPool
    bench: Benchmark
    plain: Lowered = field(init=False)
    inputs: InputSet = field(init=False)

    @property
    def expected(self) -> Path:
        return self.folder / "expected.npz"

    def set_up(self, seed: int, reference: Callable[..., Any] | None) -> None:
        """Makes the inputs and what every candidate has to compute of them."""
        schedule, tensors = self.template.schedule(*self.args)
        self.plain = lower(create_schedule(list(schedule.outputs)), tensors)
        program = self.plain.program
        types = [build.argument_type(b) for b in program.inputs]
        self.inputs = random_inputs(self.folder, types, seed=seed)
        if reference is not None:
            from tilewright.measure.inputs import random_array

            made = reference(*(random_array(t, seed, i) for i, t in enumerate(types)))
            outputs = made if isinstance(made, tuple | list) else (made,)
            wanted = zip(outputs, program.outputs, strict=True)
            write_outputs(
                self.expected,
                [o.astype(build.argument_type(b).dtype).reshape(b.shape) for o, b in wanted],
            )
            return
        (compiled,) = self._compiled([(None, self.plain)])
        if compiled.status is not Status.OK:
            raise UserError(
                f"template '{self.template.name}': the unscheduled expression does not compile: "
                f"{compiled.message}"
            )
        found = self.bench.run(str(compiled.artifact), self.inputs, self.expected)
        if isinstance(found, WorkerFailure):
            raise UserError(
                f"template '{self.template.name}': the unscheduled expression does not run: "
                f"{found.message}; give a reference"
            )

    # -- stages ------------------------------------------------------------------------------------

    def compile(self, configurations: Sequence[Configuration]) -> list[CompiledCandidate]:
        """A program for each configuration; a schedule that cannot be carried out is `invalid`."""
        done: dict[Configuration, CompiledCandidate] = {}
        ready: list[tuple[Configuration | None, Lowered]] = []
        for one in configurations:
            try:
                schedule, tensors = self.template.schedule(*self.args, config=one)
                ready.append((one, lower(schedule, tensors)))
            except ScheduleError as error:
                done[one] = CompiledCandidate(one, Status.INVALID, message=str(error))
        done.update((c.configuration, c) for c in self._compiled(ready))
        return [done[one] for one in configurations]

    def _compiled(
        self, ready: Sequence[tuple[Configuration | None, Lowered]]
    ) -> list[CompiledCandidate]:
        jobs, failed = [], []
        for one, lowered in ready:
            configuration = one or Configuration.of({})
            name = hashlib.sha256(repr(one).encode()).hexdigest()[:16]
            try:
                request = build.compile_request(
                    lowered, self.target, destination=self.folder / f"{name}.vmfb"
                )
            except UserError as error:
                failed.append(CompiledCandidate(configuration, Status.INVALID, message=str(error)))
                continue
            jobs.append(Job(compile_source, request, tag=configuration))
        return [*failed, *(self._outcome(r) for r in self.pool.run(jobs))]

    @staticmethod
    def _outcome(result: Result[bytes | Path]) -> CompiledCandidate:
        if result.failure is not None:
            return CompiledCandidate(
                result.job.tag,
                result.failure.compile_status,
                message=result.failure.message,
                seconds=result.seconds,
            )
        vmfb = result.value
        assert isinstance(vmfb, Path)
        digest = hashlib.sha256(vmfb.read_bytes()).hexdigest()
        return CompiledCandidate(result.job.tag, Status.OK, vmfb, digest, seconds=result.seconds)

    def measure(self, compiled: CompiledCandidate, best_s: float | None) -> Trial:
        """Checks a candidate's outputs, then times it."""
        one, vmfb = compiled.configuration, str(compiled.artifact)
        program = self.plain.program
        verdicts = self.bench.verify(
            vmfb,
            self.inputs,
            self.expected,
            reduction_length=build.reduction_terms(self.plain),
            element_types=tuple(build.precision(b, program.inputs) for b in program.outputs),
        )
        if isinstance(verdicts, WorkerFailure):
            return Trial(one, Status.RUN_ERROR, message=verdicts.message, binary=compiled.digest)
        wrong = [v for v in verdicts if not v.ok]
        if wrong:
            return Trial(
                one, Status.WRONG_RESULT, message=str(wrong[0].reason), binary=compiled.digest
            )
        found = self.bench.time(vmfb, self.inputs, best_s=best_s)
        if isinstance(found, WorkerFailure):
            return Trial(one, Status.RUN_ERROR, message=found.message, binary=compiled.digest)
        return Trial(one, Status.OK, found.time_s, found.samples, binary=compiled.digest)

    # -- the end -----------------------------------------------------------------------------------

    def confirmed(self, default: Configuration, trials: Sequence[Trial]) -> TemplateResult:
        """The fastest candidates against the template's default, in interleaved rounds."""
        best = FastestFirst().select([t for t in trials if t.ok], _FINALISTS)
        if not best:
            reasons = {t.message for t in trials if t.message}
            raise UserError(
                f"template '{self.template.name}': none of {len(trials)} candidates ran "
                f"({next(iter(reasons), 'no trial')})"
            )
        order = list(dict.fromkeys([default, *(t.configuration for t in best)]))
        compiled = [c for c in self.compile(order) if c.status is Status.OK]
        if compiled[0].configuration != default:
            # The template's first choices do not run here: the fastest is held against itself.
            compiled.insert(0, compiled[0])
        judged = self.bench.compare_interleaved([str(c.artifact) for c in compiled], self.inputs)
        if isinstance(judged, WorkerFailure):
            raise UserError(
                f"template '{self.template.name}': the finalists do not run: {judged.message}"
            )
        winner = min(range(len(judged)), key=lambda i: self._rank(judged[i], i))
        one = judged[winner]
        return TemplateResult(
            self.template,
            self.args,
            self.target,
            compiled[winner].configuration,
            judged[0].measurement.median_s,
            one.measurement.median_s,
            one.speedup.value,
            one.speedup.low,
            one.speedup.high,
            tuple(trials),
        )

    @staticmethod
    def _rank(one: Finalist, position: int) -> float:
        """Its time over the default's; those that do not beat it for certain stay behind it."""
        if position == 0:
            return 1.0
        return one.ratio.value if one.ratio.high < 1 else 1.0 + one.ratio.value
