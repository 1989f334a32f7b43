"""A tuning run from a program to a result folder."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tilewright import scratch
from tilewright.cluster.handing_out import ClusterPool
from tilewright.errors import UncompilableError, UserError
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.inputs import argument_sizes
from tilewright.measure.measurement_key import MeasurementKey, measurement_key
from tilewright.measure.peak import machine_peak
from tilewright.measure.remote import RemoteBenchmark, Stopped
from tilewright.store import RunStatus, TaskKey
from tilewright.store.steady import open_database
from tilewright.target import parse_target
from tilewright.toolchain import check_versions
from tilewright.trial import Configuration
from tilewright.tuning import outputs
from tilewright.tuning.builds import Build, compiling
from tilewright.tuning.choices import best_known, settle
from tilewright.tuning.company import (
    Company,
    Contender,
    Outcome,
    is_late,
    take_best,
    try_in_company,
)
from tilewright.tuning.compile_only import CompileOnlyResult, compile_only
from tilewright.tuning.confirm import Confirmed, record_choices
from tilewright.tuning.context import Interrupted, RunContext
from tilewright.tuning.defaults import MEASURING, leave_all, measure_defaults
from tilewright.tuning.dry_run import DryRunResult, dry_run
from tilewright.tuning.estimates import FIRST_FINDING, READING, RUNNING
from tilewright.tuning.event_log import recorded
from tilewright.tuning.events import Listener, Note, ProgramMeasured, RunEnded, ignore
from tilewright.tuning.extract_tasks import Extraction
from tilewright.tuning.extraction import extract, use_given_arguments
from tilewright.tuning.goals import GoalWatch, check_goals
from tilewright.tuning.how_to_run import leave_workers_out
from tilewright.tuning.model_check import check_model
from tilewright.tuning.opening import (
    OpenProgram,
    devices_of,
    open_benchmark,
    open_program,
    opened_cluster,
)
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.prepare import read_tasks, take_apart
from tilewright.tuning.prepared_variant import PreparedVariant, nothing_to_tune
from tilewright.tuning.programs import Programs, open_programs, quick_timing
from tilewright.tuning.result import TuneResult
from tilewright.tuning.search_phase import search
from tilewright.tuning.session_stages import (
    ALL_STAGES,
    SessionStage,
    SessionStages,
)
from tilewright.tuning.starts import make_starts, plan_starts
from tilewright.tuning.suggestions import settled, suggestions
from tilewright.tuning.task import DispatchTask
from tilewright.tuning.variant_phase import choose_variants
from tilewright.tuning.variants import DEFAULT_VARIANT

# Trials whose times differ by less are equally good as far as the search can tell.
_CLOSE = 1.1
# Tasks of a program that are all confirmed, whatever is known of them.
_FEW = 8
# The phases of a run that come before the first candidate.
_BEFORE_SEARCH = ("compile", "measure", "starts", "variants", "dispatches")


class TuningSession:
    """One run of `tilewright tune`; see :func:`tilewright.tune` for what it takes.

    It is made of `stages`, any of them, each of which can be replaced: with all that there are it
    searches, confirms what it found and hands back the fastest program. Without a confirm stage
    the fastest trials are tried in the whole program as they were measured. Without a compile stage
    what earlier runs found is confirmed, or, with a measure stage alone, the program's own
    dispatches are measured. With a compile stage alone candidates are compiled and none is run.
    """

    def __init__(
        self,
        program: Path,
        options: TuneOptions,
        listener: Listener = ignore,
        stages: Sequence[SessionStage] = ALL_STAGES,
        began: float | None = None,
    ) -> None:
        """A session that has not begun.

        Args:
            program: MLIR or an ONNX model.
            options: as `tilewright tune` takes them; `compile_only` leaves the compile stage alone.
            listener: told what happens.
            stages: what is done with candidates, each at most once.
            began: from when on the time limit counts, by `time.monotonic`; by default `run`.

        Raises:
            UserError: what the user can mend.
        """
        check_versions()
        self._began = began
        self.stages = SessionStages.of(stages)
        if options.compile_only:
            self.stages = SessionStages(compiling=self.stages.compiling)
        elif not self.stages.runs:
            options = replace(options, compile_only=True)
        options.check_strategy()
        if options.cluster is not None and options.runner is not None:
            raise UserError("--cluster and --runner: both say where to measure; give one")
        self.source = program
        self.options = options
        self.listener = listener
        self.target = parse_target(options.target, options.threads)
        check_goals(options.stop_at, self.target)
        if not options.dry_run:
            outputs.check_writable(options.output)
        self._context: RunContext | None = None
        self._stop_requested = False

    def request_stop(self) -> None:
        """End the search at the next candidate; the run goes on to confirm and write out."""
        self._stop_requested = True
        if self._context is not None:
            self._context.request_stop()

    def abort(self) -> None:
        """Kill the native compiles that are running; the run then ends by what they leave it."""
        if self._context is not None:
            self._context.toolchain.stop()

    def run(self) -> TuneResult | CompileOnlyResult:
        """Do everything, and leave nothing behind where that fails.

        Returns:
            What was found, which is in the result folder too; of a session that runs nothing, what
            became of its candidates.

        Raises:
            UserError: what the user can mend.
            Interrupted: it was asked to stop before anything was found.
        """
        cpu_start = time.process_time()
        with self._opened() as context:
            if self.stages.runs:
                return self._run(context, cpu_start)
            return self._compile_only(context)

    def dry_run(self) -> DryRunResult:
        """See what a run would try; needs no device, and writes nothing.

        Returns:
            Dispatches, spaces, the first candidates, and how long it would take.

        Raises:
            UserError: what the user can mend.
        """
        with self._opened() as context:
            return dry_run(context, self._read(context), self.source)

    def keys(self) -> tuple[list[tuple[str, TaskKey]], MeasurementKey]:
        """What would identify the results of a run here; needs no device but for its name.

        Returns:
            The key of each dispatch and each site of kernels by its name, and what it would be
            measured on.

        Raises:
            UserError: what the user can mend.
        """
        with self._opened() as context:
            tasks = self._read(context).tasks
            now = measurement_key(context.target, self.options.device or "")
            return [(task.name, task.key) for task in tasks], now

    def _compile_only(self, context: RunContext) -> CompileOnlyResult:
        """Compile candidates of every dispatch and run none; needs no device."""
        compiling = self.stages.compiling
        assert compiling is not None
        result = compile_only(context, compiling, self._read(context), self.source)
        context.emit(RunEnded("finished"))
        return result

    def _read(self, context: RunContext) -> PreparedVariant:
        """The tasks of the default variant, of which nothing is measured."""
        with context.phase("compile", "the program to its dispatches"):
            use_given_arguments(context)
            extraction = extract(context, sites=True)
        with context.phase("dispatches", "reading the dispatches"):
            return read_tasks(context, extraction)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[RunContext]:
        """The program with workers, database and device; all are closed again."""
        idle = self.options.compile_only or self.options.dry_run
        begin = time.monotonic() if self._began is None else self._began
        with (
            recorded(self.source, self.options.target, self.options, self.listener) as listener,
            scratch.folder() as own,
            # Nothing is stored where nothing is measured.
            open_database(
                own / "unused.db" if idle else self.options.db,
                lambda text: listener(Note(text, True)),
            ) as store,
            open_program(self.source, self.target, self.options, listener=listener) as opened,
            self._benchmark(opened, lambda text: listener(Note(text))) as benchmark,
        ):
            # Importing a large model is part of the run; waiting in a cluster's queue is not.
            started = time.monotonic() if self.options.cluster else begin
            context = RunContext(**vars(opened), benchmark=benchmark, store=store, started=started)
            self._context = context
            for waiting in (benchmark, opened.compilers):
                if isinstance(waiting, RemoteBenchmark | ClusterPool):
                    waiting.stop = lambda: context.stopping
            if self._stop_requested:
                context.request_stop()
            try:
                yield context
            except Stopped:
                raise Interrupted("stopped while waiting for results of another machine") from None
            finally:
                if context.benchmark is not benchmark:
                    # Another than it began with: the program runs better so.
                    context.benchmark.close()

    @contextlib.contextmanager
    def _benchmark(
        self, opened: OpenProgram, announce: Callable[[str], None]
    ) -> Iterator[Benchmark]:
        """What measures; with a cluster it also compiles for the opened program."""
        options = self.options
        several = len(devices_of(options.device)) > 1
        if (options.cluster or several) and not options.dry_run:
            with opened_cluster(opened, announce) as benchmark:
                yield benchmark
        else:
            opening = open_benchmark(opened.target, options, announce)
            with contextlib.closing(opening) as benchmark:
                yield benchmark

    def _run(self, context: RunContext, cpu_start: float) -> TuneResult:
        program = context.program
        if program.stripped:
            context.note(
                f"{self.source}: {program.stripped} configurations in the input were removed; "
                "they would hide the dispatches that they are on"
            )
        if self.options.no_verify:
            context.note(outputs.UNVERIFIED, warning=True)
        what = "the program as the compiler makes it"
        with compiling(context, Build("default", DEFAULT_VARIANT)) as compiled:
            with context.phase("compile", what):
                begin = time.monotonic()
                extraction = extract(context, sites=True)
                context.deadlines.took(FIRST_FINDING, time.monotonic() - begin)
                programs = open_programs(
                    context, extraction.signatures, extraction.limits, extraction.rounds
                )
                if any(-1 in (kind.shape or ()) for kind in programs.signature.inputs):
                    context.arguments = argument_sizes(programs.inputs)
                    extraction = extract(context, sites=True)
            # The compiler seldom has work for all cores.
            first = self._first_tasks(context, extraction)
            plan = plan_starts(context, first) if self.stages.searches else None
            with context.phase("compile", what):
                default = compiled()
            programs.seconds_each = default.seconds
            if not default.ok:
                raise UncompilableError(f"{self.source}: {default.error}")
        if not any(d.count for d in extraction.dispatches):
            # No variant makes dispatches where there is nothing to compute.
            raise nothing_to_tune(self.source, [], self.options.only)
        with context.phase("measure", "the program by default"):
            default_s = self._measure_default(programs, default)
            model = check_model(programs)
            count, read_for = sum(d.count for d in extraction.dispatches), context.target
            # Of what is left out nothing is known.
            guessed_s = math.inf if first.skipped else first.guessed_s
            default_s = leave_workers_out(programs, default, default_s, count, guessed_s)
            context.emit(ProgramMeasured("default", default_s, True))
        context.begin(context.options.digest(), "run of this program with these options")
        with context.ending():
            if context.target != read_for:
                first, plan = self._first_tasks(context, extraction), None
            context.suggested = suggestions(context, first)
            context.settled = settled(context)
            outcome = Outcome(default, default_s, model)
            if self.stages.searches:
                starts = make_starts(programs, self.stages, outcome, first, plan)
                chosen = choose_variants(programs, outcome, first, starts)
            else:
                chosen = [Contender(Company(first, default), default_s)]
            self._tune(context, programs, outcome, first, chosen)
            result = outputs.finish(programs, outcome, cpu_start)
            measured = result.program
            context.emit(RunEnded("finished", "", measured.default_ms, measured.tuned_ms))
        status = RunStatus.INTERRUPTED if context.stopping else RunStatus.FINISHED
        context.store.finish_run(context.run_id, status)
        return result

    # -- the program ---------------------------------------------------------------------------

    def _first_tasks(self, context: RunContext, extraction: Extraction) -> PreparedVariant:
        """The tasks of the program as the compiler takes it apart."""
        with context.phase("dispatches", "reading the dispatches"):
            begin = time.monotonic()
            first = read_tasks(context, extraction)
            context.deadlines.took(READING, time.monotonic() - begin)
        return first

    def _measure_default(self, programs: Programs, default: Build) -> float:
        timing = quick_timing(1.0)
        failure = programs.make_reference(default, timing)
        if failure:
            raise UserError(
                f"{self.source}: the program compiles but does not run: {failure}; "
                "check --input, --parameters and --function"
            )
        seconds = programs.time(default, timing)
        if isinstance(seconds, str):
            raise UserError(f"{self.source}: the program does not run to its end: {seconds}")
        programs.context.deadlines.took(RUNNING, seconds)
        return seconds

    # -- tuning --------------------------------------------------------------------------------

    def _tune(
        self,
        context: RunContext,
        programs: Programs,
        outcome: Outcome,
        first: PreparedVariant,
        chosen: Sequence[Contender],
    ) -> None:
        chosen = self._prepare_all(context, outcome, first, chosen)
        if chosen and not any(p.choosable for p in outcome.prepared):
            raise nothing_to_tune(self.source, outcome.prepared, self.options.only)
        with context.phase("search"):
            prepared = [one.company.prepared for one in chosen]
            given = self.stages.compiling is not None or self.stages.confirming is not None
            if given and prepared:
                goals = self._goals(context, outcome.default_s)
                seconds = [one.time_s for one in chosen]

                def unconfirmed() -> int:
                    tasks = (task for one in chosen for task in _unconfirmed(one.company))
                    return sum(bool(task.trials) for task in tasks)

                with context.containing("the search"):
                    search(context, self.stages, prepared, seconds, goals, unconfirmed)
        if self.stages.searches:
            _say_if_nothing_was_tried(context, outcome)
        for done, contender in enumerate(chosen):
            base, ahead = contender.company, len(chosen) - done
            confirming, confirmed = self.stages.confirming, list[Confirmed]()
            left = context.deadlines.left_s("company")
            # Nothing that is confirmed could take the place of what the program has.
            late = left is not None and base.choices and is_late(programs, left / ahead)
            if confirming is not None and not late:
                with (
                    context.phase("confirm", contender.variant),
                    context.containing(f"confirming what was found for {contender.variant}"),
                ):
                    confirmed = confirming.confirm(context, _unconfirmed(base), ahead)
            outcome.confirmed += confirmed
            left = context.left_for("company")
            within, company = None if left is None else left / ahead, base
            with (
                context.phase("company", contender.variant),
                context.containing(f"putting it in the program of {contender.variant}"),
            ):
                if confirming is not None:
                    company = try_in_company(programs, confirmed, base, within)
                else:
                    company = take_best(programs, base)
            outcome.companies.append(company)
            record_choices(context, base.prepared, company.choices, confirmed)

    def _goals(self, context: RunContext, default_s: float) -> GoalWatch:
        goals = self.options.stop_at
        peak = None
        if any(goal.kind == "peak" for goal in goals):
            peak = machine_peak(context.target.cores).gflops
        return GoalWatch(goals, default_s, peak)

    def _prepare_all(
        self,
        context: RunContext,
        outcome: Outcome,
        first: PreparedVariant,
        chosen: Sequence[Contender],
    ) -> list[Contender]:
        """Those of the programs that are gone on from, in their order, each measured."""

        def measured(one: Contender) -> bool:
            return any(one.company.prepared is known for known in outcome.prepared)

        kept: list[Contender] = []
        # A variant with the same dispatches as one that is measured already need not be.
        for one in sorted(chosen, key=measured, reverse=True):
            if self._prepare(context, outcome, first, one, kept):
                kept.append(one)
        if not outcome.prepared:
            # The programs that were compared can be handed back; what is told is of the default's.
            leave_all(first)
            outcome.prepared.append(first)
        return [one for one in chosen if any(one is k for k in kept)]

    def _prepare(
        self,
        context: RunContext,
        outcome: Outcome,
        first: PreparedVariant,
        contender: Contender,
        others: Sequence[Contender],
    ) -> bool:
        """Read and measure the dispatches of a program where that has not been done.

        Returns:
            Whether it is gone on from; not where dispatches of others are measured already and the
            search would have to end before its own are, or all are those of one of the others, or
            there is no time for reading them.
        """
        company = contender.company
        if any(company.prepared is known for known in outcome.prepared):
            return True
        known = [p for p in outcome.prepared if p.variant.name == contender.variant]
        if known:
            company.prepared = known[0]
            return True
        left = context.left_for("search")
        needed_s = context.deadlines.each(MEASURING, 0.0) if outcome.prepared else 0.0
        if company.prepared is not first:
            needed_s += context.deadlines.each(READING, 0.0)
        if left is not None and left <= needed_s:
            context.note(f"no time for the dispatches of {contender.variant} (--time-limit)")
            return False
        with context.phase("dispatches", f"measuring those of {contender.variant}"):
            prepared = company.prepared
            if prepared is not first:
                begin = time.monotonic()
                prepared = take_apart(context, company.build.variant)
                context.deadlines.took(READING, time.monotonic() - begin)
            same = [o for o in others if _same_dispatches(o.company.prepared, prepared)]
            if same and not company.choices:
                context.note(
                    f"the dispatches of {contender.variant} are those of {same[0].variant}, "
                    "where they are searched"
                )
                return False
            company.prepared = prepared
            measure_defaults(context, prepared, contender.time_s)
        outcome.prepared.append(company.prepared)
        return True


def _same_dispatches(one: PreparedVariant, other: PreparedVariant) -> bool:
    """Whether two variants compute the same, dispatch by dispatch, so that what is found for one is
    as good for the other."""
    counts = [Counter({task.workload.key: task.count for task in p.tasks}) for p in (one, other)]
    return bool(one.tasks) and counts[0] == counts[1] and not (one.skipped or other.skipped)


def _unconfirmed(base: Company) -> list[DispatchTask]:
    """The tasks for which something better was found than what a program has for them already.

    Of a program with few all: what it has for them was compared as a whole, and its parts are told
    as exactly where that takes little time.
    """
    tasks = base.prepared.tasks
    if not base.choices or len(tasks) <= _FEW:
        return tasks
    better = settle(base.prepared, best_known(base.prepared))
    return [task for task in tasks if _has_news(task, better.get(task.identity), base)]


def _has_news(task: DispatchTask, found: Configuration | None, base: Company) -> bool:
    """Whether something better has been found than what a program has for the task already, or
    something of the other world that is as good as far as the search can tell."""
    best, chosen = task.best, base.choices.get(task.identity)
    if found is None or best is None or best.time_s is None:
        return False
    is_kernel = task.kernel(found) is not None
    rivals = [
        trial
        for trial in task.trials
        if trial.ok and (task.kernel(trial.configuration) is not None) is not is_kernel
    ]
    close = any((trial.time_s or math.inf) <= _CLOSE * best.time_s for trial in rivals)
    return close or found != chosen


def _say_if_nothing_was_tried(context: RunContext, outcome: Outcome) -> None:
    """`the default stays` must not sound like a finding where no time was left to look."""
    tried = any(p.guesses or any(task.trials for task in p.tasks) for p in outcome.prepared)
    limit = context.options.time_limit_s
    if tried or limit is None or context.stopping or not context.out_of_time:
        return
    before = sum(context.phase_s.get(name, 0.0) for name in _BEFORE_SEARCH)
    context.note(
        f"no candidate was tried: reading and measuring the program took {before:.0f} s of the "
        f"{limit:.0f} s of --time-limit, and the rest is kept for the end; give it more, or name "
        "fewer --variants",
        warning=True,
    )
