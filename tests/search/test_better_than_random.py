"""What strategies find on analytic problems, against random search, over several seeds."""

from functools import cache

import numpy as np
import pytest
from synthetic import matmul, rugged

pytestmark = pytest.mark.slow

CASES = {
    "matmul": (matmul(1024, 512, 256), 48),
    "no prior": (matmul(784, 128, 1152, prior="none"), 64),
    "wrong prior": (matmul(784, 128, 1152, prior="wrong"), 64),
    "rugged": (rugged(1), 64),
}
# Share of random search's regret that is left, at most.
LIMITS = {
    "xgboost": {"matmul": 0.5, "no prior": 0.8, "wrong prior": 0.9, "rugged": 0.6},
    "genetic": {"matmul": 0.9, "no prior": 0.9, "rugged": 0.8},
}


SEEDS = range(4)


@cache
def regret(case: str, strategy: str) -> float:
    """Mean over seeds of how much longer the best found takes, as a logarithm."""
    problem, trials = CASES[case]
    found = [problem.search(strategy, seed, trials, batch=8) for seed in SEEDS]
    return float(np.mean(np.log(found) - np.log(best_of(case))))


@cache
def best_of(case: str) -> float:
    """About the best there is: the best of 8,000 uniform draws."""
    problem = CASES[case][0]
    drawn = problem.space.sample(np.random.default_rng(99), 8000)
    return min(t for c in drawn if (t := problem.time(c)) is not None)


@pytest.mark.parametrize(
    ("strategy", "case"), [(s, case) for s, cases in LIMITS.items() for case in cases]
)
def test_less_regret_than_random_search(strategy, case):
    random = regret(case, "random")
    assert regret(case, strategy) < LIMITS[strategy][case] * random
