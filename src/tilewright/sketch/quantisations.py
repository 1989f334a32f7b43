"""Quantised numbers: an integer stands for itself, less a zero point, times a scale.

Scales and zero points are one for a whole tensor, or one for each place along some dimensions: the
output channels of a convolution's filters. As IREE 3.13 computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iree.compiler import ir

from tilewright.ir.reference.access import OperandAccess, evaluate_expr, indexing_maps
from tilewright.ir.reference.quantised import (
    DEQUANTIZE,
    QUANTIZE,
    READ_UNSIGNED,
    STORED_UNSIGNED,
    ZERO_UNSIGNED,
)
from tilewright.schedule import functions as te
from tilewright.schedule.expr import Const, Expr, binary, cast, const, index
from tilewright.schedule.types import bits
from tilewright.sketch.reshapes import TensorRule
from tilewright.sketch.scalar_bodies import as_index, larger, smaller
from tilewright.sketch.tensor_values import ComputedValue, Indices, TensorValue
from tilewright.sketch.translation import SiteTranslation, static_shape
from tilewright.sketch.untranslatable import Untranslatable, dtype_of

_NUMBERS, _SCALE, _ZERO_POINT = range(3)


def _quantize(translation: SiteTranslation, op: ir.Operation) -> Sequence[TensorValue]:
    """round(x / scale) + zero point, halves to even, as the nearest integer of the range."""
    low, high = (int(op.attributes[name]) for name in ("quant_min", "quant_max"))

    def element(read: Callable[[int], Expr], dtype: str) -> Expr:
        scale = read(_SCALE)
        wide = scale.dtype
        steps = te.round(cast(wide, read(_NUMBERS)) / scale)
        if _has_zero_point(op):
            steps = steps + cast(wide, _integer(op, ZERO_UNSIGNED, read(_ZERO_POINT)))
        within = smaller(larger(steps, const(low, wide)), const(high, wide))
        return cast(dtype, cast("i32", within) if STORED_UNSIGNED in op.attributes else within)

    return [_value(translation, op, "quantize", element)]


def _dequantize(translation: SiteTranslation, op: ir.Operation) -> Sequence[TensorValue]:
    """(x - zero point) * scale."""

    def element(read: Callable[[int], Expr], dtype: str) -> Expr:
        scale, number = read(_SCALE), _integer(op, READ_UNSIGNED, read(_NUMBERS))
        if _has_zero_point(op):
            wide = "i32" if bits(read(_NUMBERS).dtype) < 32 else "i64"
            zero = cast(wide, _integer(op, ZERO_UNSIGNED, read(_ZERO_POINT)))
            if not (isinstance(zero, Const) and zero.value == 0):
                number = binary("sub", cast(wide, number), zero)
        return cast(dtype, cast(scale.dtype, number) * scale)

    return [_value(translation, op, "dequantize", element)]


def _integer(op: ir.Operation, mark: str, value: Expr) -> Expr:
    """An integer of an op, where the op has this mark as one whose bits are without a sign."""
    if mark not in op.attributes or bits(value.dtype) > 16:
        return value
    return binary("and", cast("i32", value), const((1 << bits(value.dtype)) - 1, "i32"))


def _has_zero_point(op: ir.Operation) -> bool:
    return len(op.operands) > _ZERO_POINT + 1


def _value(
    translation: SiteTranslation,
    op: ir.Operation,
    name: str,
    element: Callable[[Callable[[int], Expr], str], Expr],
) -> TensorValue:
    """The result, of what reads each operand where an element of it is, and of its type."""
    accesses = [OperandAccess(map_) for map_ in indexing_maps(op)]
    operands = [translation.value(value) for value in list(op.operands)[: len(accesses) - 1]]
    shape = static_shape(op.results[0].type, op.name)
    dtype = dtype_of(op.results[0].type, op.name)

    def at(place: Indices) -> Expr:
        loops: list[Expr] = [index(0)] * accesses[-1].loops
        for one, expression in zip(place, accesses[-1].map.results, strict=True):
            if not isinstance(expression, ir.AffineDimExpr):
                raise Untranslatable(op.name, "an output at computed places")
            loops[expression.position] = one

        def read(number: int) -> Expr:
            operand = operands[number]
            if isinstance(operand, Expr):
                return operand
            results = accesses[number].map.results
            return operand.read([as_index(evaluate_expr(e, loops)) for e in results])

        return element(read, dtype)

    return ComputedValue(translation.workshop, name, shape, dtype, at)


RULES: dict[str, TensorRule] = {QUANTIZE: _quantize, DEQUANTIZE: _dequantize}
