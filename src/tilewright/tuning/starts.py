"""Starts: programs with kernels for all of their sites, as the sketches have them by default.

A start is what the search goes on from. Kernels of a layout are not compared one by one with what
the compiler makes of another layout: each layout's best program is compiled and timed as a whole.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.errors import UserError
from tilewright.measure.jobs import Job
from tilewright.trial import Configuration
from tilewright.tuning.choices import settle
from tilewright.tuning.company import Company, Outcome, build_companies
from tilewright.tuning.context import RunContext
from tilewright.tuning.defaults import measure_defaults
from tilewright.tuning.events import ProgramMeasured
from tilewright.tuning.experience import space_to_json
from tilewright.tuning.kernel_sites import SiteFacts
from tilewright.tuning.prepare import PreparedVariant, take_apart
from tilewright.tuning.programs import Programs
from tilewright.tuning.search_loop import SearchLoop
from tilewright.tuning.search_phase import fair_trials, observer
from tilewright.tuning.stages import CompiledCandidate, DispatchCompiler
from tilewright.tuning.task import DispatchTask
from tilewright.tuning.task_search import earlier_result, openings, task_loop
from tilewright.tuning.variants import Variant

# A kernel that is not faster than this part of the compiler's code alone is left out of a start.
_WORTH = 0.98
# Of the trials and the time of a run, what starts may take; the rest is the search's.
_OF_TRIALS, _OF_TIME = 0.5, 0.5
# Candidates for each core that are compiled before they are measured.
_BATCH = 8


def make_starts(programs: Programs, outcome: Outcome, first: PreparedVariant) -> list[Company]:
    """A program with kernels for each layout, from measured defaults of the sketches.

    Args:
        programs: of the run: builds the programs.
        outcome: gets the variants whose dispatches were measured, and why there is no start.
        first: the dispatches of the compiler's own variant, with its sites.

    Returns:
        Programs with right results; none where no kernels are tried.
    """
    context = programs.context
    starts: list[Company] = []
    layouts = _layouts(context, first)
    took_s = 0.0
    for number, layout in enumerate(layouts):
        begin = time.monotonic()
        if number and _too_late(context, took_s):
            left = ", ".join(one.name for one in layouts[number:])
            context.note(f"no time for kernels in other layouts: {left} (--time-limit)")
            break
        prepared = _prepare(programs, outcome, first, layout)
        if prepared is not None:
            start = _start(programs, outcome, prepared, len(layouts))
            starts += [start] if start is not None else []
        took_s = time.monotonic() - begin
    return starts


def _layouts(context: RunContext, first: PreparedVariant) -> list[Variant]:
    """The variants that a start is made of: the compiler's own, and other layouts."""
    if not any(facts.tunable is not None for facts in first.sites):
        return []
    of = [v for v in context.options.chosen_variants if v.is_layout or not v.flags]
    return of if any(map(_convolves, first.sites)) else [v for v in of if not v.flags]


def _convolves(facts: SiteFacts) -> bool:
    """Whether a site has one of the ops that layouts are about."""
    return any("conv" in name or "pooling" in name for name in facts.ops)


def _too_late(context: RunContext, more_s: float) -> bool:
    """Whether so many more seconds would leave the search too little time."""
    left, limit = context.left_for("search"), context.options.time_limit_s
    return left is not None and left - more_s < (1 - _OF_TIME) * (limit or 0.0)


def _prepare(
    programs: Programs, outcome: Outcome, first: PreparedVariant, layout: Variant
) -> PreparedVariant | None:
    """The dispatches of a layout, each measured; None where it has nothing of its own."""
    context = programs.context
    prepared = first
    if layout.name != first.variant.name:
        try:
            with context.phase("dispatches", f"reading those of {layout.name}"):
                prepared = take_apart(context, layout)
        except UserError as error:
            outcome.variants[layout.name] = str(error)
            context.emit(ProgramMeasured(layout.name, None, False, str(error)))
            return None
        known = {facts.tunable.digest for facts in first.sites if facts.tunable is not None}
        if all(f.tunable is None or f.tunable.digest in known for f in prepared.sites):
            return None
    with context.phase("dispatches", f"measuring those of {layout.name}"):
        measure_defaults(context, prepared, outcome.default_s if prepared is first else 0.0)
    outcome.prepared.append(prepared)
    return prepared


def _start(
    programs: Programs, outcome: Outcome, prepared: PreparedVariant, shared_by: int
) -> Company | None:
    """The program with the best kernel of each site; None where there is none."""
    context = programs.context
    name = f"{prepared.variant.name} with kernels"
    with context.phase("starts", name):
        most = int(_OF_TRIALS * context.options.trial_limit) // shared_by
        _try_openings(context, prepared, max(1, most))
        found = {}
        for task in prepared.tasks:
            best = task.best
            if best is None or best.time_s is None or task.default_s is None:
                continue
            if best.time_s < _WORTH * task.default_s:
                found[task.identity] = (best.configuration, best.time_s)
        choices = settle(prepared, found)
        if not choices:
            return None
        built = build_companies(programs, prepared, [choices], "start")
    if not built:
        outcome.variants[name] = problem = "no program with right results"
        context.emit(ProgramMeasured(name, None, False, problem))
        return None
    return built[0]


@dataclass
class _Compiled:
    """A compile stage for what was compiled together with other tasks' candidates."""

    candidates: Sequence[CompiledCandidate]

    def compile(self, configurations: Sequence[Configuration]) -> list[CompiledCandidate]:
        by = {one.configuration: one for one in self.candidates}
        return [by[one] for one in configurations]


def _try_openings(context: RunContext, prepared: PreparedVariant, most: int) -> None:
    """Try what each sketch takes for best, or what an earlier run has found, of every task.

    Candidates of several tasks are compiled together. Trials of a task are there for the search.
    """
    enough = max(1, fair_trials(context, [prepared]) // 2)
    done = context.store.count_trials(context.run_id)
    loops: list[tuple[DispatchTask, SearchLoop, DispatchCompiler, list[Job[Any, Any]]]] = []
    for task in prepared.tasks:
        task.store_id = context.store.task_id(task.key, task.default_s, space_to_json(task))
        loop = task_loop(context, task)
        compiler = loop.stages.compiler
        assert isinstance(compiler, DispatchCompiler)
        jobs = compiler.jobs(_opening(context, task, enough)[: max(0, most)])
        most -= len(jobs)
        loops.append((task, loop, compiler, jobs))
    while loops:
        # The tasks of the largest shares come first: these are measured while there is time.
        sizes = itertools.accumulate(len(jobs) for *_, jobs in loops)
        count = 1 + sum(size < _BATCH * context.target.cores for size in sizes)
        group, loops = loops[:count], loops[count:]
        results = iter(context.compilers.run([job for *_, jobs in group for job in jobs]))
        made = [compiler.compiled([next(results) for _ in jobs]) for *_, compiler, jobs in group]
        for (task, loop, *_), candidates in zip(group, made, strict=True):
            loop.stages.compiler = _Compiled(candidates)
            loop.observe = observer(context, task, done, context.options.trial_limit)
            done += len(candidates)
            loop.try_all([one.configuration for one in candidates])
        if context.out_of_time:
            break


def _opening(context: RunContext, task: DispatchTask, enough: int) -> list[Configuration]:
    """What is tried of a task: an earlier run's result alone where there is one."""
    earlier = earlier_result(context, task, enough)
    if earlier is None:
        return openings(context, task, task.trials)
    known = {trial.configuration for trial in task.trials}
    found = earlier.configuration
    return [found] if found is not None and found not in known else []
