import numpy as np
from synthetic import matmul, tiny

from tilewright.search import create_strategy


def test_first_round_covers_the_order_evenly():
    space = matmul(256, 256, 256).space
    strategy = create_strategy("grid", space, 0, {"steps": "11"})
    configs = strategy.ask(11)
    last = space.order_size - 1
    assert configs == space.ordered([i * last // 10 for i in range(11)])
    assert configs[0] == space.ordered([0])[0]
    assert configs[-1] == space.ordered([last])[0]


def test_next_round_lies_between():
    space = matmul(256, 256, 256).space
    strategy = create_strategy("grid", space, 0, {"steps": 5})
    strategy.ask(5)
    last = space.order_size - 1
    assert strategy.ask(4) == space.ordered([i * last // 8 for i in (1, 3, 5, 7)])


def test_all_of_it_is_covered_by_as_many_trials_as_there_are():
    space = matmul(256, 256, 256).space
    last = space.order_size - 1
    drawn = create_strategy("grid", space, 0, trials=16).ask(16)
    assert drawn == space.ordered([i * last // 15 for i in range(16)])
    told = create_strategy("grid", space, 0, {"steps": 4}, trials=16).ask(4)
    assert told == space.ordered([i * last // 3 for i in range(4)]), "the user's number goes first"


def test_batches_do_not_matter():
    def run(sizes):
        strategy = create_strategy("grid", tiny(), 0, {"steps": 6})
        return [c for n in sizes for c in strategy.ask(n)]

    assert run([20]) == run([1] * 20) == run([7, 13])


def test_every_value_appears():
    space = matmul(256, 256, 256).space
    configs = create_strategy("grid", space, 0, {"steps": 200}).ask(200)
    for knob in space.knobs:
        shown = {c[knob.name] for c in configs}
        assert len(shown) >= min(4, knob.cardinality - 1), knob.name
    assert np.isfinite(space.encode_many(configs)).all()
