"""Guided search: the analytic prior, pattern search around the best, and some exploration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

from tilewright.search.features import FeatureTable, encoding_and_prior, scaling
from tilewright.search.first_batch import start_options
from tilewright.search.interface import Strategy
from tilewright.search.pool import Pool
from tilewright.search.ranking import Ranking
from tilewright.search.registry import register
from tilewright.search.strategy_options import Option
from tilewright.search.unseen import UnseenSampler
from tilewright.space.interface import FloatArray
from tilewright.trial import Configuration

_MAX_REACH = 4


@register("guided")
class GuidedSearch(Strategy):
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
    lower what is near to them (:mod:`tilewright.search.ranking`). Until a trial has succeeded the
    compiler's own choice stands in for the best. Without a prior the first `initial` trials are
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
        self._with_prior = bool(self.options["use_prior"]) and self.space.has_prior
        # Without a prior to rank what it gives, a uniform sample covers more than an anchored one.
        is_anchored = self._with_prior and bool(self.options["use_default"])
        anchored = self.option("anchored") if is_anchored else 0.0
        self._sampler = UnseenSampler(self.space, self.rng)
        self._pool = Pool(self.space, self.rng, self.count("pool"), anchored)
        self._table = FeatureTable(encoding_and_prior(self.space, self._with_prior))
        self._scaling: tuple[FloatArray, FloatArray] | None = None

    # -- proposing -----------------------------------------------------------------------------

    def _propose(self, n: int) -> Sequence[Configuration]:
        pool = self._pool.members(self.seen)
        if self._scaling is None and pool:
            self._scaling = scaling(self._table(pool)[:, :-1])
        ranking = self._ranking()
        chosen: dict[Configuration, None] = {}
        if self.options["use_default"] and self.space.default_is_member:
            chosen.update(dict.fromkeys({self.space.default} - self.seen))
        explore = self._share("explore_share", n)
        if not self._with_prior:
            explore = max(explore, min(n, self.count("initial") - len(self.seen)))
        sampled = min(self._share("prior_share", n), n - explore)
        self._take(ranking, pool, sampled, chosen)
        self._take(ranking, self._steps(), n - explore, chosen)
        # Steps may have run out; exploration fills what is left, to the last member.
        for config in self._sampler.draw(n - len(chosen), self.seen | chosen.keys()):
            chosen[config] = None
        return list(chosen)

    def _share(self, option: str, n: int) -> int:
        """A share of n as a number, the fraction decided by chance."""
        exact = self.option(option) * n
        return int(exact) + int(self.rng.random() < exact - int(exact))

    def _steps(self) -> list[Configuration]:
        """Neighbours of the best trials, or of the compiler's choice while there are none."""
        centres = [t.configuration for t in self.history.best(self.count("elites"))]
        if not centres and self.options["use_default"]:
            centres = [self.space.default]
        reaches = sorted({self._reach(), 1})
        found: dict[Configuration, None] = {}
        for centre in centres:
            for reach in reaches:
                unseen = (
                    c
                    for c in self.space.neighbours(centre, self.rng, reach)
                    if c not in self.seen and c not in found
                )
                found.update(dict.fromkeys(islice(unseen, self.count("steps"))))
        return list(found)

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
        self,
        ranking: Ranking,
        candidates: Iterable[Configuration],
        upto: int,
        chosen: dict[Configuration, None],
    ) -> None:
        """Add the best-ranked candidates until `upto` are chosen."""
        fresh = [c for c in candidates if c not in chosen]
        if not fresh or len(chosen) >= upto:
            return
        mean, deviation = ranking.predict(*self._describe(fresh))
        order = np.argsort(mean - self.option("optimism") * deviation, kind="stable")
        for i in order[: upto - len(chosen)]:
            chosen[fresh[i]] = None

    def _ranking(self) -> Ranking:
        x, priors = self._describe(self.history.configurations)
        length = self.option("length") * np.sqrt(max(1, len(self.space.feature_names)))
        return Ranking(x, self.history.times(), priors, float(length))

    def _describe(self, configs: Sequence[Configuration]) -> tuple[FloatArray, FloatArray]:
        """Scaled features and priors."""
        values = self._table(configs)
        x = values[:, :-1]
        if self._scaling is not None:
            x = (x - self._scaling[0]) / self._scaling[1]
        return x, values[:, -1]
