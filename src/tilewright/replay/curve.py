"""What random search finds, computed exactly, and where its budget ends.

Random search draws without replacement. With the N values in ascending order, the best of t draws
is above the i-th with probability C(N - i, t) / C(N, t) (none of the i smallest is drawn), so

    E(t) = v[1] + sum over i from 1 to N - 1 of (v[i + 1] - v[i]) * C(N - i, t) / C(N, t)

A configuration that failed has no time; until something has succeeded the best so far is taken to
be the worst time that was measured. A failure therefore counts as that value, which leaves the
formula as it is.

In simulated time there is no such formula: trials of different cost make the number of trials done
by a moment depend on what they found. There the mean over many random orders is taken, always the
same ones. (Baselines and budgets of this kind: F.-J. Willemsen, R. Schoonhoven,
J. Filipovic, J. O. Torring, R. van Nieuwpoort and B. van Werkhoven, "A methodology for comparing
optimization algorithms for auto-tuning", Future Generation Computer Systems 159, 2024.)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.space.arrays import FloatArray, IntArray

CLOSED = 0.95
"""Share of the gap between the median and the optimum that random search closes in its budget."""

NEAR = 1.05
"""A configuration is near the optimum when it takes at most this times as long."""

# Random orders that a curve over time is the mean of, as far as so many draws in all allow.
_LEAST_ORDERS, _MOST_ORDERS, _DRAWS = 512, 8192, 5_000_000
_TOGETHER = 256


def expected_best(values: FloatArray) -> FloatArray:
    """E(1), …, E(N) of random search over these values, shape (N,).

    `values` holds the time of each configuration, of those that failed the worst time.

    Args:
        values: times of the members, in seconds.
    """
    ascending = np.sort(values)
    count = len(ascending)
    steps = np.diff(ascending)
    rank = np.arange(1, count)
    # The chance that none of the i smallest has been drawn, i = 1 to N - 1; now after no draw.
    above = np.ones(count - 1, dtype=np.float64)
    found = np.empty(count, dtype=np.float64)
    for draws in range(count):
        above = above * np.maximum(0, count - rank - draws) / (count - draws)
        found[draws] = ascending[0] + steps @ above
    return found


def expected_best_by_time(
    values: FloatArray, costs: Callable[[IntArray], FloatArray], step_s: float
) -> FloatArray:
    """Random search's mean best so far at moments of simulated time.

    A trial counts from when it is done; before the first the best so far is the worst value.

    Args:
        values: the time of each configuration in seconds, of those that failed the worst time;
            shape (N,).
        costs: seconds that trials take, for many orders at once: positions in `values`, shape
            (orders, N), to seconds of the same shape.
        step_s: seconds between the moments.

    Returns:
        Seconds at `step_s`, 2 `step_s`, …; shape (N,).
    """
    count = len(values)
    times = step_s * np.arange(1, count + 1)
    orders = max(_LEAST_ORDERS, min(_MOST_ORDERS, _DRAWS // count))
    rng = np.random.default_rng(0)
    total = np.zeros(count, dtype=np.float64)
    for first in range(0, orders, _TOGETHER):
        rows = min(_TOGETHER, orders - first)
        drawn = rng.permuted(np.tile(np.arange(count), (rows, 1)), axis=1)
        done = np.cumsum(costs(drawn), axis=1)
        best = np.minimum.accumulate(values[drawn], axis=1)
        # The cost of all trials adds up to the last time, but for rounding.
        best = np.column_stack([np.full(rows, values.max()), best])
        for finished, found in zip(done, best, strict=True):
            total += found[np.searchsorted(finished, times * (1 + 1e-12), side="right")]
    return total / orders


def budget(expected: FloatArray, optimum: float, median: float) -> int:
    """Steps after which random search has closed `CLOSED` of the gap between median and optimum.

    Args:
        expected: its expected best after 1, 2, … steps, in seconds.
        optimum: the least time, in seconds.
        median: of the times, in seconds.
    """
    aim = optimum + (1 - CLOSED) * (median - optimum)
    # The last value is the optimum itself, but for rounding.
    reached = np.flatnonzero(expected <= aim + 1e-12 * median)
    return int(reached[0]) + 1 if len(reached) else len(expected)


def random_trials(count: int, good: int, chance: float = 0.5) -> int:
    """Draws without replacement until a good configuration has come.

    Args:
        count: how many configurations there are.
        good: how many of them are good, at least 1.
        chance: with which one of them is to have come.
    """
    missed = 1.0
    for draws in range(count):
        missed *= max(0, count - good - draws) / (count - draws)
        if 1 - missed >= chance - 1e-12:
            return draws + 1
    return count
