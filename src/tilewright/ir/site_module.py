"""A value of a program as a module of its own: the ops that compute it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from iree.compiler import ir
from iree.compiler.dialects import util

from tilewright.argument import ELEMENT_TYPES, ArgumentType
from tilewright.ir.signature import argument_type
from tilewright.ir.walk import walk

SITE_FUNCTION = "main"
"""The one public function of a site's module."""


@dataclass(frozen=True)
class IsolatedSite:
    """A part of a program alone: `main` takes its inputs and returns its result.

    module: at the phase of the program; equal parts have equal texts. inputs: the values of the
    program that are arguments of `main`, in their order. result: the value that it returns.
    obstacle: why no kernel can take its place, '' where one can.
    """

    module: ir.Module
    inputs: tuple[ir.Value, ...]
    result: ir.Value
    obstacle: str

    @cached_property
    def digest(self) -> str:
        """Equal for parts that compute the same on arguments of the same types."""
        text = self.module.operation.get_asm(use_local_scope=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def arguments(self) -> tuple[ArgumentType, ...]:
        """The types of `inputs`."""
        return tuple(argument_type(value.type) for value in self.inputs)


def isolate_value(value: ir.Value, inside: Callable[[ir.Operation], bool]) -> IsolatedSite:
    """The ops behind a value as a program of their own.

    Args:
        value: a result of an op of the program.
        inside: whether an op that the value depends on is cloned; the results of the others become
            arguments.

    Returns:
        The module; its ops stand in the order in which the value depends on them.
    """
    with value.owner.context, ir.Location.unknown():
        ops, inputs = _slice(value, inside)
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            type_ = ir.FunctionType.get([one.type for one in inputs], [value.type])
            function = util.FuncOp(
                SITE_FUNCTION, ir.TypeAttr.get(type_), sym_visibility="public"
            ).operation
        block = function.regions[0].blocks.append(*type_.inputs)
        new = dict(zip(inputs, block.arguments, strict=True))
        with ir.InsertionPoint(block):
            for op in ops:
                copy = op.clone().operation
                for one in (copy, *walk(copy)):
                    for position, operand in enumerate(one.operands):
                        if operand in new:
                            one.operands[position] = new[operand]
                new.update(zip(op.results, copy.results, strict=True))
            util.ReturnOp([new[value]])
    return IsolatedSite(module, tuple(inputs), value, _obstacle(value, ops, inputs))


def needed(op: ir.Operation) -> Iterator[ir.Value]:
    """The values that an op needs: its operands, and what its regions take from outside.

    Args:
        op: any op.

    Yields:
        The values, some more than once.
    """
    yield from op.operands
    own = {value for one in (op, *walk(op)) for value in one.results}
    own |= {a for one in (op, *walk(op)) for r in one.regions for b in r for a in b.arguments}
    yield from (v for one in walk(op) for v in one.operands if v not in own)


def _slice(
    value: ir.Value, inside: Callable[[ir.Operation], bool]
) -> tuple[list[ir.Operation], list[ir.Value]]:
    """The ops behind a value, each behind what it needs, and the values that they get."""
    ops: dict[ir.Operation, None] = {}
    inputs: dict[ir.Value, None] = {}
    # Not by recursion: a chain can be as long as a program. (value, whether its needs are done)
    stack = [(value, False)]
    while stack:
        one, done = stack.pop()
        owner = one.owner
        if isinstance(owner, ir.Block) or not inside(owner.operation):
            inputs.setdefault(one)
        elif done:
            ops.setdefault(owner.operation)
        elif owner.operation not in ops:
            stack.append((one, True))
            stack += [(operand, False) for operand in reversed([*needed(owner.operation)])]
    return list(ops), list(inputs)


def _obstacle(value: ir.Value, ops: list[ir.Operation], inputs: list[ir.Value]) -> str:
    tensors = [v for op in ops for v in op.results if isinstance(v.type, ir.RankedTensorType)]
    numbers = [v for v in inputs if not isinstance(v.type, ir.RankedTensorType)]
    if not inputs:
        return "it computes the same in every run"
    if not ops:
        return "it only takes a part from a place that is known at run time only"
    if any(not v.type.has_static_shape for v in (*tensors, *inputs) if v not in numbers):
        return "it has sizes that are known at run time only"
    if numbers:
        return f"it uses a number that is known at run time only ({numbers[0].type})"
    for one in (*inputs, value):
        element = str(ir.RankedTensorType(one.type).element_type)
        if element not in ELEMENT_TYPES:
            return f"it has elements of type {element}"
    return ""
