"""Starts: programs with kernels for all of their sites, as the sketches have them by default.

A start is what the search goes on from. Kernels of a layout are not compared one by one with what
the compiler makes of another layout: each layout's best program is compiled and timed as a whole.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.errors import UserError
from tilewright.measure.jobs import Job
from tilewright.trial import Configuration
from tilewright.tuning.choices import Found, best_known, settle
from tilewright.tuning.company import Company, Outcome, build_companies
from tilewright.tuning.confirm import TRYING
from tilewright.tuning.context import RunContext
from tilewright.tuning.defaults import measure_defaults, slowness
from tilewright.tuning.estimates import EXTRACTING, FIRST_FINDING, READING, start_s
from tilewright.tuning.events import ProgramMeasured
from tilewright.tuning.experience import space_to_json
from tilewright.tuning.extraction import extract
from tilewright.tuning.guesses import guess_kernels, guessable
from tilewright.tuning.layouts import start_layouts
from tilewright.tuning.prepare import read_tasks
from tilewright.tuning.prepared_variant import PreparedVariant
from tilewright.tuning.programs import Programs
from tilewright.tuning.reuse import change_since, reuse_result
from tilewright.tuning.search_loop import SearchLoop
from tilewright.tuning.search_phase import OPENED, fair_trials, observer
from tilewright.tuning.session_stages import SessionStages
from tilewright.tuning.stages import CompiledCandidate, CompileStage, DispatchCompiler
from tilewright.tuning.task import DispatchTask
from tilewright.tuning.task_search import openings, task_loop
from tilewright.tuning.variants import Variant

# A kernel that is not faster than this part of the compiler's code alone is left out of a start.
_WORTH = 0.98
# Seconds of processor time that an opening may take to compile at least.
_OPENING_S = 8.0
# Of what trying a kernel takes, what it adds to compiling a program that it is in: it is emitted
# once more, stands in a spec, and LLVM has its code. (Making the program of a MobileNetV2 with 64
# tasks took 19 s, where 11 are expected without kernels; those of a GoogLeNet and an Inception-like
# network, with 104 and 144, took 24, where 23 and 25 are.)
_OF_TRIAL = 0.3
# Of the program's time: a kernel that is guessed to gain so much is in a start.
_MUCH = 0.01
# Seconds of a trial, while none has been made.
_TRYING_S = 0.25
# Of the trials that the user allows and of the time: what starts may take.
_OF_TRIALS, _OF_TIME = 0.5, 0.7
# Of the time that a start has: for measuring dispatches, of which the rest tries kernels.
_TO_MEASURE = 0.4
# Times what a program should take. (A quantised ResNet-18 without dot products of bytes took 47
# times that, and all of its layers had a kernel so; a RegNet took 13, and lost: 22 ms for 17.)
_VERY_SLOW = 30.0
# Of the time: what must be left behind reading a layout, as long as the first took, for it to be
# read before it is known what the program takes.
_EARLY = 0.4
# Candidates for each core that are compiled before they are measured.
_BATCH = 8


@dataclass(frozen=True)
class StartPlan:
    """The layouts that starts are made of, in turn; `ahead`: the first one's dispatches, where it
    is not the compiler's own and was read already; `problem`: why they could not be read."""

    layouts: Sequence[Variant]
    ahead: PreparedVariant | None = None
    problem: str = ""


def plan_starts(context: RunContext, first: PreparedVariant) -> StartPlan:
    """What `make_starts` begins with, while nothing is measured.

    Args:
        context: the run.
        first: the dispatches of the compiler's own variant, with its sites.

    Returns:
        The layouts; the first one is not read where time is short already.
    """
    layouts, left = start_layouts(context, first), context.left_s
    behind_s = _EARLY * (context.options.time_limit_s or 0.0)
    late = left is not None and left < behind_s + _reading_s(context)
    if late or not layouts or layouts[0].name == first.variant.name:
        return StartPlan(layouts)
    try:
        return StartPlan(layouts, _read(context, layouts[0]))
    except UserError as error:
        return StartPlan(layouts, problem=str(error))


def make_starts(
    programs: Programs,
    stages: SessionStages,
    outcome: Outcome,
    first: PreparedVariant,
    plan: StartPlan | None = None,
) -> list[Company]:
    """A program with kernels for each layout, from measured defaults of the sketches.

    Args:
        programs: of the run: builds the programs.
        stages: what compiles and measures kernels.
        outcome: gets the variants whose dispatches were measured, and why there is no start.
        first: the dispatches of the compiler's own variant, with its sites.
        plan: by default it is made now.

    Returns:
        Programs with right results; none where no kernels are tried.
    """
    context = programs.context
    starts: list[Company] = []
    plan = plan or plan_starts(context, first)
    layouts, took_s = plan.layouts, 0.0
    read = [first] if plan.ahead is None else [first, plan.ahead]
    if plan.problem:
        _leave_out(context, outcome, layouts[0].name, plan.problem)
        layouts = layouts[1:]
    left_s = _left_s(context)
    if plan.ahead is None and left_s is not None and left_s <= _reading_s(context):
        # No time to read another: what has been read can have kernels all the same.
        layouts = sorted(layouts, key=lambda one: one.name != first.variant.name)
    for number, layout in enumerate(layouts):
        begin = time.monotonic()
        late = _too_late(context, took_s) if number else _left_s(context) == 0.0
        if late:
            left = ", ".join(one.name for one in layouts[number:])
            if not context.stopping:
                context.note(f"no time for kernels in these layouts: {left} (--time-limit)")
            break
        with context.containing(f"making a program with kernels of {layout.name}"):
            prepared = _prepare(programs, outcome, read, layout)
            if prepared is not None and prepared.is_stuck:
                why = "a dispatch does not compile, and there is no kernel for it"
                _leave_out(context, outcome, f"{layout.name} with kernels", why)
            elif prepared is not None:
                start = _start(programs, stages, outcome, prepared, len(layouts))
                starts += [start] if start is not None else []
        took_s = time.monotonic() - begin
    return starts


def _too_late(context: RunContext, more_s: float) -> bool:
    """Whether so many more seconds would leave the search too little time."""
    left, limit = context.left_for("search"), context.options.time_limit_s
    return left is not None and left - more_s < (1 - _OF_TIME) * (limit or 0.0)


def _reading_s(context: RunContext) -> float:
    """What finding and reading a layout's dispatches takes, by what the first ones took."""
    return sum(context.deadlines.each(step, 0.0) for step in (FIRST_FINDING, READING))


def _left_s(context: RunContext, kernels: int = 0) -> float | None:
    """Seconds until a start's program with so many kernels has to be made, so that it can be
    compared and proven; 0 when they have passed, None without a limit."""
    left = context.left_s
    kernels_s = _OF_TRIAL * kernels * context.deadlines.each(TRYING, _TRYING_S)
    return None if left is None else max(0.0, left - start_s(context, kernels_s))


def _read(context: RunContext, layout: Variant) -> PreparedVariant:
    """The dispatches of a layout. Raises UserError where it does not compile."""
    with context.phase("dispatches", f"reading those of {layout.name}"):
        begin = time.monotonic()
        extraction = extract(context, layout, sites=True)
        context.deadlines.took(EXTRACTING, time.monotonic() - begin)
        return read_tasks(context, extraction, layout)


def _prepare(
    programs: Programs, outcome: Outcome, read: Sequence[PreparedVariant], layout: Variant
) -> PreparedVariant | None:
    """The dispatches of a layout, each measured; None where it has nothing of its own. Of those
    that were read already the first are the compiler's own."""
    context, first = programs.context, read[0]
    prepared = next((one for one in read if one.variant.name == layout.name), None)
    if prepared is None:
        try:
            prepared = _read(context, layout)
        except UserError as error:
            _leave_out(context, outcome, layout.name, str(error))
            return None
    if prepared is not first:
        known = {facts.tunable.digest for facts in first.sites if facts.tunable is not None}
        if all(f.tunable is None or f.tunable.digest in known for f in prepared.sites):
            return None
    with context.phase("dispatches", f"measuring those of {layout.name}"):
        left = _left_s(context, _planned(context, prepared))
        within = None if left is None else _TO_MEASURE * left
        default_s = outcome.default_s if prepared is first else 0.0
        measure_defaults(context, prepared, default_s, within, compiles=prepared is first)
    # The compiler's own come first, in whatever order they are measured.
    outcome.prepared.insert(0 if prepared is first else len(outcome.prepared), prepared)
    return prepared


def _start(
    programs: Programs,
    stages: SessionStages,
    outcome: Outcome,
    prepared: PreparedVariant,
    shared_by: int,
) -> Company | None:
    """The program with the best kernel of each site; None where there is none."""
    context = programs.context
    name = f"{prepared.variant.name} with kernels"
    with context.phase("starts", name):
        limit = context.options.max_trials
        most = None if limit is None else max(1, int(_OF_TRIALS * limit) // shared_by)
        affordable = _affordable(context)
        _try_openings(context, stages, prepared, most, _planned(context, prepared))
        found = best_known(prepared, _WORTH)
        choices = settle(prepared, found)
        built = _with_guesses(programs, prepared, found, affordable)
        if not built and choices:
            built = build_companies(programs, prepared, [choices], "start")
        if not built and not choices:
            return None
        if not built and len(choices) > 1 and _left_s(context, len(choices)) != 0.0:
            # One kernel that fails in the program shall not cost the others.
            shares = {task.identity: task.share for task in prepared.tasks}
            keys = list(choices)
            halves = [{key: choices[key] for key in one} for one in (keys[::2], keys[1::2])]
            built = build_companies(programs, prepared, halves, "half_start")
            built.sort(key=lambda one: -sum(shares[key] for key in one.choices))
    if not built:
        _leave_out(context, outcome, name, "no program with right results")
        return None
    return built[0]


def _leave_out(context: RunContext, outcome: Outcome, name: str, why: str) -> None:
    """Tell why there is no start of a layout."""
    outcome.variants[name] = why
    context.emit(ProgramMeasured(name, None, False, why))


def _planned(context: RunContext, prepared: PreparedVariant) -> int:
    """How many kernels a program is to have, of all that are worth it, that there is time for."""
    gains = [gain for task, gain in guessable(context, prepared) if not task.is_chain]
    affordable = _affordable(context)
    # Those that gain much are worth it, however little time there is.
    much = sum(gain >= _MUCH for gain in gains)
    return len(gains) if affordable is None else max(much, min(len(gains), affordable))


def _affordable(context: RunContext) -> int | None:
    """How many kernels a program can have that there is time for; None without a limit."""
    left, each = _left_s(context), _OF_TRIAL * context.deadlines.each(TRYING, _TRYING_S)
    return None if left is None else int(left / each)


def _with_guesses(
    programs: Programs, prepared: PreparedVariant, found: Found, affordable: int | None
) -> list[Company]:
    """The program with kernels for what there was no time to try, too, as many as there was time
    for before any was, and for what does not compile; without a limit, where all others were tried,
    for that alone. None where its results are not right."""
    context = programs.context
    if context.stopping:
        return []
    most, tasks = (affordable or 0) - len(settle(prepared, found)), list[DispatchTask]()
    for task, gain in guessable(context, prepared):
        # A kernel for several stands for theirs.
        most -= not task.is_chain
        worth_it = affordable is not None and (most >= 0 or gain >= _MUCH)
        if worth_it or prepared.needs_kernel(task):
            tasks.append(task)
    guesses = guess_kernels(context, prepared, tasks) if tasks else {}
    choices = settle(prepared, {**found, **guesses})
    prepared.guesses = {key: guesses[key] for key in choices if key in guesses}
    built = []
    if prepared.guesses:
        built = build_companies(programs, prepared, [choices], "start_with_guesses")
    if not built:
        prepared.guesses = {}
    return built


@dataclass
class _Compiled:
    """A compile stage for what was compiled together with other tasks' candidates."""

    candidates: Sequence[CompiledCandidate]

    def compile(self, configurations: Sequence[Configuration]) -> list[CompiledCandidate]:
        by = {one.configuration: one for one in self.candidates}
        return [by[one] for one in configurations]


def _try_openings(
    context: RunContext,
    stages: SessionStages,
    prepared: PreparedVariant,
    most: int | None,
    kernels: int,
) -> None:
    """Try what each sketch takes for best of every task, unless an earlier run's result serves, as
    long as there is time for a program with so many kernels then.

    Candidates of several tasks are compiled together. Trials of a task are there for the search.
    Where there are few trials, a second sketch of a task waits for the first ones of all; where
    time is limited, too, if it does not suffice for all, or the compiler's code is so slow that
    any kernel is a gain.
    """
    enough = max(1, fair_trials(context, [prepared]) // 2)
    loops: list[tuple[DispatchTask, SearchLoop, list[Configuration]]] = []
    changed = change_since(context, prepared.tasks)
    for task in prepared.tasks:
        task.store_id = context.store.task_id(task.key, task.default_s, space_to_json(task))
        if not reuse_result(context, task, enough, changed):
            loop = task_loop(context, stages, task)
            compiler = loop.stages.compiler
            if isinstance(compiler, DispatchCompiler):
                # Without its opening a task stays the compiler's: those of 5x5 windows took 5 s.
                compiler.timeout_s = max(compiler.timeout_s, _OPENING_S)
            loops.append((task, loop, openings(context, task, task.trials)))
    ranks = ((rank, number) for number, one in enumerate(loops) for rank in range(len(one[2])))
    taken = Counter(number for _, number in sorted(ranks)[:most])
    for number, (*_, given) in enumerate(loops):
        del given[taken[number] :]
    before = context.store.count_trials(context.run_id)
    limited = context.deadlines.limit_s is not None
    hurried, in_turn = limited and slowness(context, prepared.tasks) > _VERY_SLOW, True
    while loops and not context.out_of_time and _left_s(context, kernels) != 0.0:
        # The tasks of the largest shares come first: these are measured while there is time.
        hurried |= _is_short(context, kernels, sum(len(given) for *_, given in loops))
        if hurried and in_turn:
            more = [(task, loop, given[1:]) for task, loop, given in loops if given[1:]]
            loops = [(task, loop, given[:1]) for task, loop, given in loops] + more
            in_turn = False
        sizes = itertools.accumulate(len(given) for *_, given in loops)
        most = _batch(context, kernels)
        count = 1 + sum(size < most for size in sizes)
        _try_group(context, loops[:count], kernels)
        loops = loops[count:]
    opened = context.store.get_state(context.run_id, OPENED)
    opened = opened if isinstance(opened, int) else 0
    new = context.store.count_trials(context.run_id) - before
    context.store.put_state(context.run_id, OPENED, opened + new)


def _try_group(
    context: RunContext,
    loops: Sequence[tuple[DispatchTask, SearchLoop, list[Configuration]]],
    kernels: int,
) -> None:
    """Compile the candidates of several tasks, then measure them; as `_try_openings`."""
    began = time.monotonic()
    compilers = [loop.stages.compiler for _, loop, _ in loops]
    asked = [(one, given) for one, (*_, given) in zip(compilers, loops, strict=True)]
    made = _compile_group(context, asked)
    for (task, loop, given), compiler, candidates in zip(loops, compilers, made, strict=True):
        done = context.store.count_trials(context.run_id)
        loop.stages.compiler = _Compiled(candidates)
        # What has been compiled is soon measured; but on a busy machine not soon enough.
        loop.stop = lambda: _left_s(context, kernels) == 0.0
        loop.observe = observer(context, task, loop, done, context.options.trial_limit)
        loop.try_all(given)
        loop.stages.compiler = compiler
    tried = sum(map(len, made))
    if tried:
        context.deadlines.took(TRYING, time.monotonic() - began, tried)


def _compile_group(
    context: RunContext, given: Sequence[tuple[CompileStage, list[Configuration]]]
) -> list[list[CompiledCandidate]]:
    """The candidates of several compile stages: together where the pool is theirs."""
    compilers: list[tuple[DispatchCompiler, list[Job[Any, Any]]]] = []
    for stage, configurations in given:
        if not isinstance(stage, DispatchCompiler):
            return [one.compile(theirs) for one, theirs in given]
        compilers.append((stage, stage.jobs(configurations)))
    results = iter(context.compilers.run([job for _, jobs in compilers for job in jobs]))
    return [compiler.compiled([next(results) for _ in jobs]) for compiler, jobs in compilers]


def _is_short(context: RunContext, kernels: int, wanted: int) -> bool:
    """Whether there is too little time for so many candidates, as far as it is known."""
    return wanted * context.deadlines.each(TRYING, 0.0) > _time_s(context, kernels)


def _time_s(context: RunContext, kernels: int) -> float:
    """Seconds for further candidates, before a program with so many kernels."""
    ends = (context.left_for("search"), _left_s(context, kernels))
    return min((end for end in ends if end is not None), default=math.inf)


def _batch(context: RunContext, kernels: int) -> int:
    """How many candidates to compile before they are measured: few while it is not known what one
    takes, and no more than there is time for."""
    cores = context.target.cores
    left, each = _time_s(context, kernels), context.deadlines.each(TRYING, 0.0)
    if left == math.inf:
        return _BATCH * cores
    return max(cores, min(_BATCH * cores, int(left / each) if each else 2 * cores))
