"""The search over all tasks of a run: budgets, resuming, reuse of earlier results."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from threadpoolctl import threadpool_limits

from tilewright.search.budget import BudgetTask, TrialAllocator
from tilewright.trial import Trial
from tilewright.tuning.choices import best_known, expected_s
from tilewright.tuning.confirm import TRYING, confirm_s
from tilewright.tuning.context import RunContext
from tilewright.tuning.estimates import end_s
from tilewright.tuning.events import TrialDetail, TrialDone
from tilewright.tuning.experience import KernelLessons, space_to_json
from tilewright.tuning.goals import GoalWatch
from tilewright.tuning.prepared_variant import PreparedVariant
from tilewright.tuning.reuse import change_since, reuse_result
from tilewright.tuning.search_loop import Observer, SearchLoop
from tilewright.tuning.session_stages import SessionStages
from tilewright.tuning.shared_sites import SharedSites, standings
from tilewright.tuning.stages import CompileStage, DispatchCompiler
from tilewright.tuning.task import DispatchTask
from tilewright.tuning.task_search import openings, task_loop

OPENED = "trials of starts"
"""The state of a run that says how many trials were done before the search."""

_BATCH = 8
_MINIMUM = 8
# Of a task, for which there shall be time; but more than the best of each has this share of the
# limit: a search that ends early for it has fewer that are worth comparing.
_FINALISTS, _FINALISTS_SHARE = 2, 0.15


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
    context: RunContext,
    stages: SessionStages,
    prepared: Sequence[PreparedVariant],
    program_s: Sequence[float],
    goals: GoalWatch | None = None,
    unconfirmed: Callable[[], int] | None = None,
) -> None:
    """Try candidates for every task worth it, and leave the trials in the tasks.

    `program_s` is the time of each variant's program. The trials are shared out by expected gain
    for the program; a variant that is slower by default gets fewer.

    Args:
        context: the run, with its budget.
        stages: what is done with candidates. Where nothing compiles them, there are those that
            earlier runs found, if they are confirmed.
        prepared: the variants that are tuned, the fastest first.
        program_s: seconds of each.
        goals: with which the search ends early.
        unconfirmed: how many tasks have trials that would be confirmed now; None: all may have.
    """
    running: dict[str, _Running] = {}
    tasks: list[BudgetTask] = []
    waiting: list[_Waiting] = []
    effort = context.options.effort_preset
    fair = fair_trials(context, prepared)
    # All that the user asks for is spent, however much an effort has for one dispatch.
    given = context.options.max_trials
    expected = fair if given is None else max(1, given // _hot_tasks(context, prepared))

    sites = SharedSites(prepared)
    lessons = KernelLessons(context.store, context.run_id)

    enough = max(1, fair // 2) if stages.compiling is not None else 1
    changed = change_since(context, (task for one in prepared for task in one.tasks))

    def begin(one: _Waiting) -> BudgetTask | None:
        """What trials are shared out to, unless an earlier result serves."""
        if reuse_result(context, one.task, enough, changed):
            sites.hand_over(one.task, one.task.trials)
            return None
        if stages.compiling is None:
            return None
        name = f"{one.prepared.variant.name}/{one.task.name}"
        loop = task_loop(context, stages, one.task, lessons, expected)
        if one.task.workload.key in context.settled:
            # What is known of it is measured here, and is confirmed or not like anything else.
            given = context.suggested.get(one.task.workload.key, ())
            loop.try_all([c for c in openings(context, one.task, one.task.trials) if c in given])
            sites.hand_over(one.task, one.task.trials)
            return None
        running[name] = _Running(one.task, loop, name)
        if one.task.data is not None:
            lessons.tasks.append(one.task)
        sites.hand_over(one.task, one.task.trials)
        return _allocatable(context, one.task, name, one.weight)

    for one, seconds in zip(prepared, program_s, strict=True):
        for task in one.tasks:
            task.store_id = context.store.task_id(task.key, task.default_s, space_to_json(task))
            if not sites.is_searched(task):
                continue
            # How fast a kernel of our own is does not hang on the variant.
            weight = program_s[0] / seconds if task.data is None else 1.0
            entry = _Waiting(one, task, weight)
            if task.share < effort.min_share:
                waiting.append(entry)
            elif (wanted := begin(entry)) is not None:
                tasks.append(wanted)
    if waiting and all(t.share < effort.min_share for one in prepared for t in one.tasks):
        # Small beside the program, or beside what held it up while it was timed.
        waiting.remove(largest := max(waiting, key=lambda entry: entry.task.share))
        if (wanted := begin(largest)) is not None:
            tasks.append(wanted)
    if not tasks:
        return
    most = limit = context.options.trial_limit
    if context.options.max_trials is None:
        # What starts have tried is not taken from the search.
        opened = context.store.get_state(context.run_id, OPENED)
        most += opened if isinstance(opened, int) else 0
        limit = min(most, effort.trials_per_dispatch * len(tasks) + most - limit)
    allocator = TrialAllocator(
        tasks,
        batch=max(_BATCH, context.benchmark.round_size),
        # Few trials are not shared out evenly: some are left for the tasks that promise most.
        minimum=min(_MINIMUM, max(1, limit // (2 * len(tasks)))),
    )
    done = context.store.count_trials(context.run_id)
    for name, known in running.items():
        if known.loop.trials:
            allocator.record(name, len(known.task.trials), known.loop.best_s)
    at_first = [
        (seconds, expected_s(one, best_known(one)))
        for one, seconds in zip(prepared, program_s, strict=True)
    ]
    # A strategy's linear algebra is small: a second thread of it would only wait, at full speed.
    with threadpool_limits(limits=1, user_api="blas"):
        while True:
            # The next batch may find something for one more.
            number = len(running) if unconfirmed is None else min(len(running), unconfirmed() + 1)
            kernels = any(one.task.data is not None for one in running.values())
            _keep_for_the_end(context, len(prepared), number, kernels)
            if context.out_of_time:
                break
            if goals is not None and (reached := goals.reached(*_expected(prepared, at_first))):
                context.note(f"--stop-at {reached}; the search ends")
                break
            for late in [w for w in waiting if w.share >= effort.min_share]:
                waiting.remove(late)
                if (wanted := begin(late)) is not None:
                    allocator.add(wanted)
                    if context.options.max_trials is None:
                        more = limit + effort.trials_per_dispatch
                        limit = min(most, more)
            for name, weight in _weights(prepared, running).items():
                allocator.weigh(name, weight)
            allocation = allocator.next(limit - done)
            if allocation is None:
                break
            chosen = running[allocation.task]
            chosen.loop.observe = observer(context, chosen.task, chosen.loop, done, limit)
            began = time.monotonic()
            trials = chosen.loop.batch(_in_time(context, allocation.trials))
            if trials:
                context.deadlines.took(TRYING, time.monotonic() - began, len(trials))
            done += len(trials)
            sites.hand_over(chosen.task, trials)
            allocator.record(chosen.name, len(trials), chosen.loop.best_s)
            if chosen.loop.exhausted:
                allocator.close(chosen.name)
    lessons.keep()
    for chosen in running.values():
        for phase, seconds in chosen.loop.seconds.items():
            context.add_seconds(f"search.{phase}", seconds)


def _expected(
    prepared: Sequence[PreparedVariant], at_first: Sequence[tuple[float, float]]
) -> tuple[float, int]:
    """Seconds of the fastest variant's program with the best that is known now (what it took when
    the search began, by how much faster its dispatches have become), and its operations."""
    found = []
    for one, (program_s, dispatches_s) in zip(prepared, at_first, strict=True):
        gain = expected_s(one, best_known(one)) / dispatches_s if dispatches_s else 1.0
        flops = sum(task.count * task.workload.flops for task in one.tasks if not task.is_chain)
        found.append((gain * program_s, flops))
    return min(found)


def fair_trials(context: RunContext, prepared: Sequence[PreparedVariant]) -> int:
    """What each task would get if all got as many trials.

    Args:
        context: the run, with its budget.
        prepared: the variants that are tuned.

    Returns:
        At most as many as the effort has for one.
    """
    each = context.options.trial_limit // _hot_tasks(context, prepared)
    return min(context.options.effort_preset.trials_per_dispatch, each)


def _hot_tasks(context: RunContext, prepared: Sequence[PreparedVariant]) -> int:
    """How many tasks are worth trials; 1 where none is."""
    least = context.options.effort_preset.min_share
    return max(1, sum(task.share >= least for one in prepared for task in one.tasks))


def _weights(
    prepared: Sequence[PreparedVariant], running: Mapping[str, _Running]
) -> dict[str, float]:
    """Of the tasks that trials are shared out to how likely they are to be chosen, by name, where
    tasks of one variant can take each other's place."""
    likely: dict[int, float] = {}
    for one in prepared:
        for task, weight in standings(one):
            likely[id(task)] = min(weight, likely.get(id(task), 1.0))
    return {name: likely[id(one.task)] for name, one in running.items() if id(one.task) in likely}


def _keep_for_the_end(context: RunContext, variants: int, tasks: int, kernels: bool) -> None:
    """Say how much time what comes after the search will take, by what steps took so far: for so
    many variants, of which so many tasks are confirmed."""
    company_s, finish_s = end_s(context, kernels)
    finalists = min(_FINALISTS, context.options.effort_preset.finalists)
    all_s, best_s = (confirm_s(context, tasks, each) for each in (finalists, 1))
    share_s = _FINALISTS_SHARE * (context.deadlines.limit_s or 0.0)
    context.deadlines.keep("confirm", min(all_s, max(best_s, share_s)))
    context.deadlines.keep("company", variants * company_s)
    context.deadlines.keep("finish", finish_s)


def _in_time(context: RunContext, wanted: int) -> int:
    """As many of the wanted trials as there is time for, by what trials took so far: a batch is
    compiled before the first of it is measured."""
    left, each = context.left_for("search"), context.deadlines.each(TRYING, 0.0)
    if left is None or not each:
        return wanted
    return max(1, min(wanted, int(left / each)))


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


def observer(
    context: RunContext, task: DispatchTask, loop: SearchLoop, before: int, limit: int
) -> Observer:
    """Tells the listener every trial, counting from those done before the batch.

    Args:
        context: the run.
        task: whose trials they are.
        loop: that tries them.
        before: how many the run has done.
        limit: how many it does at most.
    """
    counter = itertools.count(before + 1)

    def observe(trial: Trial, best_s: float | None) -> None:
        assert task.default_s is not None
        done = next(counter)
        verbose = context.options.verbose
        detail = trial_detail(task, loop.stages.compiler, trial) if verbose else None
        context.emit(
            TrialDone(task.name, trial, best_s, task.default_s, done, limit, task.variant, detail)
        )

    return observe


def trial_detail(task: DispatchTask, compiler: CompileStage, trial: Trial) -> TrialDetail:
    """What a trial was of, with the line that compiles it.

    Args:
        task: that it is of.
        compiler: that made its program.
        trial: of a configuration of the task's space.
    """
    command = ""
    if isinstance(compiler, DispatchCompiler):
        command = compiler.command(trial.configuration)
    flops = task.workload.flops
    return TrialDetail(task.workload.name, task.describe(trial.configuration), command, flops)
