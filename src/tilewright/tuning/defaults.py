"""The dispatches of a variant as the compiler configures them: references, times, shares."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tilewright.errors import UserError
from tilewright.measure.pool import Job, WorkerFailure
from tilewright.measure.timing import InterleavedBaseline, TimingPolicy
from tilewright.space.union import MEMBER_KNOB
from tilewright.trial import Status
from tilewright.tuning.candidate_trial import NOT_VERIFIED, CandidateTester
from tilewright.tuning.context import RunContext
from tilewright.tuning.default_programs import (
    NO_TIME,
    TIMEOUT_S,
    compile_chains,
    default_vmfb,
    is_padded,
    sum_default,
)
from tilewright.tuning.estimates import RUNNING
from tilewright.tuning.events import DispatchesRanked, DispatchRow
from tilewright.tuning.independent import independent_reference, site_reference
from tilewright.tuning.prepared_variant import PreparedVariant, Skipped
from tilewright.tuning.reference_tasks import (
    FLOAT64,
    ReferenceRequest,
    SiteData,
    SiteDataRequest,
    make_reference,
    make_site_data,
)
from tilewright.tuning.task import DispatchTask, rotations_for
from tilewright.tuning.worker_tasks import compile_candidate

# A step of which the deadlines know what it takes: all dispatches of one variant.
MEASURING = "measuring the dispatches of a variant"
# Tasks that data is made for between looks at the clock: two or three jobs each, so that workers do
# not wait for each other often.
_AT_ONCE = 16
# Where time is short: tasks that are guessed to take so little of all together are left out, once
# this part of the time for measuring has passed.
_LITTLE, _LITTLE_AFTER = 0.02, 0.25
# Of the seconds for making what is measured: what timing it may take besides, where time is short.
_TIMING_MORE = 0.5
# So many times what its dispatches are guessed to take, a program is slow: padding takes next to
# nothing beside what it is for, and compiling the two as one nearly a second each (of a quantised
# ResNet-18 a third of the time that measuring took).
_SLOW = 8.0
_TIMING = TimingPolicy(max_s=0.1, drop_factor=None, long_s=0.03)
# A submission to a GPU that lasts longer is made so short.
_LONGEST_S, _SHORTER_S = 0.25, 0.05


def measure_defaults(
    context: RunContext,
    prepared: PreparedVariant,
    program_s: float,
    within_s: float | None = None,
    *,
    compiles: bool = True,
) -> None:
    """Time every task as the compiler configures it, and rank the tasks by share of the program.

    Makes the inputs and the expected results first. A task whose default does not compile or run
    alone is skipped, with the reason; and so are, of a program with many dispatches, those that are
    guessed to matter least where the time limit leaves none for them: they are `untimed`, too.

    Args:
        context: the run.
        prepared: its tasks are timed; those that cannot be become `skipped`.
        program_s: seconds of the whole program.
        within_s: seconds for making what is measured, where less than the limit leaves for it; half
            as many are there for timing it.
        compiles: whether the program is known to compile. If not, what does not compile alone is
            taken for what would not in the program: such tasks are `uncompilable`.
    """
    begin = time.monotonic()
    end = context.deadlines.measured_by()
    if end is not None and within_s is not None:
        end = min(end, context.deadlines.clock() + within_s)
    apart = slowness(context, prepared.tasks) > _SLOW
    hurry = (
        None
        if end is None
        else _Hurry(context.deadlines.clock(), end, _LITTLE * prepared.guessed_s)
    )
    _in_time(context, prepared.tasks, hurry, partial(_make_data, apart=apart))
    # Those that are slow take longer to time than to make.
    now = context.deadlines.clock()
    timed_by = None if end is None or within_s is None else now + _TIMING_MORE * within_s
    _time_all(context, [t for t in prepared.tasks if not t.is_chain], timed_by)
    # What a site of several dispatches takes is what these take, as far as each is known alone: it
    # is compiled as one where it has finalists.
    chains = [t for t in prepared.tasks if t.is_chain and t.data is not None]
    _time_all(context, [t for t in chains if is_padded(t) and not apart], timed_by)
    others = [t for t in chains if t.default_s is None and not t.failure]
    others = [t for t in others if not sum_default(t, prepared)]
    # However little that is guessed to be: nothing else of what they are of has kernels.
    last = None if hurry is None else replace(hurry, least_s=0.0)
    _in_time(context, others, last, compile_chains)
    for task in [t for t in others if t.failure == NO_TIME]:
        task.failure = "" if sum_default(task, prepared, roughly=True) else NO_TIME
    _time_all(context, [t for t in others if t.default_s is None])
    if left := sum(task.failure == NO_TIME for task in prepared.tasks):
        some = f"{left} of {len(prepared.tasks)} dispatches and sites"
        context.note(f"{some} are not measured: there is no time for it (--time-limit)")
    for task in prepared.tasks:
        task.uncompilable &= not compiles
    for task in [t for t in prepared.tasks if t.failure or t.default_s is None]:
        late = task.failure == NO_TIME
        why = NO_TIME if late else f"does not run alone: {task.failure}"
        prepared.skipped.append(Skipped(task.name, task.count, why, task.workload.name))
        # In its place there can be a kernel all the same.
        choosable = late or prepared.needs_kernel(task)
        prepared.tasks.remove(task)
        prepared.untimed += [task] if choosable else []
    seconds = {t.name: (t.default_s or 0.0) * t.count for t in prepared.tasks}
    # Alone, without what they wait for and share in the program, dispatches may take more time
    # together than the program; then their sum is the whole.
    # A site of several dispatches is there beside the dispatches that it is of.
    whole = max(program_s, sum(seconds[t.name] for t in prepared.tasks if not t.is_chain))
    for task in prepared.tasks:
        task.share = min(1.0, seconds[task.name] / whole)
    prepared.tasks.sort(key=lambda t: -t.share)
    context.deadlines.took(MEASURING, time.monotonic() - begin)
    _announce(context, prepared)


def slowness(context: RunContext, tasks: Sequence[DispatchTask]) -> float:
    """How many times what it is guessed to take a program takes as the compiler makes it.

    Args:
        context: the run; it has timed the program.
        tasks: of one of its variants.
    """
    guessed = sum(task.guessed_s for task in tasks if not task.is_chain)
    return context.deadlines.each(RUNNING, 0.0) / guessed if guessed else 0.0


def leave_all(prepared: PreparedVariant) -> None:
    """Skip all tasks: there is no time to measure any.

    Args:
        prepared: what becomes of it is as if none had been measured in time.
    """
    for task in prepared.tasks:
        prepared.skipped.append(Skipped(task.name, task.count, NO_TIME, task.workload.name))
    prepared.tasks.clear()


@dataclass(frozen=True)
class _Hurry:
    """Measuring that has to end, by the deadlines' clock. least_s: what tasks have to be guessed to
    take of the program's time together, to be measured when much of the time has passed."""

    begin: float
    end: float
    least_s: float

    def leaves(self, tasks: Sequence[DispatchTask], now: float) -> bool:
        """Whether there is no time for these tasks."""
        late = now > self.begin + _LITTLE_AFTER * (self.end - self.begin)
        little = sum(task.guessed_s for task in tasks) < self.least_s
        return now >= self.end or (late and little)


def _in_time(
    context: RunContext,
    tasks: Sequence[DispatchTask],
    hurry: _Hurry | None,
    make: Callable[[RunContext, Sequence[DispatchTask]], None],
) -> None:
    """Make something of tasks, of those first that are guessed to take most of the program's time;
    those that there is no time for fail, and where time passes those that matter little."""
    waiting = sorted(tasks, key=lambda task: -task.guessed_s)
    while waiting and not (hurry and hurry.leaves(waiting, context.deadlines.clock())):
        now = len(waiting) if hurry is None else _AT_ONCE
        make(context, waiting[:now])
        waiting = waiting[now:]
    for task in waiting:
        task.failure = NO_TIME


def _make_data(context: RunContext, tasks: Sequence[DispatchTask], apart: bool) -> None:
    """Inputs, results and the default's program of every task, or why there are none.

    Args:
        context: the run.
        tasks: get them.
        apart: what pads data is not compiled with what it is for.
    """
    dispatches = [task for task in tasks if not task.is_chain]
    jobs: list[Job[Any, Any]] = [
        Job(make_reference, _reference_request(context, task), 600.0, tag=task)
        for task in dispatches
    ]
    jobs += [
        Job(make_site_data, _site_request(context, task), 600.0, tag=task)
        for task in tasks
        if task.site is not None
    ]
    jobs += [
        Job(compile_candidate, task.request(default_vmfb(task), splice=True), TIMEOUT_S, tag=task)
        for task in dispatches
    ]
    for result in context.compilers.run(jobs):
        task: DispatchTask = result.job.tag
        if result.job.task is make_site_data:
            if result.failure is not None:
                _drop_kernels(context, task, result.failure.message)
            else:
                _take(task, result.value)
        elif result.failure is not None:
            task.failure = task.failure or result.failure.message
            task.uncompilable |= result.job.task is compile_candidate
        elif result.job.task is make_reference:
            task.reference = result.value
        else:
            task.compile_s = result.seconds
    # What fills is in no dispatch's time: a dispatch that gets its data padded is compiled with it.
    # Here, not when all have data: where time is short these are among those that matter most.
    padded = [] if apart else [t for t in tasks if is_padded(t) and t.data and not t.failure]
    compile_chains(context, padded)


def _time_all(context: RunContext, tasks: Sequence[DispatchTask], end: float | None = None) -> None:
    """Time the defaults of tasks whose programs there are, and check them; `end`: by the deadlines'
    clock, behind which there is no time for it."""
    ready = [task for task in tasks if not task.failure and task.reference is not None]
    if context.benchmark.round_size > 1:
        with context.benchmark.ahead("the dispatches as the compiler configures them"):
            for task in ready:
                _measure(context, task)
                if task.reference is not None and task.reference.expected is not None:
                    _tester(context, task).check(default_vmfb(task))
    for task in ready if end is None else sorted(ready, key=lambda task: -task.guessed_s):
        late = end is not None and context.deadlines.clock() >= end
        task.failure = NO_TIME if late else _time_default(context, task)


def _drop_kernels(context: RunContext, task: DispatchTask, why: str) -> None:
    """Go on without kernels for a task; one that has nothing else fails."""
    context.note(f"{task.name}: no kernels of our own are tried: {why}", warning=True)
    pipelines = [name for name in task.space.members if not task.is_chain]
    task.site = task.data = None
    try:
        task.restricted = task.restricted.restrict({MEMBER_KNOB: pipelines}).space
    except UserError:
        task.failure = why


def _seed(seed: int, key: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{key}".encode()).digest()[:4], "little")


def _reference_request(
    context: RunContext, task: DispatchTask, sensitivity: bool = False
) -> ReferenceRequest:
    seed = _seed(context.options.seed, task.workload.key)
    terms = math.prod(d.size for d in task.workload.dims if d.reduction)
    verify = not context.options.no_verify
    return ReferenceRequest(
        task.dispatch, task.flags, seed, task.folder, terms, sensitivity, verify
    )


def _site_request(
    context: RunContext, task: DispatchTask, sensitivity: bool = False
) -> SiteDataRequest:
    assert task.site is not None
    seed = _seed(context.options.seed, task.site.digest)
    terms = math.prod(d.size for d in task.workload.dims if d.reduction)
    folder = task.folder / "site"
    verify = not context.options.no_verify
    return SiteDataRequest(task.site.site, task.flags, seed, folder, terms, sensitivity, verify)


def _tester(context: RunContext, task: DispatchTask) -> CandidateTester:
    return task.tester(context.benchmark, TIMEOUT_S)


def _time_default(context: RunContext, task: DispatchTask) -> str:
    """The default's time, and a check of its results against the reference; '' or what failed.

    Where the float64 interpreter does not know the dispatch, the results of the dispatch compiled
    without optimisation are the reference, and the report says so.
    """
    path = default_vmfb(task)
    problem = _measure(context, task)
    if problem:
        return problem
    assert task.default_s is not None
    if context.target.is_gpu and task.repeats > 1 and task.default_s * task.repeats > _LONGEST_S:
        problem = _fewer_repeats(context, task)
        if problem:
            return problem
    task.baseline = InterleavedBaseline(
        str(path), reference_s=task.default_s, inputs=task.inputs, parameters=task.parameters
    )
    if context.benchmark.round_size > 1:
        # What is asked for in a round does not know what came before it, nor on which device.
        task.baseline.every = 0
    assert task.reference is not None
    if task.reference.method == NOT_VERIFIED:
        return ""
    if task.reference.expected is None:
        problem = independent_reference(context, task)
        if problem:
            return f"no reference: {task.reference.unsupported}; {problem}"
    if task.data is not None and task.data.reference.expected is None:
        _refer_site(context, task, task.data)
    tested = _tester(context, task).check(path)
    if tested.status is Status.WRONG_RESULT and task.reference.method == FLOAT64:
        # Random data can be ill-conditioned; then no evaluation is closer than it is sensitive.
        _refer_sensitively(context, task)
        tested = _tester(context, task).check(path)
    if tested.status is Status.WRONG_RESULT:
        return f"the compiler's default itself differs from the reference: {tested.message}"
    return tested.message


def _refer_sensitively(context: RunContext, task: DispatchTask) -> None:
    """References that know how much each result moves with the inputs' last digit."""
    if not task.is_chain:
        request = _reference_request(context, task, sensitivity=True)
        reference = context.compilers.ask(make_reference, request, 900.0)
        if not isinstance(reference, WorkerFailure):
            task.reference = reference
    if task.site is not None:
        again = _site_request(context, task, sensitivity=True)
        data = context.compilers.ask(make_site_data, again, 900.0)
        if not isinstance(data, WorkerFailure):
            _take(task, data)


def _take(task: DispatchTask, data: SiteData) -> None:
    """The data of a task's site; of several dispatches it is the task's own."""
    task.data = data
    if task.is_chain:
        task.reference = replace(data.reference, inputs=data.inputs)
        task.parameters = data.parameters


def _measure(context: RunContext, task: DispatchTask) -> str:
    """Time the default; '' or what failed."""
    timed = _tester(context, task).time(default_vmfb(task), _TIMING)
    if timed.measurement is not None:
        task.default_s = timed.measurement.time_s
    return timed.message


def _fewer_repeats(context: RunContext, task: DispatchTask) -> str:
    """Time the default anew with shorter submissions; '' or what failed.

    How often a dispatch is repeated in one is guessed for a large GPU. A small one, or a driver
    without one, can be a thousand times slower, and ends a submission of seconds by force.
    """
    assert task.default_s is not None
    task.repeats = max(1, round(_SHORTER_S / task.default_s))
    task.rotations = rotations_for(task.workload.bytes, context.target.l2_bytes, task.repeats)
    request = task.request(default_vmfb(task))
    compiled = context.compilers.ask(compile_candidate, request, TIMEOUT_S)
    if isinstance(compiled, WorkerFailure):
        return compiled.message
    return _measure(context, task)


def _refer_site(context: RunContext, task: DispatchTask, data: SiteData) -> None:
    """As an independent reference, of a task's site; without one no kernels are tried."""
    found = site_reference(context, task, data)
    if isinstance(found, str):
        _drop_kernels(context, task, f"no reference: {data.reference.unsupported}; {found}")
    else:
        task.data = replace(data, reference=replace(found, inputs=data.reference.inputs))


def _announce(context: RunContext, prepared: PreparedVariant) -> None:
    rows = [
        DispatchRow(
            name=task.name,
            workload=task.workload.name,
            count=task.count,
            share=task.share,
            default_s=task.default_s,
            gflops=task.gflops(task.default_s),
            space=task.space_points,
            note=f"{len(task.names)} dispatches" if len(task.names) > 1 else "",
        )
        for task in prepared.tasks
    ]
    rows += [
        DispatchRow(s.name, s.workload, s.count, 0.0, None, None, None, s.reason)
        for s in prepared.skipped
    ]
    context.emit(DispatchesRanked(prepared.variant.name, tuple(rows)))
