"""A site of a program as a pattern: what recognises it wherever it occurs, and nothing else.

IREE's matcher (`transform.iree.match.cast_compatible_dag_from_root`) compares ops with all their
attributes, the types of their operands, their bodies and which op each operand comes from. What it
cannot do is done here:

- It takes no two bodies for equal that use a value from outside, and canonicalization moves the
  constants of bodies out of them. So a site is brought into a normal form, in which every op of a
  body has its constants right before it, and so is the program before sites are looked for: ops
  with these very constants are replaced by themselves with the constants beside them
  (:meth:`SitePattern.rewrites`). Whatever they are found in computes what it did before.
- It refuses a site that uses one input twice. So each use is an input of the pattern, and it is
  checked that those of one input are one value.
- It does not compare which of an op's results is used, nor the type of the site's result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from iree.compiler import ir
from iree.compiler.dialects import preprocessing_transform, transform, util

from tilewright.errors import UserError
from tilewright.ir.walk import walk
from tilewright.spec import library, shared_sequences
from tilewright.spec.read import describe_type

_CONSTANT = "arith.constant"
_PAD, _GENERIC = "tensor.pad", "linalg.generic"
_DISPATCH = "flow.dispatch"
_SAME_INPUTS, _SAME_RESULTS = "_inputs", "_results"


@dataclass(frozen=True)
class Rewrite:
    """An op that programs are to have with its constants beside it.

    op: in normal form; a scalar op of a body, or an op whose body is its constant: `tensor.pad`, or
        what fills a tensor.
    """

    op: ir.Operation

    @property
    def constants(self) -> tuple[ir.Attribute | None, ...]:
        """The constant that each operand is, or that its body yields; None for what is none."""
        return tuple(_constant(value) for value in _constant_user(self.op).operands)

    @property
    def key(self) -> str:
        """Text that equal rewrites share."""
        attributes = {name: str(self.op.attributes[name]) for name in self.op.attributes}
        types = [str(value.type) for value in (*self.op.operands, *self.op.results)]
        return f"{self.op.name} {sorted(attributes.items())} {types} {self.constants}"

    def define(self, name: str) -> tuple[str, str]:
        """Define a matcher of the op without its constants beside it, and what replaces it.

        Args:
            name: of the function that has the op in normal form.

        Returns:
            The names of matcher and action.
        """
        op = self.op
        fills = _fills(op)
        known = [None] * len(op.operands) if fills else self.constants
        inputs = [v for v, constant in zip(op.operands, known, strict=True) if constant is None]
        types = [value.type for value in inputs]

        def body(*arguments: ir.Value) -> ir.Value:
            given = iter(arguments)
            operands = [
                next(given) if constant is None else _emit(_owner(value)).results[0]
                for value, constant in zip(op.operands, known, strict=True)
            ]
            return _emit(op, operands).results[0]

        define_function(name, types, [op.results[0].type], lambda *a: [body(*a)])
        if fills:
            library.define(f"{name}_fills", [library.any_op()], self._check_filling)

        def match(root: ir.Value) -> list[ir.Value]:
            if fills:
                # Every op is asked, and what is included is looked for among all symbols.
                transform.MatchOperationNameOp(root, [op.name])
                library.include(f"{name}_fills", [root])
                return [root]
            found = preprocessing_transform.MatchCastCompatibleDagFromRootOp(
                library.any_value(), library.any_value(), root
            )
            with ir.InsertionPoint(found.operation.regions[0].blocks.append(*types)) as point:
                body(*point.block.arguments)
                transform.YieldOp()
            return [root]

        matcher, action = f"{name}_is", f"{name}_beside"
        library.define(matcher, [library.any_op()], match, results=[library.any_op()])

        def act(root: ir.Value) -> None:
            numbers = [n for n, constant in enumerate(known) if constant is None]
            operands = None
            if numbers:
                operands = transform.GetOperandOp(library.any_value(), root, numbers).result
            result = transform.GetResultOp(library.any_value(), root, [0]).result
            call(name, operands, result, root)

        library.define(action, [library.any_op()], act)
        return matcher, action

    def _check_filling(self, root: ir.Value) -> None:
        """The op: its attributes, its types, and one value from outside as its body."""
        op = self.op
        library.include(shared_sequences.COUNT_OPS, [library.match(root), library.integer(2)])
        attributes = {
            name: op.attributes[name] for name in op.attributes if name != "operandSegmentSizes"
        }
        types = [ir.TypeAttr.get(value.type) for value in op.operands]
        count = [root, library.integer(len(types))]
        library.include(shared_sequences.COUNT_OPERANDS, count)
        found = library.match(
            root,
            [op.name],
            attributes,
            filter_operand_types=ir.ArrayAttr.get(types),
            filter_result_type=ir.TypeAttr.get(op.results[0].type),
        )
        library.include(shared_sequences.COUNT_OPS, [found, library.integer(1)])
        end = library.match(root, [_constant_user(op).name])
        producer = transform.GetProducerOfOperand(library.any_op(), end, 0).result
        matched = preprocessing_transform.MatchCastCompatibleDagFromRootOp(
            library.any_value(), library.any_value(), producer
        )
        with ir.InsertionPoint(matched.operation.regions[0].blocks.append()):
            _emit(_owner(_constant_user(op).operands[0]))
            transform.YieldOp()


@dataclass
class SitePattern:
    """A site's ops in normal form.

    function: the site alone; it is changed. Raises UserError where no matcher can be made.
    """

    function: ir.Operation
    _uses: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        block = self.function.regions[0].blocks[0]
        *self.ops, end = [op.operation for op in block.operations]
        if len(end.operands) != 1 or isinstance(end.operands[0].owner, ir.Block):
            raise UserError("it does not compute one result")
        self.root = _owner(end.operands[0])
        self._result = ir.OpResult(end.operands[0]).result_number
        self.arguments = list(block.arguments)
        for op in list(self.ops):
            _check(op)
            _bring_constants(op)
        self.root.move_before(end)
        self._drop_unused()
        if self.root.name == _CONSTANT:
            raise UserError("it is a constant")
        if len(self.root.results) > 1 and self.root.name != _DISPATCH:
            raise UserError(f"its last op, {self.root.name}, has several results")
        for op in self.ops:
            _check_captures(op)
            for value in op.operands:
                if isinstance(value.owner, ir.Block):
                    self._uses.append(self.arguments.index(value))
        for number, argument in enumerate(self.arguments):
            if not isinstance(argument.type, ir.RankedTensorType):
                raise UserError(f"its input {number} is no tensor ({argument.type})")
            if number not in self._uses:
                raise UserError(f"its input {number} ({argument.type}) is not used")

    def _drop_unused(self) -> None:
        """Erase constants that only bodies used, and what else leads nowhere."""
        for op in reversed(self.ops):
            if op != self.root and all(not list(result.uses) for result in op.results):
                op.erase()
        block = self.function.regions[0].blocks[0]
        self.ops = [op.operation for op in block.operations][:-1]

    @property
    def digest(self) -> str:
        """Short text that only equal sites share."""
        text = str(self.function.regions[0].blocks[0])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def input_types(self) -> list[ir.Type]:
        """Those of the site's inputs."""
        return [argument.type for argument in self.arguments]

    @property
    def output_type(self) -> ir.Type:
        """That of the site's result."""
        return self.root.results[self._result].type

    def describe(self) -> str:
        """The site in words: its ops on tensors, and the types of its inputs and its result."""
        names = dict.fromkeys(
            op.name.partition(".")[2]
            for op in self.ops
            if op.name not in (_CONSTANT, "tensor.empty", "linalg.fill")
        )
        types = ", ".join(describe_type(type_) for type_ in self.input_types)
        return f"{', '.join(names)}: {types} -> {describe_type(self.output_type)}"

    def rewrites(self) -> Iterator[Rewrite]:
        """What has to be in normal form in a program before the site can be found in it.

        Yields:
            One for each op with constants beside it; equal ones too.
        """
        for op in self.ops:
            if _fills(op):
                yield Rewrite(op)
                continue
            for inner in walk(op):
                if len(inner.results) and any(map(_constant, inner.operands)):
                    yield Rewrite(inner)

    def define_matcher(self, name: str) -> None:
        """Define the matcher, which hands on the root, the site's inputs in order, and its result.

        Args:
            name: of the sequence.
        """
        repeated = len(self._uses) > len(self.arguments)
        if repeated:
            library.define(name + _SAME_INPUTS, [library.any_value()], self._check_inputs)
        several = list(self._uses_of_several())

        def check_results(root: ir.Value) -> None:
            if len(self.root.results) > 1:
                preprocessing_transform.MatchCastCompatibleTypesOp(
                    self.result(root), self.output_type
                )
            _check_results(root, several)

        if several or len(self.root.results) > 1:
            library.define(name + _SAME_RESULTS, [library.any_op()], check_results)
        types = [library.any_op(), library.any_value(), library.any_value()]

        def match(root: ir.Value) -> list[ir.Value]:
            found = preprocessing_transform.MatchCastCompatibleDagFromRootOp(
                library.any_value(), library.any_value(), root
            )
            self._copy(found.operation.regions[0])
            if len(self.root.results) == 1:
                preprocessing_transform.MatchCastCompatibleTypesOp(found.outputs, self.output_type)
            if repeated:
                library.include(name + _SAME_INPUTS, [found.inputs])
            if several or len(self.root.results) > 1:
                library.include(name + _SAME_RESULTS, [root])
            return [root, found.inputs, found.outputs]

        library.define(name, [library.any_op()], match, results=types)

    def ordered(self, matched: ir.Value) -> ir.Value:
        """The site's inputs, each once and in order.

        Args:
            matched: a handle to all their uses, as the matcher hands them on.

        Returns:
            A handle.
        """
        if self._uses == list(range(len(self.arguments))):
            return matched
        uses = library.split(matched, len(self._uses))
        firsts = [uses[self._uses.index(number)] for number in range(len(self.arguments))]
        return transform.merge_handles(firsts) if len(firsts) > 1 else firsts[0]

    def result(self, root: ir.Value) -> ir.Value:
        """The site's result, where its last op has several.

        Args:
            root: a handle to the op that was matched.

        Returns:
            A handle.
        """
        return transform.GetResultOp(library.any_value(), root, [self._result]).result

    def _uses_of_several(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """Where results of ops with several are used: the operand's numbers on the way there from
        the root, and the number of the result."""
        ways: dict[int, tuple[int, ...]] = {self.ops.index(self.root): ()}
        for place in reversed(range(len(self.ops))):
            for number, value in enumerate(self.ops[place].operands):
                if isinstance(value.owner, ir.Block):
                    continue
                way = (*ways[place], number)
                ways.setdefault(self.ops.index(_owner(value)), way)
                if len(_owner(value).results) > 1:
                    yield way, ir.OpResult(value).result_number

    def _check_inputs(self, matched: ir.Value) -> None:
        uses = library.split(matched, len(self._uses))
        for place, number in enumerate(self._uses):
            first = self._uses.index(number)
            if first != place:
                library.include(shared_sequences.SAME_VALUE, [uses[first], uses[place]])

    def _copy(self, region: ir.Region) -> None:
        block = region.blocks.append(*[self.arguments[number].type for number in self._uses])
        uses = iter(block.arguments)
        made: list[tuple[ir.Value, ir.Value]] = []
        with ir.InsertionPoint(block):
            for op in self.ops:
                operands = [
                    next(uses)
                    if isinstance(value.owner, ir.Block)
                    else next(new for old, new in made if old == value)
                    for value in op.operands
                ]
                made += zip(op.results, _emit(op, operands).results, strict=True)
            transform.YieldOp()


# Functions and calls ------------------------------------------------------------------------------


def define_function(
    name: str,
    inputs: Sequence[ir.Type],
    outputs: Sequence[ir.Type],
    build: Callable[..., Sequence[ir.Value]],
) -> ir.Operation:
    """Define a private `util.func` at the insertion point.

    Args:
        name: its symbol.
        inputs: types of its arguments.
        outputs: types of its results.
        build: emits its body, given the arguments; its results.

    Returns:
        The function.
    """
    type_ = ir.TypeAttr.get(ir.FunctionType.get(list(inputs), list(outputs)))
    function = util.FuncOp(name, type_, sym_visibility="private").operation
    block = function.regions[0].blocks.append(*inputs)
    with ir.InsertionPoint(block):
        util.ReturnOp(build(*block.arguments))
    return function


def call(name: str, inputs: ir.Value | None, outputs: ir.Value, root: ir.Value) -> None:
    """Put the body of a function of the spec behind an op, and its results in place of values.

    Args:
        name: of the function.
        inputs: a handle to what it is called with; None: nothing.
        outputs: a handle to the values that are replaced.
        root: a handle to the op.
    """
    function = ir.Operation.create(
        "transform.util.lookup_nearest_symbol_from_self",
        results=[library.any_op()],
        attributes={"symbol": ir.FlatSymbolRefAttr.get(name)},
    ).results[0]
    ir.Operation.create(
        "transform.util.cast_and_call",
        operands=[root, *([] if inputs is None else [inputs]), outputs, function],
        attributes={
            "inline_call": ir.UnitAttr.get(),
            "insert_after": ir.UnitAttr.get(),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, int(inputs is not None), 1, 1]),
        },
        regions=1,
    )


def _check_results(root: ir.Value, uses: Sequence[tuple[tuple[int, ...], int]]) -> None:
    """Emit checks that these operands are these results of the ops that they come from."""
    for (*way, last), result in uses:
        user = root
        for number in way:
            user = transform.GetProducerOfOperand(library.any_op(), user, number).result
        used = transform.GetOperandOp(library.any_value(), user, [last]).result
        producer = transform.GetProducerOfOperand(library.any_op(), user, last).result
        wanted = transform.GetResultOp(library.any_value(), producer, [result]).result
        library.include(shared_sequences.SAME_VALUE, [used, wanted])


# The normal form ----------------------------------------------------------------------------------


def _bring_constants(op: ir.Operation) -> None:
    """Put the constants that ops below `op` use right before each of them."""
    inside = list(walk(op))
    for inner in inside:
        for number, value in enumerate(inner.operands):
            constant = None if isinstance(value.owner, ir.Block) else value.owner.operation
            if constant is not None and constant.name == _CONSTANT:
                inner.operands[number] = constant.clone(ip=ir.InsertionPoint(inner)).results[0]
    for inner in inside:
        if inner.name == _CONSTANT and not list(inner.results[0].uses):
            inner.erase()


def _check(op: ir.Operation) -> None:
    """Raise UserError for an op that no pattern can have."""
    for value in (*op.operands, *op.results):
        if isinstance(value.type, ir.ShapedType) and not value.type.has_static_shape:
            raise UserError(f"sizes of {op.name} are known at run time only ({value.type})")


def _check_captures(op: ir.Operation) -> None:
    """Raise UserError for a body that uses a value from outside, or yields a constant."""
    inside = list(walk(op))
    for inner in inside:
        for value in inner.operands:
            owner = value.owner
            holder = owner.owner.operation if isinstance(owner, ir.Block) else owner.operation
            if holder != op and holder not in inside:
                raise UserError(f"the body of {op.name} uses a value from outside")
        if not len(inner.results) and not _fills(op) and any(map(_constant, inner.operands)):
            raise UserError(f"the body of {op.name} yields a constant beside what it computes")
        if len(inner.regions) and any(map(_constant, inner.operands)):
            raise UserError(f"{inner.name} in the body of {op.name} has a constant and a body")
        if len(inner.results) > 1 and any(map(_constant, inner.operands)):
            raise UserError(f"{inner.name} in the body of {op.name} has several results")


def _fills(op: ir.Operation) -> bool:
    """Whether what an op's body is, is a constant."""
    if op.name not in (_PAD, _GENERIC):
        return False
    *others, end = (one.operation for one in op.regions[0].blocks[0].operations)
    held = len(end.operands) == 1 and _constant(end.operands[0]) is not None
    return held and all(one.name == _CONSTANT for one in others)


def _constant_user(op: ir.Operation) -> ir.Operation:
    """The op that uses the constants: the op itself, or the end of its body."""
    if not _fills(op):
        return op
    operations = op.regions[0].blocks[0].operations
    return operations[len(operations) - 1].operation


def _constant(value: ir.Value) -> ir.Attribute | None:
    if isinstance(value.owner, ir.Block) or value.owner.operation.name != _CONSTANT:
        return None
    return value.owner.operation.attributes["value"]


def _owner(value: ir.Value) -> ir.Operation:
    return value.owner.operation


def _emit(op: ir.Operation, operands: Sequence[ir.Value] | None = None) -> ir.Operation:
    """A copy of an op at the insertion point."""
    copy = op.clone(ip=ir.InsertionPoint.current).operation
    for number, value in enumerate(operands or ()):
        copy.operands[number] = value
    return copy
