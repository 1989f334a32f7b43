"""A cost model that orders configurations: gradient-boosted trees with a ranking objective.

T. Chen and C. Guestrin, "XGBoost: A Scalable Tree Boosting System", KDD 2016; for tuning T. Chen et
al., "Learning to Optimize Tensor Programs", NeurIPS 2018, whose finding it is that the order of
configurations is learned more easily than their times.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.space.arrays import FloatArray

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
