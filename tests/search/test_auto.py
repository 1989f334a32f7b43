"""The default strategy: what it believes, and what it makes of other shapes' trials."""

import numpy as np
import pytest
from synthetic import matmul, rugged

from tilewright.search import create_strategy
from tilewright.search.surrogate import CovarianceKernel, Places, Surrogate
from tilewright.search.transfer import Experience, Transfer, ranges
from tilewright.space import BoolKnob, SearchSpace, TileKnob
from tilewright.space.descriptors import Descriptors
from tilewright.trial import Configuration, Status, Trial

KERNEL = CovarianceKernel(0.5, 0.05)


def surrogate(pool, trials, times, pool_mean=None, trial_mean=None):
    pool, trials = np.array(pool, dtype=float)[:, None], np.array(trials, dtype=float)[:, None]
    return Surrogate(
        Places(KERNEL, pool, trials),
        np.zeros(len(pool)) if pool_mean is None else np.array(pool_mean),
        np.zeros(len(trials)) if trial_mean is None else np.array(trial_mean),
        np.array(times, dtype=float),
    )


class TestSurrogate:
    def test_is_sure_where_there_are_trials_and_not_elsewhere(self):
        model = surrogate([0.0, 0.5, 1.0, 9.0], [0.0, 0.5, 1.0], [1e-3, 2e-3, 4e-3])
        assert np.exp(model.mean[:3]) == pytest.approx([1e-3, 2e-3, 4e-3], rel=0.2)
        assert model.deviation[3] > 3 * model.deviation[:3].max()
        assert np.exp(model.best) == pytest.approx(1e-3)

    def test_follows_the_prior_where_it_has_seen_nothing(self):
        model = surrogate(
            [5.0, 6.0],
            [0.0, 0.1, 0.2],
            [1e-3, 2e-3, 4e-3],
            pool_mean=[0.0, 3.0],
            trial_mean=[0.0, 0.7, 1.4],
        )
        assert model.mean[1] - model.mean[0] > 1.0

    def test_a_belief_leaves_less_to_learn_near_to_it_and_changes_no_prediction(self):
        model = surrogate([0.0, 0.1, 5.0], [2.0], [1e-3])
        mean, before = model.mean.copy(), model.deviation.copy()
        model.believe(0)
        assert model.deviation[1] < 0.5 * before[1]
        assert model.deviation[2] > 0.9 * before[2]
        assert (model.mean == mean).all()

    def test_models_of_the_same_places_do_not_disturb_each_other(self):
        """What one believes or expects is not the other's."""
        pool, trials = np.linspace(0.0, 2.0, 9)[:, None], np.array([[0.2], [1.1], [1.9]])
        times, slow = np.array([1e-3, 2e-3, 4e-3]), np.array([0.0, 0.7, 1.4])
        places = Places(KERNEL, pool, trials)
        shared = [Surrogate(places, pool[:, 0] * s, slow * s, times) for s in (1.0, 0.0)]
        for model in shared:
            model.believe(4)
        for scale, model in zip((1.0, 0.0), shared, strict=True):
            alone = Surrogate(Places(KERNEL, pool, trials), pool[:, 0] * scale, slow * scale, times)
            alone.believe(4)
            assert model.mean == pytest.approx(alone.mean)
            assert model.deviation == pytest.approx(alone.deviation)
        assert shared[0].mean != pytest.approx(shared[1].mean)

    def test_beliefs_equal_trials(self):
        """Believing one after another leaves the uncertainty of having tried them all."""
        model = surrogate([0.0, 0.3, 0.9, 1.7], [2.0], [1e-3])
        for at in (0, 2):
            model.believe(at)
        both = surrogate([0.0, 0.3, 0.9, 1.7], [2.0, 0.0, 0.9], [1e-3, 1e-3, 1e-3])
        assert model.deviation / model.scale == pytest.approx(both.deviation / both.scale)

    def test_failures_count_as_slow(self):
        model = surrogate([0.0, 1.0], [0.0, 1.0, 1.2], [np.nan, 1e-3, 1.5e-3])
        assert model.mean[0] > model.mean[1]

    def test_without_trials(self):
        model = surrogate([0.0, 1.0], [], [], pool_mean=[1.0, 0.0])
        assert model.mean[0] > model.mean[1]
        assert np.isinf(model.best)


def experience_of(problem, count, seed=0):
    """Trials of another shape, as a database would have them."""
    space = problem.space
    configs = list(dict.fromkeys(space.sample(np.random.default_rng(seed), count)))
    times = [problem.trial(c).time_s for c in configs]
    described = space.describe_many(configs)
    return Experience(
        tuple(space.descriptor_names),
        described,
        np.array([np.nan if t is None else t for t in times], dtype=float),
        ranges(described),
    )


def searched(problem, seed, trials, experience=(), **options):
    """The true time of the best of so many trials."""
    strategy = create_strategy("auto", problem.space, seed, options, experience=experience)
    best = np.inf
    for _ in range(trials // 8):
        results = [problem.trial(c) for c in strategy.ask(8)]
        strategy.tell(results)
        best = min([best, *(problem.time(t.configuration) for t in results if t.ok)])
    return best


def test_other_shapes_help():
    target, other = matmul(512, 256, 128, prior="none"), matmul(256, 512, 256, prior="none")
    taught = [experience_of(other, 300)]
    alone = np.mean([np.log(searched(target, s, 16, pool=512)) for s in range(6)])
    helped = np.mean([np.log(searched(target, s, 16, taught, pool=512)) for s in range(6)])
    assert helped < alone - 0.1


def test_other_shapes_can_be_left_out():
    target, other = matmul(256, 256, 64), matmul(512, 256, 128)
    taught = [experience_of(other, 50)]
    plain = create_strategy("auto", target.space, 1).ask(8)
    assert create_strategy("auto", target.space, 1, experience=taught).ask(8) != plain
    off = create_strategy("auto", target.space, 1, {"transfer": False}, experience=taught)
    assert off.ask(8) == plain


def test_misleading_experience_is_unlearned():
    """Times turned upside down: the search recovers."""
    target = matmul(256, 256, 64, prior="none")
    right = experience_of(target, 200, seed=4)
    wrong = Experience(right.names, right.descriptors, 1 / right.times, right.ranges)
    space = target.space
    drawn = [target.time(c) for c in space.sample(np.random.default_rng(0), 400)]
    good = np.quantile([t for t in drawn if t is not None], 0.02)
    found = [searched(target, s, 48, [wrong], pool=512) for s in range(3)]
    assert np.median(found) < good


def test_a_transfer_orders_what_it_was_taught():
    problem = rugged(3)
    taught = experience_of(problem, 300)
    names = problem.space.descriptor_names
    model = Transfer([taught], names, taught.ranges, CovarianceKernel(0.5, 0.1), use_prior=False)
    fresh = problem.space.sample(np.random.default_rng(9), 200)
    fresh = [c for c in fresh if problem.time(c) is not None]
    expected = model.correction(problem.space.describe_many(fresh))
    times = np.log([problem.time(c) for c in fresh])
    ranks = [np.argsort(np.argsort(v)) for v in (expected, times)]
    assert np.corrcoef(*ranks)[0, 1] > 0.5


def test_descriptors_are_compared_within_their_own_range():
    """What was best at a quarter of the range in a small shape is so in a large one."""
    small, large = np.linspace(0, 4, 17)[:, None], np.linspace(3, 19, 33)[:, None]
    times = np.exp((small[:, 0] - 1.0) ** 2)
    taught = Experience(("x",), small, times, ranges(small))
    model = Transfer([taught], ("x",), ranges(large), CovarianceKernel(0.5, 0.05), use_prior=False)
    assert large[np.argmin(model.correction(large)), 0] == pytest.approx(7.0, abs=0.5)


def test_what_other_shapes_taught_has_a_first_batch_of_its_own():
    problem = matmul(512, 256, 128, prior="none")
    taught = [experience_of(matmul(256, 512, 256, prior="none"), 300)]
    known = [problem.trial(problem.space.default)]
    options = {"steps_share": 0, "explore_share": 0, "pool": 512}

    def first(experience):
        strategy = create_strategy("auto", problem.space, 0, options, known, experience)
        return np.median([problem.time(c) or np.inf for c in strategy.ask(8)])

    assert first(taught) < 0.5 * first([])


def test_another_way_to_write_what_was_tried_comes_last():
    """A knob that changes nothing that is derived: the same program twice."""

    def describe(configs):
        return np.array([[float(c["a"])] for c in configs]).reshape(len(configs), 1)

    knobs = [TileKnob("a", tuple(2**i for i in range(8))), BoolKnob("idle")]
    default = Configuration.of({"a": 1, "idle": False})
    space = SearchSpace("twice", knobs, [], default, descriptors=Descriptors(("a",), describe))
    strategy = create_strategy(
        "auto",
        space,
        0,
        {"steps_share": 0, "explore_share": 0},
        known=[Trial(default, Status.OK, 1.0)],
    )
    strategy.tell([Trial(c, Status.OK, 1.0 / float(c["a"])) for c in strategy.ask(8)])
    asked = [c["a"] for batch in strategy.asked for c in batch]
    assert len(asked) == 8
    assert len({*asked, 1}) >= 7


def test_experience_of_failures_only_says_nothing():
    space = matmul(64, 64, 64).space
    configs = space.sample(np.random.default_rng(0), 20)
    described = space.describe_many(configs)
    names = tuple(space.descriptor_names)
    dead = Experience(names, described, np.full(20, np.nan), ranges(described))
    strategy = create_strategy("auto", space, 0, experience=[dead])
    assert len(strategy.ask(8)) == 8


def test_what_takes_long_to_try_can_be_avoided():
    """Of two kinds of candidates equally fast, those that compile quickly come first."""
    space = rugged(1).space
    rng = np.random.default_rng(0)
    known = [
        Trial(
            c,
            Status.OK,
            1e-3 * float(rng.uniform(0.9, 1.1)),
            phase_s={"compile": 20.0 if dict(c.items)["mode"] == "a" else 0.1},
        )
        for c in dict.fromkeys(space.sample(rng, 60))
    ]

    def dear(cost):
        asked = create_strategy("auto", space, 0, {"cost": cost}, known=known).ask(16)
        return sum(dict(c.items)["mode"] == "a" for c in asked)

    assert dear(1.0) < dear(0.0)
