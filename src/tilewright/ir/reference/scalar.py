"""Scalar operations (`arith`, `math`, `affine`) as functions over NumPy arrays that broadcast.

`kernel(op)` returns, for one operation, a function from the arrays of its operands to the array (or
tuple of arrays) of its results, with everything that depends on types and attributes resolved once.
The same functions serve the bodies of structured ops, scalars (rank-0 arrays) and whole tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from iree.compiler import ir

from tilewright.ir.reference.access import evaluate_expr
from tilewright.ir.reference.elements import (
    Array,
    Element,
    Unsupported,
    element_of,
    float_format,
    hold,
    round_to,
    signed,
    unsigned,
    wrap,
)

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


Kernel = Callable[..., Any]
KernelBuilder = Callable[[ir.Operation], Kernel]
_BUILDERS: dict[str, KernelBuilder] = {}


def kernel(op: ir.Operation) -> Kernel | None:
    """The vectorised function of a scalar operation, or None when it is not one.

    Args:
        op: any.
    """
    builder = _BUILDERS.get(op.name)
    return builder(op) if builder else None


def _register(
    *names: str,
) -> Callable[[KernelBuilder], KernelBuilder]:
    def add(builder: KernelBuilder) -> KernelBuilder:
        for name in names:
            _BUILDERS[name] = builder
        return builder

    return add


def _types(op: ir.Operation) -> tuple[Element, Element]:
    """Element types of the first operand and of the first result."""
    return element_of(op.operands[0].type), element_of(op.results[0].type)


# Floating point: float64 arithmetic whatever the format (the rounding of every single operation is
# what the tolerance of the comparison is for).
_FLOAT: dict[str, Kernel] = {
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.remf": np.fmod,
    "arith.negf": np.negative,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "arith.extf": lambda x: x,
    "arith.select": np.where,
    **FUNCTIONS,
}
for _name, _function in _FLOAT.items():
    _BUILDERS[_name] = lambda op, function=_function: function  # type: ignore[misc]


def _divide(x: Array, y: Array) -> Array:
    """Quotient rounded toward zero; a zero divisor is undefined in the program and gives 0 here."""
    safe = np.where(y == 0, 1, y)
    quotient = np.abs(x) // np.abs(safe)
    return np.where(y == 0, 0, np.where((x < 0) != (safe < 0), -quotient, quotient))


def _floor_divide(x: Array, y: Array) -> Array:
    return np.where(y == 0, 0, x // np.where(y == 0, 1, y))


# Integers on their signed values, wrapped to the width of the result.
_SIGNED: dict[str, Kernel] = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "math.absi": np.abs,
    "math.ipowi": integer_power,
    "arith.divsi": _divide,
    "arith.remsi": lambda x, y: x - y * _divide(x, y),
    "arith.floordivsi": _floor_divide,
    "arith.ceildivsi": lambda x, y: -_floor_divide(-x, y),
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
}
_UNSIGNED: dict[str, Kernel] = {
    "arith.divui": _floor_divide,
    "arith.remui": lambda x, y: np.where(y == 0, 0, x % np.where(y == 0, 1, y)),
    "arith.ceildivui": lambda x, y: _floor_divide(x, y) + (x % np.where(y == 0, 1, y) != 0),
    "arith.maxui": np.maximum,
    "arith.minui": np.minimum,
}


@_register(*_SIGNED)
def _signed(op: ir.Operation) -> Kernel:
    function, width = _SIGNED[op.name], _types(op)[1].width
    return lambda *xs: wrap(np.asarray(function(*(signed(x) for x in xs))), width)


@_register(*_UNSIGNED)
def _unsigned(op: ir.Operation) -> Kernel:
    function, width = _UNSIGNED[op.name], _types(op)[1].width
    return lambda *xs: wrap(function(*(unsigned(x, width) for x in xs)).astype(np.int64), width)


@_register("arith.shli", "arith.shrsi", "arith.shrui")
def _shift(op: ir.Operation) -> Kernel:
    width = _types(op)[1].width

    def shift(x: Array, amount: Array) -> Array:
        by = np.clip(unsigned(amount, width).astype(np.int64), 0, 63)
        if op_name == "arith.shli":
            shifted = np.left_shift(signed(x), by)
        elif op_name == "arith.shrsi":
            shifted = np.right_shift(signed(x), by)
        else:
            bits = unsigned(x, width)
            shifted = np.right_shift(bits, by.astype(bits.dtype)).astype(np.int64)
        return wrap(np.asarray(shifted), width)

    op_name = op.name
    return shift


@_register("arith.addui_extended", "arith.mulsi_extended", "arith.mului_extended")
def _extended(op: ir.Operation) -> Kernel:
    """Results in two words: (sum, carry) or (low, high)."""
    width = _types(op)[1].width
    if width > 32:
        raise Unsupported(f"{op.name} on i{width}")
    if op.name == "arith.addui_extended":

        def add(x: Array, y: Array) -> tuple[Array, Array]:
            total = np.asarray(unsigned(x, width) + unsigned(y, width))
            return wrap(total, width), (total >> width).astype(np.bool_)

        return add
    is_signed = op.name == "arith.mulsi_extended"

    def multiply(x: Array, y: Array) -> tuple[Array, Array]:
        if is_signed:
            product = np.asarray(signed(x) * signed(y))
            return wrap(product, width), wrap(product >> width, width)
        wide = np.asarray(
            unsigned(x, width).astype(np.uint64) * unsigned(y, width).astype(np.uint64)
        )
        high = (wide >> np.uint64(width)).astype(np.int64)
        return wrap(wide.astype(np.int64), width), wrap(high, width)

    return multiply


# arith.cmpi predicates in the order of their codes; the last four read their operands as unsigned.
_ORDERINGS: tuple[Kernel, ...] = (np.less, np.less_equal, np.greater, np.greater_equal)
_INTEGER_PREDICATES: tuple[Kernel, ...] = (np.equal, np.not_equal, *_ORDERINGS, *_ORDERINGS)
# arith.cmpf predicates in the order of their codes: ordered ones are false on NaN, unordered true.
_FLOAT_PREDICATES: tuple[Kernel, ...] = (
    lambda x, y: np.zeros(np.broadcast(x, y).shape, np.bool_),
    np.equal,
    np.greater,
    np.greater_equal,
    np.less,
    np.less_equal,
    lambda x, y: (x < y) | (x > y),
    lambda x, y: ~(np.isnan(x) | np.isnan(y)),
    lambda x, y: ~((x < y) | (x > y)),
    lambda x, y: ~(x <= y),
    lambda x, y: ~(x < y),
    lambda x, y: ~(x >= y),
    lambda x, y: ~(x > y),
    np.not_equal,
    lambda x, y: np.isnan(x) | np.isnan(y),
    lambda x, y: np.ones(np.broadcast(x, y).shape, np.bool_),
)


@_register("arith.cmpi")
def _compare_integers(op: ir.Operation) -> Kernel:
    predicate, width = int(op.attributes["predicate"]), _types(op)[0].width
    function = _INTEGER_PREDICATES[predicate]
    if predicate >= 6:
        return lambda x, y: function(unsigned(x, width), unsigned(y, width))
    return lambda x, y: function(signed(x), signed(y))


@_register("arith.cmpf")
def _compare_floats(op: ir.Operation) -> Kernel:
    return _FLOAT_PREDICATES[int(op.attributes["predicate"])]


@_register("arith.truncf")
def _truncate_float(op: ir.Operation) -> Kernel:
    target = _types(op)[1]
    return lambda x: round_to(np.asarray(x), target)


@_register("arith.extsi", "arith.trunci", "arith.index_cast", "arith.sitofp")
def _from_signed(op: ir.Operation) -> Kernel:
    target = _types(op)[1]
    return lambda x: _converted(signed(x), target)


@_register("arith.extui", "arith.index_castui", "arith.uitofp")
def _from_unsigned(op: ir.Operation) -> Kernel:
    source, target = _types(op)
    return lambda x: _converted(unsigned(x, source.width), target)


def _converted(integers: Array, target: Element) -> Array:
    if target.is_float:
        return round_to(integers.astype(np.float64), target)
    return wrap(integers.astype(np.int64), target.width)


@_register("arith.fptosi", "arith.fptoui")
def _float_to_integer(op: ir.Operation) -> Kernel:
    """Rounds toward zero. Out of range is undefined in the program; here it saturates."""
    width = _types(op)[1].width
    bits = width if op.name == "arith.fptoui" else width - 1
    low = 0.0 if op.name == "arith.fptoui" else -(2.0**bits)
    # The largest float64 that still fits, so that the conversion below cannot overflow.
    high = np.nextafter(2.0**bits, 0.0) if bits > 53 else 2.0**bits - 1
    as_type = np.uint64 if bits == 64 else np.int64

    def convert(x: Array) -> Array:
        whole = np.clip(np.nan_to_num(np.trunc(x), nan=0.0, posinf=high, neginf=low), low, high)
        return wrap(np.asarray(whole).astype(as_type).astype(np.int64), width)

    return convert


@_register("affine.apply", "affine.min", "affine.max")
def _affine(op: ir.Operation) -> Kernel:
    map_ = ir.AffineMapAttr(op.attributes["map"]).value
    combine = {"affine.min": np.minimum, "affine.max": np.maximum}.get(op.name)

    def run(*operands: Array) -> Any:
        dims, symbols = operands[: map_.n_dims], operands[map_.n_dims :]
        results = [np.asarray(evaluate_expr(e, dims, symbols)) for e in map_.results]
        value = results[0]
        for other in results[1:]:
            assert combine is not None
            value = combine(value, other)
        return value

    return run


@_register("util.assume.int", "util.optimization_barrier")
def _pass_through(op: ir.Operation) -> Kernel:
    return lambda *xs: xs if len(xs) > 1 else xs[0]


@_register("arith.bitcast")
def _bitcast(op: ir.Operation) -> Kernel:
    source, target = _types(op)
    return lambda x: reinterpret(np.asarray(x), source, target, np.shape(x))


def from_bytes(data: Any, target: Element, shape: tuple[int, ...]) -> Array:
    """A tensor as it lies in memory.

    Args:
        data: its bytes.
        target: its element type.
        shape: of the tensor.

    Raises:
        Unsupported: the type has no whole bytes.
    """
    return hold(np.frombuffer(data, _memory_type(target)).reshape(shape), target)


def reinterpret(values: Array, source: Element, target: Element, shape: tuple[int, ...]) -> Array:
    """The bits of a tensor read as one of another element type, of `shape` and the same size.

    Args:
        values: as they are held.
        source: their element type.
        target: the other element type.
        shape: of the result.

    Raises:
        Unsupported: a type has no whole bytes.
    """
    if source == target:
        return values.reshape(shape)
    raw = values.astype(_memory_type(source)).tobytes()
    return from_bytes(raw, target, shape)


def _memory_type(of: Element) -> np.dtype[Any]:
    if of.is_float:
        return float_format(of.name)
    if of.width not in (8, 16, 32, 64):
        raise Unsupported(f"bitcast of {of.name}")
    return np.dtype(f"int{of.width}")
