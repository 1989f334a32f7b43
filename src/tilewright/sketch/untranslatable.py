"""What has no tensor expression, and the types and numbers that have one."""

from __future__ import annotations

from iree.compiler import ir

from tilewright.errors import UnknownNameError
from tilewright.schedule.expr import Const, const
from tilewright.schedule.types import BOOL, ELEMENTS, INDEX, canonical, is_float


class Untranslatable(Exception):
    """An operation that has no tensor expression.

    operation: its name. reason: why, in a few words.
    """

    def __init__(self, operation: str, reason: str) -> None:
        super().__init__(f"{operation}: {reason}")
        self.operation = operation
        self.reason = reason


def dtype_of(type_: ir.Type, where: str) -> str:
    """The schedule language's name of an element type, or of a tensor's elements.

    Args:
        type_: an element type or a tensor's.
        where: the operation, for the message.

    Raises:
        Untranslatable: the language has no such type.
    """
    name = str(type_.element_type if isinstance(type_, ir.RankedTensorType) else type_)
    if name == INDEX:
        return INDEX
    try:
        found = canonical(name)
    except UnknownNameError:
        found = ""
    if found not in ELEMENTS:
        raise Untranslatable(where, f"element type {name}")
    return found


def scalar_constant(attribute: ir.Attribute, where: str) -> Const:
    """A number of the program.

    Args:
        attribute: of an `arith.constant`, or one element of a dense constant.
        where: the operation, for the message.

    Raises:
        Untranslatable: it is no number, or of a type that the language has not.
    """
    if not isinstance(attribute, ir.FloatAttr | ir.IntegerAttr | ir.BoolAttr):
        raise Untranslatable(where, f"a constant held as {type(attribute).__name__}")
    dtype = dtype_of(attribute.type, where)
    value = attribute.value
    if dtype == BOOL:
        return const(bool(value), dtype)
    return const(float(value) if is_float(dtype) else int(value), dtype)
