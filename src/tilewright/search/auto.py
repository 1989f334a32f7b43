"""The default strategy: a Gaussian process that begins with what is known beforehand."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from itertools import islice

import numpy as np

from tilewright.search.features import FeatureTable, description, scaling
from tilewright.search.first_batch import SampledStrategy, start_options
from tilewright.search.interface import register
from tilewright.search.strategy_options import Option
from tilewright.search.surrogate import CovarianceKernel, Places, Surrogate
from tilewright.search.transfer import Transfer, ranges
from tilewright.space.arrays import BoolArray, FloatArray
from tilewright.trial import Configuration

_SQRT2 = math.sqrt(2.0)


@register("auto")
class AutoSearch(SampledStrategy):
    """Proposes where a Gaussian process expects to improve most on the best time so far.

    What it knows beforehand is the process's mean: the analytic prior, corrected by what trials of
    other shapes taught, and scaled to what the trials bear out. A second process expects nothing
    beforehand, and chooses the more of a batch the more likely it makes the trials. Both see
    configurations as what they amount to (working sets against caches, registers, remainders)
    beside the knobs themselves. The candidates are all members of a small space; of a large one a
    sample, part of it near the compiler's choice, and the neighbours of the best. A share of each
    batch are random steps from the two fastest, and a few uniform draws: no model can talk these
    out. Expected improvement: D. R. Jones, M. Schonlau and W. J. Welch, "Efficient global
    optimization of expensive black-box functions", 1998.
    """

    transfers = True
    summary = "Gaussian process over prior, knobs and derived features; expected improvement"
    options_table = (
        Option("opening", 0, "trials before the model chooses; 0: 8 where nothing is known", 0),
        Option("explore_share", 0.04, "share of a batch drawn uniformly", 0, 1),
        Option("exploit_share", 0.125, "share of a batch expected to be the fastest", 0, 1),
        Option("steps_share", 0.25, "share of a batch that are random steps from the best", 0, 1),
        Option("reach", 4, "how far such a step goes", 1, 16),
        Option("pool", 2048, "size of the sample of a large space", 16, 100_000),
        Option("anchored", 0.5, "share of the sample that takes most values of the default", 0, 1),
        Option("elites", 4, "best trials whose neighbours are candidates", 1, 64),
        Option("steps", 96, "neighbours looked at for each of them", 4, 10_000),
        Option("length", 0.8, "distance over which trials tell of each other", 0.01, 10),
        Option("noise", 0.3, "noise of a trial, relative to the spread of the trials", 0.001, 10),
        Option("spread", 0.3, "spread of log times about the prior beforehand", 0, 10),
        Option("knobs", 0.3, "weight of the knobs beside the derived features", 0, 10),
        Option("reach_knob", 0.5, "as length, along a single knob", 0.01, 10),
        Option("belief", 4.0, "trials that the belief in the prior weighs", 0, 1000),
        Option("doubt_least", 0.1, "share of a batch that never trusts the prior", 0, 1),
        Option("doubt_most", 0.75, "that share where the trials speak against the prior", 0, 1),
        Option("margin", 0.0, "improvement asked for, in units of the spread", 0, 10),
        Option("cost", 1.0, "how much trials that take longer than is usual are avoided", 0, 10),
        Option("transfer", True, "begin with what trials of other shapes taught"),
        Option("transfer_length", 0.5, "as length, for trials of other shapes", 0.01, 10),
        Option("transfer_noise", 0.5, "as noise, for trials of other shapes", 0.001, 10),
        *start_options(use_prior=True),
    )

    def _start(self) -> None:
        super()._start()
        self._table = FeatureTable(self._features)
        # Set by the first proposal: what they are scaled by is a sample of the space.
        self._columns: _Columns | None = None
        self._expected: FeatureTable | None = None
        # What amounts to the same as something tried, and of which configurations that was noted.
        self._tried: set[bytes] = set()
        self._counted: set[Configuration] = set()
        self._taught = bool(self.experience) and bool(self.options["transfer"])

    def _pool_options(self) -> tuple[int, float]:
        return self.count("pool"), self.option("anchored") if self.options["use_default"] else 0.0

    def _features(self, configs: Sequence[Configuration]) -> FloatArray:
        """Derived features, then knobs."""
        derived = description(self.space, False)(configs)
        return np.column_stack([derived, self.space.encode_many(configs)])

    def _begin(self, pool: Sequence[Configuration]) -> None:
        """What is made from a first sample of the space: the scaling of its features, and what is
        expected of its configurations beforehand."""
        transfer: Transfer | None = None
        if self._taught:
            transfer = Transfer(
                self.experience,
                self.space.descriptor_names,
                ranges(self.space.describe_many(pool)),
                CovarianceKernel(self.option("transfer_length"), self.option("transfer_noise")),
                self._with_prior,
            )

        def expected(configs: Sequence[Configuration]) -> FloatArray:
            found = np.zeros(len(configs), dtype=np.float64)
            if self._with_prior:
                found -= self.space.prior_many(configs)
            if transfer is not None and len(configs):
                found += transfer.correction(self.space.describe_many(configs))
            return found[:, None]

        self._expected = FeatureTable(expected)
        self._columns = _Columns(self._table(pool), len(self.space.feature_names))

    def _choose(self, n: int, chosen: dict[Configuration, None]) -> None:
        pool = self._pool.members(self.seen)
        if not self._pool.is_complete:
            near = self._near_best(self.count("elites"), (1, 2), self.count("steps"))
            pool = list(dict.fromkeys([*pool, *near]))
        if not pool:
            return
        if self._columns is None:
            self._begin(pool)
        wanted = self.count("opening") or (0 if self._with_prior or self._taught else 8)
        missing = min(n, wanted - sum(map(len, self.asked)))
        if missing > 0:
            chosen.update(dict.fromkeys(self._opening.propose(missing, self.seen, pool)))
        explored = self._whole(self.option("explore_share") * n)
        stepped = self._whole(self.option("steps_share") * n)
        for config in self._improving(pool, n - len(chosen) - explored - stepped, chosen):
            chosen[config] = None
        for config in self._stepping(min(stepped, n - len(chosen)), chosen):
            chosen[config] = None

    def _stepping(self, n: int, chosen: dict[Configuration, None]) -> list[Configuration]:
        """Random steps from the fastest trials, which no model can talk out of anything."""
        found: list[Configuration] = []
        centres = [t.configuration for t in self.history.best(2)]
        for centre in centres if n > 0 else []:
            steps = self.space.neighbours(centre, self.rng, self.count("reach"))
            fresh = (c for c in steps if c not in self.seen and c not in chosen and c not in found)
            found += islice(fresh, -(-n // len(centres)))
        return found[:n]

    def _improving(
        self, pool: Sequence[Configuration], n: int, chosen: dict[Configuration, None]
    ) -> list[Configuration]:
        """The candidates of largest expected improvement, each given those before it."""
        if n < 1:
            return []
        values = self._table(pool)
        models = self._models(pool, values)
        left = np.array([c not in chosen for c in pool])
        cost = self._expected_cost(models[0])
        for taken in np.flatnonzero(~left).tolist():
            for model in models:
                model.believe(taken)
        repeats = self._repeats(values)
        found: list[int] = []
        wanted = min(n, int(left.sum()))
        doubtful = self._whole(self._doubt(models) * wanted)
        exploited = self._whole(self.option("exploit_share") * wanted)
        for i in range(wanted):
            asked = models[-1] if i >= wanted - doubtful else models[0]
            gain = -asked.mean if i < exploited else self._improvement(asked)
            fresh = left & ~repeats.known
            allowed = fresh if fresh.any() else left
            gain = np.where(allowed, gain - self.option("cost") * cost, -np.inf)
            at = int(np.argmax(gain))
            left[at] = False
            repeats.add(at)
            for model in models:
                model.believe(at)
            found.append(at)
        return [pool[i] for i in found]

    def _repeats(self, values: FloatArray) -> _Repeats:
        """Candidates that amount to the same as one that was tried; they come last."""
        assert self._columns is not None
        new = [c for c in self.seen if c not in self._counted]
        self._counted.update(new)
        self._tried.update(self._columns.identities(self._table(new)))
        return _Repeats(self._columns.identities(values), self._tried)

    def _models(self, pool: Sequence[Configuration], values: FloatArray) -> list[Surrogate]:
        """The model that trusts what is expected beforehand, and one that does not; `values` are
        the features of the pool."""
        assert self._columns is not None
        assert self._expected is not None
        told = self.history.configurations
        at, expected = self._columns(values), self._expected(pool)[:, 0]
        seen, of_trials = self._columns(self._table(told)), self._expected(told)[:, 0]
        times, belief = self.history.times(), self.option("belief")
        kernel = CovarianceKernel(
            self.option("length"),
            self.option("noise"),
            self.option("spread"),
            self._columns.knobs,
            self.option("knobs"),
            self.option("reach_knob"),
        )
        places = Places(kernel, at, seen)
        trusting = Surrogate(places, expected, of_trials, times, belief)
        if not expected.any():
            return [trusting]
        nothing = np.zeros(len(pool)), np.zeros(len(times))
        plain = Surrogate(places, *nothing, times, belief)
        return [trusting, plain]

    def _doubt(self, models: Sequence[Surrogate]) -> float:
        """The share of a batch that the model chooses which expects nothing beforehand: how much
        more likely it makes the trials, within limits."""
        if len(models) == 1:
            return 0.0
        if self._taught and len(self.history) <= 1:
            return 0.0  # What other shapes taught deserves a first batch of its own.
        odds = min(max(models[0].evidence - models[1].evidence, -30.0), 30.0)
        low, high = self.option("doubt_least"), self.option("doubt_most")
        return low + (high - low) / (1.0 + math.exp(odds))

    def _expected_cost(self, surrogate: Surrogate) -> FloatArray:
        """How much longer trying each candidate takes than is usual, as the logarithm of a factor;
        0 for what takes no longer, and while nothing is known.

        After improvement per second (J. Snoek, H. Larochelle and R. P. Adams, "Practical Bayesian
        optimization of machine learning algorithms", 2012); what is quick to compile is not worth
        more for that.
        """
        seconds = [sum(t.phase_s.values()) for t in self.history.trials]
        known = [s for s in seconds if s > 0]
        if not known:
            return np.zeros(len(surrogate.mean), dtype=np.float64)
        typical = float(np.median(known))
        expected = surrogate.expect(np.log([s if s > 0 else typical for s in seconds]))
        return np.asarray(np.maximum(expected - np.log(typical), 0.0))

    def _improvement(self, surrogate: Surrogate) -> FloatArray:
        """Logarithm of the expected improvement; without a best, a lower bound of the log time."""
        if not math.isfinite(surrogate.best):
            return np.asarray(surrogate.deviation - surrogate.mean)
        target = surrogate.best - self.option("margin") * surrogate.scale
        deviation = surrogate.deviation
        z = (target - surrogate.mean) / deviation
        density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
        below = 0.5 * _erfc(-z / _SQRT2)
        improvement = deviation * (z * below + density)
        # Far above the best both terms vanish; there the order is that of z.
        return np.asarray(np.where(improvement > 1e-12, np.log(improvement + 1e-300), z - 40.0))


class _Repeats:
    """Which candidates are another way to write what was tried, as with loop peeling where there
    is nothing to peel: equal in all derived features, most likely the same program."""

    def __init__(self, identities: Sequence[bytes], tried: Set[bytes]) -> None:
        numbers: dict[bytes, int] = {}
        self._identities = np.array([numbers.setdefault(i, len(numbers)) for i in identities])
        self.known: BoolArray = np.array([i in tried for i in identities], dtype=np.bool_)

    def add(self, at: int) -> None:
        """Count a candidate as tried."""
        self.known |= self._identities == self._identities[at]


class _Columns:
    """The features that tell candidates apart, scaled to their range in a sample; the last `knobs`
    of them are knobs.

    Those that are equal throughout would only make all distances look small beside their number.
    """

    def __init__(self, sample: FloatArray, knobs: int) -> None:
        self._kept = np.flatnonzero(sample.max(axis=0) > sample.min(axis=0))
        self._low, self._width = scaling(sample[:, self._kept])
        self._derived = sample.shape[1] - knobs
        self.knobs = int((self._kept >= self._derived).sum())

    def __call__(self, values: FloatArray) -> FloatArray:
        return np.asarray((values[:, self._kept] - self._low) / self._width)

    def identities(self, values: FloatArray) -> list[bytes]:
        """Equal for configurations that amount to the same in all that is derived."""
        return [row.tobytes() for row in np.ascontiguousarray(values[:, : self._derived])]


def _erfc(x: FloatArray) -> FloatArray:
    return np.array([math.erfc(v) for v in x.tolist()])
