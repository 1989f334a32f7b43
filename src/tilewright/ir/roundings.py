"""Where a program rounds numbers to integers, as quantised networks do between their layers."""

from __future__ import annotations

from collections.abc import Iterator

from iree.compiler import ir
from iree.compiler.dialects import arith

from tilewright.ir.reference.quantised import QUANTIZE
from tilewright.ir.walk import walk

_ROUND = ("math.roundeven", "math.round")
_INDEX = "linalg.index"
# Of a quantisation, the operand that the numbers are divided by.
_SCALE = 1


def move_roundings(module: ir.Module, factor: float) -> int:
    """Multiply what a program rounds to integers.

    Places that are rounded, of an image that is resized for instance, are no such numbers.

    Args:
        module: at the preprocessing phase; it is changed in place.
        factor: near 1.

    Returns:
        At how many ops.
    """
    found = list(_rounded(module))
    for op, number in found:
        value = op.operands[number]
        by = 1.0 / factor if op.name == QUANTIZE else factor
        with module.context, ir.Location.unknown(), ir.InsertionPoint(op):
            constant = arith.ConstantOp(value.type, ir.FloatAttr.get(value.type, by)).result
            op.operands[number] = arith.MulFOp(value, constant).result
    return len(found)


def rounds_numbers(module: ir.Module | ir.Operation) -> bool:
    """Whether a program rounds numbers to integers.

    Args:
        module: at the preprocessing phase, or with its dispatches.
    """
    return next(_rounded(module), None) is not None


def _rounded(module: ir.Module | ir.Operation) -> Iterator[tuple[ir.Operation, int]]:
    """Ops that round, with the operand that is to be multiplied or, for scales, divided."""
    for op in walk(module.operation):
        if op.name == QUANTIZE and isinstance(op.operands[_SCALE].type, ir.FloatType):
            yield op, _SCALE
        elif op.name in _ROUND and not _is_place(op.operands[0]):
            yield op, 0


def _is_place(value: ir.Value) -> bool:
    """Whether a number is computed from the indices of a loop."""
    left, seen = [value], set[ir.Operation]()
    while left:
        owner = left.pop().owner
        if isinstance(owner, ir.Block) or owner.operation in seen:
            continue
        if owner.operation.name == _INDEX:
            return True
        seen.add(owner.operation)
        left += owner.operation.operands
    return False
