"""Quantised numbers of iree_linalg_ext: integers with scales and zero points. They have no body."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from iree.compiler import ir

from tilewright.ir.reference.access import (
    OperandAccess,
    full_box,
    indexing_maps,
    plain_dims,
    row_major,
)
from tilewright.ir.reference.body import Lookup
from tilewright.ir.reference.elements import (
    Array,
    Unsupported,
    element_of,
    round_to,
    unsigned,
    wrap,
)
from tilewright.ir.reference.tensors import Handler

QUANTIZE, DEQUANTIZE = "iree_linalg_ext.quantize_affine", "iree_linalg_ext.dequantize_affine"
"""The ops."""

STORED_UNSIGNED, READ_UNSIGNED, ZERO_UNSIGNED = "storage_unsigned", "input_unsigned", "zp_unsigned"
"""Marks of the ops: the integers of the first's result, of the second's operand, and the zero
points of both are bits without a sign."""


def _quantised(
    op: ir.Operation, operands: list[Array], element: Callable[[Array, Array, Array], Array]
) -> Sequence[Array]:
    """The result of what is computed of each number, its scale and its zero point."""
    accesses = [OperandAccess(map_) for map_ in indexing_maps(op)]
    order = [loop for _, loop in plain_dims(accesses[-1].map)]
    if sorted(order) != list(range(accesses[0].loops)):
        raise Unsupported(f"{op.name} with a result in other dimensions than its loops")
    box = full_box([operands[-1].shape[order.index(loop)] for loop in range(len(order))])
    numbers, scale, *rest = (
        access.view(row_major(np.asarray(x)), box)
        for access, x in zip(accesses[:-1], operands[:-1], strict=True)
    )
    zero = rest[0] if rest else np.zeros((), dtype=np.int64)
    if ZERO_UNSIGNED in op.attributes:
        zero = unsigned(zero, element_of(op.operands[2].type).width)
    made = element(numbers, scale, zero)
    return [np.broadcast_to(made, [high for _, high in box]).transpose(order)]


def _quantize(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    """round(x / scale) + zero point, halves to even, as the nearest integer of the range."""
    low, high = (int(op.attributes[name]) for name in ("quant_min", "quant_max"))

    def element(numbers: Array, scale: Array, zero: Array) -> Array:
        steps = np.rint(numbers / scale) + zero
        # As IREE takes the larger and the smaller of two: a NaN is the lower bound.
        within = np.asarray(np.fmin(np.fmax(steps, low), high), dtype=np.int64)
        return wrap(within, element_of(op.results[0].type).width)

    return _quantised(op, operands, element)


def _dequantize(op: ir.Operation, operands: list[Array], captured: Lookup) -> Sequence[Array]:
    """(x - zero point) * scale; only conversions round."""
    source, wide = element_of(op.operands[0].type), element_of(op.operands[1].type)
    target = element_of(op.results[0].type)

    def element(numbers: Array, scale: Array, zero: Array) -> Array:
        if READ_UNSIGNED in op.attributes:
            numbers = unsigned(numbers, source.width)
        made = round_to(np.asarray(numbers - zero, np.float64), wide) * scale
        return made if wide == target else round_to(made, target)

    return _quantised(op, operands, element)


HANDLERS: dict[str, Handler] = {QUANTIZE: _quantize, DEQUANTIZE: _dequantize}
