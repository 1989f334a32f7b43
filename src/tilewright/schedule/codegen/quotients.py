"""Quotients that are rounded to integers, without dividing: what quantising does to every result.

A division by a constant is a product with its reciprocal as a sum of two floats, where that gives
the same float for every dividend: `x / c` and `fma(x, high, x * low)`. What they are rounded from
differs by less than 2**-22 of the last place, so that they can only differ where `x / c` lies as
near to the middle of two floats; for a divisor those are a handful of dividends, which are tried.

Source: N. Brisebarre, J.-M. Muller, S. K. Raina, Accelerating correctly rounded floating-point
division when the divisor is known in advance, IEEE Transactions on Computers 53 (8), 2004.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from tilewright.schedule.expr import Binary, Call, Const, Expr

# Bits of the mantissa of f32, and what exponents of divisors leave room for the two floats.
_BITS, _MOST_EXPONENT = 24, 60
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
            parts = reciprocal(float(np.float32(by.value)))
            if parts is None:
                return None
            high, low = (Const(part, "f32") for part in parts)
            less = Binary("mul", dividend, low, "f32")
            return Call("round", (Call("fma", (dividend, high, less), "f32"),), "f32")
    return None


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
    mantissa = int(math.frexp(divisor)[0] * 2**_BITS)
    scale = Fraction(mantissa) / Fraction(divisor)
    for dividend in _near_middles(mantissa):
        # Of a divisor with that mantissa the reciprocal differs by a power of two.
        near = dividend * high / scale + _rounded(dividend * low / scale)
        if _rounded(near) != _rounded(Fraction(dividend, mantissa)):
            return None
    return float(high), float(low)


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
