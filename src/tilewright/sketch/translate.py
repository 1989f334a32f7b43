"""From the ops of a function to a tensor expression.

A structured op is its iterator types, indexing maps and body, whatever it is called
(`structured_ops`). What has neither is in `reshapes`, `rearrangements`, `normalisations` and
`quantisations`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from iree.compiler import ir

from tilewright.ir.reference.elements import Unsupported, constant
from tilewright.ir.reference.interpreter import called_function, find_function, tied_operands
from tilewright.ir.reference.structured import is_structured
from tilewright.ir.reference.tensors import segments
from tilewright.ir.walk import symbols
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import Const, Expr
from tilewright.schedule.tensor import ComputeOp, Tensor, placeholder
from tilewright.sketch import normalisations, quantisations, rearrangements, reshapes
from tilewright.sketch.fusion import fuse
from tilewright.sketch.integer_sums import sum_integers
from tilewright.sketch.interface import SiteExpression
from tilewright.sketch.scalar_bodies import is_scalar, translate_scalar
from tilewright.sketch.structured_ops import structured
from tilewright.sketch.tensor_values import (
    ComputedValue,
    Held,
    Indices,
    TensorValue,
    Uniform,
    Unwritten,
)
from tilewright.sketch.translation import SiteTranslation, ranked, static_shape
from tilewright.sketch.untranslatable import Untranslatable, dtype_of, scalar_constant

_RETURNS = ("func.return", "util.return", "flow.return")
_CALLS = ("func.call", "util.call")
# Between what a caller hands over and a tensor.
_BOUNDARIES = ("hal.tensor.import", "hal.tensor.export")
_LOAD = "iree_tensor_ext.dispatch.tensor.load"
_STORE = "iree_tensor_ext.dispatch.tensor.store"
_RULES = {
    **reshapes.RULES,
    **rearrangements.RULES,
    **normalisations.RULES,
    **quantisations.RULES,
}
_TOO_DEEP = "too many operations behind each other"
# Constants of so many different elements are written out as choices among them.
_WRITTEN_OUT = 16


@dataclass
class BoundTensor:
    """What a dispatch's function loads from and stores to, and what is in it now."""

    value: TensorValue


Value: TypeAlias = "TensorValue | Expr | BoundTensor"


def translate(module: ir.Module, function: str, constant: Sequence[bool] = ()) -> SiteExpression:
    """The tensor expression of a function with one result.

    Args:
        module: with the function: ops on tensors, or calls of dispatches that have such.
        function: its name.
        constant: which of its arguments can be packed ahead; none unless given.

    Raises:
        Untranslatable: it has an op that has no expression, or another number of results.
    """
    inputs, outputs = translate_function(module, function)
    if len(outputs) != 1:
        raise Untranslatable("return", f"{len(outputs)} results")
    expression = SiteExpression(inputs, tuple(constant) or (False,) * len(inputs), outputs[0])
    try:
        # It travels between processes.
        pickle.dumps(expression)
    except RecursionError:
        raise Untranslatable("return", _TOO_DEEP) from None
    return expression


def translate_function(
    module: ir.Module, function: str
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The tensor expressions of a function's results.

    Args:
        module: with the function.
        function: its name.

    Returns:
        A placeholder for each argument, and a tensor for each result.

    Raises:
        Untranslatable: it has an op that has no expression.
    """
    table = symbols(module)
    target = find_function(table, function)
    driver = _Driver(table)
    workshop = driver.known.workshop
    inputs: list[Tensor] = []
    arguments: list[Value] = []
    for number, argument in enumerate(target.regions[0].blocks[0].arguments):
        where, type_ = f"argument {number}", _imported(argument)
        shape = static_shape(type_, where) if ranked(type_) else ()
        tensor = placeholder(shape, dtype_of(type_, where), workshop.name(f"arg{number}"))
        held = Held(tensor, workshop)
        inputs.append(tensor)
        arguments.append(held if ranked(type_) else held.read(()))
    try:
        results = driver.call(target, arguments)
        outputs = tuple(driver.output(result) for result in results)
        sum_integers(outputs, workshop.arithmetic)
        fuse(outputs, workshop.arithmetic)
    except (ScheduleError, Unsupported) as problem:
        raise Untranslatable(driver.known.at, str(problem)) from problem
    except RecursionError:
        raise Untranslatable(driver.known.at, _TOO_DEEP) from None
    return tuple(inputs), outputs


def _imported(argument: ir.Value) -> ir.Type:
    """The type of an argument; of a buffer that is imported as a tensor the tensor's."""
    for use in argument.uses:
        op = use.owner.operation
        if op.name == "hal.tensor.import":
            return op.results[0].type
    return argument.type


class _Driver:
    """Goes through functions op by op."""

    def __init__(self, table: dict[str, ir.Operation]) -> None:
        self.known = SiteTranslation()
        self._symbols = table
        self._bound: dict[ir.Value, BoundTensor] = {}

    def call(self, function: ir.Operation, arguments: Sequence[Value]) -> list[Value]:
        """The results of a function for arguments."""
        if len(function.regions[0].blocks) != 1:
            raise Untranslatable("cf", "branches between blocks")
        block = function.regions[0].blocks[0]
        for argument, value in zip(block.arguments, arguments, strict=True):
            self._define(argument, value)
        for view in block.operations:
            op = view.operation
            if op.name in _RETURNS:
                return [self._value(v) for v in op.operands]
            self.known.at = op.name
            for result, made in zip(op.results, self._results(op), strict=True):
                if made is not None:
                    self._define(result, made)
        return []

    def _define(self, name: ir.Value, value: Value) -> None:
        if isinstance(value, BoundTensor):
            self._bound[name] = value
        else:
            self.known.values[name] = value

    def _value(self, value: ir.Value) -> Value:
        return self._bound.get(value) or self.known.value(value)

    def _results(self, op: ir.Operation) -> Sequence[Value | None]:
        if op.name == _STORE:
            self._store(op)
            return []
        if op.name == _LOAD:
            return [self._load(op)]
        if op.name == "flow.dispatch":
            return self._dispatch(op)
        if op.name in _CALLS:
            arguments = [self._value(v) for v in op.operands]
            return self.call(called_function(self._symbols, op), arguments)
        if op.name in _BOUNDARIES:
            return [self._value(op.operands[0])]
        if not any(ranked(result.type) for result in op.results):
            # Numbers are computed where they are used.
            return [None] * len(op.results)
        if op.name in _RULES:
            return _RULES[op.name](self.known, op)
        if op.name in ("arith.constant", "flow.tensor.constant"):
            return [self._constant(op)]
        if is_structured(op):
            return structured(self.known, op)
        if is_scalar(op):
            return self._mapped(op)
        raise Untranslatable(op.name, "no rule for this operation")

    def _constant(self, op: ir.Operation) -> TensorValue:
        attribute = op.attributes["value"]
        shape = static_shape(op.results[0].type, op.name)
        if not isinstance(attribute, ir.DenseElementsAttr):
            raise Untranslatable(op.name, f"a constant held as {type(attribute).__name__}")
        if attribute.is_splat:
            return Uniform(shape, scalar_constant(attribute.get_splat_value(), op.name))
        numbers = constant(attribute).ravel()
        dtype = dtype_of(op.results[0].type, op.name)
        if numbers.size > _WRITTEN_OUT:
            raise Untranslatable(op.name, f"a constant of {numbers.size} different elements")
        elements = [Const(number.item(), dtype) for number in numbers]
        return reshapes.choices(self.known, "constant", shape, elements)

    def _mapped(self, op: ir.Operation) -> Sequence[TensorValue]:
        """A scalar operation on whole tensors."""
        operands = [self.known.value(v) for v in op.operands]

        def element(number: int) -> Callable[[Indices], Expr]:
            def mapped(place: Indices) -> Expr:
                values = [x.read(place) if isinstance(x, TensorValue) else x for x in operands]
                return translate_scalar(op, values)[number]

            return mapped

        name = op.name.rpartition(".")[2]
        return [
            ComputedValue(
                self.known.workshop,
                name,
                static_shape(result.type, op.name),
                dtype_of(result.type, op.name),
                element(number),
            )
            for number, result in enumerate(op.results)
        ]

    # -- dispatches --------------------------------------------------------------------------------

    def _dispatch(self, op: ir.Operation) -> Sequence[Value]:
        """Carries out a dispatch: its function works on tensors that begin as its operands."""
        arguments: list[Value] = []
        for operand in segments(op, list(op.operands))[1]:
            value = self._value(operand)
            arguments.append(BoundTensor(value) if isinstance(value, TensorValue) else value)
        outputs: list[BoundTensor] = []
        for result, tied in zip(op.results, tied_operands(op), strict=True):
            shape = static_shape(result.type, op.name)
            if tied < 0:
                tied = len(arguments)
                arguments.append(BoundTensor(Unwritten(shape, dtype_of(result.type, op.name))))
            bound = arguments[tied]
            assert isinstance(bound, BoundTensor)
            outputs.append(bound)
        self.call(called_function(self._symbols, op), arguments)
        return [
            reshapes.reshaped(bound.value, static_shape(result.type, op.name))
            for bound, result in zip(outputs, op.results, strict=True)
        ]

    def _load(self, op: ir.Operation) -> TensorValue:
        source, _, *where = segments(op, list(op.operands))
        return reshapes.extracted(self.known, op, self._bound[source[0]].value, where)

    def _store(self, op: ir.Operation) -> None:
        value, target, _, *where = segments(op, list(op.operands))
        bound = self._bound[target[0]]
        bound.value = reshapes.inserted(
            self.known, op, self.known.tensor(value[0]), bound.value, where
        )

    # -- results -----------------------------------------------------------------------------------

    def output(self, result: Value) -> Tensor:
        """A result of the function as a stage."""
        self.known.at = "return"
        if not isinstance(result, TensorValue):
            raise Untranslatable("return", "a result that is no tensor")
        if isinstance(result, ComputedValue):
            return result.held.tensor
        if isinstance(result, Held):
            op = result.tensor.op
            # A kernel writes all that its last stage computes, and it has one output.
            if isinstance(op, ComputeOp) and op.num_outputs == 1:
                return result.tensor
        if isinstance(result, Unwritten):
            raise Untranslatable("return", "a result that nothing is written to")
        return self.known.workshop.stage(result.shape, "output", result.read)
