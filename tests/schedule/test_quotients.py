"""Rounded quotients by constants, computed without a division: the same integers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from tilewright import te
from tilewright.schedule.codegen.quotients import (
    _near_middles,
    corrected_reciprocal,
    reciprocal,
    rounded_quotient,
)
from tilewright.schedule.expr import Binary, Call, Const, Var

# Scales of quantised networks, integers, a power of two, and some of which two parts of the
# reciprocal give another quotient for some dividend.
DIVISORS = [float(np.float32(c)) for c in (0.13925543427467346, 0.1, 3.0, 7.0, 255.0, 0.25)]
CORRECTED = [float(np.float32(c)) for c in (0.09173225611448288, 0.0035792565904557705, 1.68422496)]


def by_parts(dividends: np.ndarray, parts: tuple[float, float]) -> np.ndarray:
    """`fma(x, high, x * low)`, rounded once: exactly in numbers with 64 bits of mantissa, but for
    what lies within 2**-40 of a middle."""
    high, low = (np.float32(part) for part in parts)
    less = (dividends * low).astype(np.longdouble)
    return (dividends.astype(np.longdouble) * np.longdouble(high) + less).astype("f4")


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="no numbers of 64 bits")
@pytest.mark.parametrize("divisor", DIVISORS)
def test_quotients_are_those_of_a_division(divisor: float) -> None:
    parts = reciprocal(divisor)
    assert parts is not None
    for dividends in dividends_of(divisor):
        np.testing.assert_array_equal(by_parts(dividends, parts), dividends / np.float32(divisor))


def dividends_of(divisor: float) -> list[np.ndarray]:
    """Those whose quotients lie near the middle of two floats, and others."""
    near = np.array(list(_near_middles(int(math.frexp(divisor)[0] * 2**24))))
    drawn = np.random.default_rng(0).integers(2**23, 2**24, 1 << 18)
    some = np.concatenate([near, drawn]).astype("f4")
    return [some * np.float32(scale) for scale in (1.0, 2.0**-30, -(2.0**10))]


@pytest.mark.parametrize("divisor", CORRECTED[:2])
def test_a_divisor_of_which_a_quotient_would_differ_is_not_taken(divisor: float) -> None:
    """One of the dividends near a middle is rounded otherwise by the two parts."""
    assert reciprocal(divisor) is None
    exact = 1 / Fraction(divisor)
    high = np.float32(float(exact))
    high = np.nextafter(high, np.float32(0)) if Fraction(float(high)) > exact else high
    low = np.float32(float(exact - Fraction(float(high))))
    near = dividends_of(divisor)[0]
    assert (by_parts(near, (float(high), float(low))) != near / np.float32(divisor)).any()


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="no numbers of 64 bits")
@pytest.mark.parametrize("divisor", [*CORRECTED, *DIVISORS[:2]])
def test_what_a_product_leaves_makes_it_the_quotient(divisor: float) -> None:
    inverse = corrected_reciprocal(divisor)
    assert inverse is not None
    wide, by, whole = np.longdouble, np.float32(inverse), np.longdouble(divisor)
    for dividends in dividends_of(divisor):
        near = dividends * by
        left = (dividends.astype(wide) - near.astype(wide) * whole).astype("f4")
        found = (near.astype(wide) + left.astype(wide) * wide(by)).astype("f4")
        np.testing.assert_array_equal(found, dividends / np.float32(divisor))


@pytest.mark.parametrize("divisor", [0.0, -0.1, math.inf, math.nan, 1e-30, 1e30])
def test_no_reciprocal_of_what_has_no_room_for_two_floats(divisor: float) -> None:
    assert reciprocal(divisor) is None
    assert corrected_reciprocal(divisor) is None


def test_only_rounded_quotients_by_constants_are_rewritten() -> None:
    x = Var("x", "f32")
    quotient = Binary("div", x, Const(0.1, "f32"), "f32")
    assert rounded_quotient(Call("round", (quotient,), "f32")) is not None
    assert rounded_quotient(Call("floor", (quotient,), "f32")) is None
    assert rounded_quotient(Call("round", (x,), "f32")) is None
    by_value = Binary("div", x, Var("c", "f32"), "f32")
    assert rounded_quotient(Call("round", (by_value,), "f32")) is None


@pytest.mark.parametrize("divisor", [*DIVISORS[:2], CORRECTED[0], 1e-30])
def test_code_rounds_the_same(divisor: float) -> None:
    size = 4099
    x = te.placeholder((size,), "f32", name="x")
    y = te.compute((size,), lambda i: te.round(x[i] / divisor), name="y")
    s = te.create_schedule(y)
    s[y].vectorize(y.op.axis[0])
    rng = np.random.default_rng(0)
    values = (rng.standard_normal(size) * 20).astype("f4")
    special = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e38, -1e-38, 1e-44]
    values[: len(special)] = special
    built = te.build(s, [x, y], threads=1)
    with np.errstate(invalid="ignore", over="ignore"):
        wanted = np.round(values / np.float32(divisor))
    np.testing.assert_array_equal(built(values), wanted)


@pytest.mark.parametrize(
    ("divisor", "divides"), [(DIVISORS[0], False), (CORRECTED[0], False), (1e-30, True)]
)
def test_there_is_no_division_in_the_code(divisor: float, divides: bool) -> None:
    x = te.placeholder((64,), "f32", name="x")
    y = te.compute((64,), lambda i: te.round(x[i] / divisor), name="y")
    s = te.create_schedule(y)
    s[y].vectorize(y.op.axis[0])
    assert ("divps" in te.build(s, [x, y], target="cpu:znver4").assembly()) == divides
