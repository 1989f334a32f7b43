"""A Gaussian process over a pool of candidates, from which batches are chosen.

Regression of the logarithm of the time (C. E. Rasmussen and C. K. I. Williams, Gaussian Processes
for Machine Learning, 2006, chapter 2) with a mean that follows the analytic prior as far as the
trials bear it out. A batch is chosen one by one: after each the model believes its own prediction
for it (D. Ginsbourger, R. Le Riche and L. Carraro, "Kriging is well-suited to parallelize
optimization", 2010), so that the next is sought where there is still something to learn.

Beside it stands what every model of times is fitted to: log times, the trials that tell the most,
and a line through the analytic prior.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tilewright.search.features import squared_distances
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


_ROOT5 = float(np.sqrt(5.0))
# Trials that the assumed spread weighs.
_SPREAD_TRIALS = 4.0
# With fewer trials than this, length and noise stay as they are given.
_FITTED_FROM = 12
_FITTED_MOST = 192
# Rows that an array of explained variance grows by.
_GROWTH = 64
FACTORS = (1.0, 0.5, 2.0)
"""By these the length and the noise of a kernel may differ from what was given."""


@dataclass(frozen=True)
class Distances:
    """How far rows of features are from others, each shape (rows, others): `joint` over all
    features, per square root of their number, and what the knobs one by one say of them."""

    joint: FloatArray
    by_knob: FloatArray | None

    def at(self, rows: IntArray) -> Distances:
        """The same for some of the rows, and of the others those with these numbers."""
        some = np.ix_(rows, rows)
        return Distances(self.joint[some], None if self.by_knob is None else self.by_knob[some])


@dataclass(frozen=True)
class CovarianceKernel:
    """How alike the times of two configurations are taken to be.

    Half of what a Matérn 5/2 kernel over all features says, and half of the mean of one for each
    knob by itself: what a knob does whatever the others are is learned from a few trials
    (D. Duvenaud, H. Nickisch and C. E. Rasmussen, "Additive Gaussian processes", 2011). Where no
    columns are knobs, the first alone.

    length: distance over all features within which trials tell of each other, per square root of
        their number.
    noise: standard deviation of what no model explains, relative to the process's.
    spread: standard deviation of a log time about what is expected beforehand, as it is taken to be
        before there are trials.
    knobs: how many of the features, the last ones, are knobs; `weight` is that of each beside the
        other features, `reach` the distance along a single knob.
    """

    length: float
    noise: float
    spread: float = 0.3
    knobs: int = 0
    weight: float = 1.0
    reach: float = 0.5

    def __call__(self, a: FloatArray, b: FloatArray) -> FloatArray:
        """Covariances between rows, shape (rows of a, rows of b); 1 of a row with itself."""
        return self.of(self.distances(a, b))

    def distances(self, a: FloatArray, b: FloatArray) -> Distances:
        """What the covariances between rows are made of, whatever the length and the noise."""
        weights = np.ones(a.shape[1], dtype=np.float64)
        weights[a.shape[1] - self.knobs :] = self.weight
        joint = np.sqrt(squared_distances(a * weights, b * weights))
        joint /= np.sqrt(max(1, a.shape[1]))
        return Distances(joint, self._by_knob(a, b) if self.knobs else None)

    def of(self, rows: Distances) -> FloatArray:
        """Covariances between rows, shape as their distances."""
        joint = _matern(rows.joint / self.length)
        return joint if rows.by_knob is None else np.asarray((joint + rows.by_knob) / 2)

    def _by_knob(self, a: FloatArray, b: FloatArray) -> FloatArray:
        a, b = a[:, a.shape[1] - self.knobs :], b[:, b.shape[1] - self.knobs :]
        if len(a) == 1:
            return np.asarray(_matern(np.abs(a - b) / self.reach).mean(axis=1)[None])
        total = np.zeros((len(a), len(b)), dtype=np.float64)
        for one, other in zip(a.T, b.T, strict=True):
            # A knob has few values: each pair of them is computed once.
            values, at = np.unique(one, return_inverse=True)
            others, to = np.unique(other, return_inverse=True)
            between = _matern(np.abs(values[:, None] - others) / self.reach)
            total += between[at.reshape(-1, 1), to.reshape(1, -1)]
        return np.asarray(total / self.knobs)

    def fitted(self, rows: Distances, residual: FloatArray) -> CovarianceKernel:
        """The kernel among `FACTORS` times this one's length and noise that makes the residuals of
        rows most likely (their variance integrated out under what `spread` says of it).

        Args:
            rows: each and each other.
            residual: of each.
        """
        if len(residual) < _FITTED_FROM:
            return self
        found, best = self, -np.inf
        for factor in FACTORS:
            one = replace(self, length=self.length * factor)
            gram = one.of(rows)
            for other in FACTORS:
                kernel = replace(one, noise=self.noise * other)
                likelihood = kernel._likelihood(gram, residual)
                if likelihood > best:
                    found, best = kernel, likelihood
        return found

    def _likelihood(self, gram: FloatArray, residual: FloatArray) -> float:
        factor = np.linalg.cholesky(gram + self.noise**2 * np.eye(len(residual)))
        white = np.linalg.solve(factor, residual)
        freedom = _SPREAD_TRIALS + len(residual)
        squares = float(white @ white) + _SPREAD_TRIALS * self.spread**2
        return float(-0.5 * freedom * np.log(squares) - np.log(np.diag(factor)).sum())


def _matern(distance: FloatArray) -> FloatArray:
    """Matérn 5/2 of distances in units of the length."""
    r = _ROOT5 * distance
    return np.asarray((1 + r + r**2 / 3) * np.exp(-r))


class Places:
    """The candidates of a pool and the trials in the space of features, and how far they are from
    each other, which models of different means share.

    kernel: what it is looked at for.
    pool, trials: scaled features, shape (candidates or trials, features).
    """

    def __init__(self, kernel: CovarianceKernel, pool: FloatArray, trials: FloatArray) -> None:
        self.kernel, self.pool, self._trials = kernel, pool, trials
        self._of_trials: dict[bytes, tuple[Distances, Distances]] = {}
        self._of_candidates: dict[int, Distances] = {}

    def of_trials(self, kept: IntArray) -> tuple[Distances, Distances]:
        """Some of the trials, by their numbers: between them, and to the pool."""
        key = kept.tobytes()
        if key not in self._of_trials:
            some = self._trials[kept]
            between = self.kernel.distances(some, some)
            self._of_trials[key] = between, self.kernel.distances(some, self.pool)
        return self._of_trials[key]

    def of_candidate(self, at: int) -> Distances:
        """One candidate, to the pool."""
        if at not in self._of_candidates:
            self._of_candidates[at] = self.kernel.distances(self.pool[at : at + 1], self.pool)
        return self._of_candidates[at]


class Surrogate:
    """What is believed of the candidates of a pool, given the trials.

    places: of the candidates and the trials, with the kernel before it is fitted.
    pool_mean, trial_mean: what is expected of each without the trials, as a log time up to an
        offset and a factor (minus the prior; zeros without one).
    times: seconds, NaN for a failure, which counts as slow.
    belief: how many trials the belief weighs that this factor is 1.
    most: trials that the model is made from at most: its cost grows with their cube.
    """

    def __init__(
        self,
        places: Places,
        pool_mean: FloatArray,
        trial_mean: FloatArray,
        times: FloatArray,
        belief: float = 2.0,
        most: int = 512,
    ) -> None:
        kept = informative(times, most)
        trial_mean, times = trial_mean[kept], times[kept]
        self._places, kernel = places, places.kernel
        between, to_pool = places.of_trials(kept)
        y = log_times(times)
        ok = ~np.isnan(times)
        slope, level = prior_line(-trial_mean[ok], y[ok], belief)
        residual = y - (level + slope * trial_mean)
        # The likelihood is taken of some: it is computed for many kernels.
        some = informative(times, _FITTED_MOST)
        self._kernel = kernel.fitted(between.at(some), residual[some])
        self.best = float(y[ok].min()) if ok.any() else np.inf
        gram = self._kernel.of(between) + self._kernel.noise**2 * np.eye(len(times))
        # Rows that the trials explain, one for each trial and later one for each belief.
        self._kept = kept
        self._factor = np.linalg.cholesky(gram)
        self._of_trials = np.linalg.solve(self._factor, self._kernel.of(to_pool))
        self._explained = self._of_trials
        self._rows = len(times)
        white = np.linalg.solve(self._factor, residual)
        # A few trials say little of how far all are spread; until there are more, as assumed.
        squares = float(white @ white) + _SPREAD_TRIALS * kernel.spread**2
        self.scale = max(float(np.sqrt(squares / (len(y) + _SPREAD_TRIALS))), 1e-3)
        freedom = _SPREAD_TRIALS + len(y)
        self.evidence = float(
            -0.5 * freedom * np.log(squares) - np.log(np.diag(self._factor)).sum()
        )
        self.mean = level + slope * pool_mean + self._of_trials.T @ white
        self._variance = np.maximum(1.0 - (self._of_trials**2).sum(axis=0), 1e-9)

    def _expected(self, residual: FloatArray) -> FloatArray:
        return np.asarray(self._of_trials.T @ np.linalg.solve(self._factor, residual))

    def expect(self, values: FloatArray) -> FloatArray:
        """What another number known of every trial is expected to be for each candidate."""
        if len(values) == 0:
            return np.zeros(len(self.mean), dtype=np.float64)
        level = float(np.median(values))
        return level + self._expected(values[self._kept] - level)

    @property
    def deviation(self) -> FloatArray:
        """Standard deviation of the log time of each candidate."""
        return np.asarray(self.scale * np.sqrt(self._variance))

    def believe(self, at: int) -> None:
        """Take the prediction for a candidate for its time: less is left to learn near to it."""
        cross = self._kernel.of(self._places.of_candidate(at))[0]
        known = self._explained[: self._rows]
        cross -= known[:, at] @ known
        row = cross / np.sqrt(self._variance[at] + self._kernel.noise**2)
        if self._rows == len(self._explained):
            grown = np.empty((self._rows + _GROWTH, len(self.mean)), dtype=np.float64)
            grown[: self._rows] = self._explained
            self._explained = grown
        self._explained[self._rows] = row
        self._rows += 1
        self._variance = np.maximum(self._variance - row**2, 1e-9)
