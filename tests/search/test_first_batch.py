"""What strategies share before they learn: candidates, the first trials, choosing what differs."""

import numpy as np
import pytest
from synthetic import matmul, rugged, tiny

from tilewright.search.features import FeatureTable, scaling, spread
from tilewright.search.first_batch import Opening
from tilewright.search.pool import Pool, UnseenSampler, all_members


def opening(space, **options):
    rng = np.random.default_rng(0)
    given = {"use_default": True, "use_prior": True, **options}
    return Opening(space, UnseenSampler(space, rng), **given)


class TestPool:
    def test_all_of_a_small_space(self):
        space = tiny()
        pool = Pool(space, np.random.default_rng(0), 16)
        assert pool.is_complete
        everything = pool.members(set())
        assert len(everything) == len(set(everything)) == space.order_size
        seen = set(everything[:5])
        assert pool.members(seen) == everything[5:]
        assert all_members(space, most=10) is None

    def test_a_sample_of_a_large_one(self):
        space = matmul(1024, 512, 256).space
        pool = Pool(space, np.random.default_rng(0), 200, anchored=0.5)
        assert not pool.is_complete
        first = pool.members(set())
        assert space.contains_many(first).all()
        assert 150 <= len(first) <= 200
        seen = set(first[:50])
        second = pool.members(seen)
        assert not seen & set(second)
        assert len(set(second) - set(first)) >= 20
        assert len(second) <= 200

    def test_anchored_members_are_near_the_default(self):
        space = matmul(1024, 512, 256).space
        default = dict(space.default.items)

        def equal(anchored):
            pool = Pool(space, np.random.default_rng(0), 400, anchored)
            return np.mean([sum(default[k] == v for k, v in c.items) for c in pool.members(set())])

        assert equal(1.0) > equal(0.5) > equal(0.0)


class TestOpening:
    def test_default_first_then_the_prior_and_chance_by_turns(self):
        space = matmul(1024, 512, 256).space
        pool = Pool(space, np.random.default_rng(0), 1024).members(set())
        chosen = opening(space).propose(9, set(), pool)
        assert chosen[0] == space.default
        typical = np.median(space.prior_many(pool))
        good = space.prior_many(chosen[1:]) > np.quantile(space.prior_many(pool), 0.95)
        assert 4 <= good.sum() <= 6
        assert len(set(chosen)) == 9
        assert (space.prior_many(chosen[5:]) > typical).mean() < 1

    def test_batches_of_one_take_turns_too(self):
        space = matmul(1024, 512, 256).space
        pool = Pool(space, np.random.default_rng(0), 1024).members(set())
        limit = np.quantile(space.prior_many(pool), 0.95)
        first = opening(space)
        seen = set()
        good = 0
        for _ in range(12):
            (config,) = first.propose(1, seen, [c for c in pool if c not in seen])
            seen.add(config)
            good += space.prior(config) > limit
        assert 5 <= good <= 8

    def test_without_prior_and_default(self):
        space = matmul(1024, 512, 256).space
        pool = Pool(space, np.random.default_rng(0), 1024).members(set())
        drawn = opening(space, use_prior=False, use_default=False).propose(40, set(), pool)
        assert space.default not in drawn
        above = space.prior_many(drawn) > np.median(space.prior_many(pool))
        assert 8 <= above.sum() <= 32

    def test_a_default_outside_or_known_is_left_out(self):
        space = tiny().restrict({"a": [2]}).space
        assert space.default not in opening(space).propose(3, set(), [])
        assert tiny().default not in opening(tiny()).propose(3, {tiny().default}, [])

    def test_favourites_differ(self):
        problem = rugged(0)
        space = problem.space
        rng = np.random.default_rng(0)
        pool = list(dict.fromkeys(space.sample(rng, 500)))
        features = space.encode_many(pool)
        low, width = scaling(features)
        at = spread(features.sum(axis=1), (features - low) / width, 6, 1.0, 1.0)
        top = np.argsort(-features.sum(axis=1))[:6]
        gaps = [
            np.linalg.norm((features[i] - features[j]) / width)
            for rows in (at, top)
            for i in rows
            for j in rows
            if i != j
        ]
        assert np.mean(gaps[: len(gaps) // 2]) > np.mean(gaps[len(gaps) // 2 :])
        assert at[0] == top[0]
        assert len(set(at)) == 6


@pytest.mark.parametrize("count", [0, 3, 9])
def test_spread_takes_what_there_is(count):
    scores = np.array([1.0, 3.0, 2.0])
    at = spread(scores, np.zeros((3, 2)), count, 1.0, 1.0)
    assert sorted(at) == sorted([1, 2, 0][: min(count, 3)])


def test_a_feature_table_computes_once():
    calls = []

    def compute(configs):
        calls.append(len(configs))
        return np.array([[len(c.items)] for c in configs], dtype=np.float64).reshape(-1, 1)

    space = tiny()
    configs = all_members(space)
    table = FeatureTable(compute)
    assert table(configs[:5]).shape == (5, 1)
    assert table(configs[:8] + configs[:2]).shape == (10, 1)
    assert calls == [0, 5, 3]
    assert table([]).shape == (0, 1)
