"""Random search's curve: exact means exact."""

from itertools import combinations, permutations
from math import comb

import numpy as np
import pytest

from tilewright.replay.arena import (
    budget,
    expected_best,
    expected_best_by_time,
    random_trials,
)


@pytest.mark.parametrize(
    "values",
    [[3.0, 1.0, 2.0, 8.0, 5.0, 4.0, 7.0], [2.0, 2.0, 1.0, 5.0, 5.0, 5.0], [4.0, 1.0], [1.0]],
)
def test_equal_to_the_mean_over_all_draws(values):
    found = expected_best(np.array(values))
    for draws in range(1, len(values) + 1):
        every = [min(chosen) for chosen in combinations(values, draws)]
        assert found[draws - 1] == pytest.approx(sum(every) / len(every), rel=1e-12)


def test_close_to_simulated_draws():
    rng = np.random.default_rng(0)
    values = rng.lognormal(size=300)
    best = np.array([np.minimum.accumulate(rng.permutation(values)) for _ in range(4000)])
    error = best.std(axis=0) / np.sqrt(len(best))
    assert (np.abs(best.mean(axis=0) - expected_best(values)) <= 5 * error + 1e-9).all()


def test_by_time_is_the_mean_over_all_orders():
    values = np.array([3.0, 1.0, 2.0, 8.0, 5.0, 4.0])
    costs = np.array([1.0, 6.0, 2.0, 0.5, 0.5, 2.0])
    step = costs.mean()
    found = expected_best_by_time(values, lambda drawn: costs[drawn], step)
    every = []
    for order in permutations(range(6)):
        done, best = 0.0, [8.0] * 6
        for i in order:
            done += costs[i]
            first = int(np.ceil(done / step - 1e-9)) - 1
            best[first:] = [min(b, values[i]) for b in best[first:]]
        every.append(best)
    error = np.std(every, axis=0) / np.sqrt(8192)
    assert (np.abs(found - np.mean(every, axis=0)) <= 5 * error + 1e-9).all()
    assert found[-1] == 1.0


def test_by_time_with_equal_costs_is_as_by_evaluation():
    values = np.random.default_rng(3).exponential(size=200)
    found = expected_best_by_time(values, lambda drawn: np.full(drawn.shape, 2.0), 2.0)
    assert found == pytest.approx(expected_best(values), rel=0.05)


def test_falls_from_the_mean_to_the_optimum():
    values = np.random.default_rng(1).exponential(size=800)
    found = expected_best(values)
    assert found[0] == pytest.approx(values.mean())
    assert found[-1] == pytest.approx(values.min())
    assert (np.diff(found) <= 1e-12).all()


def test_budget_is_the_first_time_that_95_percent_of_the_gap_are_closed():
    values = np.random.default_rng(2).exponential(size=400) + 1
    found = expected_best(values)
    optimum, median = values.min(), float(np.median(values))
    end = budget(found, optimum, median)
    aim = optimum + 0.05 * (median - optimum)
    assert found[end - 1] <= aim < found[end - 2]


@pytest.mark.parametrize(("count", "good"), [(10, 1), (10, 10), (1, 1), (500, 3), (60, 20)])
def test_median_number_of_draws_until_a_good_one(count, good):
    found = random_trials(count, good)
    missed = [comb(count - good, t) / comb(count, t) for t in range(count + 1)]
    assert 1 - missed[found] >= 0.5 - 1e-12
    assert found == 1 or 1 - missed[found - 1] < 0.5
