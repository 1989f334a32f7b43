"""`tilewright tune --dry-run`: what would be tried, in which order and for how long; nothing runs.

The program is compiled to its dispatches and their spaces are made, as in a run. The first
candidates are those that the strategy begins with, before anything has been measured. The time is
guessed from what compiling a few of the compiler's own choices takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import words
from tilewright.measure.jobs import Job
from tilewright.search.interface import create_strategy
from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning.context import RunContext
from tilewright.tuning.default_programs import default_vmfb
from tilewright.tuning.prepared_variant import PreparedVariant, nothing_to_tune
from tilewright.tuning.task import DispatchTask
from tilewright.tuning.task_search import openings
from tilewright.tuning.variants import DEFAULT_VARIANT, applicable
from tilewright.tuning.worker_tasks import compile_candidate

# Candidates of each dispatch that are shown, and dispatches whose default is compiled for the time.
_SHOWN, _COMPILED = 8, 6
_TIMEOUT_S = 120.0
# What a trial takes beside its compile, and a finalist.
_MEASURE_S, _CONFIRM_S = 0.2, 2.0
# Compiles of the whole program beside those of the variants: the default, the winners, the result.
_PROGRAMS = 4


@dataclass(frozen=True)
class PlannedDispatch:
    """A dispatch that would be tuned.

    `spaces`: the number of configurations by pipeline (estimates where there are many). `first`:
    the candidates that the search would begin with, in words.
    """

    name: str
    workload: str
    count: int
    space_points: float
    spaces: dict[str, float]
    first: tuple[str, ...]


@dataclass(frozen=True)
class DryRunResult:
    """What a run would do. `minutes` is a guess of all that it would take."""

    program: str
    target: str
    strategy: str
    variants: tuple[str, ...]
    dispatches: tuple[PlannedDispatch, ...]
    skipped: tuple[tuple[str, str], ...]
    trials: int
    minutes: float

    def to_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {"mode": "dry-run", **asdict(self)}


def dry_run(context: RunContext, prepared: PreparedVariant, source: Path) -> DryRunResult:
    """See what a run would do.

    Args:
        context: the run, of which nothing is measured.
        prepared: the tasks of the program's default variant.
        source: the user's file.

    Returns:
        Dispatches, spaces, the first candidates, and how long it would take.

    Raises:
        UserError: no dispatch has a space.
    """
    options, tasks = context.options, prepared.tasks
    if not tasks:
        raise nothing_to_tune(source, [prepared], options.only)
    points = sum(task.space_points for task in tasks)
    limit = options.trial_limit
    if options.max_trials is None:
        limit = min(limit, options.effort_preset.trials_per_dispatch * len(tasks))
    trials = math.ceil(min(limit, points))
    each = max(1, trials // len(tasks))
    variants = _variants(context, prepared)
    planned = tuple(_planned(context, task, each) for task in tasks)
    return DryRunResult(
        str(source),
        context.target.key,
        options.strategy_name,
        variants,
        planned,
        tuple((one.name, one.reason) for one in prepared.skipped),
        trials,
        _seconds(context, tasks, trials, len(variants)) / 60.0,
    )


def _planned(context: RunContext, task: DispatchTask, trials: int) -> PlannedDispatch:
    rng = np.random.default_rng(0)
    members = getattr(task.restricted, "members", (task.restricted,))
    return PlannedDispatch(
        task.name,
        task.workload.name,
        task.count,
        task.space_points,
        {one.name: float(one.size_estimate(rng).points) for one in members},
        tuple(task.describe(one) for one in islice(_candidates(context, task, trials), _SHOWN)),
    )


def _candidates(context: RunContext, task: DispatchTask, trials: int) -> Iterator[Configuration]:
    """What would be tried of a task, as long as nothing has been measured."""
    own = task.space.default
    first = openings(context, task, ())
    yield from first
    options = context.options
    strategy = create_strategy(
        options.strategy_name,
        task.restricted,
        options.seed,
        options.strategy_settings,
        # What it takes is not known: the same for all that is tried.
        known=[Trial(one, Status.OK, time_s=1e-3) for one in (own, *first)],
        trials=trials,
    )
    yield from strategy.ask(_SHOWN)


def _variants(context: RunContext, prepared: PreparedVariant) -> tuple[str, ...]:
    """The whole-program variants that would be compared, as far as the program tells: those of the
    effort are for CPUs, and not for who restricts the search."""
    options = context.options
    restricted = options.config is not None and options.config.restricts
    wanted = options.chosen_variants
    if options.variants is None and (restricted or context.target.is_gpu):
        wanted = (DEFAULT_VARIANT,)
    fitting = (one.name for one in wanted if not one.flags or applicable(one, prepared.kinds))
    return tuple(dict.fromkeys((DEFAULT_VARIANT.name, *fitting)))


def _seconds(context: RunContext, tasks: list[DispatchTask], trials: int, variants: int) -> float:
    """A guess of what a run would take, by what compiling takes here."""
    options, cores = context.options, max(1, context.target.cores)
    program_s = sum(context.phase_s.values())
    alone = [task for task in tasks if not task.is_chain][:_COMPILED]
    jobs = [Job(compile_candidate, task.request(default_vmfb(task)), _TIMEOUT_S) for task in alone]
    seconds = [one.seconds for one in context.compilers.run(jobs) if one.failure is None]
    compile_s = sum(seconds) / len(seconds) if seconds else 1.0
    finalists = len(tasks) * options.effort_preset.finalists
    whole = (
        program_s * (_PROGRAMS + variants / cores)
        + trials * (compile_s / cores + _MEASURE_S)
        + finalists * (compile_s / cores + _CONFIRM_S)
    )
    return min(whole, options.time_limit_s or math.inf)


def plan_lines(result: DryRunResult) -> list[str]:
    """The result in plain text.

    Args:
        result: of a dry run.

    Returns:
        Lines without ends.
    """
    number = words.plural(len(result.dispatches), "dispatch", "dispatches")
    lines = [f"{result.program} for {result.target}: {number} to tune; nothing is run"]
    for one in result.dispatches:
        runs = words.plural(one.count, "run", "runs")
        spaces = ", ".join(f"{name} {words.count(size)}" for name, size in one.spaces.items())
        lines.append(f"{one.name} ({one.workload}), {runs}")
        lines.append(f"  space  {words.count(one.space_points)} configurations ({spaces})")
        for place, configuration in enumerate(one.first, 1):
            lines.append(f"  {'first' if place == 1 else '':5}  {place}. {configuration}")
    lines += words.by_reason((name, f"not tuned: {reason}") for name, reason in result.skipped)
    lines.append(f"variants: {', '.join(result.variants)}")
    lines.append(
        f"{words.plural(result.trials, 'trial', 'trials')} by {result.strategy}, "
        f"about {max(1, round(result.minutes))} min"
    )
    return lines
