import numpy as np
from synthetic import matmul, rugged

from tilewright.search import create_strategy
from tilewright.space import SearchSpace, TileKnob
from tilewright.trial import Configuration, Status, Trial


def plain(knobs=8, values=8):
    tiles = [TileKnob(f"t{i}", tuple(2**j for j in range(values))) for i in range(knobs)]
    return SearchSpace("plain", tiles, [], Configuration.of({t.name: 1 for t in tiles}))


def known(space, *value_sets):
    """Trials of the same value for all knobs, the first the fastest."""
    return [
        Trial(Configuration.of({k.name: v for k in space.knobs}), Status.OK, 1e-3 * (i + 1))
        for i, v in enumerate(value_sets)
    ]


def test_children_take_every_knob_from_a_parent():
    space = plain()
    options = {"mutation": 0, "population": 2, "elites": 2}
    children = create_strategy("genetic", space, 0, options, known=known(space, 4, 64)).ask(20)
    values = [set(dict(c.items).values()) for c in children]
    # A child that was tried before takes a step, all others are mixtures.
    assert sum(v <= {4, 64} for v in values) >= 14
    assert sum(v == {4, 64} for v in values) >= 10


def test_mutation_leaves_the_parents_values():
    space = plain()
    options = {"mutation": 0.5, "crossover": 0, "population": 2, "elites": 2}
    children = create_strategy("genetic", space, 0, options, known=known(space, 4, 64)).ask(20)
    changed = [min(sum(v != p for _, v in c.items) for p in (4, 64)) for c in children]
    assert 2 <= np.mean(changed) <= 6
    steps = {"mutation": 0.5, "crossover": 0, "leap": 0, "population": 2, "elites": 1}
    children = create_strategy("genetic", space, 0, steps, known=known(space, 4, 64)).ask(20)
    # Without leaps a knob moves by two steps at most.
    assert {v for c in children for v in dict(c.items).values()} <= {1, 2, 4, 8, 16, 32, 64, 128}


def test_parents_are_elites_and_the_faster_half_of_the_last_generation():
    space = plain()
    strategy = create_strategy("genetic", space, 0, {"population": 4, "elites": 1})
    first = strategy.ask(4)
    strategy.tell([Trial(c, Status.OK, 1e-3 + 1e-4 * i) for i, c in enumerate(first)])
    assert strategy._parents() == first[:2]
    second = strategy.ask(4)
    slow = [Trial(c, Status.OK, 1.0 + i) for i, c in enumerate(second[:3])]
    strategy.tell([*slow, Trial(second[3], Status.CRASHED)])
    assert strategy._parents() == [first[0], *second[:2]]


def test_children_of_a_constrained_space_are_repaired():
    problem = matmul(784, 128, 1152)
    strategy = create_strategy("genetic", problem.space, 0, {"population": 8})
    for _ in range(5):
        configs = strategy.ask(8)
        assert len(configs) == 8
        assert problem.space.contains_many(configs).all()
        strategy.tell([problem.trial(c) for c in configs])


def test_no_parents_without_success():
    problem = rugged(0)
    strategy = create_strategy("genetic", problem.space, 0, {"population": 4})
    for _ in range(3):
        strategy.tell([Trial(c, Status.RUN_TIMEOUT) for c in strategy.ask(6)])
    assert strategy._parents() == []
    assert len(strategy.ask(6)) == 6
