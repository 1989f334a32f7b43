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
from tilewright.database_address import ServerAddress
from tilewright.errors import UserError
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.comparison import Finalist
from tilewright.measure.compile_worker import SETTING_UP_S, compile_pool
from tilewright.measure.inputs import InputSet, load_arguments, write_outputs
from tilewright.measure.jobs import Job, JobRunner, WorkerFailure
from tilewright.measure.timing import TimingPolicy
from tilewright.schedule import build
from tilewright.schedule.build_tasks import (
    RandomInputsRequest,
    ScheduleFileRequest,
    compile_schedule_file,
    make_random_inputs,
    schedule_request,
)
from tilewright.schedule.counting import reduction_terms
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.lower import Lowered, lower
from tilewright.schedule.schedule import create_schedule
from tilewright.schedule.template import Template
from tilewright.search import DEFAULT_STRATEGY, create_strategy
from tilewright.space.search_space import SearchSpace
from tilewright.store import Database, RunRecord, RunStatus, TaskKey, TaskResult
from tilewright.store.steady import open_database
from tilewright.target import Target, parse_target
from tilewright.toolchain import installed_version
from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning.candidate_trial import CandidateTester, Reference
from tilewright.tuning.search_loop import SearchLoop
from tilewright.tuning.stages import (
    CandidateMeasurer,
    CompiledCandidate,
    FastestFirst,
    Stages,
    discard,
)
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
    database: str | Path | ServerAddress | None = None,
    reference: Callable[..., Any] | None = None,
    threads: int | None = None,
    observe: Callable[[Trial, float | None], None] = lambda trial, best: None,
) -> TemplateResult:
    """Searches the choices of a template: compiles, measures and checks candidates.

    Every candidate has its outputs compared with the reference; the fastest are compared with the
    template's default in interleaved rounds.

    Args:
        template: the template.
        args: what the template's function takes after `cfg`.
        target: as for `te.build`.
        trials: how many candidates are tried, those of an earlier, unfinished run in the database
            included.
        strategy: its name, as for `tilewright tune`.
        options: the strategy's.
        seed: of the data and of the search.
        database: that every trial is stored in, a file or a server's URL; without one nothing is
            kept.
        reference: gives the expected outputs of the inputs, as NumPy arrays; without one the
            expression, unscheduled, does.
        threads: of the CPU.
        observe: told every trial, with the best time so far.

    Returns:
        The fastest configuration, with the comparison and all trials.

    Raises:
        UserError: no candidate runs, or there is nothing to compare them with.
        ScheduleError: the template leaves nothing to choose.
    """
    chosen = parse_target(target, threads) if isinstance(target, str) else target
    space = template.space(*args)
    with ExitStack() as stack:
        folder = stack.enter_context(scratch.folder())
        pool = stack.enter_context(compile_pool(chosen.cores, timeout_s=_COMPILE_S))
        bench = stack.enter_context(Benchmark(build.device_options(chosen)))
        store = stack.enter_context(open_database(database or folder / "trials.db"))
        stage = _TemplateStage(template, args, chosen, folder, pool, bench)
        tester = stage.tester(seed, reference)
        run, task = _open_run(store, stage, space, seed, trials)
        known = store.trials(run, task)
        source = create_strategy(strategy, space, seed, options or {}, known, trials=trials)
        loop = SearchLoop(
            Stages(source, stage, CandidateMeasurer(tester, TimingPolicy())),
            lambda trial: store.record_trial(run, task, trial),
            observe,
            discard=discard,
            known=known,
        )
        if space.default not in {t.configuration for t in known}:
            loop.try_all([space.default], origin="default")
        while not loop.exhausted and (left := trials - len(loop.trials)) > 0:
            loop.batch(min(_BATCH, left))
        result = stage.confirmed(space.default, tester.reference.inputs, loop.trials)
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


def _open_run(
    store: Database, stage: _TemplateStage, space: SearchSpace, seed: int, trials: int
) -> tuple[int, int]:
    """The unfinished run of this template, sizes and target, or a new one, and its task."""
    compiler = installed_version("iree-base-compiler")
    knobs = repr([(k.name, k.allowed()) for k in space.knobs])
    digest = hashlib.sha256(f"{stage.plain.text}\n{knobs}".encode()).hexdigest()
    target = stage.target.key
    found = store.find_resumable(digest, target, compiler, space.name)
    if found is not None:
        run = store.resume_run(found.id).id
    else:
        record = RunRecord(
            stage.template.name,
            digest,
            target,
            compiler,
            {"arguments": repr(stage.args), "trials": trials},
            options_digest=space.name,
            seed=seed,
        )
        run = store.begin_run(record)
    workload = Workload("schedule", (), (), (), body=digest, root=space.name)
    return run, store.task_id(TaskKey(workload, target, compiler, space.name))


@dataclass
class _TemplateStage:
    """Compiles configurations of a template, and compares the best of them."""

    template: Template
    args: tuple[Any, ...]
    target: Target
    folder: Path
    pool: JobRunner
    bench: Benchmark
    plain: Lowered = field(init=False)

    def __post_init__(self) -> None:
        schedule, tensors = self.template.schedule(*self.args)
        self.plain = lower(create_schedule(list(schedule.outputs)), tensors)

    def tester(self, seed: int, reference: Callable[..., Any] | None) -> CandidateTester:
        """What runs candidates: makes the inputs, and what each has to compute of them."""
        program = self.plain.program
        types = tuple(build.argument_type(b) for b in program.inputs)
        made = self.pool.ask(make_random_inputs, RandomInputsRequest(types, seed, self.folder))
        if isinstance(made, WorkerFailure):
            raise self._error(f"there are no inputs: {made.message}")
        expected = self.folder / "expected.npz"
        if reference is None:
            (compiled,) = self._compiled([(Configuration.of({}), self.plain)])
            if compiled.status is not Status.OK:
                raise self._error(
                    f"the unscheduled expression does not compile: {compiled.message}"
                )
            found = self.bench.run(str(compiled.artifact), made, expected)
            if isinstance(found, WorkerFailure):
                raise self._error(
                    f"the unscheduled expression does not run: {found.message}; give a reference"
                )
        else:
            # A function of the user's cannot travel to a worker.
            outputs = reference(*load_arguments(made))
            outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
            wanted = zip(outputs, program.outputs, strict=True)
            write_outputs(
                expected,
                [o.astype(build.argument_type(b).dtype).reshape(b.shape) for o, b in wanted],
            )
        wanted_types = tuple(build.precision(b, program.inputs) for b in program.outputs)
        terms = reduction_terms(self.plain)
        return CandidateTester(self.bench, Reference(made, expected, wanted_types, terms))

    def _error(self, problem: str) -> UserError:
        return UserError(f"template '{self.template.name}': {problem}")

    def compile(self, configurations: Sequence[Configuration]) -> list[CompiledCandidate]:
        """A program for each configuration; a schedule that cannot be carried out is `invalid`."""
        done: dict[Configuration, CompiledCandidate] = {}
        ready: list[tuple[Configuration, Lowered]] = []
        for one in configurations:
            try:
                schedule, tensors = self.template.schedule(*self.args, config=one)
                ready.append((one, lower(schedule, tensors)))
            except ScheduleError as error:
                done[one] = CompiledCandidate(one, Status.INVALID, message=str(error))
        done.update((c.configuration, c) for c in self._compiled(ready))
        return [done[one] for one in configurations]

    def _compiled(self, ready: Sequence[tuple[Configuration, Lowered]]) -> list[CompiledCandidate]:
        jobs, failed = [], []
        for one, lowered in ready:
            name = hashlib.sha256(repr(one).encode()).hexdigest()[:16]
            try:
                schedule = schedule_request(lowered.program, self.target)
            except UserError as error:
                failed.append(CompiledCandidate(one, Status.INVALID, message=str(error)))
                continue
            request = ScheduleFileRequest(schedule, self.folder / f"{name}.vmfb")
            jobs.append(
                Job(
                    compile_schedule_file,
                    request,
                    tag=one,
                    processor_time=True,
                    first_s=SETTING_UP_S,
                )
            )
        return [
            *failed,
            *(
                CompiledCandidate.of(r, r.job.request.vmfb, "" if r.failure else r.value)
                for r in self.pool.run(jobs)
            ),
        ]

    def confirmed(
        self, default: Configuration, inputs: InputSet, trials: Sequence[Trial]
    ) -> TemplateResult:
        """The fastest candidates against the template's default, in interleaved rounds.

        Where the default does not run here, or is wrong, the others are compared with the fastest.
        """
        best = FastestFirst().select([t for t in trials if t.ok], _FINALISTS)
        if not best:
            reasons = {t.message for t in trials if t.message}
            raise self._error(
                f"none of {len(trials)} candidates ran ({next(iter(reasons), 'no trial')})"
            )
        order = [t.configuration for t in best]
        if any(t.ok for t in trials if t.configuration == default):
            order = list(dict.fromkeys([default, *order]))
        compiled = self.compile(order)
        good = [c for c in compiled if c.status is Status.OK]
        if not good:
            raise self._error(f"the finalists do not compile again: {compiled[0].message}")
        judged = self.bench.compare_interleaved([str(c.artifact) for c in good], inputs)
        if isinstance(judged, WorkerFailure):
            raise self._error(f"the finalists do not run: {judged.message}")
        winner = min(range(len(judged)), key=lambda i: self._rank(judged[i], i))
        one = judged[winner]
        return TemplateResult(
            self.template,
            self.args,
            self.target,
            good[winner].configuration,
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
