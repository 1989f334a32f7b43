"""Kernels as the stages of one dispatch: what each takes, and where it finds what it reads and
writes.

What they hand to each other is memory of that dispatch. Which kernels of a program are a dispatch
together is found by `ir/sequences`; the code around theirs is made by `ir/piece_claims`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

from iree.compiler import ir

from tilewright.ir.bitcode import code_of, objects_of
from tilewright.ir.classify import element_bits
from tilewright.ir.hand_written import ALIGNMENT
from tilewright.ir.piece_claims import BoundPlace, ClaimedStage, Pieces
from tilewright.ir.walk import symbols, walk

#: On the function of an executable: how many pieces it has along x, y and z, the workgroups from
#: one to the next, 1 where its workgroups claim them; and the numbers of the tensors that it reads
#: whose memory its result can have.
PIECES = "tilewright.pieces"
#: What calls an executable, and what puts tensors beside each other.
DISPATCH, CONCAT = "flow.dispatch", "tensor.concat"


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


def parts_of(join: ir.Operation) -> list[int]:
    """At which bytes of a concatenation its parts begin.

    Args:
        join: the concatenation.

    Returns:
        Nothing where they do not lie side by side, or not where code may expect a tensor to begin.
    """
    axis = ir.IntegerAttr(join.attributes["dim"]).value
    if prod(ir.RankedTensorType(join.results[0].type).shape[:axis]) != 1:
        return []
    offsets = list(accumulate(map(_bytes, join.operands), initial=0))[:-1]
    return [] if any(offset % ALIGNMENT for offset in offsets) else offsets


def called(op: ir.Operation) -> str:
    """The executable that a dispatch calls, if it is one.

    Args:
        op: the dispatch.
    """
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
    calls = [op.operation for op in block.operations if op.operation.name == DISPATCH]
    made = {op: n for n, op in enumerate(calls)}
    bound: dict[int, None] = {}
    last_use = list(range(len(calls)))
    read: list[list[tuple[int, bool]]] = []
    for n, op in enumerate(calls):
        values = list(op.operands)[int(kernels[called(op)].claimed) :]
        read.append([_origin(value, made) for value in values])
        for number, is_input in read[-1]:
            if is_input:
                bound.setdefault(number)
            else:
                last_use[number] = n
    last = list(block.operations)[-1].operands[0].owner.operation
    joined = last.name == CONCAT
    ends = [_origin(v, made)[0] for v in last.operands] if joined else [len(calls) - 1]
    for n in ends:
        last_use[n] = len(calls)
    home = _homes(calls, kernels, read, last_use)
    parts = dict(zip((home[n] for n in ends), parts_of(last) if joined else [0], strict=True))
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
        kernel = kernels[called(op)]
        stages.append(ClaimedStage(kernel.code, kernel.pieces, (*places, *own)))
    return SequencePlan(tuple(stages), inputs, scratch, tuple(map(called, calls)))


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
        for k in kernels[called(op)].replaceable:
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
    return len(op.results) - kernels[called(op)].claimed


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
