"""scikit-learn's models with uncertainty, and choosing a batch by expected improvement.

J. Mockus, "On Bayesian methods for seeking the extremum", 1975; D. R. Jones, M. Schonlau and W. J.
Welch, "Efficient Global Optimization of Expensive Black-Box Functions", J. Global Optimization 13,
1998.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, Protocol

import numpy as np

from tilewright.search.features import scaling
from tilewright.search.optional import load
from tilewright.search.ranking import informative, log_times, prior_line
from tilewright.space.interface import FloatArray

# Trials that the hyper-parameters are fitted to, and that predictions are made from, at most.
_FITTED = 128
_MOST_TRIALS = 512
# Candidates whose correlation is looked at when a batch is chosen, at least.
_JOINT = 256


class Model(Protocol):
    """A model of log times (lower is better) with uncertainty; one row for each configuration."""

    def fit(self, x: FloatArray, times: FloatArray) -> None:
        """Learn the trials at features `x`: seconds, NaN for a failure."""

    def predict(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation of the log time, shape (configurations,)."""

    def covariance(self, x: FloatArray) -> FloatArray:
        """Shape (configurations, configurations)."""


class GaussianProcess:
    """Matérn 5/2 kernel with one length for all features, and noise, fitted by likelihood.

    The last column of the features is the analytic prior (0 throughout for none): a line through it
    is the mean of the process. The others are scaled to their range in `sample`.
    """

    def __init__(self, sample: FloatArray, owner: str) -> None:
        self._kernels = load("sklearn.gaussian_process.kernels", owner)
        self._regressor = load("sklearn.gaussian_process", owner).GaussianProcessRegressor
        self._low, self._width = scaling(sample[:, :-1])
        self._model: Any = None
        self._slope = self._level = 0.0
        self._scale = 1.0

    def _scaled(self, x: FloatArray) -> FloatArray:
        return np.asarray((x[:, :-1] - self._low) / self._width)

    def _line(self, x: FloatArray) -> FloatArray:
        return np.asarray(self._level - self._slope * x[:, -1])

    def fit(self, x: FloatArray, times: FloatArray) -> None:
        y = log_times(times)
        ok = ~np.isnan(times)
        self._slope, self._level = prior_line(x[ok, -1], y[ok])
        rest = y - self._line(x)
        self._scale = max(float(rest.std()), 1e-6)
        scaled, rest = self._scaled(x), rest / self._scale
        middle = 0.35 * math.sqrt(max(1, scaled.shape[1]))
        signal = self._kernels.ConstantKernel(1.0, (0.05, 20.0)) * self._kernels.Matern(
            middle, (middle / 8, middle * 8), nu=2.5
        )
        noise = self._kernels.WhiteKernel(0.02, (1e-4, 0.5))
        few, many = informative(times, _FITTED), informative(times, _MOST_TRIALS)
        with warnings.catch_warnings():
            # A length at the end of its range is no fault.
            warnings.simplefilter("ignore")
            fitted = self._regressor(signal + noise).fit(scaled[few], rest[few]).kernel_
            # What is predicted is the time without the noise of measuring it.
            self._model = self._regressor(
                fitted.k1, alpha=fitted.k2.noise_level, optimizer=None
            ).fit(scaled[many], rest[many])

    def predict(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        mean, deviation = self._model.predict(self._scaled(x), return_std=True)
        return self._line(x) + self._scale * mean, self._scale * np.maximum(deviation, 1e-9)

    def covariance(self, x: FloatArray) -> FloatArray:
        _, covariance = self._model.predict(self._scaled(x), return_cov=True)
        return np.asarray(self._scale**2 * covariance)


class Forest:
    """Extremely randomised trees (P. Geurts, D. Ernst and L. Wehenkel, Machine Learning 63, 2006);
    what they disagree about is uncertain."""

    def __init__(self, owner: str, seed: int) -> None:
        self._trees = load("sklearn.ensemble", owner).ExtraTreesRegressor(
            n_estimators=64, min_samples_leaf=2, max_features=0.6, n_jobs=1, random_state=seed
        )
        self._floor = 0.0

    def fit(self, x: FloatArray, times: FloatArray) -> None:
        y = log_times(times)
        self._floor = 0.1 * float(y.std()) + 1e-6
        self._trees.fit(x, y)

    def _each(self, x: FloatArray) -> FloatArray:
        single = x.astype(np.float32)
        return np.array([t.predict(single) for t in self._trees.estimators_], dtype=np.float64)

    def predict(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        each = self._each(x)
        return each.mean(axis=0), np.hypot(each.std(axis=0), self._floor)

    def covariance(self, x: FloatArray) -> FloatArray:
        each = self._each(x)
        centred = each - each.mean(axis=0)
        own = self._floor**2 * np.eye(len(x))
        return np.asarray(centred.T @ centred / len(each) + own)


def expected_improvement(mean: FloatArray, deviation: FloatArray, best: float) -> FloatArray:
    """By how much a candidate is expected to fall below `best` (0 where it does not)."""
    z = (best - mean) / deviation
    below = np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in z.tolist()], dtype=np.float64)
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    return np.asarray((best - mean) * below + deviation * density)


def choose_batch(model: Model, x: FloatArray, known: FloatArray, count: int) -> list[int]:
    """Positions in `x` of a batch by expected improvement, the first choice first.

    `known` are the features of the trials: what is to be improved on is the lowest mean there,
    which noise disturbs less than the fastest measurement. After each choice the model is told what
    it expects there (the "kriging believer" of D. Ginsbourger, R. Le Riche and L. Carraro, 2010):
    means stay, and what has become certain is no longer attractive. Correlations are looked at for
    the 256 best, or four times as many as are wanted.
    """
    best = float(model.predict(known)[0].min())
    mean, deviation = model.predict(x)
    first = expected_improvement(mean, deviation, best)
    at = np.argsort(-first, kind="stable")[: max(_JOINT, 4 * count)]
    mean, covariance = mean[at], model.covariance(x[at])
    chosen: list[int] = []
    left = np.ones(len(at), dtype=np.bool_)
    for _ in range(min(count, len(at))):
        deviation = np.sqrt(np.maximum(np.diag(covariance), 1e-12))
        gain = np.where(left, expected_improvement(mean, deviation, best), -np.inf)
        pick = int(np.argmax(gain))
        chosen.append(int(at[pick]))
        left[pick] = False
        column = covariance[:, pick]
        covariance = covariance - np.outer(column, column) / max(float(column[pick]), 1e-12)
    return chosen
