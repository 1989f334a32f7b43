"""Kernels of a program that can be one dispatch, one after the other.

Between two dispatches the runtime ends one, begins the next, and wakes workers that have fallen
asleep: of small networks that is a tenth of the time. Kernels whose results only each other use,
but for the last one's, can be stages of one dispatch instead (`ir/piece_claims`), and what they
hand to each other is memory of that dispatch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

from iree.compiler import ir

from tilewright.ir.bitcode import code_of, objects_of
from tilewright.ir.classify import element_bits
from tilewright.ir.hand_written import ALIGNMENT
from tilewright.ir.piece_claims import BoundPlace, ClaimedStage, Pieces
from tilewright.ir.site_module import IsolatedSite, isolate_value
from tilewright.ir.walk import symbols, walk

#: On the function of an executable: how many pieces it has along x, y and z, the workgroups from
#: one to the next, 1 where its workgroups claim them; and the numbers of the tensors that it reads
#: whose memory its result can have.
PIECES = "tilewright.pieces"

_DISPATCH = "flow.dispatch"
_TIED = "tied_operands"
_CONCAT = "tensor.concat"
# Other ways to look at the same data.
_VIEWS = ("flow.tensor.reshape", "tensor.collapse_shape", "tensor.expand_shape", "tensor.cast")
# `iree/hal/local/executable_library.h` and the runtime's checks of dispatches.
_MOST_BINDINGS = 32
# Dispatches that a loop is written out as, at most.
_MOST_WRITTEN_OUT = 64


@dataclass(frozen=True)
class StageKernel:
    """An executable that can be a stage.

    claimed: whether claims are the first that it binds. replaceable: numbers of the tensors that it
    reads, claims not counted, whose memory its result can have.
    """

    code: str
    pieces: Pieces
    claimed: bool
    replaceable: tuple[int, ...] = ()


@dataclass(frozen=True)
class FoundSequence:
    """Calls of a program that can be one dispatch.

    module: `main` has the calls, takes what they need and returns the last one's first result.
    together: how many times around the loop that they are in are worth to be written out one after
    the other; 1 where they are in none, or it has too much besides.
    """

    module: ir.Module
    together: int


def note_pieces(
    function: ir.Operation, pieces: Pieces, claimed: bool, replaceable: Sequence[int]
) -> None:
    """Note on the function of an executable what a stage of it takes.

    Args:
        function: with or without code.
        pieces: of its work.
        claimed: whether its workgroups claim them.
        replaceable: numbers of the tensors that it reads whose memory its result can have.
    """
    numbers = [*pieces.counts, pieces.apart, int(claimed), *replaceable]
    function.attributes[PIECES] = ir.DenseI64ArrayAttr.get(numbers)


def stage_kernels(module: ir.Operation) -> dict[str, StageKernel]:
    """The executables of a program or a spec that can be stages, by their names.

    Args:
        module: where executables are sources still.
    """
    found = {}
    for name, op in symbols(module).items():
        if op.name != "hal.executable.source" or len(objects_of(op)) != 1:
            continue
        for function in walk(op, lambda o: o.name != "llvm.func"):
            if PIECES in function.attributes:
                numbers = ir.DenseI64ArrayAttr(function.attributes[PIECES])
                x, y, z, apart, claimed, *replaceable = numbers
                pieces = Pieces((x, y, z), apart)
                if pieces.can_be_marked:
                    found[name] = StageKernel(
                        code_of(name), pieces, bool(claimed), tuple(replaceable)
                    )
    return found


def find_sequences(module: ir.Operation) -> list[FoundSequence]:
    """The calls of kernels in a program that can be one dispatch.

    Those of the last result come first, and take with them what makes their inputs, as long as
    nothing else uses it. Where a dispatch could not bind all that they read, a sequence begins
    behind the earliest point at which one value is all that is needed of what comes before. Results
    that lie side by side in a concatenation, as the steps of a loop's body give them, are written
    to their places in it: the last result is that, then.

    Args:
        module: the program with kernels at the preprocessing phase.

    Returns:
        One for each that differs from the others. Of those in a loop the first says how much of
        that is to be written out.
    """
    kernels = stage_kernels(module)
    found: dict[str, FoundSequence] = {}
    for function in symbols(module).values():
        if function.name != "util.func" or not len(function.regions[0].blocks):
            continue
        for owner, calls in _calls_of(function, kernels):
            made = list(calls.sequences())
            together = _together(owner, calls.dispatches(made))
            for members in made:
                alone = calls.isolated(members)
                if not alone.obstacle:
                    found.setdefault(alone.digest, FoundSequence(alone.module, together))
                    together = 1
    return list(found.values())


def _calls_of(
    function: ir.Operation, kernels: Mapping[str, StageKernel]
) -> Iterator[tuple[ir.Operation, _Calls]]:
    """The calls of each straight part of a function: of its body, and of its loops'; with the
    function, or the loop."""
    inside = [op for op in walk(function) if op.name.startswith("scf.")]
    for owner in (function, *inside):
        for region in owner.regions:
            blocks = list(region.blocks)
            if len(blocks) == 1:
                yield owner, _Calls([op.operation for op in blocks[0].operations], kernels)


def _together(loop: ir.Operation, dispatches: int) -> int:
    """How many times around a loop are written out: as many as leave none behind."""
    if loop.name != "scf.for" or not dispatches:
        return 1
    begin, end, step = (_constant(value) for value in list(loop.operands)[:3])
    if begin is None or end is None or not step:
        return 1
    times = len(range(begin, end, step))
    most = _MOST_WRITTEN_OUT // dispatches
    return max((n for n in range(1, min(times, most) + 1) if times % n == 0), default=1)


def _constant(value: ir.Value) -> int | None:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.constant":
        return None
    return int(ir.IntegerAttr(owner.attributes["value"]).value)


class _Calls:
    """The calls of kernels among ops that run one after the other."""

    def __init__(self, ops: Sequence[ir.Operation], kernels: Mapping[str, StageKernel]) -> None:
        self._place = {op: n for n, op in enumerate(ops)}
        # What each call reads.
        self._reads = {
            op: list(op.operands)[int(kernels[_called(op)].claimed) :]
            for op in ops
            if _is_stage(op, kernels)
        }
        # Concatenations of what calls make, each of its own, and what they read.
        self._joins = {
            op: list(op.operands) for op in ops if op.name == _CONCAT and self._is_joined(op)
        }

    def _is_joined(self, join: ir.Operation) -> bool:
        makers = {self._source(value) for value in join.operands}
        return (
            len(makers) == len(join.operands) and makers <= set(self._reads) and _parts(join) != []
        )

    def sequences(self) -> Iterator[set[ir.Operation]]:
        """Sets of calls that can be one dispatch each, of two at least."""
        left = set(self._reads)
        for op in sorted((*self._reads, *self._joins), key=self._place.__getitem__, reverse=True):
            if op not in left and op not in self._joins:
                continue
            members = self._grown(op, left)
            if op in self._joins and not self._needed({op}) <= members:
                continue
            left -= members
            if len(members) > 1:
                yield members

    def dispatches(self, sequences: Sequence[set[ir.Operation]]) -> int:
        """How many dispatches the ops are, about, where some calls are one each; many where there
        are loops in a loop.

        Args:
            sequences: the calls of each.
        """
        one = set().union(*sequences)
        others = [op for op in self._place if op not in one]
        if any(op.name.startswith("scf.") and len(op.regions) for op in others):
            return _MOST_WRITTEN_OUT
        apart = [op for op in others if op.name == _DISPATCH or op.name.startswith("linalg.")]
        return len(sequences) + len(apart)

    def isolated(self, members: set[ir.Operation]) -> IsolatedSite:
        """A sequence as a module of its own.

        Args:
            members: its calls.
        """
        last = max(members, key=self._place.__getitem__)

        def inside(op: ir.Operation) -> bool:
            return op in members or (op.name in _VIEWS and self._source(op.results[0]) in members)

        return isolate_value(last.results[0], inside)

    def _grown(self, last: ir.Operation, left: set[ir.Operation]) -> set[ir.Operation]:
        """A call with those before it whose results only they use."""
        order, members, apart = [last], {last}, 1
        while True:
            before = [
                op
                for op in self._needed(members)
                if op in left and self._users(op.results[0]) <= members
            ]
            if not before:
                return members
            order.append(max(before, key=self._place.__getitem__))
            members.add(order[-1])
            if self._bindings(members) > _MOST_BINDINGS:
                # Best where one value is all that is needed of what comes before.
                return set(order[:apart] if 2 * apart > len(order) else order[:-1])
            if len(self._needed(members)) <= 1:
                apart = len(order)

    def _needed(self, members: set[ir.Operation]) -> set[ir.Operation]:
        """The other calls whose results some calls read."""
        makers = {self._source(value) for one in members for value in self._read_by(one)}
        return {op for op in makers if op in self._reads} - members

    def _bindings(self, members: set[ir.Operation]) -> int:
        """What a dispatch of some calls binds: claims, what they read, result and memory."""
        return 3 + len(
            {v for one in members for v in self._read_by(one) if self._source(v) not in members}
        )

    def _read_by(self, op: ir.Operation) -> list[ir.Value]:
        return self._joins[op] if op in self._joins else self._reads[op]

    def _source(self, value: ir.Value) -> ir.Operation | None:
        """The op that makes what a value is another view of."""
        owner = value.owner
        while not isinstance(owner, ir.Block) and owner.operation.name in _VIEWS:
            owner = owner.operation.operands[0].owner
        return None if isinstance(owner, ir.Block) else owner.operation

    def _users(self, value: ir.Value) -> set[ir.Operation]:
        """The ops that use a value, or other views of it."""
        found: set[ir.Operation] = set()
        values = [value]
        while values:
            for use in values.pop().uses:
                op = use.owner.operation
                if op.name in _VIEWS:
                    values += op.results
                else:
                    found.add(op)
        return found


def _is_stage(op: ir.Operation, kernels: Mapping[str, StageKernel]) -> bool:
    """Whether an op calls a kernel that can be a stage: its first result alone is used, and is
    memory of its own."""
    kernel = kernels.get(_called(op)) if op.name == _DISPATCH else None
    if kernel is None:
        return False
    others = list(op.results)[1:]
    given = ir.ArrayAttr(op.attributes[_TIED]) if _TIED in op.attributes else ()
    ties = [ir.IntegerAttr(one).value for one in given] or [-1] * len(op.results)
    own = [0] if kernel.claimed else []
    return ties == [-1] * (len(op.results) - len(own)) + own and not any(
        list(value.uses) for value in others
    )


def _parts(join: ir.Operation) -> list[int]:
    """At which bytes of a concatenation its parts begin; none where they do not lie side by side,
    or not where code may expect a tensor to begin."""
    axis = ir.IntegerAttr(join.attributes["dim"]).value
    if prod(ir.RankedTensorType(join.results[0].type).shape[:axis]) != 1:
        return []
    offsets = list(accumulate(map(_bytes, join.operands), initial=0))[:-1]
    return [] if any(offset % ALIGNMENT for offset in offsets) else offsets


def _called(op: ir.Operation) -> str:
    entries = ir.ArrayAttr(op.attributes["entry_points"])
    return ir.SymbolRefAttr(entries[0]).value[0] if len(entries) == 1 else ""


@dataclass(frozen=True)
class SequencePlan:
    """What a dispatch of several kernels binds, and its stages.

    inputs: numbers of the arguments of `main` that are bound behind the claims, in this order;
    behind them come the result and, where kernels hand over anything, memory of `scratch` bytes.
    names: of the executables that the stages are.
    """

    stages: tuple[ClaimedStage, ...]
    inputs: tuple[int, ...]
    scratch: int
    names: tuple[str, ...]


def plan_sequence(function: ir.Operation, kernels: Mapping[str, StageKernel]) -> SequencePlan:
    """Where the kernels of a sequence find what they read and write.

    Memory is given to a result from its own stage to the last that reads it, to larger ones first,
    each at the lowest place that is free then. Where a kernel reads a result for the last time and
    its own can take the place of that, both have the same. The parts of a concatenation that is the
    sequence's result are at their places in that from the beginning.

    Args:
        function: `main` of a sequence.
        kernels: those that it calls, by the names of their executables.
    """
    block = function.regions[0].blocks[0]
    calls = [op.operation for op in block.operations if op.operation.name == _DISPATCH]
    made = {op: n for n, op in enumerate(calls)}
    bound: dict[int, None] = {}
    last_use = list(range(len(calls)))
    read: list[list[tuple[int, bool]]] = []
    for n, op in enumerate(calls):
        values = list(op.operands)[int(kernels[_called(op)].claimed) :]
        read.append([_origin(value, made) for value in values])
        for number, is_input in read[-1]:
            if is_input:
                bound.setdefault(number)
            else:
                last_use[number] = n
    last = list(block.operations)[-1].operands[0].owner.operation
    joined = last.name == _CONCAT
    ends = [_origin(v, made)[0] for v in last.operands] if joined else [len(calls) - 1]
    for n in ends:
        last_use[n] = len(calls)
    home = _homes(calls, kernels, read, last_use)
    parts = dict(zip((home[n] for n in ends), _parts(last) if joined else [0], strict=True))
    # What a kernel has of its own, beside its result, is memory for the time of its stage.
    wanted = {
        (n, k): (_bytes(value), n, n if k else last_use[n])
        for n, op in enumerate(calls)
        for k, value in enumerate(list(op.results)[: _own_results(op, kernels)])
        if k or (home[n] == n and n not in parts)
    }
    offsets, scratch = _memory(list(wanted.values()))
    memory = dict(zip(wanted, offsets, strict=True))
    inputs = tuple(bound)
    results: list[BoundPlace] = []
    stages = []
    for n, op in enumerate(calls):
        own = [
            BoundPlace(1 + len(inputs), parts[home[n]])
            if not k and home[n] in parts
            else BoundPlace(2 + len(inputs), memory[(n, k) if k else (home[n], 0)])
            for k in range(_own_results(op, kernels))
        ]
        results.append(own[0])
        places = [
            BoundPlace(1 + inputs.index(number)) if is_input else results[number]
            for number, is_input in read[n]
        ]
        kernel = kernels[_called(op)]
        stages.append(ClaimedStage(kernel.code, kernel.pieces, (*places, *own)))
    return SequencePlan(tuple(stages), inputs, scratch, tuple(map(_called, calls)))


def _homes(
    calls: Sequence[ir.Operation],
    kernels: Mapping[str, StageKernel],
    read: Sequence[Sequence[tuple[int, bool]]],
    last_use: list[int],
) -> list[int]:
    """For each call the first of those that have their results in the same memory, one after the
    other; the uses of the others become uses of that one's."""
    home = list(range(len(calls)))
    for n, op in enumerate(calls):
        size = _bytes(op.results[0])
        for k in kernels[_called(op)].replaceable:
            number, is_input = read[n][k]
            if is_input or last_use[number] != n or read[n].count((number, False)) > 1:
                continue
            if _bytes(calls[number].results[0]) == size:
                home[n] = home[number]
                break
    for n in reversed(range(len(calls))):
        last_use[home[n]] = max(last_use[home[n]], last_use[n])
    return home


def _bytes(value: ir.Value) -> int:
    """Bytes of a tensor in memory, where an element has one at least."""
    type_ = ir.RankedTensorType(value.type)
    elements: int = prod(type_.shape)
    return elements * max(1, element_bits(type_.element_type) // 8)


def _own_results(op: ir.Operation, kernels: Mapping[str, StageKernel]) -> int:
    """How many results a call has but for the claims."""
    return len(op.results) - kernels[_called(op)].claimed


def _origin(value: ir.Value, made: Mapping[ir.Operation, int]) -> tuple[int, bool]:
    """The number of the argument, or of the call, that a value is a view of; whether it is one."""
    while isinstance(value, ir.Value) and not isinstance(value.owner, ir.Block):
        owner = value.owner.operation
        if owner in made:
            return made[owner], False
        value = owner.operands[0]
    return ir.BlockArgument(value).arg_number, True


def _memory(wanted: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Where memory is, in bytes, and how many bytes that is in all.

    wanted: for each part its bytes, and the first and the last stage that it is for.
    """
    sizes = [-(-size // ALIGNMENT) * ALIGNMENT for size, *_ in wanted]
    offsets: dict[int, int] = {}
    for one in sorted(range(len(wanted)), key=lambda n: -sizes[n]):
        _, first, last = wanted[one]
        begin = 0
        for at, other in sorted((at, other) for other, at in offsets.items()):
            _, its_first, its_last = wanted[other]
            if its_first > last or its_last < first:
                continue
            if begin + sizes[one] <= at:
                break
            begin = max(begin, at + sizes[other])
        offsets[one] = begin
    whole = max((at + sizes[one] for one, at in offsets.items()), default=0)
    return [offsets[one] for one in range(len(wanted))], whole
