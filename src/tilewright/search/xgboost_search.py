"""Search with a learned cost model: boosted trees that rank, and annealing over their score."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

import numpy as np

from tilewright.search.chains import Cooling, anneal
from tilewright.search.features import FeatureTable, description, scaling, spread
from tilewright.search.first_batch import SampledStrategy, start_options
from tilewright.search.optional import load
from tilewright.search.ranker import Ranker, is_telling
from tilewright.search.registry import register
from tilewright.search.regression import log_times
from tilewright.search.strategy_options import Option
from tilewright.space.arrays import FloatArray
from tilewright.trial import Configuration

Numbers = Callable[[FloatArray], FloatArray]

# Trials that the prior's standing counts as, before its own record decides.
_PRIOR_TRIALS = 8.0
# Its correlation with the measured order that is assumed at first.
_PRIOR_TRUST = 0.5
# Distance, as a share of the range of each knob, at which two planned trials are alike.
_SIMILAR = 0.15


@register("xgboost", aliases=("XGBoostTuner",))
class XGBoostSearch(SampledStrategy):
    """After an opening of `initial` trials, plans batches of `plan_size` as AutoTVM does: the model
    is trained anew on all trials, failures as the worst of them; annealing chains look for what it
    scores highest (a small space is scored as a whole); of the best `diversity` times as many the
    plan takes those that differ; a share `epsilon` of it is drawn uniformly.

    The model reads the descriptors of configurations. It starts from the analytic prior, weighed by
    how well the prior has ordered the trials so far, and learns what to correct.
    """

    summary = "boosted trees that rank configurations, annealing over their score"
    libraries = ("xgboost",)
    options_table = (
        Option("plan_size", 8, "trials planned at a time, between two trainings", 1, 10_000),
        Option("initial", 8, "trials before the first training", 1, 10_000),
        Option(
            "objective",
            "rank:pairwise",
            "what the model is trained for",
            choices=("rank:pairwise", "rank:ndcg"),
        ),
        Option("rounds", 120, "trees of the model", 1, 2000),
        Option("depth", 3, "depth of a tree", 1, 12),
        Option("rate", 0.25, "learning rate", 0.001, 1),
        Option("chains", 64, "annealing chains, side by side", 1, 1024),
        Option("iterations", 100, "steps of each chain at most", 1, 10_000),
        Option("temperature", 1.0, "of the chains at first, in deviations of the score", 0, 100),
        Option("early_stop", 30, "steps without a new best plan before the chains end", 1, 10_000),
        Option("epsilon", 0.05, "share of a plan drawn uniformly", 0, 1),
        Option("diversity", 3.0, "candidates from which each planned trial is chosen", 1, 64),
        *start_options(use_prior=True),
    )

    def _start(self) -> None:
        super()._start()
        self._xgboost = load("xgboost", f"strategy '{self.name}'")
        self._describe = description(self.space, self._with_prior)
        self._table = FeatureTable(self._describe)
        self._plan: list[Configuration] = []
        self._planned_at = 0

    def _choose(self, n: int, chosen: dict[Configuration, None]) -> None:
        opening = min(n, self.count("initial") - len(self.seen))
        if opening > 0:
            candidates = self._pool.members(self.seen)
            chosen.update(dict.fromkeys(self._opening.propose(opening, self.seen, candidates)))
        if len(chosen) < n:
            self._take_planned(n, chosen)

    def _take_planned(self, n: int, chosen: dict[Configuration, None]) -> None:
        taken = self.seen | chosen.keys()
        self._plan = [c for c in self._plan if c not in taken]
        stale = len(self.history) >= self._planned_at + self.count("plan_size")
        if stale or len(self._plan) < n - len(chosen):
            self._planned_at = len(self.history)
            self._plan = self._make_plan(max(self.count("plan_size"), n - len(chosen)), taken)
        chosen.update(dict.fromkeys(self._plan[: n - len(chosen)]))

    # -- planning ------------------------------------------------------------------------------

    def _make_plan(self, size: int, taken: Set[Configuration]) -> list[Configuration]:
        candidates = self._pool.members(taken)
        if not is_telling(self.history.times()):
            return self._opening.propose(size, taken, candidates)
        score = self._train(self._prior_margin(candidates))
        wanted = int(np.ceil(size * self.option("diversity")))
        if self._pool.is_complete:
            scores = score(self._table(candidates))
            at = np.argsort(-scores, kind="stable")[:wanted]
            best, scores = [candidates[i] for i in at], scores[at]
        else:
            starts = self._chain_starts(candidates)
            cooling = Cooling(
                self.count("iterations"), self.option("temperature"), self.count("early_stop")
            )
            best, scores = anneal(
                self.space,
                lambda configs: score(self._describe(configs)),
                starts,
                self.rng,
                cooling,
                wanted,
                taken,
            )
        return self._with_random(self._different(best, scores, size), taken)

    def _chain_starts(self, candidates: Sequence[Configuration]) -> list[Configuration]:
        """A quarter of the chains begin at the best trials, the others at candidates."""
        chains = self.count("chains")
        best = [t.configuration for t in self.history.best(chains // 4)]
        best = [c for c, ok in zip(best, self.space.contains_many(best), strict=True) if ok]
        drawn = self.rng.permutation(len(candidates))[: chains - len(best)]
        return [*best, *(candidates[i] for i in drawn)]

    def _different(
        self, candidates: Sequence[Configuration], scores: FloatArray, size: int
    ) -> list[Configuration]:
        features = self.space.encode_many(candidates)
        low, width = scaling(features)
        length = _SIMILAR * np.sqrt(max(1, features.shape[1]))
        at = spread(scores, (features - low) / width, size, 1.0, float(length))
        return [candidates[i] for i in at]

    def _with_random(
        self, plan: list[Configuration], taken: Set[Configuration]
    ) -> list[Configuration]:
        """The plan, each place of it given to a uniform draw with probability `epsilon`."""
        places = np.flatnonzero(self.rng.random(len(plan)) < self.option("epsilon")).tolist()
        drawn = self._sampler.draw(len(places), taken | set(plan))
        for place, config in zip(places, drawn, strict=False):
            plan[place] = config
        return plan

    # -- the model -----------------------------------------------------------------------------

    def _train(self, margin: Numbers) -> Numbers:
        """From features to scores."""
        ranker = Ranker(
            self._xgboost,
            objective=str(self.options["objective"]),
            rounds=self.count("rounds"),
            depth=self.count("depth"),
            rate=self.option("rate"),
            seed=int(self.rng.integers(2**31)),
        )
        features = self._table(self.history.configurations)
        ranker.fit(features, self.history.times(), margin(features))
        return lambda x: ranker.score(x, margin(x))

    def _prior_margin(self, candidates: Sequence[Configuration]) -> Numbers:
        """From features to the scores that the trees begin with: the prior, in standard deviations
        over the candidates, times twice its correlation with the trials."""
        if not self._with_prior or not candidates:
            return lambda x: np.zeros(len(x), dtype=np.float64)
        sample = self._table(candidates)[:, -1]
        middle, width = float(sample.mean()), max(float(sample.std()), 1e-9)
        times = self.history.times()
        speed, prior = -log_times(times), self._table(self.history.configurations)[:, -1]
        trust = _PRIOR_TRUST * _PRIOR_TRIALS
        if speed.std() > 0 and prior.std() > 0:
            trust += len(times) * float(np.corrcoef(prior, speed)[0, 1])
        weight = 2 * max(0.0, trust / (_PRIOR_TRIALS + len(times)))
        return lambda x: weight * (x[:, -1] - middle) / width
