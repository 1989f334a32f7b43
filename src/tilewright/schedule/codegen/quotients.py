"""Quotients that are rounded to integers, without dividing: what quantising does to every result.

A division by a constant is a product with its reciprocal as a sum of two floats, where that gives
the same float for every dividend: `x / c` and `fma(x, high, x * low)`; else a product with the
reciprocal, and with what that leaves of the dividend. What these are rounded from differs from the
quotient by less than 2**-22 of the last place, so that they can only be other floats where it lies
as near to the middle of two; for a divisor those are a handful of dividends, which are tried.

Sources: N. Brisebarre, J.-M. Muller, S. K. Raina, Accelerating correctly rounded floating-point
division when the divisor is known in advance, IEEE Transactions on Computers 53 (8), 2004; P.
Markstein, Computation of elementary functions on the IBM RISC System/6000 processor, IBM Journal of
Research and Development 34 (1), 1990.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np

from tilewright.schedule.expr import Binary, Call, Const, Expr, Select
from tilewright.schedule.types import BOOL

# Bits of the mantissa of f32, and what exponents of divisors leave room for the two floats.
_BITS, _MOST_EXPONENT = 24, 60
# Dividends that are larger are not corrected.
_LARGE = 2.0**100
# The least distance to a middle that is not tried, in units of the last place.
_NEAR = Fraction(1, 2**22)


def rounded_quotient(call: Call) -> Expr | None:
    """The same number without a division.

    Args:
        call: of a function.

    Returns:
        None where it does not round a quotient by a constant, or that could differ.
    """
    match call:
        case Call(name="round", args=(Binary(op="div", a=dividend, b=Const(dtype="f32") as by),)):
            quotient = _quotient(dividend, float(np.float32(by.value)))
            return None if quotient is None else Call("round", (quotient,), "f32")
    return None


def _quotient(dividend: Expr, divisor: float) -> Expr | None:
    """A quotient without a division, where it is known to be the same float."""
    parts, inverse = reciprocal(divisor), corrected_reciprocal(divisor)
    if parts is not None:
        high, low = (Const(part, "f32") for part in parts)
        return Call("fma", (dividend, high, Binary("mul", dividend, low, "f32")), "f32")
    if inverse is None:
        return None
    by, less = Const(inverse, "f32"), Const(-divisor, "f32")
    near = Binary("mul", dividend, by, "f32")
    missing = Call("fma", (near, less, dividend), "f32")
    # Of an infinite dividend nothing is missing: that would be no number.
    finite = Binary("lt", Call("abs", (dividend,), "f32"), Const(_LARGE, "f32"), BOOL)
    return Select(finite, Call("fma", (missing, by, near), "f32"), near, False)


@functools.cache
def reciprocal(divisor: float) -> tuple[float, float] | None:
    """Two floats that stand for the reciprocal of a divisor.

    The first is not above it and the second not below 0, so that infinite dividends stay so.

    Args:
        divisor: in f32.

    Returns:
        None where a quotient could differ by them, of results that are not below 2**-60.
    """
    if not 2.0**-_MOST_EXPONENT < divisor < 2.0**_MOST_EXPONENT:
        return None
    exact = 1 / Fraction(divisor)
    high = _rounded(exact)
    if high > exact:
        high = Fraction(float(np.nextafter(np.float32(float(high)), np.float32(0))))
    low = _rounded(exact - high)

    def quotient(dividend: Fraction) -> Fraction:
        return _rounded(dividend * high + _rounded(dividend * low))

    return (float(high), float(low)) if _is_same(divisor, quotient) else None


@functools.cache
def corrected_reciprocal(divisor: float) -> float | None:
    """A float that stands for the reciprocal of a divisor, where what a product with it leaves of
    the dividend is multiplied by it too.

    Args:
        divisor: in f32.

    Returns:
        None where a quotient could differ so, of results that are not below 2**-60.
    """
    if not 2.0**-_MOST_EXPONENT < divisor < 2.0**_MOST_EXPONENT:
        return None
    inverse = _rounded(1 / Fraction(divisor))

    def quotient(dividend: Fraction) -> Fraction:
        near = _rounded(dividend * inverse)
        return _rounded(near + _rounded(dividend - near * Fraction(divisor)) * inverse)

    return float(inverse) if _is_same(divisor, quotient) else None


def _is_same(divisor: float, quotient: Callable[[Fraction], Fraction]) -> bool:
    """Whether a way to a quotient comes to the same for every dividend."""
    mantissa = int(math.frexp(divisor)[0] * 2**_BITS)
    return all(
        quotient(Fraction(dividend)) == _rounded(Fraction(dividend) / Fraction(divisor))
        for dividend in _near_middles(mantissa)
    )


def _near_middles(divisor: int) -> Iterator[int]:
    """Mantissas whose quotient by a mantissa lies near the middle of two floats."""
    first, end = 2 ** (_BITS - 1), 2**_BITS
    for shift in (_BITS - 1, _BITS):
        # The quotient in units of its last place less a middle, times twice the divisor.
        factor, modulus = 2 ** (shift + 1), 2 * divisor
        common = math.gcd(factor, modulus)
        for distance in range(-int(modulus * _NEAR) - 1, int(modulus * _NEAR) + 2):
            wanted = distance + divisor
            if wanted % common:
                continue
            step = modulus // common
            found = wanted // common * pow(factor // common, -1, step) % step
            yield from range(first + (found - first) % step, end, step)


def _rounded(value: Fraction) -> Fraction:
    """To the nearest number with as many bits as f32, ties to even, of any exponent."""
    if not value:
        return value
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()
    exponent -= abs(value) < Fraction(2) ** exponent
    unit = Fraction(2) ** (exponent + 1 - _BITS)
    return round(value / unit) * unit
