"""Kernels that no trial timed: what their sketches take for best, where there is no time to try it.

A large network in little time would else keep the compiler's code for most of its dispatches. The
program with such kernels is compared with the others as a whole, its results too.
"""

from __future__ import annotations

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


def guessable(context: RunContext, prepared: PreparedVariant) -> list[DispatchTask]:
    """The tasks without a trial for which a kernel is guessed to be a gain.

    Args:
        context: the run; it has timed the program.
        prepared: the variant.

    Returns:
        Those where most is gained first.
    """
    pace, least_s = _pace(prepared), _LEAST * context.deadlines.each(RUNNING, 0.0)
    gains: list[tuple[float, DispatchTask]] = []
    for task in prepared.choosable:
        if task.site is None or task.trials:
            continue
        if task.default_s is None:
            # The compiler's choice is guessed to take twice as long.
            gains.append((pace * task.guessed_s, task))
        elif pace * _each_s(task) < _WORTH * task.default_s:
            gains.append((task.count * task.default_s - pace * task.guessed_s, task))
    gains.sort(key=lambda one: -one[0])
    return [task for gain, task in gains if gain >= least_s]


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
