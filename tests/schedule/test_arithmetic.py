"""Index arithmetic: simplified forms have the same values, intervals hold, regions cover."""

from __future__ import annotations

from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright import te
from tilewright.schedule.arith import Arithmetic
from tilewright.schedule.expr import (
    Binary,
    Const,
    Expr,
    Not,
    Select,
    Var,
    binary,
    index,
    substitute,
)
from tilewright.schedule.functions import if_then_else
from tilewright.schedule.spans import clipped, span_of
from tilewright.schedule.walk import nodes

SIZES = {"x": 3, "y": 4, "z": 5}
VARS = {name: Var(name) for name in SIZES}


def random_index(rng: Random, depth: int) -> Expr:
    if depth == 0 or rng.random() < 0.15:
        return rng.choice([*VARS.values(), index(rng.randint(-9, 9))])
    kind = rng.choice(("add", "add", "sub", "mul", "floordiv", "floormod", "min", "max", "select"))
    a = random_index(rng, depth - 1)
    if kind in ("mul", "floordiv", "floormod"):
        return binary(kind, a, index(rng.choice((1, 2, 3, 4, 6, 8))))
    b = random_index(rng, depth - 1)
    if kind == "select":
        return if_then_else(binary("lt", a, index(3)), a, b)
    return binary(kind, a, b)


def value(expr: Expr, at: dict[Expr, int]) -> int:
    match expr:
        case Var():
            return at[expr]
        case Const():
            return int(expr.value)
        case Select():
            return value(expr.a if value(expr.condition, at) else expr.b, at)
        case Not():
            return not value(expr.a, at)
        case Binary():
            a, b = value(expr.a, at), value(expr.b, at)
            return {
                "add": lambda: a + b,
                "sub": lambda: a - b,
                "mul": lambda: a * b,
                "floordiv": lambda: a // b,
                "floormod": lambda: a % b,
                "min": lambda: min(a, b),
                "max": lambda: max(a, b),
                "lt": lambda: a < b,
            }[expr.op]()
    raise AssertionError(expr)


def places() -> list[dict[Expr, int]]:
    return [
        dict(zip(VARS.values(), point, strict=True))
        for point in product(*(range(e) for e in SIZES.values()))
    ]


def arithmetic() -> Arithmetic:
    return Arithmetic({VARS[name]: (0, e - 1) for name, e in SIZES.items()})


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 2**40), st.integers(1, 4))
def test_simplified_indices_have_the_same_values(seed: int, depth: int) -> None:
    expr = random_index(Random(seed), depth)
    known = arithmetic()
    simple = known.simplify(expr)
    form = known.linear(expr)
    for at in places():
        wanted = value(expr, at)
        assert value(simple, at) == wanted
        assert form.low <= wanted <= form.high


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.integers(0, 2**40), st.integers(1, 4))
def test_a_region_covers_what_is_read(seed: int, depth: int) -> None:
    rng = Random(seed)
    expr = random_index(rng, depth)
    known = arithmetic()
    fixed = {v for v in VARS.values() if rng.random() < 0.5}
    span = span_of(known.linear(expr), fixed, known)
    size = 1 << 40
    low, extent = clipped(span, size, known)
    if extent == size:
        # Nothing is known of where it ends: all of the tensor, whose indices are from 0 on.
        return
    assert all(v in fixed for v in nodes(low) if isinstance(v, Var))
    for at in places():
        start = value(low, at)
        assert start <= value(expr, at) < start + extent


i, j, f = Var("i"), Var("j"), Var("f")


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (i * 8 + j - i * 8, "j"),
        ((i * 8 + j) // 8, "i"),
        ((i * 8 + j) % 8, "j"),
        ((i * 8 + j) // 4, "i*2 + j//4"),
        ((i * 8 + j) % 4, "j%4"),
        ((f // 6) * 6 + f % 6, "f"),
        ((f // 2) // 3, "f//6"),
        ((i * 8 + j) // 16, "i//2"),
        ((i * 8 + j) % 16, "i%2*8 + j"),
        (i + 3 - i - 1, "2"),
        (3 - i, "3 - i"),
        (te.minimum(j, 100), "j"),
        (te.maximum(i * 8, -1), "i*8"),
    ],
)
def test_plain_forms(expr: Expr, text: str) -> None:
    known = Arithmetic({i: (0, 3), j: (0, 7), f: (0, 100)})
    assert str(known.simplify(expr)) == text


def test_a_variable_of_one_value_is_that_value() -> None:
    known = Arithmetic({i: (0, 0), j: (2, 2)})
    assert str(known.simplify(i * 7 + j)) == "2"
    assert str(substitute(i + j, {i: index(4)})) == "4 + j"


def test_a_quotient_by_a_variable_may_be_anything_between() -> None:
    """`B` is computed for each row: its region has to hold every quotient of the row."""
    A = te.placeholder((8,), "f32", name="A")
    B = te.compute((8,), lambda i: A[i] * 2.0, name="B")
    C = te.compute((8, 3), lambda i, j: B[i // (j + 1)], name="C")
    s = te.create_schedule(C)
    s[B].compute_at(s[C], s[C].op.axis[0])
    rows = np.arange(8)
    te.build(s, [A, C], threads=1).verify(
        lambda a: np.stack([2 * a[rows // (j + 1)] for j in range(3)], 1)
    )


def test_other_bounds_of_a_variable_are_those_that_count() -> None:
    least = te.minimum(i, 5)
    known = Arithmetic({i: (0, 3)})
    assert known.simplify(least) is i
    known.bind(i, 0, 9)
    assert known.simplify(least) is not i


def test_a_sum_with_nothing_of_another() -> None:
    known = Arithmetic({i: (0, 3), j: (0, 3)})
    assert known.variable(i).plus(known.variable(j), 0) == known.variable(i)
