"""Functions, dispatches and control flow: the walk over a program.

A whole program is run as its function says: what it waits for, and tells others by fences, has no
part in what it computes. A value is let go of behind the last op of a function that reads it: those
of a network together take twice as much room as its activations and weights do.

An isolated dispatch is run as what it says: `flow.dispatch` calls the executable's function with a
buffer for every tensor it is bound to (results tied to an operand start with its contents), and the
loads and stores of the dispatch work on these. How the work is shared among workgroups, and how
encodings lay tensors out, has no part in what is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from iree.compiler import ir

from tilewright.attributes import (
    AttributeSyntaxError,
    is_attribute,
    items_of,
    unquoted,
    value_of,
)
from tilewright.errors import UserError
from tilewright.ir.reference import attention, extended, quantised, structured, tensors
from tilewright.ir.reference.elements import (
    Array,
    Unsupported,
    constant,
    element_of,
    hold,
    undefined,
)
from tilewright.ir.reference.scalar import from_bytes, kernel
from tilewright.ir.reference.tensors import put, segments, shape_of, slices, take
from tilewright.ir.walk import attribute_tree, symbols, walk

# What is known by the names of the program: arrays, or buffer views that are not imported yet.
Values = dict[ir.Value, Any]
#: Loads the bytes of a parameter by its scope and its key.
Load = Callable[[str, str], Array]

HANDLERS: dict[str, tensors.Handler] = {
    **tensors.HANDLERS,
    **attention.HANDLERS,
    **extended.HANDLERS,
    **quantised.HANDLERS,
}
_NUMBERS = ir.DenseElementsAttr | ir.FloatAttr | ir.IntegerAttr | ir.BoolAttr
_PARAMETERS = ("#flow.parameter.named", "#stream.parameter.named")
_TERMINATORS = ("func.return", "util.return", "scf.yield", "flow.return")
#: Ops that call a function of the module.
CALLS = ("flow.dispatch", "func.call", "util.call")


def evaluate(
    module: ir.Module, function: str, inputs: Sequence[Array], parameter: Load | None = None
) -> list[Array]:
    """Run a function of a module in float64.

    Args:
        module: with the function.
        function: its name.
        inputs: arrays (or scalars) with the shapes of the function's arguments.
        parameter: loads what its globals are initialised with from outside the module; None: such
            a module is unsupported.

    Returns:
        One array for each result: float64 for float element types, int64 for integers and index
        (with the signed value of the type's width), bool for i1.

    Raises:
        Unsupported: the program has an op that is not known here.
        UserError: the function or the inputs do not fit.
    """
    with np.errstate(all="ignore"):
        return Interpreter(module, parameter).call_with(function, inputs)


class Interpreter:
    """Runs functions of one module. It keeps no state between calls but the symbol table."""

    def __init__(self, module: ir.Module, parameter: Load | None = None) -> None:
        self._symbols = symbols(module)
        self._parameter = parameter

    def call_with(self, function: str, inputs: Sequence[Array]) -> list[Array]:
        """Check and convert the inputs, then call.

        Args:
            function: its name.
            inputs: one for each argument.

        Raises:
            UserError: the function or the inputs do not fit.
        """
        target = find_function(self._symbols, function)
        arguments = list(target.regions[0].blocks[0].arguments)
        if len(arguments) != len(inputs):
            raise UserError(
                f"function '{function}' takes {len(arguments)} inputs, {len(inputs)} were given"
            )
        held = [
            _held(value, argument.type, f"input {i} of '{function}'")
            for i, (value, argument) in enumerate(zip(inputs, arguments, strict=True))
        ]
        return self._call(target, held)

    def _call(self, function: ir.Operation, arguments: Sequence[Any]) -> list[Any]:
        if len(function.regions[0].blocks) != 1:
            raise Unsupported("branches between blocks (cf)")
        block = function.regions[0].blocks[0]
        values = dict(zip(block.arguments, arguments, strict=True))
        return self._block(block, values, _last_reads(block))

    def _block(
        self, block: ir.Block, values: Values, last: Sequence[Sequence[ir.Value]] = ()
    ) -> list[Any]:
        """Run a block; `values` holds what is defined outside it and gets what it defines.

        `last`: for each op what may be let go of behind it; (): nothing.
        """
        for position, view in enumerate(block.operations):
            op = view.operation
            operands = [values[v] for v in op.operands]
            if op.name in _TERMINATORS:
                return operands
            results = self._op(op, operands, values)
            for result, value in zip(op.results, results, strict=True):
                values[result] = value
            del operands, results
            for value in last[position] if last else ():
                del values[value]
        return []

    def _op(self, op: ir.Operation, operands: list[Any], values: Values) -> Sequence[Any]:
        own = _OWN.get(op.name)
        if own is not None:
            return own(self, op, operands, values)
        handler = HANDLERS.get(op.name)
        if handler is not None:
            return handler(op, operands, values.__getitem__)
        run = kernel(op)
        if run is not None:
            result = run(*operands)
            parts = result if len(op.results) > 1 else [result]
            return [np.asarray(p) for p in parts]
        if structured.is_structured(op):
            return structured.evaluate(op, operands, values.__getitem__)
        raise Unsupported(op.name)

    def _constant(self, op: ir.Operation, operands: list[Any], values: Values) -> Sequence[Any]:
        return [constant(op.attributes["value"])]

    def _dim(self, op: ir.Operation, operands: list[Any], values: Values) -> Sequence[Any]:
        return [np.asarray(operands[0].shape[ir.IntegerAttr(op.attributes["index"]).value])]

    def _global(self, op: ir.Operation, operands: list[Any], values: Values) -> Sequence[Any]:
        name = ir.FlatSymbolRefAttr(op.attributes["global"]).value
        found = self._symbols.get(name)
        if found is None or "initial_value" not in found.attributes:
            raise Unsupported(f"util.global.load of @{name}, which has no constant value")
        place = _parameter_place(found.attributes["initial_value"])
        if place is None or self._parameter is None:
            return [constant(found.attributes["initial_value"])]
        type_ = ir.RankedTensorType(op.results[0].type)
        return [from_bytes(self._parameter(*place), element_of(type_), tuple(type_.shape))]

    def _import(self, op: ir.Operation, operands: list[Any], values: Values) -> Sequence[Any]:
        return [_held(operands[0], op.results[0].type, "an imported tensor")]

    def _nothing(self, op: ir.Operation, operands: list[Any], values: Values) -> Sequence[Any]:
        return [None] * len(op.results)

    def _barrier(self, op: ir.Operation, operands: list[Any], values: Values) -> Sequence[Any]:
        return operands[: len(op.results)]

    def _call_op(self, op: ir.Operation, operands: list[Any], values: Values) -> Sequence[Any]:
        return self._call(called_function(self._symbols, op), operands)

    def _if(self, op: ir.Operation, operands: list[Any], values: Values) -> Sequence[Any]:
        region = op.regions[0 if bool(operands[0]) else 1]
        return self._block(region.blocks[0], values) if len(region.blocks) else []

    def _for(self, op: ir.Operation, operands: list[Any], values: Values) -> Sequence[Any]:
        low, high, step, *carried = operands
        block = op.regions[0].blocks[0]
        for i in range(int(low), int(high), int(step)):
            values.update(zip(block.arguments, [np.asarray(i), *carried], strict=True))
            carried = self._block(block, values)
        return carried

    def _dispatch(self, op: ir.Operation, operands: list[Any], values: Values) -> Sequence[Any]:
        """Call an executable: a buffer per tensor operand, then one per result that is not tied."""
        function = called_function(self._symbols, op)
        _, arguments, _, result_sizes = segments(op, operands)
        sizes = iter(result_sizes)
        tied = tied_operands(op)
        buffers = list(arguments)
        for position in {t for t in tied if t >= 0}:
            buffers[position] = buffers[position].copy()
        outputs = []
        for result, tie in zip(op.results, tied, strict=True):
            shape = shape_of(result.type, sizes)
            if tie < 0:
                tie = len(buffers)
                buffers.append(undefined(shape, element_of(result.type)))
            outputs.append((tie, shape))
        self._call(function, buffers)
        return [buffers[tie].reshape(shape) for tie, shape in outputs]

    def _load(self, op: ir.Operation, operands: list[Any], values: Values) -> Sequence[Any]:
        source, _, *where = segments(op, operands)
        return [take(source[0], *slices(op, *where), op.results[0].type).copy()]

    def _store(self, op: ir.Operation, operands: list[Any], values: Values) -> Sequence[Any]:
        value, target, _, *where = segments(op, operands)
        put(target[0], *slices(op, *where), value[0])
        return []


_OWN = {
    "arith.constant": Interpreter._constant,
    "flow.tensor.constant": Interpreter._constant,
    "hal.buffer_view.dim": Interpreter._dim,
    "util.global.load": Interpreter._global,
    "hal.devices.get": Interpreter._nothing,
    "hal.fence.await": Interpreter._nothing,
    "hal.fence.create": Interpreter._nothing,
    "hal.tensor.barrier": Interpreter._barrier,
    "hal.tensor.import": Interpreter._import,
    "util.null": Interpreter._nothing,
    "func.call": Interpreter._call_op,
    "util.call": Interpreter._call_op,
    "scf.if": Interpreter._if,
    "scf.for": Interpreter._for,
    "flow.dispatch": Interpreter._dispatch,
    "iree_tensor_ext.dispatch.tensor.load": Interpreter._load,
    "iree_tensor_ext.dispatch.tensor.store": Interpreter._store,
}


def _last_reads(block: ir.Block) -> list[list[ir.Value]]:
    """For each op of a block the values of the block that it, or what it holds, reads last."""
    inside = {*block.arguments, *(r for op in block.operations for r in op.operation.results)}
    found: list[list[ir.Value]] = []
    for view in reversed(list(block.operations)):
        op = view.operation
        below = {value for one in walk(op) for value in one.operands}
        read = inside & {*op.operands, *below}
        # What nothing reads is let go of where it is made.
        read |= inside.intersection(op.results)
        found.append(list(read))
        inside -= read
    return found[::-1]


def _parameter_place(value: ir.Attribute) -> tuple[str, str] | None:
    """Scope and key of the parameter that a global is initialised with; None: it is none."""
    if isinstance(value, _NUMBERS):
        return None
    try:
        tree = value_of(attribute_tree(value))
    except AttributeSyntaxError:
        return None
    if not any(is_attribute(tree, name) for name in _PARAMETERS):
        return None
    (named,) = items_of(tree)
    scope, _, key = unquoted(str(named)).rpartition('"::"')
    return scope, key


def find_function(table: dict[str, ir.Operation], name: str) -> Any:
    """The function of that name, with a body.

    Args:
        table: as `symbols` gives it.
        name: of the function.

    Raises:
        UserError: there is none.
    """
    op = table.get(name)
    if op is None or op.name not in ("func.func", "util.func") or not len(op.regions[0].blocks):
        known = ", ".join(
            sorted(n for n, o in table.items() if o.name in ("func.func", "util.func"))
        )
        raise UserError(f"no function '{name}' with a body in the module (there are: {known})")
    return op


def called_function(table: dict[str, ir.Operation], call: ir.Operation) -> Any:
    """The function that is called; of a dispatch that which `@executable::@export` names.

    Args:
        table: as `symbols` gives it.
        call: one of `CALLS`.

    Raises:
        UserError: the function or the executable is not there.
    """
    if "callee" in call.attributes:
        return find_function(table, ir.FlatSymbolRefAttr(call.attributes["callee"]).value)
    path = entry_path(call)
    executable = table.get(path[0])
    if executable is None:
        raise UserError(f"flow.dispatch of @{path[0]}, which is not in the module")
    inside = executable.regions[0].blocks[0].operations
    export = symbols(executable)[path[-1]]
    name = ir.FlatSymbolRefAttr(export.attributes["function_ref"]).value
    for view in inside:
        if view.operation.name == "builtin.module":
            return find_function(symbols(view.operation), name)
    raise UserError(f"executable @{path[0]} has no source module")


def entry_path(call: ir.Operation) -> list[str]:
    """The names in the first entry point `@executable::@export` of a dispatch.

    Args:
        call: a `flow.dispatch`.
    """
    entries = ir.ArrayAttr(call.attributes["entry_points"])
    return list(ir.SymbolRefAttr(entries[0]).value)


def tied_operands(op: ir.Operation) -> list[int]:
    """For each result, the operand whose buffer it shares, or -1.

    Args:
        op: a `flow.dispatch`.
    """
    if "tied_operands" not in op.attributes:
        return [-1] * len(op.results)
    return [ir.IntegerAttr(i).value for i in ir.ArrayAttr(op.attributes["tied_operands"])]


def _held(value: Any, type_: ir.Type, what: str) -> Array:
    """An input in the form in which the interpreter holds values of the argument's type."""
    array = np.asarray(value)
    if isinstance(type_, ir.RankedTensorType):
        unknown = ir.ShapedType.get_dynamic_size()
        shape = list(type_.shape)
        fits = len(shape) == array.ndim and all(
            n in (unknown, m) for n, m in zip(shape, array.shape, strict=True)
        )
        if not fits:
            raise UserError(f"{what} is {type_}, an array of shape {list(array.shape)} was given")
    elif not isinstance(type_, ir.IndexType | ir.IntegerType | ir.FloatType):
        # A buffer view: converted where it is imported as a tensor.
        return array
    target = element_of(type_)
    if not target.is_float and not array.dtype.name.startswith(("int", "uint", "bool")):
        raise UserError(f"{what} is {type_}, an array of {array.dtype} was given")
    return hold(array, target)
