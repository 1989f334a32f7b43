"""Sums of products of scaled integers become sums of integers, and no others do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from expression_evaluator import evaluate_expression

from tilewright import te
from tilewright.schedule.arith import Arithmetic
from tilewright.schedule.tensor import ComputeOp, Tensor
from tilewright.sketch.fusion import ordered
from tilewright.sketch.integer_sums import sum_integers

ROWS, COLUMNS, DEPTH = 4, 6, 8


def product(left: Any, right: Any, depth: int = DEPTH) -> Tensor:
    """The sums over k of `left(i, k) * right(k, j)`."""
    k = te.reduce_axis(depth, "k")
    made: Tensor = te.compute(
        (ROWS, COLUMNS), lambda i, j: te.sum(left(i, k) * right(k, j), axis=k), name="product"
    )
    return made


class Operands:
    """Bytes with scales, and floats."""

    def __init__(self, depth: int = DEPTH) -> None:
        self.a = te.placeholder((ROWS, depth), "i8", name="a")
        self.b = te.placeholder((depth, COLUMNS), "i8", name="b")
        self.s = te.placeholder((COLUMNS,), "f32", name="s")
        self.r = te.placeholder((depth,), "f32", name="r")
        self.f = te.placeholder((ROWS, depth), "f32", name="f")
        self.inputs = (self.a, self.b, self.s, self.r, self.f)

    def values(self) -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        return [
            rng.integers(-128, 128, t.shape) if t.dtype == "i8" else rng.standard_normal(t.shape)
            for t in self.inputs
        ]

    def rows(self, i: Any, k: Any) -> Any:
        return (self.a[i, k].astype("i32") - 7).astype("f32") * 0.5

    def columns(self, k: Any, j: Any) -> Any:
        return self.b[k, j].astype("f32") * self.s[j]


def integer_sums(output: Tensor) -> list[ComputeOp]:
    sums = [op for op in ordered([output]) if op.reduction is not None]
    return [op for op in sums if op.outputs[0].dtype == "i32"]


def check(known: Operands, output: Tensor, sums: int) -> None:
    (plain,) = evaluate_expression(known.inputs, [output], known.values())
    sum_integers([output], Arithmetic())
    assert len(integer_sums(output)) == sums
    (found,) = evaluate_expression(known.inputs, [output], known.values())
    np.testing.assert_allclose(found, plain, rtol=1e-12)


def test_scales_stand_outside() -> None:
    known = Operands()
    check(known, product(known.rows, known.columns), 1)


def test_of_stages_and_padding() -> None:
    known = Operands()
    numbers = te.compute((ROWS, DEPTH), known.rows, name="numbers")
    padded = te.compute(
        (ROWS, DEPTH),
        lambda i, k: te.if_then_else(k >= 2, numbers[i, k - 2], 0.0),
        name="padded",
    )
    check(known, product(lambda i, k: padded[i, k], known.columns), 1)


def test_scales_are_not_read_where_padding_has_none() -> None:
    """A row of padding above the first: there is no scale for it."""
    known = Operands()
    t = te.placeholder((ROWS - 1,), "f32", name="t")
    numbers = te.compute(
        (ROWS - 1, DEPTH), lambda i, k: known.a[i, k].astype("f32") * t[i], name="numbers"
    )
    padded = te.compute(
        (ROWS, DEPTH),
        lambda i, k: te.if_then_else(i >= 1, numbers[i - 1, k], 0.0),
        name="padded",
    )
    output = product(lambda i, k: padded[i, k], known.columns)
    arithmetic = Arithmetic()
    for op in ordered([output]):
        for axis in (*op.axis, *op.reduce_axis):
            arithmetic.bind(axis, 0, axis.dom[1] - 1)
    sum_integers([output], arithmetic)
    assert not integer_sums(output)


@pytest.mark.parametrize("case", ["scale of a term", "floats", "padded with ones", "overflow"])
def test_others_stay(case: str) -> None:
    known = Operands(1 << 17 if case == "overflow" else DEPTH)
    depth = known.a.shape[1]
    left = {
        "scale of a term": lambda i, k: known.a[i, k].astype("f32") * known.r[k],
        "floats": lambda i, k: known.f[i, k],
        "padded with ones": lambda i, k: te.if_then_else(k >= 2, known.rows(i, k), 1.0),
        "overflow": known.rows,
    }[case]
    check(known, product(left, known.columns, depth), 0)


def test_products_that_wrap_around_before_they_are_made_wider_stay() -> None:
    """Words of 32 bits times a number of 32: what is too large for them is gone."""
    a, b = te.placeholder((ROWS, DEPTH), "i8"), te.placeholder((DEPTH, COLUMNS), "i8")
    number = te.placeholder((ROWS,), "i32")
    words = te.compute((ROWS, DEPTH), lambda i, k: a[i, k].astype("i32") * number[i])
    k = te.reduce_axis(DEPTH, "k")
    output = te.compute(
        (ROWS, COLUMNS),
        lambda i, j: te.sum(words[i, k].astype("i64") * b[k, j].astype("i64"), axis=k),
    )
    arithmetic = Arithmetic()
    for op in ordered([output]):
        for axis in (*op.axis, *op.reduce_axis):
            arithmetic.bind(axis, 0, axis.dom[1] - 1)
    sum_integers([output], arithmetic)
    assert not integer_sums(output)


@pytest.mark.parametrize(("depth", "sums"), [(DEPTH, 1), (1 << 17, 0)])
def test_sums_in_more_bits_than_they_need(depth: int, sums: int) -> None:
    """As PyTorch's importer adds up products of bytes: made words, as sums of twice the bits."""
    a = te.placeholder((ROWS, depth), "i8", name="a")
    b = te.placeholder((depth, COLUMNS), "i8", name="b")
    words = te.compute((ROWS, depth), lambda i, k: a[i, k].astype("i32") & 255, name="words")
    k = te.reduce_axis(depth, "k")
    output = te.compute(
        (ROWS, COLUMNS),
        lambda i, j: te.sum(words[i, k].astype("i64") * b[k, j].astype("i64"), axis=k),
        name="product",
    )
    rng = np.random.default_rng(0)
    values = [rng.integers(-128, 128, one.shape) for one in (a, b)]
    (plain,) = evaluate_expression((a, b), [output], values)
    arithmetic = Arithmetic()
    for op in ordered([output]):
        for axis in (*op.axis, *op.reduce_axis):
            arithmetic.bind(axis, 0, axis.dom[1] - 1)
    sum_integers([output], arithmetic)
    assert len(integer_sums(output)) == sums
    (found,) = evaluate_expression((a, b), [output], values)
    np.testing.assert_array_equal(found, plain)
