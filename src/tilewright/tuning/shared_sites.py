"""Tasks whose kernels are for the same part of a program: searched once, and judged together.

A kernel is as fast in one variant as in another, so that a site which several variants have is
searched in one of them. A site of several dispatches and the tasks of these take each other's
place, so that only one of both sides will be chosen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from tilewright.errors import UserError
from tilewright.space.union import MEMBER_KNOB
from tilewright.trial import Trial
from tilewright.tuning.prepared_variant import PreparedVariant
from tilewright.tuning.task import DispatchTask

# The gain of a side that takes twice as long as the other counts for an eighth.
_STEEPNESS = 3


class SharedSites:
    """The tasks of several variants that have a site in common.

    Of each site the task that has the largest share of its program searches kernels. The others
    search the compiler's pipelines alone, and get what was found as trials of their own.
    """

    def __init__(self, prepared: Sequence[PreparedVariant]) -> None:
        """Hold all tasks but one of each site to the compiler's pipelines.

        Args:
            prepared: the variants.
        """
        of: dict[str, list[DispatchTask]] = defaultdict(list)
        for one in prepared:
            for task in one.tasks:
                if task.site is not None and task.data is not None:
                    of[task.site.digest].append(task)
        self._followers: dict[int, list[DispatchTask]] = {}
        self._idle: set[int] = set()
        for tasks in of.values():
            first = max(tasks, key=lambda task: task.share)
            others = [task for task in tasks if task is not first]
            self._followers[id(first)] = others
            self._idle |= {id(task) for task in others if not _hold_to_pipelines(task)}

    def is_searched(self, task: DispatchTask) -> bool:
        """Whether there is something to search for a task beside what it gets from another.

        Args:
            task: of one of the variants.
        """
        return id(task) not in self._idle

    def hand_over(self, task: DispatchTask, trials: Sequence[Trial]) -> None:
        """Give the kernels among the trials of a task to the others of its site.

        Args:
            task: whose trials they are.
            trials: those that were not handed over yet.
        """
        for other in self._followers.get(id(task), ()):
            other.trials += [
                replace(trial, origin=f"as in {task.variant}")
                for trial in trials
                if trial.ok
                and task.kernel(trial.configuration) is not None
                and other.space.space.contains(trial.configuration)
            ]


def _hold_to_pipelines(task: DispatchTask) -> bool:
    """Whether anything is left when a task has no kernels of its own to search."""
    pipelines = [] if task.is_chain else list(task.space.members)
    try:
        task.restricted = task.restricted.restrict({MEMBER_KNOB: pipelines}).space
    except UserError:
        return False
    return True


def standings(prepared: PreparedVariant) -> list[tuple[DispatchTask, float]]:
    """How the sites of several dispatches and the tasks of these stand to each other.

    Args:
        prepared: a variant, whose tasks have been tried.

    Returns:
        Tasks with what their gain counts for: 1 for the faster side, less the farther a side is
        behind.
    """
    found: list[tuple[DispatchTask, float]] = []
    for chain in prepared.tasks:
        parts = prepared.parts_of(chain)
        mine = _best_s(chain)
        if not parts or chain.best is None or mine <= 0.0:
            continue
        covered = set(chain.names if chain.site is None else chain.site.site.dispatches)
        pads = chain.site is not None and chain.site.pads
        taken = sum(
            (_best_s(part) + (prepared.padding_s(part) if pads else 0.0))
            * len(covered.intersection(part.names))
            for part in parts
        )
        ratio = taken / mine
        found.append((chain, min(1.0, ratio**_STEEPNESS)))
        # What also runs elsewhere is worth as much as before.
        found += [
            (part, min(1.0, ratio**-_STEEPNESS))
            for part in parts
            if ratio > 0.0 and part.count <= chain.count * len(part.names)
        ]
    return found


def _best_s(task: DispatchTask) -> float:
    """The best time of a task, which is the default's where no trial is faster; of one that there
    was no time to time what is assumed."""
    best = task.best.time_s if task.best is not None else None
    return task.own_s if best is None else min(best, task.own_s)
