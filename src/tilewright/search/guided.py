"""Guided search: the analytic prior, pattern search around the best, and some exploration."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

from tilewright.search.interface import Strategy
from tilewright.search.options import Option
from tilewright.search.ranking import Ranking, scaling, stack
from tilewright.search.registry import register
from tilewright.search.unseen import UnseenSampler
from tilewright.space.interface import FloatArray
from tilewright.trial import Configuration, Trial

_MAX_REACH = 4


@register("guided")
class GuidedSearch(Strategy):
    """Each batch mixes three sources, the shares of which are options:

    - the best of a large sample (`prior_share`): part of it uniform, part of it uniform members
      that take most of their values from the compiler's own choice (`anchored`), which in a space
      of many knobs a uniform sample never comes near,
    - steps from the best trials so far (what the other shares leave): pattern search, whose reach
      doubles after a batch that improved on the best and halves after one that did not (R. Hooke
      and T. A. Jeeves, "Direct search", JACM 8, 1961),
    - uniform exploration (`explore_share`), which no ranking can talk out of anything.

    The first two are ranked by the prior, corrected by the trials near each candidate; failures
    lower what is near to them (:mod:`tilewright.search.ranking`). Until a trial has succeeded the
    compiler's own choice stands in for the best.
    """

    summary = "analytic prior, pattern search around the best, some uniform exploration"
    options_table = (
        Option("prior_share", 0.35, "share of a batch from the best of the sample", 0, 1),
        Option("explore_share", 0.1, "share of a batch drawn uniformly", 0, 1),
        Option("pool", 1024, "size of the sample", 16, 100_000),
        Option("anchored", 0.5, "share of the sample that takes most values of the default", 0, 1),
        Option("elites", 4, "best trials whose neighbours are looked at", 1, 64),
        Option("steps", 96, "neighbours looked at for each of them", 4, 10_000),
        Option("optimism", 0.5, "standard deviations taken off a predicted log time", 0, 10),
        Option("length", 0.35, "distance over which trials tell of each other", 0.01, 10),
    )

    def _start(self) -> None:
        self._sampler = UnseenSampler(self.space, self.rng)
        self._features: dict[Configuration, FloatArray] = {}
        self._priors: dict[Configuration, float] = {}
        self._trials: list[Trial] = []
        self._best: float | None = None
        self._reach = 2
        self._pool: list[Configuration] = []
        self._scaling: tuple[FloatArray, FloatArray] | None = None

    def _learn(self, trials: Sequence[Trial]) -> None:
        self._trials += trials
        times = [t.time_s for t in trials if t.ok and t.time_s is not None and t.time_s > 0]
        improved = bool(times) and (self._best is None or min(times) < self._best)
        if improved:
            self._best = min(times)
        self._reach = min(2 * self._reach, _MAX_REACH) if improved else max(self._reach // 2, 1)

    # -- proposing -----------------------------------------------------------------------------

    def _propose(self, n: int) -> Sequence[Configuration]:
        self._refill()
        ranking = self._ranking()
        chosen: dict[Configuration, None] = {}
        explore = self._count("explore_share", n)
        sampled = min(self._count("prior_share", n), n - explore)
        self._take(ranking, self._pool, sampled, chosen)
        self._take(ranking, self._steps(), n - explore, chosen)
        # Steps may have run out; exploration fills what is left, to the last member.
        for config in self._sampler.draw(n - len(chosen), self.seen | chosen.keys()):
            chosen[config] = None
        return list(chosen)

    def _count(self, share: str, n: int) -> int:
        """A share of n as a number, the fraction decided by chance."""
        exact = self.option(share) * n
        return int(exact) + int(self.rng.random() < exact - int(exact))

    def _refill(self) -> None:
        """Keep a uniform sample of the members not tried yet; a fifth of it new each time."""
        size = int(self.option("pool"))
        self._pool = [c for c in self._pool if c not in self.seen]
        if self._pool:
            size = max(size // 5, 16)
        keep = int(self.option("pool")) - size
        fresh = self._anchor(self.space.sample(self.rng, size))
        held = dict.fromkeys(self._pool[-keep:] if keep else ())
        held.update(dict.fromkeys(c for c in fresh if c not in self.seen))
        self._pool = list(held)

    def _anchor(self, sample: Sequence[Configuration]) -> list[Configuration]:
        """The sample, a share of it moved towards the default where that gives a member.

        Without a prior to rank what it gives, a uniform sample covers more.
        """
        if not self.space.has_prior:
            return list(sample)
        default = dict(self.space.default.items)
        moved = []
        for config in sample:
            values = dict(config.items)
            if values.keys() == default.keys() and self.rng.random() < self.option("anchored"):
                keep = self.rng.random()
                mixed = Configuration.of(
                    {k: v if self.rng.random() < keep else default[k] for k, v in values.items()}
                )
                config = mixed if self.space.contains(mixed) else config
            moved.append(config)
        return moved

    def _steps(self) -> list[Configuration]:
        """Neighbours of the best trials, or of the compiler's choice while there are none."""
        ok = [t for t in self._trials if t.ok and t.time_s is not None]
        best = heapq.nsmallest(int(self.option("elites")), ok, key=lambda t: t.time_s or 0.0)
        centres = [t.configuration for t in best] or [self.space.default]
        found: dict[Configuration, None] = {}
        for centre in centres:
            for reach in sorted({self._reach, 1}):
                unseen = (
                    c
                    for c in self.space.neighbours(centre, self.rng, reach)
                    if c not in self.seen and c not in found
                )
                found.update(dict.fromkeys(islice(unseen, int(self.option("steps")))))
        return list(found)

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
        x, priors = self._describe(fresh)
        mean, deviation = ranking.predict(x, priors)
        order = np.argsort(mean - self.option("optimism") * deviation, kind="stable")
        for i in order[: upto - len(chosen)]:
            chosen[fresh[i]] = None

    def _ranking(self) -> Ranking:
        x, priors = self._describe([t.configuration for t in self._trials])
        times = np.array(
            [t.time_s if t.ok and t.time_s else np.nan for t in self._trials], dtype=np.float64
        )
        length = self.option("length") * np.sqrt(max(1, len(self.space.feature_names)))
        return Ranking(x, times, priors, float(length))

    def _describe(self, configs: Sequence[Configuration]) -> tuple[FloatArray, FloatArray]:
        """Scaled features and priors, computed once for each configuration."""
        for config in configs:
            if config not in self._features:
                self._features[config] = self.space.encode(config)
                self._priors[config] = self.space.prior(config)
        width = len(self.space.feature_names)
        if self._scaling is None and self._pool:
            self._scaling = scaling(stack([self.space.encode(c) for c in self._pool], width))
        x = stack([self._features[c] for c in configs], width)
        if self._scaling is not None:
            x = (x - self._scaling[0]) / self._scaling[1]
        return x, np.array([self._priors[c] for c in configs], dtype=np.float64)
