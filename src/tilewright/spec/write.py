"""Write a tuning spec, for `iree-compile --iree-codegen-tuning-spec-path=`.

An entry's checks recognise one dispatch and no other; they are derived from its function. Every
compute op of it is compared: its name, attributes and operand types, what its body computes,
constants in it included, and which values of the dispatch it works on. The order of the compute ops
says which is which. Nothing that depends on where data lies is looked at (loads, stores, bindings,
offsets), so the same work is recognised wherever it occurs in a program.

Bodies are compared as a whole (`transform.iree.match.regions`), except those that use a value from
outside: mostly constants, which canonicalization hoists out of a `linalg.generic`. IREE's matcher
takes no two of these for equal. They are compared by the number of their ops and by copies of the
scalar ops that lead to each yielded value, constants included
(`transform.iree.match.cast_compatible_dag_from_root`). That leaves one thing open: which of several
block arguments of equal type a scalar op uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from iree.compiler import ir
from iree.compiler.dialects import preprocessing_transform, transform

from tilewright.errors import UserError
from tilewright.ir.configuring import DispatchAttributes
from tilewright.ir.lowering import TRANSLATION_INFO
from tilewright.ir.template import compute_ops
from tilewright.ir.walk import walk
from tilewright.spec import library, shared_sequences

_NO_HEADER: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class SpecEntry:
    """One dispatch with the configuration that a spec shall give it.

    `name` is unique within a spec and readable; it is what the marker on the configured function
    says. `function` is the `func.func` of the dispatch as `--compile-to=executable-configurations`
    prints it (configured or with the configuration stripped); everything that the spec compares is
    read from it. Keep its module alive until the spec is written. `attributes` are those that a
    candidate has on its ops. Ops that they do not name get none, so name every op that the
    compiler's own choice configures.
    """

    name: str
    function: ir.Operation
    attributes: DispatchAttributes


def write_spec(entries: Sequence[SpecEntry], *, header: Mapping[str, str] = _NO_HEADER) -> str:
    """The text of a verified tuning spec that configures the dispatches of `entries`.

    Each entry applies to a dispatch that has the same compute ops as its function, sets
    its attributes on the function and its ops, and leaves the attribute
    `tilewright.tuned = "<name>"` on the function. Where two entries fit a dispatch, the first
    applies; a dispatch that the input already configures is left alone.

    Args:
        entries: what it sets; all functions in one context. None give a valid spec that changes
            nothing.
        header: kept on the module (`tilewright.spec`).

    Returns:
        A module of the transform dialect, for `--iree-codegen-tuning-spec-path=`.

    Raises:
        UserError: An entry without compute ops or configurations, one for an op that there is not,
            or two entries of one name.
    """
    _expect_unique([entry.name for entry in entries])
    context = entries[0].function.context if entries else library.new_context()
    with context, ir.Location.unknown():
        module = library.new_module(dict(header))
        names = [f"tuned_{number}" for number in range(len(entries))]
        with ir.InsertionPoint(module.body):
            for name, entry in zip(names, entries, strict=True):
                _build_entry(name, entry)
            prologue = library.CPU_PROLOGUE if any(map(_is_for_cpu, entries)) else ()
            _build_entry_point(names, prologue)
        shared_sequences.add_helpers(module)
        module.operation.verify()
        return str(module.operation.get_asm())


def _expect_unique(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"tuning spec: {names.count(name)} entries are named '{name}'; "
                "give each entry a name of its own"
            )


def _is_for_cpu(entry: SpecEntry) -> bool:
    """Whether the entry's dispatch goes through one of IREE's CPU pipelines."""
    cpu = ir.Attribute.parse("#iree_cpu.pipeline<DoubleTilingExpert>")
    return bool(entry.attributes.translation_info.pass_pipeline.typeid == cpu.typeid)


def _build_entry(name: str, entry: SpecEntry) -> None:
    """The named sequence that checks a function and then configures it."""
    dispatch = MatchedDispatch.of(entry.function)
    if not dispatch.ops:
        raise UserError(f"tuning spec: the dispatch of entry '{entry.name}' has no op to configure")
    if not entry.attributes.ops:
        raise UserError(f"tuning spec: entry '{entry.name}' configures none of its ops")
    for position, _, _ in entry.attributes.ops:
        if not 0 <= position < len(dispatch.ops):
            raise UserError(
                f"tuning spec: entry '{entry.name}' configures op {position}, but its "
                f"dispatch has {len(dispatch.ops)} compute ops (0 to {len(dispatch.ops) - 1})"
            )

    def check_and_configure(func: ir.Value) -> None:
        handles = check_dispatch(dispatch, func)
        _annotate(func, TRANSLATION_INFO, entry.attributes.translation_info)
        for position, what, attribute in entry.attributes.ops:
            _annotate(handles[position], what, attribute)
        _annotate(func, library.MARKER, ir.StringAttr.get(entry.name))

    library.define(name, [library.any_op()], check_and_configure)


def _annotate(target: ir.Value, name: str, value: ir.Attribute) -> None:
    param = transform.ParamConstantOp(library.any_param(), value).result
    transform.AnnotateOp(target, name, param=param)


def _build_entry_point(
    entries: Sequence[str], prologue: Sequence[tuple[str, tuple[tuple[str, str], ...]]]
) -> None:
    """`__kernel_config`: the prologue, then every entry on the function that it is run on."""

    def run(func: ir.Value) -> ir.Value:
        func = library.only_functions(func) if prologue else func
        for name, options in prologue:
            func = transform.apply_registered_pass(
                library.any_op(), func, name, options=dict(options)
            )
        if entries:
            # Every entry is tried, going on after one that does not fit.
            sequence = transform.SequenceOp(transform.FailurePropagationMode.Suppress, [], func)
            with ir.InsertionPoint(sequence.body):
                for name in entries:
                    library.include(name, [sequence.bodyTarget])
                transform.YieldOp()
        return func

    library.define_entry_point(run, consumes=False)


# Producers of an operand that are copied into the comparison; every other producer that is not a
# compute op (a load, an empty tensor, index arithmetic) is an input that is not looked at.
_COPIED_PRODUCERS = frozenset(
    {
        "arith.constant",
        "tensor.cast",
        "tensor.collapse_shape",
        "tensor.expand_shape",
        "tensor.extract_slice",
        "tensor.insert_slice",
    }
)
# Attributes that an op has or lacks according to how it came about. Structured ops get a note of
# their maps once the compiler has used them; `linalg.unpack` gets segment sizes from the parser,
# and none when a pass makes it. Operand types, which are compared too, leave nothing open here.
_UNRELIABLE_ATTRS = frozenset({"linalg.memoized_indexing_maps", "operandSegmentSizes"})
# These verify that they are inside a structured op, so they cannot be copied out of one.
_INDEX_OPS = frozenset({"linalg.index", "iree_linalg_ext.index"})


@dataclass
class MatchedDispatch:
    """A dispatch's function and the positions of its compute ops, looked up by op."""

    function: ir.Operation
    ops: list[ir.Operation]

    @staticmethod
    def of(function: ir.Operation) -> MatchedDispatch:
        """The dispatch that a function is.

        Args:
            function: a `func.func` at the executable-configurations phase.

        Returns:
            The function with its compute ops.
        """
        return MatchedDispatch(function.operation, compute_ops(function))

    def producer(self, value: ir.Value) -> tuple[int, int] | None:
        """Which compute op a value comes from.

        Args:
            value: of the dispatch.

        Returns:
            (position of the compute op, number of its result); None where no compute op makes it.
        """
        op = _defining_op(value)
        if op is None:
            return None
        for position, candidate in enumerate(self.ops):
            if candidate == op:
                return position, ir.OpResult(value).result_number
        return None


def check_dispatch(dispatch: MatchedDispatch, func: ir.Value) -> Sequence[ir.Value]:
    """Emit every check of a dispatch on a payload function.

    Args:
        dispatch: what the function must be.
        func: its handle.

    Returns:
        Handles to its compute ops, in order.
    """
    counts = _Counts()
    # None where `library.only_functions` left none: matching in nothing would end the compilation.
    counts.expect(shared_sequences.COUNT_OPS, func, 1)
    tiled = library.match_tiled_ops(func)
    counts.expect(shared_sequences.COUNT_OPS, tiled, len(dispatch.ops))
    library.include(shared_sequences.UNCONFIGURED, [func])
    handles = library.split(tiled, len(dispatch.ops))
    for position in range(len(dispatch.ops)):
        _OpCheck(dispatch, position, handles, counts).emit()
    return handles


class _Counts:
    """Checks of how many there are of something, sharing the numbers within one sequence."""

    def __init__(self) -> None:
        self.numbers: dict[int, ir.Value] = {}

    def expect(self, helper: str, handle: ir.Value, count: int) -> None:
        if count not in self.numbers:
            self.numbers[count] = library.integer(count)
        library.include(helper, [handle, self.numbers[count]])


class _OpCheck:
    """The checks of the compute op at `position`, on the handle of the same position."""

    def __init__(
        self, dispatch: MatchedDispatch, position: int, handles: Sequence[ir.Value], counts: _Counts
    ) -> None:
        self.dispatch = dispatch
        self.counts = counts
        self.position = position
        self.handles = handles
        self.op = dispatch.ops[position]
        self.handle = handles[position]

    def emit(self) -> None:
        self._expect_name_attributes_and_types()
        if _captured_values(self.op):
            self._expect_body_op_by_op()
        elif len(self.op.regions) and self.op.name != "linalg.fill":
            self._expect_body()
        for number, value in enumerate(self.op.operands):
            self._expect_operand(number, value)

    def _expect_name_attributes_and_types(self) -> None:
        """What the op says of itself; types exactly, while in a copy `?` stands for any size."""
        attributes = {
            name: self.op.attributes[name]
            for name in self.op.attributes
            if not _is_configuration(name) and name not in _UNRELIABLE_ATTRS
        }
        # Another number of operands than of types would be an error that ends the compilation.
        self.counts.expect(shared_sequences.COUNT_OPERANDS, self.handle, len(self.op.operands))
        types = ir.ArrayAttr.get([ir.TypeAttr.get(v.type) for v in self.op.operands])
        result = self.op.results[0].type if len(self.op.results) == 1 else None
        found = library.match(
            self.handle,
            [self.op.name],
            attributes,
            filter_result_type=None if result is None else ir.TypeAttr.get(result),
            filter_operand_types=types if len(types) else None,
        )
        self.counts.expect(shared_sequences.COUNT_OPS, found, 1)

    def _expect_body(self) -> None:
        """The op's regions are the same, op for op and value for value."""
        match = preprocessing_transform.MatchRegionsOp(self.handle)
        _Copy(self.op, copied=lambda _: False).emit(match.operation.regions[0])

    def _expect_body_op_by_op(self) -> None:
        """The op's regions hold the same ops, leading in the same way to each yielded value.

        For a body that uses values from outside, constants for the most part.
        """
        inside = list(walk(self.op))
        self.counts.expect(shared_sequences.COUNT_OPS, library.match(self.handle), 1 + len(inside))
        for name, attributes, count in _index_ops(inside):
            found = library.match(self.handle, [name], attributes)
            self.counts.expect(shared_sequences.COUNT_OPS, found, count)
        terminators = [list(b.operations)[-1].operation for r in self.op.regions for b in r.blocks]
        if len(terminators) != 1:
            return
        end = terminators[0]
        roots = [(number, _defining_op(value)) for number, value in enumerate(end.operands)]
        checked = [
            (number, root)
            for number, root in roots
            if root is not None and self._is_copied_scalar(root)
        ]
        if not checked:
            return
        found = library.match(self.handle, [end.name])
        self.counts.expect(shared_sequences.COUNT_OPS, found, 1)
        for number, root in checked:
            producer = transform.GetProducerOfOperand(library.any_op(), found, number).result
            self._expect_copy(producer, root, copied=self._is_copied_scalar, distinct=True)

    def _is_copied_scalar(self, op: ir.Operation) -> bool:
        """A scalar op of the body, or a constant that it uses from outside of it."""
        if op.name in _INDEX_OPS or len(op.regions):
            return False
        return op.name == "arith.constant" or _is_inside(op, self.op)

    def _expect_operand(self, number: int, value: ir.Value) -> None:
        """Operand `number` comes from the same op of the dispatch, or from an equal constant."""
        root = _defining_op(value)
        if root is not None and _is_copied_producer(root):
            producer = transform.GetProducerOfOperand(library.any_op(), self.handle, number).result
            self._expect_copy(producer, root)
        elif self._is_checked_input(value):
            operand = transform.GetOperandOp(library.any_value(), self.handle, [number]).result
            self._expect_input(operand, value)

    def _expect_copy(
        self,
        handle: ir.Value,
        root: ir.Operation,
        copied: Callable[[ir.Operation], bool] | None = None,
        distinct: bool = False,
    ) -> None:
        """The op at `handle` equals `root`, and so do the producers for which `copied` holds.

        `distinct` asks in addition that different inputs of the copy are different values.
        """
        copy = _Copy(root, copied or _is_copied_producer)
        match = preprocessing_transform.MatchCastCompatibleDagFromRootOp(
            library.any_value(), library.any_value(), handle
        )
        copy.emit(match.operation.regions[0])
        inputs = copy.inputs
        if distinct and len(inputs) > 1:
            merged = transform.merge_handles([match.inputs], deduplicate=True)
            self.counts.expect(shared_sequences.COUNT_VALUES, merged, len(inputs))
        if any(self._is_checked_input(value) for value in inputs):
            for value, matched in zip(
                inputs, library.split(match.inputs, len(inputs)), strict=True
            ):
                self._expect_input(matched, value)

    def _is_checked_input(self, value: ir.Value) -> bool:
        return self.dispatch.producer(value) is not None or bool(self._could_be_mistaken(value))

    def _could_be_mistaken(self, value: ir.Value) -> list[tuple[int, int]]:
        """Results of earlier compute ops that a load of the same type must not be taken for."""
        op = _defining_op(value)
        if op is None or op.name == "tensor.empty" or not isinstance(value.type, ir.ShapedType):
            return []
        return [
            (position, number)
            for position, earlier in enumerate(self.dispatch.ops[: self.position])
            for number, result in enumerate(earlier.results)
            if result.type == value.type
        ]

    def _expect_input(self, matched: ir.Value, value: ir.Value) -> None:
        """`matched` is the result of the compute op that `value` is, or of none if it is none."""
        source = self.dispatch.producer(value)
        if source is not None:
            library.include(shared_sequences.SAME_VALUE, [matched, self._result(*source)])
            return
        for position, number in self._could_be_mistaken(value):
            both = [matched, self._result(position, number)]
            merged = transform.merge_handles(both, deduplicate=True)
            self.counts.expect(shared_sequences.COUNT_VALUES, merged, 2)

    def _result(self, position: int, number: int) -> ir.Value:
        return transform.GetResultOp(library.any_value(), self.handles[position], [number]).result


class _Copy:
    """A copy of `root` and of those of its producers for which `copied` holds.

    `inputs` are the values it takes from elsewhere, in the order of the copy's block arguments.
    """

    def __init__(self, root: ir.Operation, copied: Callable[[ir.Operation], bool]) -> None:
        self.ops: list[ir.Operation] = []
        self.inputs: list[ir.Value] = []
        self._collect(root, copied)

    def _collect(self, op: ir.Operation, copied: Callable[[ir.Operation], bool]) -> None:
        for value in op.operands:
            producer = _defining_op(value)
            if producer is not None and copied(producer):
                if producer not in self.ops:
                    self._collect(producer, copied)
            elif value not in self.inputs:
                self.inputs.append(value)
        self.ops.append(op)

    def emit(self, region: ir.Region) -> None:
        """Build the copy in `region`, a new block of which takes the inputs."""
        block = region.blocks.append(*[value.type for value in self.inputs])
        known = list(zip(self.inputs, block.arguments, strict=True))
        with ir.InsertionPoint(block):
            for op in self.ops:
                clone = op.clone(ip=ir.InsertionPoint.current).operation
                for name in [name for name in clone.attributes if _is_configuration(name)]:
                    del clone.attributes[name]
                for number, value in enumerate(op.operands):
                    clone.operands[number] = next(new for old, new in known if old == value)
                known += zip(op.results, clone.results, strict=True)
            transform.YieldOp()


def _defining_op(value: ir.Value) -> ir.Operation | None:
    """The op that `value` is a result of; None for a block argument."""
    return None if isinstance(value.owner, ir.Block) else value.owner.operation


def _is_copied_producer(op: ir.Operation) -> bool:
    return op.name in _COPIED_PRODUCERS


def _is_configuration(attribute: str) -> bool:
    return attribute in library.CONFIGURATION_ATTRS or attribute.startswith("tilewright.")


def _is_inside(op: ir.Operation, ancestor: ir.Operation) -> bool:
    parent = op.parent
    while parent is not None and parent != ancestor:
        parent = parent.operation.parent
    return parent is not None


def _captured_values(op: ir.Operation) -> list[ir.Value]:
    """Values that the regions of `op` use and that are defined outside of `op`."""
    captured: list[ir.Value] = []
    for inner in walk(op):
        for value in inner.operands:
            owner = value.owner
            holder = owner.owner.operation if isinstance(owner, ir.Block) else owner.operation
            if holder != op and not _is_inside(holder, op) and value not in captured:
                captured.append(value)
    return captured


def _index_ops(
    ops: Sequence[ir.Operation],
) -> Iterator[tuple[str, dict[str, ir.Attribute], int]]:
    """Each kind of index op among `ops`: its name, its attributes, how many there are."""
    kinds: list[tuple[str, dict[str, ir.Attribute]]] = [
        (op.name, {name: op.attributes[name] for name in op.attributes})
        for op in ops
        if op.name in _INDEX_OPS
    ]
    for position, kind in enumerate(kinds):
        if kind not in kinds[:position]:
            yield *kind, kinds.count(kind)
