"""Terms: what they compute, and what they are as nodes."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.space import BoolKnob, ChoiceKnob, TileKnob
from tilewright.space.constraints import declared
from tilewright.space.knobs import knob_term
from tilewright.space.terms import (
    either,
    evaluator,
    greatest,
    least,
    look_up,
    nodes_of,
    product,
    term,
    variable,
    variables_of,
    where,
)

A, B = variable("a"), variable("b")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (A + 2 * B - 1, lambda a, b: a + 2 * b - 1),
        (100 // A + B % 7, lambda a, b: 100 // a + b % 7),
        ((A <= B) & ~(A == 4), lambda a, b: (a <= b) & (a != 4)),
        ((A != B) | (A > 3), lambda a, b: (a != b) | (a > 3)),
        (where(A > B, A, B), np.maximum),
        (least(A, 5) + greatest(B, 5), lambda a, b: np.minimum(a, 5) + np.maximum(b, 5)),
        (either(A > 6, B > 6), lambda a, b: (a > 6) | (b > 6)),
        (look_up(A % 3, (5, 7, 9)) - B, lambda a, b: np.array([5, 7, 9])[a % 3] - b),
        (np.int64(3) * A - (-B), lambda a, b: 3 * a + b),
        (product([A, B, 2]), lambda a, b: 2 * a * b),
    ],
)
def test_a_term_computes_what_its_expression_says(written, meant):
    a, b = (axis.ravel() for axis in np.meshgrid(np.arange(1, 9), np.arange(1, 9)))
    function = evaluator(term(written), ("a", "b"))
    assert np.array_equal(function(a, b), meant(a, b))
    assert int(function(2, 7)) == int(meant(np.int64(2), np.int64(7)))


def test_names_are_compared_as_they_are_and_computed_as_positions():
    knob = ChoiceKnob("order", ("none", "m", "n"))
    order = knob_term(knob)
    chosen = evaluator(order == "m", ("order",))
    assert [bool(chosen(one)) for one in ("m", "none")] == [True, False]
    assert chosen(np.array(["n", "m", "m"])).tolist() == [False, True, True]
    with pytest.raises(ValueError, match="'order' has no option 'k'"):
        _ = order == "k"


def test_knobs_of_numbers_and_truth_values_are_themselves():
    peel, tile = knob_term(BoolKnob("peel")), knob_term(TileKnob("tile", (1, 2, 4)))
    both = evaluator(where(peel, tile, 0), ("peel", "tile"))
    assert [int(both(p, t)) for p, t in ((True, 4), (False, 4))] == [4, 0]


def test_equal_parts_are_one_node():
    square = (A + 1) * (A + 1)
    nodes, _ = nodes_of([square, A + 1])
    assert [node.operation for node in nodes] == ["variable", "constant", "add", "mul"]
    assert variables_of([square, B]) == {"a", "b"}


def test_a_term_is_neither_true_nor_false():
    with pytest.raises(TypeError, match="no truth value"):
        bool(A < B)


def test_a_declared_constraint_says_why():
    rule = declared("fits", ("a", "b"), A * B <= 8, lambda a, b: f"{a} * {b} is more than 8")
    assert rule.violation({"a": 2, "b": 4}) is None
    assert str(rule.violation({"a": 3, "b": 4})) == "fits: 3 * 4 is more than 8"
    with pytest.raises(ValueError, match="a condition on b, which is not in its scope"):
        declared("fits", ("a",), A * B <= 8, str)
