"""Annealing and pattern search: where they step, and when they start over."""

from itertools import pairwise

import pytest

from tilewright.search import create_strategy
from tilewright.space import SearchSpace, TileKnob
from tilewright.trial import Configuration, Status, Trial

VALUES = 32


def grid():
    """Two knobs of 32 steps each."""
    sizes = tuple(range(1, VALUES + 1))
    knobs = [TileKnob("x", sizes), TileKnob("y", sizes)]
    return SearchSpace("grid", knobs, [], Configuration.of({"x": 16, "y": 16}))


def at(x, y):
    return Configuration.of({"x": x, "y": y})


def ok(config, time):
    return Trial(config, Status.OK, time)


def steps_from(config, others):
    return [max(abs(int(c[k]) - int(config[k])) for k in "xy") for c in others]


def run(name, options, time_of, trials=40, batch=1):
    strategy = create_strategy(name, grid(), 0, options)
    done = []
    while len(done) < trials:
        asked = [time_of(c) for c in strategy.ask(batch)]
        strategy.tell(asked)
        done += asked
    return done


@pytest.mark.parametrize("name", ["annealing", "local"])
class TestBoth:
    def test_begins_at_the_best_of_what_is_known(self, name):
        known = [ok(at(4, 5), 1.0), ok(at(20, 20), 2.0), Trial(at(1, 1), Status.CRASHED)]
        strategy = create_strategy(name, grid(), 0, {"starts": 1}, known=known)
        strategy.tell([ok(c, 9.0) for c in strategy.ask(1)])
        near = strategy.ask(6)
        assert max(steps_from(at(4, 5), near)) <= 4

    def test_begins_at_the_best_of_its_starts(self, name):
        strategy = create_strategy(name, grid(), 0, {"starts": 5})
        first = strategy.ask(5)
        assert first[0] == grid().default
        strategy.tell([ok(c, 1.0 if i == 3 else 3.0) for i, c in enumerate(first)])
        assert max(steps_from(first[3], strategy.ask(4))) <= 4

    def test_walks_to_the_valley(self, name):
        def bowl(c):
            return ok(c, 1.0 + 0.01 * ((int(c["x"]) - 25) ** 2 + (int(c["y"]) - 9) ** 2))

        done = run(name, {"starts": 2, "patience": 60}, bowl, trials=90)
        assert min(t.time_s for t in done) < 1.06

    def test_starts_over_when_stuck(self, name):
        def flat(c):
            return ok(c, 1.0)

        done = [t.configuration for t in run(name, {"starts": 2, "patience": 8}, flat, trials=60)]
        far = [max(steps_from(a, [b])) > 6 for a, b in pairwise(done)]
        assert sum(far) >= 5

    def test_failures_are_never_stepped_on(self, name):
        def broken(c):
            return Trial(c, Status.CRASHED) if c != grid().default else ok(c, 1.0)

        options = {"starts": 1, "patience": 1000}
        done = [t.configuration for t in run(name, options, broken, trials=12)]
        # There are no more than 16 neighbours up to a reach of 4.
        assert max(steps_from(grid().default, done)) <= 4

    def test_a_whole_batch_belongs_to_one_step(self, name):
        strategy = create_strategy(name, grid(), 0, {"starts": 1})
        strategy.tell([ok(c, 1.0) for c in strategy.ask(1)])
        batch = strategy.ask(8)
        assert max(steps_from(grid().default, batch)) <= 4
        strategy.tell([ok(c, 0.5 if i == 5 else 2.0) for i, c in enumerate(batch)])
        assert max(steps_from(batch[5], strategy.ask(3))) <= 4


def test_annealing_goes_uphill_only_while_it_is_hot():
    def uphill(options):
        """How often a slower neighbour became the point to go on from."""
        moved = 0
        for seed in range(30):
            strategy = create_strategy("annealing", grid(), seed, {"starts": 1, **options})
            strategy.tell([ok(c, 1.0) for c in strategy.ask(1)])
            (slower,) = strategy.ask(1)
            strategy.tell([ok(slower, 1.2)])
            moved += strategy._walk()[-1].at == slower
        return moved

    assert uphill({"temperature": 0}) == 0
    assert uphill({"temperature": 0.0001}) == 0
    assert 3 <= uphill({"temperature": 0.2}) <= 27
    assert uphill({"temperature": 100}) >= 28


def test_annealing_cools_with_every_trial():
    options = {"starts": 1, "temperature": 1.0, "cooling": 0.5, "patience": 1000}
    strategy = create_strategy("annealing", grid(), 0, options)
    strategy.tell([ok(c, 1.0) for c in strategy.ask(1)])
    for _ in range(12):
        strategy.tell([Trial(c, Status.CRASHED) for c in strategy.ask(1)])
    path = strategy._walk()[-1]
    assert strategy._heat(path) == pytest.approx(0.5**13)


def test_local_goes_on_in_the_direction_that_paid():
    known = [ok(at(10, 10), 1.0)]
    strategy = create_strategy("local", grid(), 0, {"starts": 1, "patience": 1000}, known=known)
    strategy.tell([ok(c, 5.0) for c in strategy.ask(1)])
    batch = strategy.ask(4)
    paid = next(c for c in batch if c["y"] == 10 and c["x"] != 10)
    strategy.tell([ok(c, 0.5 if c == paid else 2.0) for c in batch])
    onward = strategy.ask(1)[0]
    direction = 1 if int(paid["x"]) > 10 else -1
    assert (onward["x"], onward["y"]) == (int(paid["x"]) + direction, 10)


def test_local_exhausts_a_neighbourhood_before_it_looks_further():
    strategy = create_strategy("local", grid(), 0, {"starts": 1, "patience": 1000})
    strategy.tell([ok(c, 1.0) for c in strategy.ask(1)])
    near = strategy.ask(4)
    assert set(near) == {at(15, 16), at(17, 16), at(16, 15), at(16, 17)}
    strategy.tell([ok(c, 2.0) for c in near])
    assert max(steps_from(grid().default, strategy.ask(4))) == 2
