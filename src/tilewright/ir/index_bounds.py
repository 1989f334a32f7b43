"""Which integers of a program are used as indices, and how large they may be.

A gather with random numbers for its indices reads outside its table, and then neither its result
nor its time means anything. Data made for a dispatch or a program keeps within these limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from iree.compiler import ir

from tilewright.ir.reference.interpreter import called_function, entry_path
from tilewright.ir.reference.tensors import segments
from tilewright.ir.walk import symbols, walk

Limits = dict[int, int]
"""By position of an argument: its values must be at least 0 and below this."""

_NOTHING: frozenset[int] = frozenset()


def index_limits(function: ir.Operation) -> Limits:
    """The limits on the arguments of a dispatch's function whose elements become indices.

    Follows the values through loads, casts, arithmetic and the bodies of structured ops to the
    `tensor.extract`, gather or scatter that uses them.

    Args:
        function: the function of a flow.executable.

    Returns:
        By argument; sizes known at run time only set no limit.
    """
    found = _Flow()
    block = function.regions[0].blocks[0]
    for position, argument in enumerate(block.arguments):
        found.sources[argument] = frozenset({position})
    found.block(block)
    return found.limits


class _Flow:
    """Where values come from (positions of arguments), and what they index."""

    def __init__(self) -> None:
        self.sources: dict[ir.Value, frozenset[int]] = {}
        self.limits: Limits = {}

    def block(self, block: ir.Block) -> frozenset[int]:
        """Follow a block; the sources of what it yields."""
        last = _NOTHING
        for view in block.operations:
            op = view.operation
            inputs = [self.sources.get(v, _NOTHING) for v in op.operands]
            outputs = self._outputs(op, inputs)
            for result in op.results:
                self.sources[result] = outputs
            last = frozenset().union(*inputs)
        return last

    def _outputs(self, op: ir.Operation, inputs: list[frozenset[int]]) -> frozenset[int]:
        if op.name == "tensor.extract":
            for axis, sources in enumerate(inputs[1:]):
                self._limit(sources, op.operands[0], [axis])
            return inputs[0]
        if op.name in ("iree_linalg_ext.gather", "iree_linalg_ext.scatter"):
            table = op.operands[0 if op.name.endswith("gather") else 2]
            axes = list(ir.DenseI64ArrayAttr(op.attributes["dimension_map"]))
            self._limit(inputs[1], table, axes)
            return inputs[0]
        if op.name in ("arith.cmpi", "arith.cmpf"):
            return _NOTHING
        if op.name == "arith.select":
            return inputs[1] | inputs[2]
        inside = _NOTHING
        for region in op.regions:
            for block in region.blocks:
                for argument, sources in zip(block.arguments, inputs, strict=False):
                    self.sources[argument] = sources
                inside |= self.block(block)
        return inside if len(op.regions) else frozenset().union(*inputs)

    def _limit(self, sources: frozenset[int], table: ir.Value, axes: list[int]) -> None:
        type_ = ir.ShapedType(table.type)
        for axis in axes:
            if not type_.is_dynamic_dim(axis):
                for source in sources:
                    size = type_.get_dim_size(axis)
                    self.limits[source] = min(size, self.limits.get(source, size))


def call_limits(table: Mapping[str, ir.Operation | None], call: ir.Operation) -> Limits:
    """The limits on the operands of a call.

    Args:
        table: executables of the program at the flow phase, by name.
        call: a `flow.dispatch` of it.

    Returns:
        By position among all operands; none where the executable is not there.
    """
    path = entry_path(call)[0]
    executable = table.get(path)
    if executable is None or executable.name != "flow.executable":
        return {}
    limits = index_limits(called_function({path: executable}, call))
    positions = list(range(len(call.operands)))
    _, arguments, *_ = segments(call, positions)
    return {
        arguments[i]: limit
        for i, limit in limits.items()
        if i < len(arguments) and _is_integer(call.operands[arguments[i]].type)
    }


def program_limits(module: ir.Module, function: ir.Operation) -> Limits:
    """The limits on the arguments of an entry function.

    An argument's elements also count as indices when a dispatch makes indices of them for another
    one, as where token numbers are narrowed first.

    Args:
        module: the program at the flow phase.
        function: an entry function of it.

    Returns:
        By argument of the function.
    """
    limits: dict[ir.Value, int] = {}
    calls = [op for op in walk(function) if op.name == "flow.dispatch"]
    table = symbols(module)
    for call in reversed(calls):
        own = call_limits(table, call)
        passed = [limits[r] for r in call.results if r in limits and _is_integer(r.type)]
        for position, value in enumerate(call.operands):
            known = [*passed, *([own[position]] if position in own else [])]
            if known and _is_integer(value.type) and not isinstance(value.type, ir.IndexType):
                for one in _same_data(value):
                    limits[one] = min(*known, limits.get(one, known[0]))
    arguments = list(function.regions[0].blocks[0].arguments)
    return {i: limits[a] for i, a in enumerate(arguments) if a in limits}


def _same_data(value: ir.Value) -> Iterator[ir.Value]:
    """The value and what it is another form of, up to the function's argument."""
    yield value
    owner = value.owner
    while not isinstance(owner, ir.Block) and owner.operation.name in (
        "hal.tensor.import",
        "flow.tensor.reshape",
        "flow.tensor.transfer",
    ):
        value = owner.operands[0]
        yield value
        owner = value.owner


def _is_integer(type_: ir.Type) -> bool:
    element = type_.element_type if isinstance(type_, ir.RankedTensorType) else type_
    return isinstance(element, ir.IntegerType | ir.IndexType) and str(element) != "i1"
