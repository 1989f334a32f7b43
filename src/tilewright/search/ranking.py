"""Rank candidates by the analytic prior, corrected by the trials near to them.

Gaussian-process regression (C. E. Rasmussen and C. K. I. Williams, Gaussian Processes for Machine
Learning, 2006, algorithm 2.1) of the logarithm of the time, with the prior as its mean function
and a fixed kernel: nothing is learned about the space beyond the trials themselves, so it is usable
from the first one on. A failure counts as slow as the slowest, which lowers what is near to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.space.interface import FloatArray

# Standard deviation of noise in log time, relative to the spread of the trials.
_NOISE = 0.15
# Pull of the prior's slope towards 0, as a number of trials.
_SLOPE_TRIALS = 2.0


class Ranking:
    """Predicted log times, lower is better, from trials at scaled features `x`.

    `times` holds seconds, NaN for a failure; `priors` the prior of each trial (higher is better).
    """

    def __init__(self, x: FloatArray, times: FloatArray, priors: FloatArray, length: float) -> None:
        self._x = x
        self._length = length
        ok = ~np.isnan(times)
        y = np.log(np.where(ok, times, 1.0))
        if ok.any():
            # Outliers far above the median say no more than "slow"; they would swamp the rest.
            middle = float(np.median(y[ok]))
            ceiling = middle + 1.5 * max(middle - float(y[ok].min()), 0.2)
            y = np.where(ok, np.minimum(y, ceiling), ceiling)
        self._slope, self._level = _line(priors[ok], y[ok])
        residual = y - self._mean(priors)
        self._scale = max(float(residual.std()), 1e-3) if len(y) else 1.0
        gram = self._kernel(x) + _NOISE**2 * np.eye(len(x))
        self._inverse = np.linalg.inv(gram)
        self._weights = self._inverse @ residual

    def _mean(self, priors: FloatArray) -> FloatArray:
        return np.asarray(self._level - self._slope * priors)

    def _kernel(self, x: FloatArray) -> FloatArray:
        squares = (x**2).sum(1)[:, None] + (self._x**2).sum(1)[None, :] - 2 * x @ self._x.T
        distance = np.sqrt(np.maximum(squares, 0.0)) / self._length
        root3 = np.sqrt(3.0)
        return np.asarray((1 + root3 * distance) * np.exp(-root3 * distance))

    def predict(self, x: FloatArray, priors: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation of the log time of each candidate."""
        if len(self._x) == 0:
            return self._mean(priors), np.full(len(x), self._scale)
        k = self._kernel(x)
        mean = self._mean(priors) + k @ self._weights
        variance = 1 - np.einsum("ij,jk,ik->i", k, self._inverse, k)
        return mean, self._scale * np.sqrt(np.maximum(variance, 1e-9))


def _line(priors: FloatArray, y: FloatArray) -> tuple[float, float]:
    """Least-squares slope (never negative) and level of log time against minus the prior."""
    if len(y) == 0:
        return 1.0, 0.0
    centred = priors - priors.mean()
    spread = float((centred**2).sum())
    pull = _SLOPE_TRIALS * (spread / len(y)) + 1e-12
    # With few trials the slope stays near 1, its value for a prior that is minus a log time.
    slope = max(0.0, (-float(centred @ (y - y.mean())) + pull) / (spread + pull))
    return slope, float(y.mean() + slope * priors.mean())


def scaling(features: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Offset and width of each feature over a sample, so that scaled ones span about 0 to 1."""
    low, high = features.min(0), features.max(0)
    return low, np.where(high > low, high - low, 1.0)


def stack(rows: Sequence[FloatArray], width: int) -> FloatArray:
    """Feature vectors as a matrix, also when there are none."""
    return np.array(rows, dtype=np.float64).reshape(len(rows), width)
