"""Rank candidates by the analytic prior, corrected by the trials near to them.

Gaussian-process regression (C. E. Rasmussen and C. K. I. Williams, Gaussian Processes for Machine
Learning, 2006, algorithm 2.1) of the logarithm of the time, with the prior as its mean function
and a fixed kernel: nothing is learned about the space beyond the trials themselves, so it is usable
from the first one on. A failure counts as slow as the slowest, which lowers what is near to it.
"""

from __future__ import annotations

import numpy as np

from tilewright.search.features import squared_distances
from tilewright.space.interface import FloatArray
from tilewright.space.knobs import IntArray

# Standard deviation of noise in log time, relative to the spread of the trials.
_NOISE = 0.15
# Pull of the prior's slope towards 1, as a number of trials.
_SLOPE_TRIALS = 2.0
# Trials that a prediction is made from at most: its cost grows with their cube.
_MOST_TRIALS = 512


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
    """Positions, ascending, of at most `most` trials that tell the most: half of them the fastest,
    the others at even distances through the rest by time, failures last."""
    order = np.argsort(np.where(np.isnan(times), np.inf, times), kind="stable")
    if len(order) <= most:
        return np.arange(len(order))
    half = most // 2
    rest = order[half:]
    even = np.linspace(0, len(rest) - 1, most - half).round().astype(np.int64)
    return np.sort(np.concatenate([order[:half], rest[even]]))


class Ranking:
    """Predicted log times, lower is better, from trials at scaled features `x`.

    `times` holds seconds, NaN for a failure; `priors` the prior of each trial (higher is better).
    """

    def __init__(self, x: FloatArray, times: FloatArray, priors: FloatArray, length: float) -> None:
        kept = informative(times, _MOST_TRIALS)
        x, times, priors = x[kept], times[kept], priors[kept]
        self._x = x
        self._length = length
        y = log_times(times)
        ok = ~np.isnan(times)
        self._slope, self._level = prior_line(priors[ok], y[ok])
        residual = y - self._mean(priors)
        self._scale = max(float(residual.std()), 1e-3) if len(y) else 1.0
        gram = self._kernel(x) + _NOISE**2 * np.eye(len(x))
        self._inverse = np.linalg.inv(gram)
        self._weights = self._inverse @ residual

    def _mean(self, priors: FloatArray) -> FloatArray:
        return np.asarray(self._level - self._slope * priors)

    def _kernel(self, x: FloatArray) -> FloatArray:
        distance = np.sqrt(squared_distances(x, self._x)) / self._length
        root3 = np.sqrt(3.0)
        return np.asarray((1 + root3 * distance) * np.exp(-root3 * distance))

    def predict(self, x: FloatArray, priors: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation of the log time of each candidate."""
        if len(self._x) == 0:
            return self._mean(priors), np.full(len(x), self._scale)
        k = self._kernel(x)
        mean = self._mean(priors) + k @ self._weights
        variance = 1 - ((k @ self._inverse) * k).sum(axis=1)
        return mean, self._scale * np.sqrt(np.maximum(variance, 1e-9))


def prior_line(
    priors: FloatArray, y: FloatArray, trials: float = _SLOPE_TRIALS
) -> tuple[float, float]:
    """Least-squares slope (never negative) and level of log time against minus the prior.

    `trials`: how many trials the belief weighs that the slope is 1.
    """
    if len(y) == 0:
        return 1.0, 0.0
    centred = priors - priors.mean()
    spread = float((centred**2).sum())
    pull = trials * (spread / len(y)) + 1e-12
    # With few trials the slope stays near 1, its value for a prior that is minus a log time.
    slope = max(0.0, (-float(centred @ (y - y.mean())) + pull) / (spread + pull))
    return slope, float(y.mean() + slope * priors.mean())
