"""The search over all tasks of a run: budgets, resuming, reuse of earlier results."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from threadpoolctl import threadpool_limits

from tilewright.measure.timing import TimingPolicy
from tilewright.search.budget import BudgetTask, TrialAllocator
from tilewright.search.interface import create_strategy, find_strategy
from tilewright.search.transfer import Experience
from tilewright.trial import Status, Trial
from tilewright.tuning.confirm import confirm_s
from tilewright.tuning.context import RunContext
from tilewright.tuning.events import TrialDone
from tilewright.tuning.experience import experience, space_to_json
from tilewright.tuning.prepare import PreparedVariant
from tilewright.tuning.programs import end_s
from tilewright.tuning.search_loop import Observer, SearchLoop
from tilewright.tuning.stages import (
    CandidateMeasurer,
    DispatchCompiler,
    OpeningFirst,
    Stages,
    discard,
)
from tilewright.tuning.task import DispatchTask

# What a trial is compiled and measured with; finalists are measured again with more care.
SEARCH_TIMING = TimingPolicy(
    warmup_max_s=0.02,
    warmup_max_calls=3,
    min_samples=5,
    max_samples=20,
    target=0.02,
    max_s=0.045,
    min_sample_s=500e-6,
    drop_factor=2.0,
    hopeless_factor=1.2,
)
# A candidate that takes this much longer to compile than the default has bodies unrolled beyond
# what caches and registers hold; it gets no more time than many others need together.
_COMPILE_LEAST_S, _COMPILE_MOST_S = 1.0, 60.0
_COMPILE_FACTOR = 4.0
RUN_TIMEOUT_S = 60.0
_BATCH = 8
_MINIMUM = 8
# Of a task, for which there shall be time.
_FINALISTS = 2


@dataclass
class _Running:
    task: DispatchTask
    loop: SearchLoop
    name: str


@dataclass(frozen=True)
class _Waiting:
    """A task that has too small a share of its program to be tuned, as long as it has."""

    prepared: PreparedVariant
    task: DispatchTask
    weight: float

    @property
    def share(self) -> float:
        """Of the program as fast as the trials so far can make it: a kernel of our own can leave
        little of what took most of the time. Without kernels it is what it was."""
        if self.task.data is None:
            return 0.0
        gone = 0.0
        for task in self.prepared.tasks:
            best = task.best.time_s if task.best is not None else None
            if best is not None and task.default_s and not task.is_chain:
                gone += task.share * max(0.0, 1.0 - best / task.default_s)
        return self.task.share / max(0.01, 1.0 - gone)


def search(
    context: RunContext, prepared: Sequence[PreparedVariant], program_s: Sequence[float]
) -> None:
    """Try candidates for every task worth it, and leave the trials in the tasks.

    `program_s` is the time of each variant's program. The trials are shared out by expected gain
    for the program; a variant that is slower by default gets fewer.

    Args:
        context: the run, with its budget.
        prepared: the variants that are tuned, the fastest first.
        program_s: seconds of each.
    """
    running: dict[str, _Running] = {}
    tasks: list[BudgetTask] = []
    waiting: list[_Waiting] = []
    effort = context.options.effort_preset
    hot = sum(task.share >= effort.min_share for one in prepared for task in one.tasks)
    fair = min(effort.trials_per_dispatch, context.options.trial_limit // max(1, hot))

    def begin(one: _Waiting) -> BudgetTask | None:
        """What trials are shared out to, unless an earlier result serves."""
        if _reuse(context, one.task, max(1, fair // 2)):
            return None
        name = f"{one.prepared.variant.name}/{one.task.name}"
        running[name] = _Running(one.task, _loop(context, one.task), name)
        return _allocatable(context, one.task, name, one.weight)

    for one, seconds in zip(prepared, program_s, strict=True):
        for task in one.tasks:
            task.store_id = context.store.task_id(task.key, task.default_s, space_to_json(task))
            # How fast a kernel of our own is does not hang on the variant.
            weight = program_s[0] / seconds if task.data is None else 1.0
            entry = _Waiting(one, task, weight)
            if task.share < effort.min_share:
                waiting.append(entry)
            elif (wanted := begin(entry)) is not None:
                tasks.append(wanted)
    if not tasks:
        return
    limit = context.options.trial_limit
    if context.options.max_trials is None:
        limit = min(limit, effort.trials_per_dispatch * len(tasks))
    allocator = TrialAllocator(
        tasks,
        batch=max(_BATCH, context.benchmark.round_size),
        minimum=min(_MINIMUM, max(1, limit // len(tasks))),
    )
    done = context.store.count_trials(context.run_id)
    for name, known in running.items():
        if known.loop.trials:
            allocator.record(name, len(known.task.trials), known.loop.best_s)
    # A strategy's linear algebra is small: a second thread of it would only wait, at full speed.
    with threadpool_limits(limits=1, user_api="blas"):
        while not context.out_of_time:
            _keep_for_the_end(context, prepared, [one.task for one in running.values()])
            for late in [w for w in waiting if w.share >= effort.min_share]:
                waiting.remove(late)
                if (wanted := begin(late)) is not None:
                    allocator.add(wanted)
                    if context.options.max_trials is None:
                        more = limit + effort.trials_per_dispatch
                        limit = min(context.options.trial_limit, more)
            allocation = allocator.next(limit - done)
            if allocation is None:
                break
            chosen = running[allocation.task]
            chosen.loop.observe = _observer(context, chosen.task, done, limit)
            trials = chosen.loop.batch(_in_time(context, running, allocation.trials))
            done += len(trials)
            allocator.record(chosen.name, len(trials), chosen.loop.best_s)
            if chosen.loop.exhausted:
                allocator.close(chosen.name)
    for chosen in running.values():
        for phase, seconds in chosen.loop.seconds.items():
            context.add_seconds(f"search.{phase}", seconds)


def _keep_for_the_end(
    context: RunContext, prepared: Sequence[PreparedVariant], tasks: Sequence[DispatchTask]
) -> None:
    """Say how much time what comes after the search will take, by what steps took so far."""
    kernels = any(task.data is not None for task in tasks)
    company_s, finish_s = end_s(context, kernels)
    finalists = min(_FINALISTS, context.options.effort_preset.finalists)
    context.deadlines.keep("confirm", confirm_s(context, len(tasks), finalists))
    context.deadlines.keep("company", len(prepared) * company_s)
    context.deadlines.keep("finish", finish_s)


def _in_time(context: RunContext, running: Mapping[str, _Running], wanted: int) -> int:
    """As many of the wanted trials as there is time for, by what trials took so far: a batch is
    compiled before the first of it is measured."""
    left = context.left_for("search")
    tried = sum(len(one.loop.trials) for one in running.values())
    spent = sum(sum(one.loop.seconds.values()) for one in running.values())
    if left is None or not spent:
        return wanted
    return max(1, min(wanted, int(left * tried / spent)))


def _allocatable(context: RunContext, task: DispatchTask, name: str, weight: float) -> BudgetTask:
    assert task.default_s is not None
    cores = context.target.cores
    # No processor of today does more than this; the floor only keeps trials from what is done.
    flops, rate = (2e15, 8e12) if context.target.is_gpu else (400e9 * cores, 200e9)
    floor = max(task.workload.flops / flops, task.workload.bytes / rate)
    points = task.space_points
    return BudgetTask(
        name,
        task.share * weight,
        task.default_s,
        min(floor, 0.9 * task.default_s),
        cap=max(1, math.ceil(points)) if points < 1e6 else None,
    )


def _reuse(context: RunContext, task: DispatchTask, enough: int) -> bool:
    """Whether an earlier run has tuned this workload here with at least `enough` trials.

    Its best configuration is taken as the only trial, and confirmed again like any other.
    """
    if context.options.fresh or context.options.config is not None:
        return False
    found = context.store.result_for(task.key)
    if found is None or found.run_id == context.run_id:
        return False
    if found.trials < enough:
        return False
    if found.configuration is not None and not task.restricted.contains(found.configuration):
        return False  # of a space that is no longer made so
    task.reused_trials = found.trials
    if found.configuration is not None:
        task.trials.append(
            Trial(
                found.configuration,
                Status.OK,
                time_s=found.tuned_s * (task.default_s or found.default_s) / found.default_s,
                origin=f"run {found.run_id}",
            )
        )
    context.note(
        f"{task.name}: reusing the result of run {found.run_id} "
        f"({found.trials} trials; --fresh tunes it again)"
    )
    return True


def _loop(context: RunContext, task: DispatchTask) -> SearchLoop:
    earlier = context.store.trials(context.run_id, task.store_id)
    task.trials.extend(earlier)
    default = Trial(
        task.space.default, Status.OK, time_s=task.default_s, origin="the compiler's own choice"
    )
    source = create_strategy(
        context.options.strategy_name,
        task.restricted,
        context.options.seed,
        context.options.strategy_settings,
        known=[default, *earlier],
        experience=_experience(context, task),
    )
    tried = {trial.configuration for trial in earlier}
    opening = [
        one for one in task.restricted.anchors if one != task.space.default and one not in tried
    ]
    compiler = DispatchCompiler(
        task,
        context.compilers,
        context.options.keep_candidates,
        timeout_s=compile_limit_s(task),
    )
    timing = replace(SEARCH_TIMING, prime=context.target.is_gpu)
    tester = task.tester(context.benchmark, RUN_TIMEOUT_S)
    kernels = task.kernel_tester(context.benchmark, RUN_TIMEOUT_S)
    measurer = CandidateMeasurer(tester, timing, task.baseline, task.name, kernels)

    def record(trial: Trial) -> None:
        context.store.record_trial(context.run_id, task.store_id, trial)
        task.trials.append(trial)

    return SearchLoop(
        Stages(OpeningFirst(opening, source), compiler, measurer),
        record,
        stop=lambda: context.out_of_time,
        discard=discard,
        known=[default, *earlier],
    )


def _experience(context: RunContext, task: DispatchTask) -> tuple[Experience, ...]:
    """What the database knows of other shapes, for a strategy that can learn from it."""
    if task.template is None or not find_strategy(context.options.strategy_name).transfers:
        return ()
    pipeline = task.template.translation.pipeline
    found = experience(context.store, task.key, pipeline, context.run_id)
    if found:
        shapes = "another shape" if len(found) == 1 else f"{len(found)} other shapes"
        context.note(f"{task.name}: the search begins with what trials of {shapes} taught")
    return found


def compile_limit_s(task: DispatchTask) -> float:
    """How long a candidate may take to compile, by how long its default takes.

    Args:
        task: its default has been compiled.

    Returns:
        Seconds of processor time.
    """
    return min(_COMPILE_MOST_S, max(_COMPILE_LEAST_S, _COMPILE_FACTOR * task.compile_s))


def _observer(context: RunContext, task: DispatchTask, before: int, limit: int) -> Observer:
    """Tells the listener every trial, counting from those done before the batch."""
    counter = itertools.count(before + 1)

    def observe(trial: Trial, best_s: float | None) -> None:
        assert task.default_s is not None
        done = next(counter)
        context.emit(TrialDone(task.name, trial, best_s, task.default_s, done, limit, task.variant))

    return observe
