"""Bayesian optimisation: a model with uncertainty, and expected improvement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.search.features import FeatureTable, description, encoding_and_prior
from tilewright.search.first_batch import Opening, start_options
from tilewright.search.interface import Strategy
from tilewright.search.optional import load
from tilewright.search.pool import Pool
from tilewright.search.ranker import is_telling
from tilewright.search.registry import register
from tilewright.search.strategy_options import Option
from tilewright.search.uncertainty import Forest, GaussianProcess, Model, choose_batch
from tilewright.search.unseen import UnseenSampler
from tilewright.trial import Configuration

_ELITES = 8


@register("bayesian")
class BayesianSearch(Strategy):
    """After an opening of `initial` trials, each batch is what promises most to improve on the
    best: expected improvement under a Gaussian process over the knobs, or under a forest over the
    descriptors, fitted anew to all trials.

    Both learn the logarithm of the time (of the Gaussian process, what it differs by from a line
    through the analytic prior), failures as slow as the slowest. Candidates are all members of a
    small space, else a sample and steps from the best trials.
    """

    summary = "expected improvement under a Gaussian process or a forest"
    libraries = ("sklearn",)
    options_table = (
        Option("model", "gp", "Gaussian process or forest", choices=("gp", "forest")),
        Option("initial", 8, "trials before the model is asked", 1, 10_000),
        Option("pool", 1024, "size of the sample of a large space", 16, 100_000),
        Option("steps", 64, "steps tried from each of the 8 best trials", 0, 10_000),
        Option("explore_share", 0.05, "share of the trials drawn uniformly", 0, 1),
        *start_options(use_prior=True),
    )

    def _start(self) -> None:
        self._threads = load("threadpoolctl", f"strategy '{self.name}'").ThreadpoolController()
        use_prior = bool(self.options["use_prior"])
        self._with_prior = use_prior and self.space.has_prior
        self._sampler = UnseenSampler(self.space, self.rng)
        anchored = 0.5 if self._with_prior else 0.0
        self._pool = Pool(self.space, self.rng, self.count("pool"), anchored)
        self._opening = Opening(
            self.space,
            self._sampler,
            use_default=bool(self.options["use_default"]),
            use_prior=use_prior,
        )
        if self.options["model"] == "gp":
            self._table = FeatureTable(encoding_and_prior(self.space, self._with_prior))
        else:
            self._table = FeatureTable(description(self.space, use_prior))

    def _propose(self, n: int) -> Sequence[Configuration]:
        candidates = self._candidates()
        chosen: dict[Configuration, None] = {}
        opening = min(n, self.count("initial") - len(self.seen))
        if not is_telling(self.history.times()):
            opening = n
        if opening > 0:
            proposed = self._opening.propose(opening, self.seen, candidates)
            chosen.update(dict.fromkeys(proposed))
        explore = int((self.rng.random(n) < self.option("explore_share")).sum())
        wanted = n - explore - len(chosen)
        if wanted > 0:
            left = [c for c in candidates if c not in chosen]
            chosen.update(dict.fromkeys(self._most_promising(left, wanted)))
        for config in self._sampler.draw(n - len(chosen), self.seen | chosen.keys()):
            chosen[config] = None
        return list(chosen)

    def _candidates(self) -> list[Configuration]:
        found = dict.fromkeys(self._pool.members(self.seen))
        if not self._pool.is_complete:
            best = [t.configuration for t in self.history.best(_ELITES)]
            inside = self.space.contains_many(best)
            centres = [c for c, ok in zip(best, inside, strict=True) if ok]
            for reach in (1, 2):
                repeated = centres * (self.count("steps") // 2)
                moved = self.space.step_many(repeated, self.rng, reach)
                found.update(dict.fromkeys(c for c in moved if c not in self.seen))
        return list(found)

    def _most_promising(
        self, candidates: Sequence[Configuration], count: int
    ) -> list[Configuration]:
        if not candidates:
            return []
        x, known = self._table(candidates), self._table(self.history.configurations)
        owner = f"strategy '{self.name}'"
        if self.options["model"] == "gp":
            model: Model = GaussianProcess(np.concatenate([x, known]), owner)
        else:
            model = Forest(owner, int(self.rng.integers(2**31)))
        # One thread: matrices are small, and sums do not depend on the machine then.
        with self._threads.limit(limits=1, user_api="blas"):
            model.fit(known, self.history.times())
            return [candidates[i] for i in choose_batch(model, x, known, count)]
