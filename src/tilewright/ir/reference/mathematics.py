"""The `math` dialect on float64 (and int64) arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.ir.reference.elements import Array

# NumPy has neither; the C library's are exact to the last digit.
erf = np.vectorize(math.erf, otypes=[np.float64])
erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _round_half_away(x: Array) -> Array:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def integer_power(base: Array, exponent: Array) -> Array:
    """Repeated squaring, so that integer products wrap as the program's do.

    Args:
        base: int64.
        exponent: int64, broadcasting with it.
    """
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
