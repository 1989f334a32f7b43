"""What a search is told of other shapes."""

import numpy as np
import pytest
from replay_support import foreign, recording, written

from tilewright.replay import score as scoring
from tilewright.replay.arena import open_arena
from tilewright.replay.score import parse_strategy, score_strategies
from tilewright.replay.simulate import Conditions, StrategyChoice, experience, teachers


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shapes")
    made = [
        recording("one"),
        recording("same_shape", noise=0.1),
        recording("two", shape=(512, 128, 64)),
        recording("three", shape=(256, 256, 64)),
        foreign([1.0, 2.0, 3.0, 4.0]),
    ]
    return {one.name: written(folder, one) for one in made}


def test_other_shapes_teach_and_the_same_one_does_not(paths):
    found = teachers(open_arena(paths["one"]), paths.values())
    assert [path.stem for path in found] == ["two", "three"]
    assert teachers(open_arena(paths["foreign"]), paths.values()) == []


def test_so_many_trials_of_each_the_same_by_the_same_seed(paths):
    others = [paths["two"], paths["three"]]
    one, again, other = (experience(others, 20, seed) for seed in (1, 1, 2))
    assert [len(e.times) for e in one] == [20, 20]
    assert np.array_equal(one[0].descriptors, again[0].descriptors)
    assert not np.array_equal(one[0].descriptors, other[0].descriptors)
    arena = open_arena(paths["two"])
    assert one[0].names == arena.space.descriptor_names
    (everything,) = experience(others[:1], 10_000, 0)
    assert len(everything.times) == 108
    assert np.isnan(everything.times).sum() == 6


def test_strategies_are_given_it_only_where_asked_for(paths, monkeypatch):
    given = []

    def make(self, space, seed, known, experience=()):
        given.append(len(experience))
        return parse_strategy("random")(space, seed, known)

    class Spied(StrategyChoice):
        __call__ = make

    monkeypatch.setattr(scoring, "shipped", lambda: {"three": paths["three"]})
    for trials in (0, 16):
        conditions = Conditions(transfer=trials)
        chosen = [paths["one"], paths["two"]]
        score_strategies(chosen, [Spied("spied", "random")], conditions, runs=2)
    assert given == [0, 0, 0, 0, 2, 2, 2, 2]


def test_auto_begins_better_taught(paths):
    chosen = [paths["one"], paths["two"]]
    auto = parse_strategy("auto")
    plain, taught = (
        score_strategies(chosen, [auto], Conditions(prior=False, transfer=n), runs=2)[0].mean
        for n in (0, 108)
    )
    assert taught > plain
