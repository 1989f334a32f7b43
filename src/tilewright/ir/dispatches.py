"""Dispatches of a program at IREE's flow phase: which there are, how often each runs, one alone.

The input is the module that `iree-compile --compile-to=flow` gives: `flow.executable` ops, and
functions and initializers that call them with `flow.dispatch`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from iree.compiler import ir
from iree.compiler.dialects import arith, flow, util
from iree.compiler.dialects import tensor as tensor_dialect

from tilewright.argument import ASYNC, ArgumentType
from tilewright.ir.index_bounds import call_limits
from tilewright.ir.reference.tensors import segments
from tilewright.ir.session import CompileError, CompilerSession
from tilewright.ir.signature import argument_type, is_public
from tilewright.ir.sizes import SizeEvaluator
from tilewright.ir.walk import string_attribute, symbols, walk

ISOLATED_FUNCTION = "main"
_DEFAULT_DEVICE = "stream.affinity.default"


@dataclass
class DispatchSite:
    """All the calls of one executable entry point.

    `count` is how often one run calls it; calls in a loop whose trip count is not known count once,
    those at load time, which do not matter for the run time, do not count. `calls` holds every call
    in the module, those of the run first. `code` is the executable, None where the program brings
    it in another form than IREE's own. `devices`: the program's, as it declares them.
    """

    executable: str
    entry: str
    code: ir.Operation | None
    count: int = 0
    calls: list[ir.Operation] = field(default_factory=list)
    devices: tuple[ir.Operation, ...] = ()


_Key = tuple[str, str]


def find_dispatches(module: ir.Module, function: str | None = None) -> list[DispatchSite]:
    """Every executable entry point that the module dispatches, in order of first call.

    Args:
        module: the program at the flow phase.
        function: the entry point whose run is counted, with the functions that it calls; by
            default every public function is run once.

    Returns:
        The dispatches; those that the run does not reach have a count of 0.
    """
    functions, entries = _functions(module, function)
    counts = _counts(functions, entries)
    initializers = [
        top.operation for top in module.body.operations if top.operation.name == "util.initializer"
    ]
    named = symbols(module)
    executables = {name: op for name, op in named.items() if op.name == "flow.executable"}
    devices = tuple(op for op in named.values() if _is_device_global(op))
    sites: dict[_Key, DispatchSite] = {}
    # Calls of the run come first: `isolate` takes a dispatch as its first call has it.
    for operation in (*entries, *functions.values(), *initializers):
        for call in walk(operation):
            for key in called_entries(call):
                site = sites.setdefault(
                    key, DispatchSite(*key, executables.get(key[0]), devices=devices)
                )
                if all(call != known for known in site.calls):
                    site.calls.append(call)
                    site.count += counts[call]
    return list(sites.values())


def count_calls(module: ir.Module, function: str | None = None) -> Mapping[ir.Operation, int]:
    """How often one run runs each `flow.dispatch`.

    Args:
        module: the program at the flow phase.
        function: the entry point that is run; by default every public function is, once.

    Returns:
        The number by the op; 0 for those that the run does not reach.
    """
    return _counts(*_functions(module, function))


def called_entries(call: ir.Operation) -> list[tuple[str, str]]:
    """What a `flow.dispatch` runs.

    Args:
        call: any op.

    Returns:
        (executable, entry point) of each alternative; none for another op.
    """
    if call.name != "flow.dispatch":
        return []
    names = [ir.SymbolRefAttr(p).value for p in ir.ArrayAttr(call.attributes["entry_points"])]
    return [(parts[0], parts[-1]) for parts in names]


_Functions = dict[str, ir.Operation]


def _functions(module: ir.Module, function: str | None) -> tuple[_Functions, list[ir.Operation]]:
    """All functions by name, and those that are run: `function`, or every public one."""
    operations = [top.operation for top in module.body.operations]
    functions = {
        string_attribute(op, "sym_name"): op
        for op in operations
        if op.name in ("util.func", "func.func")
    }
    public = {name for name, op in functions.items() if is_public(op)}
    entries = [
        op
        for name, op in functions.items()
        if (name in public - _async(public) if function is None else name == function)
    ]
    return functions, entries


def _counts(functions: _Functions, entries: Sequence[ir.Operation]) -> Counter[ir.Operation]:
    runs, found = _Runs(functions), Counter[ir.Operation]()
    for operation in entries:
        found.update(runs.of(operation))
    return found


def _async(names: set[str]) -> set[str]:
    """The `f$async` among functions that IREE adds to an `f`, which calls it."""
    return {name for name in names if name.removesuffix(ASYNC) in names - {name}}


class _Runs:
    """Counts the dispatches of a function and of those that it calls, each function once."""

    def __init__(self, functions: _Functions) -> None:
        self._functions = functions
        self._counted: dict[str, Counter[ir.Operation]] = {}

    def of(self, operation: ir.Operation) -> Counter[ir.Operation]:
        """How often one run of the function runs each `flow.dispatch`."""
        found: Counter[ir.Operation] = Counter()
        for call in walk(operation):
            inner = Counter([call] if call.name == "flow.dispatch" else [])
            if call.name in ("util.call", "func.call"):
                inner = self._callee(ir.FlatSymbolRefAttr(call.attributes["callee"]).value)
            if inner:
                trips = _trip_count(call, operation)
                found.update({key: trips * times for key, times in inner.items()})
        return found

    def _callee(self, name: str) -> Counter[ir.Operation]:
        if name not in self._functions:
            return Counter()
        if name not in self._counted:
            # A function that calls itself is counted once: how deep it goes is not known.
            self._counted[name] = Counter()
            self._counted[name] = self.of(self._functions[name])
        return self._counted[name]


def _trip_count(call: ir.Operation, function: ir.Operation) -> int:
    """How often the loops around the call run it, as far as that is known."""
    trips, operation = 1, call
    while operation != function:
        if operation.name == "scf.for":
            low, high, step = map(SizeEvaluator().value, list(operation.operands)[:3])
            if low is not None and high is not None and step is not None and step > 0:
                trips *= max(0, -(-(high - low) // step))
        operation = operation.parent.operation
    return trips


def plain_type(type_: ir.Type) -> ir.Type:
    """The type without its encoding (data tiling puts encodings on tensors).

    Args:
        type_: any type.

    Returns:
        For a tensor with an encoding the tensor without it, else the type itself.
    """
    if isinstance(type_, ir.RankedTensorType):
        tensor = ir.RankedTensorType(type_)
        if tensor.encoding is not None:
            with ir.Location.unknown(type_.context):
                return ir.RankedTensorType.get(tensor.shape, tensor.element_type)
    return type_


@dataclass(frozen=True)
class Isolated:
    """One dispatch as a program of its own: `main` takes its operands and returns its results.

    `module` has the host's code as the abi phase leaves it, and the executable as the program has
    it at the flow phase: it is compiled from `ISOLATED_PHASE`, so that no pass that forms
    dispatches forms this one again. `arguments` and `outputs` are the types of `main`, those of the
    arguments with the sizes of the run. `values`: those of the arguments, by position, that are no
    data but sizes or other numbers that the program computes from the sizes of its arguments.
    `workload`: the values of the dispatch's workload, as far as they are known. `limits`: the
    arguments, by position, that are used as indices, and how large these may be.
    """

    module: ir.Module
    encoded: bool
    arguments: tuple[ArgumentType, ...]
    outputs: tuple[ArgumentType, ...]
    values: tuple[tuple[int, int], ...] = ()
    workload: tuple[int | None, ...] = ()
    limits: tuple[tuple[int, int], ...] = ()


class NotIsolatable(Exception):
    """The dispatch cannot be made a program of its own; says why."""


def entry_function(module: ir.Module, function: str) -> ir.Operation | None:
    """The function with the body of an entry point, which can be an asynchronous one.

    Args:
        module: the program at the flow phase.
        function: the entry point's name.

    Returns:
        The function; None if there is none.
    """
    named = symbols(module)
    return named.get(function + ASYNC) or named.get(function)


def isolate(
    compiler: CompilerSession,
    module: ir.Module,
    site: DispatchSite,
    sizes: SizeEvaluator | None = None,
    keep_device: bool = False,
) -> Isolated:
    """A program with the executable of `site` and a `main` that calls it once.

    Operands whose type carries an encoding become plain tensors that go through
    `flow.tensor.encode`, and encoded results are decoded the same way. What the calls of the
    dispatch have in common stays so, since the compiler makes use of it: a constant that is the
    same in all of them, one value for two operands. Every other number is an argument, a size that
    is known at run time only too: as a constant the compiler would fold it, and compile other code
    than the program has.

    Args:
        compiler: a session of whose context `module` is.
        module: the program at the flow phase; it is left as it is.
        site: the dispatch, from `find_dispatches`.
        sizes: what is known of the run's sizes.
        keep_device: the program names its device, since no flag does.

    Raises:
        NotIsolatable: for a dispatch with code of the program's own, with operands that are neither
            tensors nor numbers, or with a size that `sizes` does not know.
    """
    call = site.calls[0]
    sizes = sizes or SizeEvaluator()
    operands = _Operands(site.calls)
    _check_data(call, operands, sizes)
    arguments = operands.arguments
    types = [plain_type(v.type) for v in arguments]
    results = [plain_type(r.type) for r in call.results]
    with module.context, ir.Location.unknown():
        alone = _surroundings(module, site, keep_device)
        with ir.InsertionPoint(alone.body):
            type_ = ir.TypeAttr.get(ir.FunctionType.get(types, results))
            main = util.FuncOp(ISOLATED_FUNCTION, type_, sym_visibility="public").operation
        # It waits for its results, whatever the flags say of the program.
        main.attributes["iree.abi.model"] = ir.StringAttr.get("sync")
        block = main.regions[0].blocks.append(*types)
        with ir.InsertionPoint(block):
            given = operands.passed(list(block.arguments))
            copy = call.clone().operation
            for i, value in enumerate(given):
                copy.operands[i] = value
            returned = [
                r if r.type == t else _encode(r, t)
                for r, t in zip(copy.results, results, strict=True)
            ]
            util.ReturnOp(returned)
        try:
            alone.operation.verify()
            compiler.run(alone.operation, "input", "abi", verify=False)
        except (ir.MLIRError, CompileError) as error:
            line = str(error).splitlines()[-1].strip()
            raise NotIsolatable(f"the compiler does not take it alone: {line[:200]}") from None
    workload, *_ = segments(call, list(call.operands))
    values = [
        None if isinstance(v.type, ir.RankedTensorType) else sizes.value(v) for v in arguments
    ]
    return Isolated(
        alone,
        types != [v.type for v in arguments] or results != [r.type for r in call.results],
        tuple(_sized(v, sizes) for v in arguments),
        tuple(argument_type(t) for t in results),
        tuple((i, value) for i, value in enumerate(values) if value is not None),
        tuple(sizes.value(v) for v in workload),
        operands.limits(call_limits({site.executable: site.code}, call)),
    )


class _Operands:
    """The operands of a dispatch, and which of them become arguments when it is alone."""

    def __init__(self, calls: Sequence[ir.Operation]) -> None:
        first, *others = (list(call.operands) for call in calls)
        self._operands = first
        self._constants: set[int] = set()
        self._argument_of: list[int] = []
        self._positions: list[int] = []
        for position, value in enumerate(first):
            constant = _constant(value)
            if constant is not None and all(_constant(o[position]) == constant for o in others):
                self._constants.add(position)
                self._argument_of.append(-1)
                continue
            same = (
                i
                for i, known in enumerate(self._positions)
                if all(one[known] == one[position] for one in (first, *others))
            )
            index = next(same, len(self._positions))
            if index == len(self._positions):
                self._positions.append(position)
            self._argument_of.append(index)

    @property
    def arguments(self) -> list[ir.Value]:
        """One operand for each argument."""
        return [self._operands[position] for position in self._positions]

    def limits(self, by_operand: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
        """Limits by argument; one that is several operands keeps all of theirs."""
        found: dict[int, int] = {}
        for position, limit in by_operand.items():
            index = self._argument_of[position]
            if index >= 0:
                found[index] = min(limit, found.get(index, limit))
        return tuple(sorted(found.items()))

    def passed(self, arguments: Sequence[ir.Value]) -> list[ir.Value]:
        """Makes the operands of a call, at the insertion point."""
        made = []
        for position, value in enumerate(self._operands):
            if position in self._constants:
                made.append(value.owner.clone().operation.results[0])
                continue
            argument = arguments[self._argument_of[position]]
            made.append(argument if argument.type == value.type else _encode(argument, value.type))
        return made


def _check_data(call: ir.Operation, operands: _Operands, sizes: SizeEvaluator) -> None:
    """Raises NotIsolatable where `main` could not be called."""
    arguments = operands.arguments
    strange = [str(v.type) for v in arguments if not _is_data(v.type)]
    if strange:
        raise NotIsolatable(f"an operand is neither a tensor nor a number: {', '.join(strange)}")
    for value in (*arguments, *call.results):
        if -1 in sizes.shape(value):
            raise NotIsolatable(
                f"a shape that is known at run time only: {plain_type(value.type)}"
                " (give the program's sizes with --input)"
            )
    dynamic = any(_is_dynamic(value.type) for value in (*arguments, *call.results))
    if dynamic and any(
        isinstance(v.type, ir.IndexType) and sizes.value(v) is None for v in arguments
    ):
        raise NotIsolatable("a size that the program computes from data")


def _surroundings(module: ir.Module, site: DispatchSite, keep_device: bool) -> ir.Module:
    """A module with the executable of a dispatch, and the devices of the program."""
    if site.code is None:
        raise NotIsolatable("the program brings the code of this dispatch itself")
    alone = ir.Module.create()
    if keep_device and _DEFAULT_DEVICE in module.operation.attributes:
        alone.operation.attributes[_DEFAULT_DEVICE] = module.operation.attributes[_DEFAULT_DEVICE]
    with ir.InsertionPoint(alone.body):
        for op in (*site.devices, site.code):
            op.clone()
    return alone


def _is_device_global(op: ir.Operation) -> bool:
    return (
        op.name == "util.global" and str(ir.TypeAttr(op.attributes["type"]).value) == "!hal.device"
    )


def _constant(value: ir.Value) -> ir.Attribute | None:
    """The number that a value is in every run."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.constant":
        return None
    return None if isinstance(value.type, ir.RankedTensorType) else owner.attributes["value"]


def _sized(value: ir.Value, sizes: SizeEvaluator) -> ArgumentType:
    """The type of an operand without its encoding, with the sizes of the run."""
    type_ = argument_type(plain_type(value.type))
    return type_ if type_.shape is None else ArgumentType(type_.element_type, sizes.shape(value))


def _is_dynamic(type_: ir.Type) -> bool:
    return isinstance(type_, ir.RankedTensorType) and not type_.has_static_shape


def _is_data(type_: ir.Type) -> bool:
    return isinstance(type_, (ir.RankedTensorType, ir.IndexType, ir.IntegerType, ir.FloatType))


def _encode(value: ir.Value, type_: ir.Type) -> ir.Value:
    tensor = ir.RankedTensorType(type_)
    sizes = [
        tensor_dialect.DimOp(value, arith.ConstantOp(ir.IndexType.get(), axis).result).result
        for axis in range(tensor.rank)
        if tensor.is_dynamic_dim(axis)
    ]
    return flow.TensorEncodeOp(type_, value, sizes, sizes).result
