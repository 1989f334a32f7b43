"""The `math` dialect on float64 (and int64) arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.ir.reference.elements import Array

# Below this |x| the series of erf converges quickly, above it the continued fraction of erfc does.
_ERF_SPLIT = 2.5
_ERF_TERMS = 64
_ERFC_TERMS = 64


def erf(x: Array) -> Array:
    """The error function, to about 1e-15.

    erf x = 2/sqrt(pi) exp(-x^2) sum_n 2^n x^(2n+1) / (2n+1)!!  for small |x|: all terms have one
    sign, so nothing cancels (Abramowitz and Stegun 7.1.6); 1 - erfc |x| beyond.
    """
    x = np.asarray(x, np.float64)
    small = np.minimum(np.abs(x), _ERF_SPLIT)
    square = small * small
    term = small.copy()
    total = term.copy()
    for n in range(1, _ERF_TERMS):
        term = term * (2.0 * square / (2 * n + 1))
        total += term
    series = 2.0 / np.sqrt(np.pi) * np.exp(-square) * total
    value = np.where(np.abs(x) <= _ERF_SPLIT, series, 1.0 - _erfc_tail(np.abs(x)))
    return np.where(np.isnan(x), x, np.copysign(value, x))


def erfc(x: Array) -> Array:
    """The complementary error function, accurate in its tail as well."""
    x = np.asarray(x, np.float64)
    return np.where(x > _ERF_SPLIT, _erfc_tail(np.maximum(x, _ERF_SPLIT)), 1.0 - erf(x))


def _erfc_tail(x: Array) -> Array:
    """erfc for x >= 2.5 by its continued fraction (Abramowitz and Stegun 7.1.14), from the end."""
    x = np.maximum(x, _ERF_SPLIT)
    fraction = x
    for n in range(_ERFC_TERMS, 0, -1):
        fraction = x + (n / 2.0) / fraction
    return np.asarray(np.exp(-x * x) / (np.sqrt(np.pi) * fraction))


def _round_half_away(x: Array) -> Array:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def integer_power(base: Array, exponent: Array) -> Array:
    """Repeated squaring, so that integer products wrap as the program's do."""
    base, exponent = np.broadcast_arrays(base, exponent)
    result = np.ones_like(base)
    square, left = base.copy(), np.maximum(exponent, 0)
    while np.any(left):
        result = np.where(left & 1, result * square, result)
        square, left = square * square, left >> 1
    # A negative exponent is 1/base rounded toward zero: only 1 and -1 have a whole one.
    odd = (exponent & 1).astype(np.bool_)
    reciprocal = np.where(base == 1, 1, np.where(base == -1, np.where(odd, -1, 1), 0))
    return np.where(exponent < 0, reciprocal, result)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "math.absf": np.abs,
    "math.acos": np.arccos,
    "math.acosh": np.arccosh,
    "math.asin": np.arcsin,
    "math.asinh": np.arcsinh,
    "math.atan": np.arctan,
    "math.atan2": np.arctan2,
    "math.atanh": np.arctanh,
    "math.cbrt": np.cbrt,
    "math.ceil": np.ceil,
    "math.clampf": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "math.copysign": np.copysign,
    "math.cos": np.cos,
    "math.cosh": np.cosh,
    "math.erf": erf,
    "math.erfc": erfc,
    "math.exp": np.exp,
    "math.exp2": np.exp2,
    "math.expm1": np.expm1,
    "math.floor": np.floor,
    "math.fma": lambda x, y, z: x * y + z,
    "math.fpowi": lambda x, n: np.power(x, np.asarray(n, np.float64)),
    "math.isfinite": np.isfinite,
    "math.isinf": np.isinf,
    "math.isnan": np.isnan,
    "math.log": np.log,
    "math.log10": np.log10,
    "math.log1p": np.log1p,
    "math.log2": np.log2,
    "math.powf": np.power,
    "math.round": _round_half_away,
    "math.roundeven": np.rint,
    "math.rsqrt": lambda x: 1.0 / np.sqrt(x),
    "math.sin": np.sin,
    "math.sincos": lambda x: (np.sin(x), np.cos(x)),
    "math.sinh": np.sinh,
    "math.sqrt": np.sqrt,
    "math.tan": np.tan,
    "math.tanh": np.tanh,
    "math.trunc": np.trunc,
}
