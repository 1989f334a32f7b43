import math

import numpy as np
import pytest
from synthetic import matmul, rugged

from tilewright.search import create_strategy
from tilewright.search.uncertainty import (
    Forest,
    GaussianProcess,
    choose_batch,
    expected_improvement,
)


def test_expected_improvement_is_the_integral():
    mean, deviation, best = np.array([0.3, -1.0, 2.0]), np.array([0.5, 0.1, 1.0]), 0.2
    grid = np.linspace(-12, 12, 200_001)
    for m, d, value in zip(
        mean, deviation, expected_improvement(mean, deviation, best), strict=True
    ):
        density = np.exp(-0.5 * ((grid - m) / d) ** 2) / (d * math.sqrt(2 * math.pi))
        integral = (np.maximum(best - grid, 0) * density).sum() * (grid[1] - grid[0])
        assert value == pytest.approx(integral, abs=1e-5)


def sample(n, seed):
    """Features whose last column is a prior of little worth, and times."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 8, size=(n, 4))
    return x, np.exp(0.1 * (x[:, 0] - 3) ** 2 + 0.2 * x[:, 1])


MODELS = {
    "gp": lambda x: GaussianProcess(x, "test"),
    "forest": lambda x: Forest("test", 0),
}


@pytest.mark.parametrize("kind", MODELS)
class TestModels:
    def test_predicts_and_knows_what_it_does_not_know(self, kind):
        x, times = sample(80, 0)
        unseen, truth = sample(200, 1)
        model = MODELS[kind](np.concatenate([x, unseen]))
        model.fit(x, times)
        mean, deviation = model.predict(unseen)
        assert np.corrcoef(mean, np.log(truth))[0, 1] > 0.9
        assert (deviation > 0).all()
        at_trials = model.predict(x)[1]
        assert at_trials.mean() < deviation.mean()
        covariance = model.covariance(unseen[:20])
        assert np.sqrt(np.diag(covariance)) == pytest.approx(deviation[:20], rel=1e-4)
        assert covariance == pytest.approx(covariance.T)

    def test_failures_are_slow(self, kind):
        x, times = sample(120, 0)
        times[x[:, 2] > 5] = np.nan
        unseen, _ = sample(200, 1)
        model = MODELS[kind](np.concatenate([x, unseen]))
        model.fit(x, times)
        mean = model.predict(unseen)[0]
        assert mean[unseen[:, 2] > 6].min() > np.median(mean[unseen[:, 2] < 4])

    def test_a_batch_is_spread_out(self, kind):
        x, times = sample(40, 0)
        unseen, _ = sample(300, 1)
        model = MODELS[kind](np.concatenate([x, unseen]))
        model.fit(x, times)
        batch = choose_batch(model, unseen, x, 12)
        assert len(set(batch)) == 12
        mean, deviation = model.predict(unseen)
        best = model.predict(x)[0].min()
        greedy = np.argsort(-expected_improvement(mean, deviation, best))[:12]
        assert batch[0] == greedy[0]

        def nearest(rows):
            gaps = np.linalg.norm(unseen[rows][:, None, :3] - unseen[rows][None, :, :3], axis=2)
            return np.mean(np.sort(gaps, axis=1)[:, 1])

        assert nearest(batch) > nearest(greedy)

    def test_many_trials(self, kind):
        x, times = sample(560, 0)
        model = MODELS[kind](x)
        model.fit(x, times)
        mean, _ = model.predict(x)
        assert np.corrcoef(mean, np.log(times))[0, 1] > 0.95

    def test_as_many_as_there_are(self, kind):
        x, times = sample(10, 0)
        model = MODELS[kind](x)
        model.fit(x, times)
        assert sorted(choose_batch(model, x[:3], x, 8)) == [0, 1, 2]


def test_a_wrong_prior_is_found_out():
    """The line through the prior never slopes the wrong way."""
    x, times = sample(60, 0)
    x[:, 3] = np.log(times)
    unseen, truth = sample(100, 1)
    unseen[:, 3] = np.log(truth)
    model = GaussianProcess(np.concatenate([x, unseen]), "test")
    model.fit(x, times)
    assert np.corrcoef(model.predict(unseen)[0], np.log(truth))[0, 1] > 0.85


@pytest.mark.parametrize("model", ["gp", "forest"])
def test_opening_then_model(model):
    problem = rugged(1)
    strategy = create_strategy("bayesian", problem.space, 0, {"model": model, "initial": 10})
    first = strategy.ask(10)
    assert first[0] == problem.space.default
    strategy.tell([problem.trial(c) for c in first])
    times = []
    for _ in range(4):
        trials = [problem.trial(c) for c in strategy.ask(8)]
        strategy.tell(trials)
        times.append(np.median([t.time_s for t in trials if t.ok]))
    assert min(times) < np.median([problem.time(c) for c in first if problem.time(c)])


def test_explore_share_of_one_is_random_search():
    problem = matmul(1024, 512, 256)
    space = problem.space
    known = [problem.trial(c) for c in space.sample(np.random.default_rng(0), 10)]
    options = {"explore_share": 1}
    drawn = create_strategy("bayesian", space, 0, options, known=known).ask(200)
    uniform = space.sample(np.random.default_rng(5), 2000)
    assert np.mean(space.prior_many(drawn)) == pytest.approx(
        np.mean(space.prior_many(uniform)), abs=0.15
    )
