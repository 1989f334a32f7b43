"""How the host's code calls kernels, and what of it a compiled dispatch says."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from iree.compiler import ir
from iree.compiler.dialects import arith, stream

from tilewright.ir.guards import GUARD_ELEMENTS

# Sizes of calls that stand for others: larger than any that a program has, and dimensions whose
# products differ whichever are multiplied.
_ANY_SIZE = 1 << 40
_ANY_DIMENSION = (257, 263, 269, 271, 277, 281, 283, 293, 307, 311, 313, 317, 331, 337, 347, 349)
_LARGEST = 1 << 62

# What the host's code of one dispatch of known sizes is made of, beside the dispatch.
_PLAIN = (
    "arith.constant",
    "hal.element_type",
    "hal.encoding_type",
    "hal.buffer_view.assert",
    "stream.tensor.import",
    "stream.resource.alloca",
    "stream.timepoint.join",
    "stream.cmd.execute",
    "stream.timepoint.await",
    "stream.tensor.export",
    "util.return",
)
_WRITES = 2


@dataclass(frozen=True)
class ResultType:
    """A result of a program: its element type as MLIR writes it, bytes of an element, shape.

    input: the input in whose memory it is written; None where it has memory of its own.
    """

    element: str
    element_bytes: int
    shape: tuple[int, ...]
    input: int | None = None

    @property
    def bytes(self) -> int:
        """Of all elements."""
        return prod(self.shape) * self.element_bytes

    def guarded(self) -> ResultType:
        """It flat, with a guard behind it."""
        return replace(self, shape=(prod(self.shape) + GUARD_ELEMENTS,))


@dataclass(frozen=True)
class KernelCall:
    """A kernel's name, and the numbers of its buffers, in the order in which it binds them."""

    kernel: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]

    def waits_for(self, others: Sequence[KernelCall]) -> bool:
        """Whether it touches what one of them writes, or writes what one of them touches."""
        mine, written = {*self.reads, *self.writes}, set(self.writes)
        return any(mine & {*o.writes} or written & {*o.reads} for o in others)


@dataclass(frozen=True)
class KernelCalls:
    """How a program calls its kernels: equal ones have the same host code.

    Buffers are numbered: inputs first, then results with memory of their own, then what is between
    kernels.

    inputs, between: bytes of each. results: their types. calls: in the order in which they are
    made. repeats, rotations: how often `bench` makes all of them, and on how many sets of inputs
    in turn, which it takes one after the other (`ir.candidate`); there is none where both are 1.
    """

    inputs: tuple[int, ...]
    results: tuple[ResultType, ...]
    between: tuple[int, ...]
    calls: tuple[KernelCall, ...]
    repeats: int = 1
    rotations: int = 1

    def form(self) -> KernelCalls:
        """Calls that are like these but for names and sizes, and of which no two sizes are equal
        that may differ: the host's code of calls is that of their form, with their names and
        numbers in it.

        Returns:
            The same for all calls of a form; these themselves where results have too many
            dimensions.
        """
        ranks = [len(result.shape) for result in self.results]
        dimensions = iter(_ANY_DIMENSION)
        if sum(ranks) > len(_ANY_DIMENSION):
            return self
        # Odd, so that none is where another one ends, up to the next place of memory.
        sizes = itertools.count(_ANY_SIZE + 1, 2)
        names = {name: f"kernel_{n}" for n, name in enumerate(dict.fromkeys(self.kernels))}
        results = tuple(
            replace(result, shape=tuple(itertools.islice(dimensions, rank)))
            for result, rank in zip(self.results, ranks, strict=True)
        )
        if any(result.bytes > _LARGEST for result in results):
            return self
        return replace(
            self,
            inputs=tuple(itertools.islice(sizes, len(self.inputs))),
            results=results,
            between=tuple(itertools.islice(sizes, len(self.between))),
            calls=tuple(replace(call, kernel=names[call.kernel]) for call in self.calls),
            repeats=next(sizes) if self.often > 1 else 1,
        )

    @property
    def often(self) -> int:
        """How often `bench` makes the calls: on each set of inputs once at least."""
        return max(self.repeats, self.rotations)

    @property
    def kernels(self) -> tuple[str, ...]:
        """The name of each call's kernel."""
        return tuple(call.kernel for call in self.calls)


def calls_of(function: ir.Operation) -> KernelCalls | None:
    """How a function of one dispatch calls it.

    Args:
        function: the `util.func` at the executable-configurations phase.

    Returns:
        The call; None where there is more to it: sizes known at run time only, parts of buffers,
        numbers that are handed over, other commands.
    """
    body = function.regions[0].blocks
    operations = [op.operation for op in body[0].operations]
    if len(body) != 1 or any(op.name not in _PLAIN for op in operations):
        return None
    try:
        return _read(body[0], operations)
    except _NotPlain:
        return None


class _NotPlain(Exception):
    pass


def _read(block: ir.Block, operations: Sequence[ir.Operation]) -> KernelCalls:
    """See `calls_of`."""
    numbers: dict[ir.Value, int] = {}
    inputs: list[int] = []
    for number, argument in enumerate(block.arguments):
        given = _single(
            op
            for op in operations
            if op.name == "stream.tensor.import" and op.operands[0] == argument
        )
        numbers[given.result] = number
        inputs.append(_constant(given.result_size))
    results: list[ResultType] = []
    for value in operations[-1].operands:
        exported = _made_by(value, stream.TensorExportOp)
        awaited = _made_by(exported.source, stream.TimepointAwaitOp)
        made = awaited.resource_operands[list(awaited.results_).index(exported.source)]
        given = numbers.get(made)
        if given is None:
            size = _constant(_made_by(made, stream.ResourceAllocaOp).storage_size)
            numbers[made] = len(numbers)
        elif given < len(inputs):
            size = inputs[given]
        else:
            raise _NotPlain  # one that is returned twice
        results.append(_result(ir.TypeAttr(exported.source_encoding).value, size, given))
    submitted = _single(op for op in operations if op.name == "stream.cmd.execute")
    captured = zip(submitted.body.blocks[0].arguments, submitted.resource_operands, strict=True)
    call = _call(submitted, {inside: _number(numbers, value) for inside, value in captured})
    return KernelCalls(tuple(inputs), tuple(results), (), (call,))


def _call(submitted: Any, numbers: Mapping[ir.Value, int]) -> KernelCall:
    """The one command of a submission."""
    commands = [op.operation for op in submitted.body.blocks[0].operations]
    dispatch = _single(op for op in commands if op.name != "stream.yield")
    if not isinstance(dispatch, stream.CmdDispatchOp) or list(dispatch.uniform_operands):
        raise _NotPlain
    parts = zip(
        dispatch.resource_offsets, dispatch.resource_lengths, dispatch.resource_sizes, strict=True
    )
    if any(_constant(at) or _constant(some) != _constant(all_) for at, some, all_ in parts):
        raise _NotPlain
    bound = [_number(numbers, value) for value in dispatch.resources]
    written = [ir.IntegerAttr(one).value & _WRITES for one in dispatch.resource_accesses]
    first = written.index(_WRITES) if _WRITES in written else len(bound)
    entry = ir.SymbolRefAttr(dispatch.entry_points[0]).value
    return KernelCall(entry[0], tuple(bound[:first]), tuple(bound[first:]))


def _result(kind: Any, size: int, given: int | None) -> ResultType:
    """A result, by its tensor's type, its bytes, and the input that it is written in."""
    shape = tuple(kind.shape)
    count = prod(shape)
    if min(shape, default=1) < 1 or size % count:
        raise _NotPlain
    return ResultType(str(kind.element_type), size // count, shape, given)


def _single(found: Iterable[ir.Operation]) -> Any:
    """The view of the one operation that there is."""
    some = [op.opview for op in found]
    if len(some) != 1:
        raise _NotPlain
    return some[0]


def _made_by(value: ir.Value, kind: type[ir.OpView]) -> Any:
    """The operation of this kind that makes a value."""
    if isinstance(value.owner, ir.Block) or not isinstance(value.owner.operation.opview, kind):
        raise _NotPlain
    return value.owner.operation.opview


def _number(numbers: Mapping[ir.Value, int], value: ir.Value) -> int:
    if value not in numbers:
        raise _NotPlain
    return numbers[value]


def _constant(value: ir.Value) -> int:
    made = _made_by(value, arith.ConstantOp)
    return int(ir.IntegerAttr(made.operation.attributes["value"]).value)
