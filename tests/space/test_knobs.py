import math

import numpy as np
import pytest

from tilewright.errors import UserError
from tilewright.space import BoolKnob, ChoiceKnob, PermutationKnob, TileKnob

KNOBS = [
    ChoiceKnob("mode", ("a", "b", "c")),
    ChoiceKnob("mixed", (1, True, "1", (1, 2))),
    BoolKnob("peel"),
    TileKnob("tile", (1, 2, 6, 64)),
    TileKnob("zero", (1, 16, 0), full=100),
    PermutationKnob("order", 4),
    PermutationKnob("few", 3, values=((0, 1, 2), (2, 1, 0))),
]


@pytest.mark.parametrize("knob", KNOBS, ids=lambda k: k.name)
class TestEveryKind:
    def test_index_and_value_are_inverse(self, knob):
        values = [knob.value(i) for i in range(knob.cardinality)]
        assert [knob.index(v) for v in values] == list(range(knob.cardinality))

    def test_column_agrees_with_value(self, knob):
        indices = np.arange(knob.cardinality)
        assert list(knob.column(indices).tolist()) == [knob.value(int(i)) for i in indices]

    def test_samples_cover_the_domain(self, knob):
        rng = np.random.default_rng(0)
        drawn = {repr(knob.sample(rng)) for _ in range(60 * knob.cardinality)}
        assert len(drawn) == knob.cardinality

    def test_neighbours_are_other_values_and_reach_every_value(self, knob):
        start = knob.value(0)
        seen, todo = {repr(start)}, [start]
        while todo:
            here = todo.pop()
            for v in knob.neighbours(here):
                assert knob.index(v) is not None
                assert knob.index(v) != knob.index(here)
                if repr(v) not in seen:
                    seen.add(repr(v))
                    todo.append(v)
        assert len(seen) == knob.cardinality

    def test_encoding_tells_values_apart(self, knob):
        codes = {knob.encode(knob.value(i)) for i in range(knob.cardinality)}
        assert len(codes) == knob.cardinality
        assert {len(c) for c in codes} == {len(knob.feature_names)}

    def test_restriction_keeps_the_encoding(self, knob):
        last = knob.value(knob.cardinality - 1)
        small = knob.restrict([last, last])
        assert small.cardinality == 1
        assert small.feature_names == knob.feature_names
        for i in range(knob.cardinality):
            assert small.encode(knob.value(i)) == knob.encode(knob.value(i))
        assert small.nearest(knob.value(0)) == last

    def test_unknown_value_is_named(self, knob):
        with pytest.raises(UserError, match=f"knob '{knob.name}': nonsense is not allowed"):
            knob.restrict(["nonsense"])

    def test_empty_restriction(self, knob):
        with pytest.raises(UserError, match=f"'{knob.name}'.*no value"):
            knob.restrict([])


def test_true_is_not_one():
    assert ChoiceKnob("x", (1, 2)).index(True) is None
    assert TileKnob("x", (0, 1)).index(True) is None
    assert BoolKnob("x").index(1) is None


def test_tile_steps():
    knob = TileKnob("t", (1, 2, 6, 64))
    assert knob.neighbours(2) == (1, 6)
    assert knob.neighbours(64) == (6,)
    assert knob.neighbours(2, reach=2) == (1, 6, 64)
    # Values that a restriction has removed still have neighbours on both sides.
    assert knob.neighbours(4) == (2, 6)
    assert knob.neighbours(1000) == (64,)


def test_tile_encoding_is_logarithmic():
    knob = TileKnob("t", (1, 2, 1024))
    assert [knob.encode(v)[0] for v in (1, 2, 1024)] == [0, 1, 10]
    full = TileKnob("t", (1, 16, 0), full=64)
    assert full.encode(0) == (6.0,)
    assert full.neighbours(16) == (1, 0)


def test_tile_limit_admits_sizes_beyond_the_domain():
    knob = TileKnob("t", (1, 2, 4), limit=96)
    assert knob.restrict([64, 48]).values == (48, 64)
    with pytest.raises(UserError, match=r"97 is not allowed; the nearest is 96 .*allowed: 1 to 96"):
        knob.restrict([97])
    with pytest.raises(UserError, match=r"48 is not allowed; the nearest is 4 .*allowed: 1, 2, 4"):
        TileKnob("t", (1, 2, 4)).restrict([2, 48])
    with pytest.raises(UserError, match="not allowed"):
        knob.restrict([0])


def test_choice_hint():
    with pytest.raises(UserError, match="did you mean DoubleTiling"):
        ChoiceKnob("p", ("DoubleTiling", "Mmt4d")).restrict(["DoubleTilng"])


@pytest.mark.parametrize("values", [(), (2, 1), (1, 1), (-1, 2), (True, 2), ("a",)])
def test_tile_domain_is_checked(values):
    with pytest.raises(ValueError, match="knob 't'"):
        TileKnob("t", values)


def test_permutations_are_numbered_without_a_table():
    knob = PermutationKnob("order", 12)
    assert knob.cardinality == math.factorial(12)
    assert knob.value(0) == tuple(range(12))
    assert knob.value(knob.cardinality - 1) == tuple(reversed(range(12)))
    rng = np.random.default_rng(1)
    for i in rng.integers(knob.cardinality, size=50):
        assert knob.index(knob.value(int(i))) == i
    assert len(knob.neighbours(knob.value(0))) == 11
    assert len(knob.neighbours(knob.value(0), reach=11)) == 66


@pytest.mark.parametrize(
    ("knob", "text", "value", "allowed"),
    [
        (TileKnob("t", (1, 2, 4)), "4", 4, True),
        (TileKnob("t", (1, 2, 4)), "many", "many", False),
        (BoolKnob("b"), "True", True, True),
        (BoolKnob("b"), "maybe", "maybe", False),
        (ChoiceKnob("c", ("a", "b")), "a", "a", True),
    ],
)
def test_values_are_read_from_text(knob, text, value, allowed):
    assert knob.parse(text) == value
    assert knob.admits(knob.parse(text)) is allowed


@pytest.mark.parametrize(
    "knob",
    [TileKnob("t", tuple(range(1, 65))), ChoiceKnob("c", tuple("abcdef")), PermutationKnob("p", 4)],
)
def test_mutations_are_steps_but_for_leaps(knob):
    rng = np.random.default_rng(0)
    here = knob.value(knob.cardinality // 2)
    near = set(knob.neighbours(here, 2))
    assert {knob.mutated(here, rng, 0.0) for _ in range(200)} <= near
    anywhere = {knob.mutated(here, rng, 1.0) for _ in range(2000)}
    assert anywhere == {knob.value(i) for i in range(knob.cardinality)}
