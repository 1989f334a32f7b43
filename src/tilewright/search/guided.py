"""Guided search: the analytic prior, pattern search around the best, and some exploration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from tilewright.search.features import FeatureTable, encoding_and_prior, scaling
from tilewright.search.first_batch import SampledStrategy, start_options
from tilewright.search.interface import register
from tilewright.search.strategy_options import Option
from tilewright.search.surrogate import CovarianceKernel, Places, Surrogate
from tilewright.space.arrays import FloatArray
from tilewright.trial import Configuration

_MAX_REACH = 4
# Of a trial, relative to the spread of the trials.
_NOISE = 0.15


@register("guided")
class GuidedSearch(SampledStrategy):
    """Begins with the compiler's own choice. Then each batch mixes three sources, the shares of
    which are options:

    - the best of a large sample (`prior_share`): part of it uniform, part of it uniform members
      that take most of their values from the compiler's own choice (`anchored`), which in a space
      of many knobs a uniform sample never comes near; of a small space all members,
    - steps from the best trials so far (what the other shares leave): pattern search, whose reach
      doubles after a batch that improved on the best and halves after one that did not (R. Hooke
      and T. A. Jeeves, "Direct search", JACM 8, 1961),
    - uniform exploration (`explore_share`), which no ranking can talk out of anything.

    The first two are ranked by the prior, corrected by the trials near each candidate; failures
    lower what is near to them (:mod:`tilewright.search.surrogate`). Until a trial has succeeded
    the compiler's own choice stands in for the best. Without a prior the first `initial` trials are
    uniform draws.
    """

    summary = "analytic prior, pattern search around the best, some uniform exploration"
    options_table = (
        Option("initial", 8, "uniform draws to begin with where there is no prior", 0, 10_000),
        Option("prior_share", 0.35, "share of a batch from the best of the sample", 0, 1),
        Option("explore_share", 0.1, "share of a batch drawn uniformly", 0, 1),
        Option("pool", 1024, "size of the sample", 16, 100_000),
        Option("anchored", 0.5, "share of the sample that takes most values of the default", 0, 1),
        Option("elites", 4, "best trials whose neighbours are looked at", 1, 64),
        Option("steps", 96, "neighbours looked at for each of them", 4, 10_000),
        Option("optimism", 0.5, "standard deviations taken off a predicted log time", 0, 10),
        Option("length", 0.35, "distance over which trials tell of each other", 0.01, 10),
        *start_options(use_prior=True),
    )

    def _start(self) -> None:
        super()._start()
        self._table = FeatureTable(encoding_and_prior(self.space, self._with_prior))
        self._scaling: tuple[FloatArray, FloatArray] | None = None

    def _pool_options(self) -> tuple[int, float]:
        # Without a prior to rank what it gives, a uniform sample covers more than an anchored one.
        is_anchored = self._with_prior and bool(self.options["use_default"])
        return self.count("pool"), self.option("anchored") if is_anchored else 0.0

    # -- proposing -----------------------------------------------------------------------------

    def _choose(self, n: int, chosen: dict[Configuration, None]) -> None:
        pool = self._pool.members(self.seen)
        if self._scaling is None and pool:
            self._scaling = scaling(self._table(pool)[:, :-1])
        if self.options["use_default"] and self.space.default_is_member:
            chosen.update(dict.fromkeys({self.space.default} - self.seen))
        explore = self._whole(self.option("explore_share") * n)
        if not self._with_prior:
            explore = max(explore, min(n, self.count("initial") - len(self.seen)))
        sampled = min(self._whole(self.option("prior_share") * n), n - explore)
        self._take(pool, sampled, chosen)
        reaches = sorted({self._reach(), 1})
        near = self._near_best(self.count("elites"), reaches, self.count("steps"))
        self._take(near, n - explore, chosen)

    def _reach(self) -> int:
        """Doubled by every batch asked for that improved on those before, halved by the others."""
        mine = {c for batch in self.asked for c in batch}
        best = self._fastest(c for c in self.history.configurations if c not in mine)
        reach = 2
        for batch in self.asked:
            told = [c for c in batch if c in self.history]
            if told:
                fastest = self._fastest(told)
                reach = min(2 * reach, _MAX_REACH) if fastest < best else max(reach // 2, 1)
                best = min(best, fastest)
        return reach

    def _fastest(self, configs: Iterable[Configuration]) -> float:
        times = (self.history.seconds(c) for c in configs)
        return min((t for t in times if t is not None and not math.isnan(t)), default=math.inf)

    # -- ranking -------------------------------------------------------------------------------

    def _take(
        self, candidates: Iterable[Configuration], upto: int, chosen: dict[Configuration, None]
    ) -> None:
        """Add the best-ranked candidates until `upto` are chosen."""
        fresh = [c for c in dict.fromkeys(candidates) if c not in chosen]
        if not fresh or len(chosen) >= upto:
            return
        (x, priors), (seen, of_trials) = map(self._describe, (fresh, self.history.configurations))
        places = Places(CovarianceKernel(self.option("length"), _NOISE), x, seen)
        model = Surrogate(places, -priors, -of_trials, self.history.times())
        order = np.argsort(model.mean - self.option("optimism") * model.deviation, kind="stable")
        for i in order[: upto - len(chosen)]:
            chosen[fresh[i]] = None

    def _describe(self, configs: Sequence[Configuration]) -> tuple[FloatArray, FloatArray]:
        """Scaled features and priors."""
        values = self._table(configs)
        x = values[:, :-1]
        if self._scaling is not None:
            x = (x - self._scaling[0]) / self._scaling[1]
        return x, values[:, -1]
