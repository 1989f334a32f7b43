"""The learned cost model, the annealing over it, and the plans made from both."""

import numpy as np
import pytest
from synthetic import matmul, rugged, tiny

from tilewright.search import create_strategy
from tilewright.search.xgboost_search import Cooling, Ranker, anneal, grades, is_telling
from tilewright.space import UnionSpace
from tilewright.trial import Status, Trial

COOLING = Cooling(iterations=60, temperature=1.0, early_stop=60)


def ranker(objective="rank:pairwise", seed=0, rounds=60):
    # Not at the top: every process that collects tests would import it.
    import xgboost

    return Ranker(xgboost, objective=objective, rounds=rounds, depth=4, rate=0.2, seed=seed)


class TestRanker:
    def sample(self, n=200, seed=0):
        rng = np.random.default_rng(seed)
        x = rng.uniform(size=(n, 4))
        return x, np.exp(2 * (x[:, 0] - 0.4) ** 2 + x[:, 1])

    @pytest.mark.parametrize("objective", ["rank:pairwise", "rank:ndcg"])
    def test_orders_what_it_has_not_seen(self, objective):
        x, times = self.sample()
        model = ranker(objective)
        model.fit(x, times, np.zeros(len(x)))
        unseen, truth = self.sample(seed=1)
        scores = model.score(unseen, np.zeros(len(unseen)))
        order = np.argsort(np.argsort(-scores))
        assert np.corrcoef(order, np.argsort(np.argsort(truth)))[0, 1] > 0.8

    def test_failures_rank_last(self):
        x, times = self.sample()
        times[x[:, 2] > 0.6] = np.nan
        model = ranker()
        model.fit(x, times, np.zeros(len(x)))
        unseen, _ = self.sample(seed=1)
        scores = model.score(unseen, np.zeros(len(unseen)))
        assert scores[unseen[:, 2] > 0.65].max() < np.quantile(scores[unseen[:, 2] < 0.55], 0.1)

    def test_trees_correct_a_margin(self):
        x, times = self.sample()
        margin = -4 * x[:, 1]
        rank = np.argsort(np.argsort(times))
        good = [np.corrcoef(margin, -rank)[0, 1]]
        for rounds in (4, 60):
            model = ranker(rounds=rounds)
            model.fit(x, times, margin)
            good.append(np.corrcoef(model.score(x, margin), -rank)[0, 1])
        assert good == sorted(good)
        assert good[2] > 0.97

    def test_the_same_seed_gives_the_same_scores(self):
        x, times = self.sample()
        runs = []
        for seed in (1, 1, 2):
            model = ranker(seed=seed)
            model.fit(x, times, np.zeros(len(x)))
            runs.append(model.score(x, np.zeros(len(x))).tolist())
        assert runs[0] == runs[1] != runs[2]

    def test_grades(self):
        assert grades(np.array([1.0, 2.0, 100.0, np.nan])).tolist() == [32, 16, 1, 0]
        assert grades(np.array([np.nan, np.nan])).tolist() == [0, 0]
        assert grades(np.array([])).tolist() == []
        assert is_telling(np.array([1.0, np.nan]))
        assert not is_telling(np.array([1.0, 1.0001]))
        assert not is_telling(np.array([np.nan]))


class TestChains:
    def score(self, space):
        """Highest where all tiles are 16."""
        names = [k.name for k in space.knobs if k.name != "mode"]

        def score(configs):
            at = np.log2(np.array([[c[n] for n in names] for c in configs], dtype=np.float64))
            return -np.abs(at - 4).sum(axis=1)

        return score

    def test_finds_the_peak_of_a_score(self):
        space = rugged(0).space
        rng = np.random.default_rng(0)
        starts = space.sample(rng, 32)
        score = self.score(space)
        found, scores = anneal(space, score, starts, rng, COOLING, 10, set())
        assert len(found) == len(set(found)) == 10
        assert space.contains_many(found).all()
        assert np.array_equal(scores, score(found))
        assert (np.diff(scores) <= 0).all()
        assert scores[0] > score(starts).max() + 5

    def test_leaves_out_what_was_seen(self):
        space = rugged(0).space
        starts = space.sample(np.random.default_rng(0), 16)
        score = self.score(space)
        first, _ = anneal(space, score, starts, np.random.default_rng(1), COOLING, 10, set())
        again, _ = anneal(space, score, starts, np.random.default_rng(1), COOLING, 10, set(first))
        assert not set(first) & set(again)

    def test_stops_early(self):
        space = rugged(0).space
        calls = [0]

        def flat(configs):
            calls[0] += 1
            return np.zeros(len(configs))

        starts = space.sample(np.random.default_rng(0), 16)
        cooling = Cooling(iterations=500, temperature=1.0, early_stop=7)
        anneal(space, flat, starts, np.random.default_rng(1), cooling, 4, set())
        assert calls[0] <= 10

    def test_nothing_to_start_from(self):
        found, scores = anneal(
            tiny(), lambda c: np.zeros(len(c)), [], np.random.default_rng(0), COOLING, 4, set()
        )
        assert found == []
        assert scores.shape == (0,)


class TestPlans:
    def trainings(self, monkeypatch, batch, rounds, **options):
        """How often the model was trained in so many batches."""
        fits = [0]
        fit = Ranker.fit

        def counted(self, *args):
            fits[0] += 1
            fit(self, *args)

        monkeypatch.setattr(Ranker, "fit", counted)
        problem = rugged(2)
        strategy = create_strategy("xgboost", problem.space, 0, {"iterations": 4, **options})
        for _ in range(rounds):
            strategy.tell([problem.trial(c) for c in strategy.ask(batch)])
        return fits[0]

    def test_one_training_for_each_plan(self, monkeypatch):
        options = {"initial": 8, "plan_size": 16}
        # 8 trials of the opening, then 32 in plans of 16.
        assert self.trainings(monkeypatch, 8, 5, **options) == 2
        assert self.trainings(monkeypatch, 1, 40, **options) == 2

    def test_a_batch_larger_than_a_plan_is_planned_whole(self, monkeypatch):
        assert self.trainings(monkeypatch, 40, 2, initial=8, plan_size=4) == 1

    def test_an_opening_is_not_learned_from_before_its_end(self, monkeypatch):
        assert self.trainings(monkeypatch, 5, 4, initial=20, plan_size=4) == 0

    def test_epsilon_of_one_is_random_search(self):
        space = matmul(1024, 512, 256).space
        known = [
            Trial(c, Status.OK, 1e-3 * (1 + i))
            for i, c in enumerate(space.sample(np.random.default_rng(3), 8))
        ]
        options = {"epsilon": 1, "plan_size": 200}
        drawn = create_strategy("xgboost", space, 0, options, known=known).ask(200)
        uniform = space.sample(np.random.default_rng(5), 2000)
        assert np.mean(space.prior_many(drawn)) == pytest.approx(
            np.mean(space.prior_many(uniform)), abs=0.15
        )

    def test_chains_look_at_every_pipeline(self):
        problem = matmul(1024, 512, 256)
        twins = [problem.space.restrict({"vec_k": [v]}).space for v in (1, 8)]
        for i, twin in enumerate(twins):
            twin.name = f"p{i}"
        space = UnionSpace("both", twins)
        rng = np.random.default_rng(0)
        known = [
            Trial(c, Status.OK, 1e-3 * (1 if c["pipeline"] == "p1" else 2) * rng.uniform(1, 1.2))
            for c in space.sample(rng, 60)
        ]
        options = {"use_prior": False, "epsilon": 0}
        chosen = create_strategy("xgboost", space, 0, options, known=known).ask(16)
        assert sum(c["pipeline"] == "p1" for c in chosen) >= 12

    def test_a_prior_that_is_not_to_be_used_is_not_asked(self):
        problem = matmul(256, 128, 64)
        space = problem.space
        told = [problem.trial(c) for c in space.sample(np.random.default_rng(0), 30)]
        with_prior, without = (
            create_strategy("xgboost", space, 0, {"use_prior": use}, known=told) for use in (1, 0)
        )
        assert with_prior.ask(8) != without.ask(8)

        def fail(configs):
            raise AssertionError("asked")

        space._prior = fail
        assert len(create_strategy("xgboost", space, 0, {"use_prior": 0}, known=told).ask(8)) == 8
