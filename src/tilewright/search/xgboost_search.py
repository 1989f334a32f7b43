"""Search with a learned cost model: boosted trees that rank, and annealing over their score.

The model orders configurations: gradient-boosted trees with a ranking objective (T. Chen and C.
Guestrin, "XGBoost: A Scalable Tree Boosting System", KDD 2016; for tuning T. Chen et al., "Learning
to Optimize Tensor Programs", NeurIPS 2018, whose finding it is that the order of configurations is
learned more easily than their times). Many annealing chains walk over its score at once (S.
Kirkpatrick, C. D. Gelatt and M. P. Vecchi, "Optimization by Simulated Annealing", Science 220,
1983; over a cost model and in parallel as in Chen et al.).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.search.features import FeatureTable, description, scaling, spread
from tilewright.search.first_batch import SampledStrategy, start_options
from tilewright.search.interface import load, register
from tilewright.search.strategy_options import Option
from tilewright.search.surrogate import log_times
from tilewright.space.arrays import FloatArray
from tilewright.space.interface import Space
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


@dataclass(frozen=True)
class Cooling:
    """How long chains run, and how freely.

    A step that lowers the score by `temperature` standard deviations of the first scores is taken
    with probability 1/e at first; the temperature falls linearly to 0 over the iterations. The
    chains stop early when for `early_stop` iterations none of the best found has changed.
    """

    iterations: int
    temperature: float
    early_stop: int


def anneal(
    space: Space,
    score: Callable[[Sequence[Configuration]], FloatArray],
    starts: Sequence[Configuration],
    rng: np.random.Generator,
    cooling: Cooling,
    count: int,
    seen: Set[Configuration],
) -> tuple[list[Configuration], FloatArray]:
    """Annealing over a score, one chain from each start.

    Args:
        space: what the chains walk through.
        score: higher is better, of many members at once, shape (configurations,).
        starts: members at which the chains begin; without any nothing is found.
        rng: decides the steps, and which worse ones are taken.
        cooling: how long the chains run, and how freely.
        count: how many members are wanted at most.
        seen: members that do not count.

    Returns:
        The up to `count` best-scored members outside `seen` that the chains came across, the best
        first, and their scores.
    """
    states = list(starts)
    if not states:
        return [], np.zeros(0)
    scores = score(states)
    width = max(float(scores.std()), 1e-9)
    best = _Best(count, seen)
    best.add(states, scores)
    changed = 0
    for i in range(cooling.iterations):
        if i - changed >= cooling.early_stop:
            break
        heat = cooling.temperature * (1 - i / cooling.iterations) * width
        moved = space.step_many(states, rng, 2 if 2 * i < cooling.iterations else 1)
        moved_scores = score(moved)
        if best.add(moved, moved_scores):
            changed = i
        gain = np.minimum((moved_scores - scores) / max(heat, 1e-12), 0.0)
        taken = rng.random(len(states)) < np.exp(gain)
        scores = np.where(taken, moved_scores, scores)
        states = [m if t else s for s, m, t in zip(states, moved, taken.tolist(), strict=True)]
    return best.found()


class _Best:
    """The best different configurations so far."""

    def __init__(self, count: int, seen: Set[Configuration]) -> None:
        self._count = count
        self._seen = seen
        self._known: set[Configuration] = set()
        # The worst on top; of equals the later one, so that the first found stays.
        self._heap: list[tuple[float, int, Configuration]] = []
        self._added = 0

    def add(self, configs: Sequence[Configuration], scores: FloatArray) -> bool:
        """Whether any of them is among the best now."""
        changed = False
        for config, score in zip(configs, scores.tolist(), strict=True):
            full = len(self._heap) >= self._count
            if (full and score <= self._heap[0][0]) or config in self._known:
                continue
            if config in self._seen:
                continue
            self._known.add(config)
            self._added += 1
            heapq.heappush(self._heap, (score, -self._added, config))
            if full:
                heapq.heappop(self._heap)
            changed = True
        return changed

    def found(self) -> tuple[list[Configuration], FloatArray]:
        ordered = sorted(self._heap, key=lambda entry: (-entry[0], -entry[1]))
        return [c for _, _, c in ordered], np.array([s for s, _, _ in ordered], dtype=np.float64)


# Grades of throughput relative to the best; two trials of one grade are not told apart.
_GRADES = 32


class Ranker:
    """Scores configurations, higher is better; only the order means anything.

    `xgboost` is the module. Everything runs in one thread and is decided by `seed`.
    """

    def __init__(
        self, xgboost: Any, *, objective: str, rounds: int, depth: int, rate: float, seed: int
    ) -> None:
        self._xgboost = xgboost
        self._rounds = rounds
        self._parameters: dict[str, object] = {
            "objective": objective,
            "eta": rate,
            "max_depth": depth,
            "min_child_weight": 0.5,
            "lambda": 0.3,
            "subsample": 0.9,
            "colsample_bytree": 0.5,
            "tree_method": "hist",
            "max_bin": 64,
            "lambdarank_pair_method": "mean",
            "lambdarank_num_pair_per_sample": 8,
            "lambdarank_score_normalization": False,
            "seed": seed,
            "nthread": 1,
            "verbosity": 0,
        }
        if objective == "rank:ndcg":
            # Grades are shares of the best, so they are gains as they stand. A pair weighs what
            # swapping it would change, about a hundredth of what it weighs otherwise.
            self._parameters |= {"ndcg_exp_gain": False, "min_child_weight": 1e-3, "lambda": 1e-2}
        self._booster: Any = None

    def fit(self, features: FloatArray, times: FloatArray, margin: FloatArray) -> None:
        """Learn the order of trials.

        Args:
            features: shape (trials, features).
            times: seconds, NaN for a failure, which ranks below everything; shape (trials,).
            margin: scores to begin with, which the trees correct; shape (trials,).
        """
        data = self._xgboost.DMatrix(
            features,
            label=grades(times),
            qid=np.zeros(len(times), dtype=np.int64),
            base_margin=margin,
            nthread=1,
        )
        self._booster = self._xgboost.train(self._parameters, data, self._rounds)

    def score(self, features: FloatArray, margin: FloatArray) -> FloatArray:
        """Scores, shape (configurations,)."""
        data = self._xgboost.DMatrix(features, base_margin=margin, nthread=1)
        return np.asarray(self._booster.predict(data, output_margin=True), dtype=np.float64)


def grades(times: FloatArray) -> FloatArray:
    """Throughput relative to the best in whole grades, 1 to 32; 0 for a failure."""
    ok = ~np.isnan(times)
    if not ok.any():
        return np.zeros(len(times), dtype=np.float64)
    relative = np.nanmin(times) / np.where(ok, times, np.inf)
    return np.ceil(_GRADES * relative - 1e-9)


def is_telling(times: FloatArray) -> bool:
    """Whether there is any order in these times to learn from."""
    return len(np.unique(grades(times))) > 1
