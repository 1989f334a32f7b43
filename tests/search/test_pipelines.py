"""A fair share for every pipeline of a union, whatever its size."""

from collections import Counter

from synthetic import matmul, tiny

from tilewright.search import create_strategy
from tilewright.space import UnionSpace


def union():
    return UnionSpace("both", [matmul(256, 192, 64).space, tiny()])


def shares(configs):
    return Counter(c["pipeline"] for c in configs)


def test_random_is_uniform_over_the_configurations():
    drawn = create_strategy("random", union(), 0).ask(100)
    assert shares(drawn)["tiny"] <= 2


def test_random_by_pipeline():
    strategy = create_strategy("random", union(), 0, {"by_pipeline": "true"})
    drawn = strategy.ask(40)
    assert len(drawn) == len(set(drawn)) == 40
    assert 10 <= shares(drawn)["tiny"] <= 30
    # The small one runs out and leaves its part to the other.
    more = strategy.ask(200)
    assert len(more) == 200
    assert shares(drawn + more)["tiny"] == 38


def test_random_by_pipeline_of_a_space_without_any():
    drawn = create_strategy("random", tiny(), 0, {"by_pipeline": "yes"}).ask(100)
    assert len(drawn) == 38


def test_grid_covers_each_pipeline():
    space = union()
    drawn = create_strategy("grid", space, 0, {"steps": 10}).ask(10)
    assert shares(drawn) == {"matmul": 5, "tiny": 5}
    for part in space.pipelines:
        name = part.ordered([0])[0]["pipeline"]
        own = [c for c in drawn if c["pipeline"] == name]
        last = part.order_size - 1
        assert own == part.ordered([i * last // 4 for i in range(5)])


def test_grid_goes_on_when_a_pipeline_is_exhausted():
    strategy = create_strategy("grid", union(), 0, {"steps": 8})
    drawn = strategy.ask(300)
    assert shares(drawn)["tiny"] == 38
    assert len(set(drawn)) == 300
