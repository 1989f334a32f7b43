"""Which knobs mattered: how much of the differences between trials each knob explains alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Fewer trials than this say nothing of any knob.
LEAST_TRIALS = 8


def importance(codes: Sequence[NDArray[np.int64]], times: NDArray[np.float64]) -> list[float]:
    """For each knob the share of the variance of log(time) between its values, from 0 to 1.

    It is omega squared of a one-way analysis of variance (W. Hays, "Statistics for Psychologists",
    1963): unlike the plain share of the variance it does not grow with the number of values. What
    knobs do only together is in none of them.

    Args:
        codes: for each knob the number of the value that each trial had, [trials].
        times: seconds, all positive, [trials].

    Returns:
        A share for each knob; zeros where there are too few trials or no differences.
    """
    logs = np.log(times)
    total = float(np.sum((logs - logs.mean()) ** 2)) if logs.size else 0.0
    if logs.size < LEAST_TRIALS or total <= 0:
        return [0.0] * len(codes)
    return [_omega_squared(c, logs, total) for c in codes]


def _omega_squared(codes: NDArray[np.int64], logs: NDArray[np.float64], total: float) -> float:
    values, groups = np.unique(codes, return_inverse=True)
    degrees = values.size - 1
    inside = logs.size - values.size
    if degrees < 1 or inside < 1:
        return 0.0
    counts = np.bincount(groups)
    means = np.bincount(groups, logs) / counts
    between = float(np.sum(counts * (means - logs.mean()) ** 2))
    error = (total - between) / inside
    return float(np.clip((between - degrees * error) / (total + error), 0.0, 1.0))
