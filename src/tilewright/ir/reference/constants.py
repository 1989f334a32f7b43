"""Constant attributes as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from iree.compiler import ir, passmanager
from iree.compiler.dialects import arith, func

from tilewright.ir.reference.elements import Array, Element, Unsupported, element_of, hold


def constant(attribute: ir.Attribute) -> Array:
    """The value of a numeric attribute: rank 0 for a scalar, the tensor's shape for `dense`.

    Args:
        attribute: a number, or `dense` numbers.

    Raises:
        Unsupported: it is of another kind.
    """
    if isinstance(attribute, ir.FloatAttr | ir.IntegerAttr | ir.BoolAttr):
        target = element_of(attribute.type)
        return hold(np.asarray(attribute.value), target)
    if not isinstance(attribute, ir.DenseElementsAttr):
        raise Unsupported(f"a constant held as {type(attribute).__name__}")
    type_ = ir.RankedTensorType(attribute.type)
    target = element_of(type_)
    shape = tuple(type_.shape)
    if attribute.is_splat:
        return np.broadcast_to(constant(attribute.get_splat_value()), shape).copy()
    try:
        values = np.array(attribute)
    except TypeError:
        # The bindings read only the formats that NumPy itself has.
        values = np.array(_widened(attribute, type_, target))
    return hold(values.reshape(shape), target)


def _widened(attribute: ir.Attribute, type_: ir.Type, target: Element) -> Any:
    """The same values as a constant of a wider type: the compiler folds the exact extension."""
    with attribute.context, ir.Location.unknown():
        wide = ir.F64Type.get() if target.is_float else ir.IntegerType.get_signless(64)
        result = ir.RankedTensorType.get(type_.shape, wide)
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            function = func.FuncOp("widen", ir.FunctionType.get([], [result]))
        with ir.InsertionPoint(function.add_entry_block()):
            narrow = arith.ConstantOp(type_, attribute).result
            extend = arith.extf if target.is_float else arith.extsi
            func.ReturnOp([extend(result, narrow)])
        passmanager.PassManager.parse("builtin.module(func.func(canonicalize))").run(
            module.operation
        )
        folded = function.entry_block.operations[0].operation
        if folded.name != "arith.constant":
            raise Unsupported(f"a constant of type {type_}")
        return folded.attributes["value"]
