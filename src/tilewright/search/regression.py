"""What models of times are fitted to: log times, the trials that tell the most, and a line through
the analytic prior."""

from __future__ import annotations

import numpy as np

from tilewright.space.arrays import FloatArray, IntArray

# Pull of the prior's slope towards 1, as a number of trials.
_SLOPE_TRIALS = 2.0


def log_times(times: FloatArray) -> FloatArray:
    """Logarithms of seconds (NaN: failed) for a model to learn.

    Outliers far above the median say no more than "slow" and would swamp the rest: they are cut to
    a ceiling, which is also what a failure counts.
    """
    ok = ~np.isnan(times)
    y = np.log(np.where(ok, times, 1.0))
    if not ok.any():
        return y
    middle = float(np.median(y[ok]))
    ceiling = middle + 1.5 * max(middle - float(y[ok].min()), 0.2)
    return np.where(ok, np.minimum(y, ceiling), ceiling)


def informative(times: FloatArray, most: int) -> IntArray:
    """The trials that tell the most: half of them the fastest, the others at even distances through
    the rest by time, failures last.

    Args:
        times: seconds, NaN for a failure, shape (trials,).
        most: how many at most.

    Returns:
        Positions, ascending.
    """
    order = np.argsort(np.where(np.isnan(times), np.inf, times), kind="stable")
    if len(order) <= most:
        return np.arange(len(order))
    half = most // 2
    rest = order[half:]
    even = np.linspace(0, len(rest) - 1, most - half).round().astype(np.int64)
    return np.sort(np.concatenate([order[:half], rest[even]]))


def prior_line(
    priors: FloatArray, y: FloatArray, trials: float = _SLOPE_TRIALS
) -> tuple[float, float]:
    """A line through the log times against minus the prior, by least squares.

    Args:
        priors: of the trials, shape (trials,).
        y: their log times, shape (trials,).
        trials: how many trials the belief weighs that the slope is 1.

    Returns:
        Slope (never negative) and level; 1 and 0 without trials.
    """
    if len(y) == 0:
        return 1.0, 0.0
    centred = priors - priors.mean()
    spread = float((centred**2).sum())
    pull = trials * (spread / len(y)) + 1e-12
    # With few trials the slope stays near 1, its value for a prior that is minus a log time.
    slope = max(0.0, (-float(centred @ (y - y.mean())) + pull) / (spread + pull))
    return slope, float(y.mean() + slope * priors.mean())
