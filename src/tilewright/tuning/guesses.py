"""Kernels that no trial timed: what their sketches take for best, where there is no time to try it.

A large network in little time would else keep the compiler's code for most of its dispatches. The
program with such kernels is compared with the others as a whole, its results too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from tilewright.trial import Configuration
from tilewright.tuning.choices import Found
from tilewright.tuning.context import RunContext
from tilewright.tuning.estimates import RUNNING
from tilewright.tuning.prepared_variant import PreparedVariant
from tilewright.tuning.task import DispatchTask
from tilewright.tuning.task_search import openings
from tilewright.words import plural

# Of the compiler's own choice: what a kernel has to be guessed to take to be taken for a gain.
_WORTH = 0.9
# Of the program's time: what has to be gained for a kernel to be worth compiling.
_LEAST = 0.0005
# What kernels take of what is guessed of them, while none was tried.
_PACE = 1.5


def guessable(context: RunContext, prepared: PreparedVariant) -> list[tuple[DispatchTask, float]]:
    """The tasks for which a kernel is guessed to be a gain, of those without a trial or a result of
    an earlier run.

    What those take as the compiler makes them that were not timed is assumed with that.

    Args:
        context: the run; it has timed the program.
        prepared: the variant.

    Returns:
        Each with the part of the program's time that it is guessed to gain, the largest first.
    """
    pace, whole_s = _pace(prepared), context.deadlines.each(RUNNING, prepared.guessed_s)
    _assume_defaults(prepared, whole_s, pace)
    gains: list[tuple[DispatchTask, float]] = []
    for task in prepared.choosable:
        kernel_s, untried = pace * _each_s(task), not task.trials and not task.reused
        if task.site is not None and untried and kernel_s < _WORTH * task.own_s:
            gains.append((task, task.count * (task.own_s - kernel_s) / whole_s))
    gains.sort(key=lambda one: -one[1])
    return [one for one in gains if one[1] >= _LEAST]


def guess_kernels(
    context: RunContext, prepared: PreparedVariant, tasks: Sequence[DispatchTask]
) -> Found:
    """Kernels for tasks that there was no time to try.

    Args:
        context: the run; it is told.
        prepared: the variant, with its trials.
        tasks: some of its tasks without a trial.

    Returns:
        What the first sketch of each takes for best, with the seconds that it is guessed to take.
    """
    pace, found = _pace(prepared), dict[str, tuple[Configuration, float]]()
    for task in tasks:
        kernels = (one for one in openings(context, task, ()) if task.kernel(one) is not None)
        kernel = next(kernels, None)
        if kernel is not None:
            found[task.identity] = (kernel, pace * _each_s(task))
    if found:
        context.note(
            f"{plural(len(found), 'kernel')} of {prepared.variant.name} may be taken as guessed: "
            "there is no time to try them one by one (--time-limit)"
        )
    return found


def refuted(task: DispatchTask, guess: Configuration) -> bool:
    """Whether a guess was tried since, and failed or is no faster than the compiler's own choice.

    Args:
        task: whose guess it is.
        guess: of its space.
    """
    tried = [trial for trial in task.trials if trial.configuration == guess]
    best_s = min((one.time_s for one in tried if one.ok and one.time_s), default=math.inf)
    return bool(tried) and best_s >= (task.default_s or math.inf)


def _assume_defaults(prepared: PreparedVariant, whole_s: float, pace: float) -> None:
    """Say what tasks that were not timed take as the compiler makes them.

    As many times what is guessed of them as those of their kind that were timed; of a kind of which
    none was, their part of what the others leave of the program's time, and as much at least that
    kernels are taken for a gain. What does not compile takes as long as all.
    """
    single = [task for task in prepared.choosable if not task.is_chain]
    ratios: dict[str, list[float]] = {}
    for task in single:
        if task.default_s is not None:
            ratios.setdefault(task.workload.kind, []).append(task.default_s / _each_s(task))
    left_s = whole_s - sum(task.count * (task.default_s or 0.0) for task in single)
    guessed_s = sum(task.guessed_s for task in single if task.default_s is None)
    others = max(2 * pace, left_s / guessed_s if guessed_s else 0.0)
    slow = {kind: statistics.median(found) for kind, found in ratios.items()}
    for task in single:
        assumed_s = slow.get(task.workload.kind, others) * _each_s(task)
        task.assumed_s = whole_s if task.uncompilable else assumed_s
    for task in (one for one in prepared.choosable if one.is_chain):
        parts_s = sum(part.own_s for part in prepared.parts_of(task))
        task.assumed_s = max(parts_s, _each_s(task))


def _pace(prepared: PreparedVariant) -> float:
    """What kernels take of what is guessed of them, by those that were tried."""
    ratios = [
        trial.time_s / _each_s(task)
        for task in prepared.tasks
        for trial in task.trials[:1]
        if trial.ok and trial.time_s and task.kernel(trial.configuration) is not None
    ]
    return statistics.median(ratios) if ratios else _PACE


def _each_s(task: DispatchTask) -> float:
    return task.guessed_s / task.count
