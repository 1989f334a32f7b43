"""What a strategy was told: one trial for each configuration, in an order of its own.

Models and choices are made from this, so that they do not depend on the order in which trials come
in, nor on how many of them are told at a time.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Iterable

import numpy as np

from tilewright.space.arrays import FloatArray
from tilewright.trial import Configuration, Trial


def seconds(trial: Trial) -> float:
    """The time of a trial; NaN for one that failed or has no time that a clock could show."""
    time = trial.time_s
    return time if trial.ok and time is not None and 0 < time < math.inf else math.nan


class History:
    """The trials told so far, ordered by configuration.

    A configuration told more than once counts with its fastest trial.
    """

    def __init__(self) -> None:
        self._order: list[str] = []
        self._trials: list[Trial] = []
        self._keys: dict[Configuration, str] = {}

    def __len__(self) -> int:
        return len(self._trials)

    def __contains__(self, config: Configuration) -> bool:
        return config in self._keys

    @property
    def trials(self) -> list[Trial]:
        """All trials; the order depends on their configurations alone."""
        return list(self._trials)

    @property
    def configurations(self) -> list[Configuration]:
        """The configurations of `trials`."""
        return [t.configuration for t in self._trials]

    def add(self, trials: Iterable[Trial]) -> None:
        """Take in trials, in any order."""
        for trial in trials:
            key = self._keys.get(trial.configuration)
            if key is None:
                key = self._keys[trial.configuration] = repr(trial.configuration.items)
                at = bisect.bisect_left(self._order, key)
                self._order.insert(at, key)
                self._trials.insert(at, trial)
            else:
                at = bisect.bisect_left(self._order, key)
                self._trials[at] = min(self._trials[at], trial, key=_preference)

    def seconds(self, config: Configuration) -> float | None:
        """The time of a configuration: NaN if it failed, None if it was not told."""
        key = self._keys.get(config)
        return None if key is None else seconds(self._trials[bisect.bisect_left(self._order, key)])

    def times(self) -> FloatArray:
        """Seconds of every trial, NaN for failures, in the order of `trials`."""
        return np.array([seconds(t) for t in self._trials], dtype=np.float64)

    def best(self, count: int) -> list[Trial]:
        """The fastest trials, the fastest first; fewer when fewer have succeeded."""
        fine = [t for t in self._trials if not math.isnan(seconds(t))]
        return heapq.nsmallest(count, fine, key=seconds)


def _preference(trial: Trial) -> tuple[bool, float, str, str]:
    time = seconds(trial)
    failed = math.isnan(time)
    return failed, 0.0 if failed else time, trial.status, trial.message
