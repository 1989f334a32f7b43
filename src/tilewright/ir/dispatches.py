"""Dispatches of a program at IREE's flow phase: which there are, how often each runs, one alone.

The input is the module that `iree-compile --compile-to=flow` gives: `flow.executable` ops, and
functions and initializers that call them with `flow.dispatch`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from iree.compiler import ir
from iree.compiler.dialects import flow, func

from tilewright.ir.walk import string_attribute, walk

ISOLATED_FUNCTION = "main"


@dataclass
class DispatchSite:
    """All the calls of one executable entry point.

    `count` is how often the entry function and its callees call it in one run (calls in a loop
    whose trip count is not known count once and set `in_loop`); `initializer_count` the calls at
    load time, which do not matter for the run time.
    """

    executable: str
    entry: str
    count: int = 0
    initializer_count: int = 0
    in_loop: bool = False
    calls: list[ir.Operation] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.entry


def find_dispatches(module: ir.Module) -> list[DispatchSite]:
    """Every executable entry point that the module dispatches, in order of first call.

    Raises nothing: a module without dispatches gives an empty list.
    """
    sites: dict[tuple[str, str], DispatchSite] = {}
    for top in module.body.operations:
        operation = top.operation
        if operation.name == "flow.executable":
            continue
        for call in walk(operation):
            if call.name != "flow.dispatch":
                continue
            for executable, entry in _entry_points(call):
                site = sites.setdefault((executable, entry), DispatchSite(executable, entry))
                site.calls.append(call)
                if operation.name == "util.initializer":
                    site.initializer_count += 1
                    continue
                trips, known = _trip_count(call)
                site.count += trips
                site.in_loop |= not known
    return list(sites.values())


def _entry_points(call: ir.Operation) -> Iterator[tuple[str, str]]:
    for point in ir.ArrayAttr(call.attributes["entry_points"]):
        parts = ir.SymbolRefAttr(point).value
        yield parts[0], parts[-1]


def _trip_count(call: ir.Operation) -> tuple[int, bool]:
    """How often the loops around the call run it, and whether every loop's count was known."""
    trips, known = 1, True
    parent = call.parent
    while parent is not None:
        operation = parent.operation
        if operation.name == "scf.for":
            bounds = [_constant(value) for value in list(operation.operands)[:3]]
            if None in bounds:
                known = False
            else:
                low, high, step = (int(b) for b in bounds if b is not None)
                trips *= max(0, -(-(high - low) // step))
        elif operation.name in ("scf.while", "scf.forall", "scf.parallel"):
            known = False
        parent = operation.parent
    return trips, known


def _constant(value: ir.Value) -> int | None:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.constant":
        return None
    attribute = owner.attributes["value"]
    return ir.IntegerAttr(attribute).value if isinstance(attribute, ir.IntegerAttr) else None


def plain_type(type_: ir.Type) -> ir.Type:
    """The type without its encoding (data tiling puts encodings on tensors)."""
    if isinstance(type_, ir.RankedTensorType):
        tensor = ir.RankedTensorType(type_)
        if tensor.encoding is not None:
            return ir.RankedTensorType.get(tensor.shape, tensor.element_type)
    return type_


@dataclass(frozen=True)
class Isolated:
    """One dispatch as a program of its own: `main` takes its operands and returns its results."""

    module: ir.Module
    encoded: bool


class NotIsolatable(Exception):
    """The dispatch cannot be made a program of its own; says why."""


def isolate(module: ir.Module, site: DispatchSite) -> Isolated:
    """A module with the executable of `site` and `@main` that calls it once.

    Operands that are constants in the program stay constants (workload sizes, shapes); operands
    whose type carries an encoding become plain tensors that go through `flow.tensor.encode`, and
    encoded results are decoded the same way.
    """
    call = next(
        (c for c in site.calls if c.parent.operation.name != "util.initializer"), site.calls[0]
    )
    executable = next(
        op.operation
        for op in module.body.operations
        if op.operation.name == "flow.executable"
        and string_attribute(op.operation, "sym_name") == site.executable
    )
    with module.context, ir.Location.unknown():
        alone = ir.Module.create()
        with ir.InsertionPoint(alone.body):
            for top in module.body.operations:
                if top.operation.name == "util.global" and _is_device_global(top.operation):
                    top.operation.clone()
            executable.clone()
        operands = list(call.operands)
        arguments = [v for v in operands if _constant_owner(v) is None]
        if any(not _is_data(v.type) for v in arguments):
            raise NotIsolatable(
                "an operand is neither a tensor nor a number: "
                + ", ".join(str(v.type) for v in arguments if not _is_data(v.type))
            )
        types = [plain_type(v.type) for v in arguments]
        results = [plain_type(r.type) for r in call.results]
        for type_ in (*types, *results):
            if isinstance(type_, ir.RankedTensorType) and not type_.has_static_shape:
                raise NotIsolatable(f"a shape that is known at run time only: {type_}")
        encoded = types != [v.type for v in arguments] or results != [r.type for r in call.results]
        with ir.InsertionPoint(alone.body):
            main = func.FuncOp(ISOLATED_FUNCTION, (types, results))
            block = main.add_entry_block()
        with ir.InsertionPoint(block):
            position = iter(block.arguments)
            replaced: list[ir.Value] = []
            for value in operands:
                owner = _constant_owner(value)
                if owner is not None:
                    replaced.append(owner.clone().operation.results[0])
                    continue
                argument: ir.Value = next(position)
                if argument.type != value.type:
                    argument = _encode(argument, value.type)
                replaced.append(argument)
            copy = call.clone().operation
            for i, value in enumerate(replaced):
                copy.operands[i] = value
            returned = [
                r if r.type == t else _encode(r, t)
                for r, t in zip(copy.results, results, strict=True)
            ]
            func.ReturnOp(returned)
        alone.operation.verify()
        return Isolated(alone, encoded)


def _is_device_global(operation: ir.Operation) -> bool:
    return str(ir.TypeAttr(operation.attributes["type"]).value) == "!hal.device"


def _constant_owner(value: ir.Value) -> ir.Operation | None:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name not in ("arith.constant",):
        return None
    return owner if not isinstance(value.type, ir.RankedTensorType) else None


def _is_data(type_: ir.Type) -> bool:
    return isinstance(type_, (ir.RankedTensorType, ir.IndexType, ir.IntegerType, ir.FloatType))


def _encode(value: ir.Value, type_: ir.Type) -> ir.Value:
    return flow.TensorEncodeOp(type_, value, [], []).result
