"""Guided search against random search on analytic problems, by what each found in the median."""

import numpy as np
import pytest
from synthetic import Problem, matmul, rugged

from tilewright.search import create_strategy
from tilewright.space import SearchSpace, TileKnob
from tilewright.trial import Configuration, Status, Trial

SEEDS = range(7)


def median(problem: Problem, strategy: str, trials: int) -> float:
    return float(np.median([problem.search(strategy, s, trials) for s in SEEDS]))


def good(problem: Problem) -> float:
    """About the best there is: the best of 8,000 uniform draws."""
    drawn = problem.space.sample(np.random.default_rng(99), 8000)
    return min(t for c in drawn if (t := problem.time(c)) is not None)


@pytest.mark.parametrize(
    ("problem", "share"),
    [
        (matmul(64, 64, 64), 0.25),
        (rugged(1), 0.5),
        *(
            pytest.param(problem, share, marks=pytest.mark.slow)
            for problem, share in (
                (matmul(1024, 512, 256), 0.25),
                (matmul(196, 1024, 256), 0.25),
                (matmul(1024, 512, 256, prior="none"), 0.5),
                (rugged(2), 0.5),
            )
        ),
    ],
    ids=lambda p: p.name if isinstance(p, Problem) else "",
)
def test_regret_is_a_fraction_of_random_searchs(problem, share):
    best = good(problem)
    guided = median(problem, "guided", 60) - best
    random = median(problem, "random", 60) - best
    assert guided < share * random


@pytest.mark.slow
def test_forty_guided_trials_beat_three_hundred_random_ones():
    problem = matmul(784, 128, 1152)
    assert median(problem, "guided", 40) < median(problem, "random", 300)


def test_a_wrong_prior_does_no_harm():
    problem = matmul(1024, 512, 256, prior="wrong")
    assert median(problem, "guided", 60) < median(problem, "random", 60)


def test_first_batch_follows_the_prior():
    problem = matmul(1024, 512, 256)
    configs = create_strategy("guided", problem.space, 0, {"explore_share": 0}).ask(10)
    drawn = problem.space.sample(np.random.default_rng(0), 500)
    typical = np.median([problem.space.prior(c) for c in drawn])
    assert np.median([problem.space.prior(c) for c in configs]) > typical + 1


def line(cells: int = 4096) -> SearchSpace:
    knobs = [TileKnob(n, tuple(2**i for i in range(12))) for n in "abc"]
    return SearchSpace("line", knobs, [], Configuration.of({"a": 64, "b": 64, "c": 64}))


def test_failures_push_the_search_away():
    space = line()
    failing = [
        Trial(c, Status.COMPILE_ERROR)
        for c in space.sample(np.random.default_rng(0), 150)
        if int(c["a"]) >= 64  # type: ignore[call-overload]
    ]
    fine = [
        Trial(c, Status.OK, 1e-3)
        for c in space.sample(np.random.default_rng(1), 60)
        if int(c["a"]) < 64  # type: ignore[call-overload]
    ]
    options = {"explore_share": 0, "optimism": 0}
    strategy = create_strategy("guided", space, 0, options, known=[*failing, *fine])
    configs = strategy.ask(16)
    assert sum(int(c["a"]) < 64 for c in configs) >= 14


def test_exploration_share_is_kept():
    space = line()
    near = [Trial(space.default, Status.OK, 1e-3)]
    strategy = create_strategy(
        "guided", space, 0, {"explore_share": 1, "prior_share": 0}, known=near
    )
    drawn = strategy.ask(60)
    spread = space.encode_many(drawn).std(axis=0)
    assert (spread > 2.5).all()
