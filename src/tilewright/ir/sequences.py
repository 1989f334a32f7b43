"""Kernels of a program that can be one dispatch, one after the other.

Between two dispatches the runtime ends one, begins the next, and wakes workers that have fallen
asleep: of small networks that is a tenth of the time. Kernels whose results only each other use,
but for the last one's, can be stages of one dispatch instead (`ir/stages`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from iree.compiler import ir

from tilewright.ir.site_module import SITE_FUNCTION, IsolatedSite, isolate_value
from tilewright.ir.stages import CONCAT, DISPATCH, StageKernel, called, parts_of, stage_kernels
from tilewright.ir.walk import symbols, walk

_TIED = "tied_operands"
# Other ways to look at the same data.
_VIEWS = ("flow.tensor.reshape", "tensor.collapse_shape", "tensor.expand_shape", "tensor.cast")
# `iree/hal/local/executable_library.h` and the runtime's checks of dispatches.
_MOST_BINDINGS = 32
# Dispatches that a loop is written out as, at most.
_MOST_WRITTEN_OUT = 64


@dataclass(frozen=True)
class FoundSequence:
    """Calls of a program that can be one dispatch.

    module: `main` has the calls, takes what they need and returns the last one's first result.
    together: how many times around the loop that they are in are worth to be written out one after
    the other; 1 where they are in none, or it has too much besides.
    """

    module: ir.Module
    together: int


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
    parts = [
        part
        for function in symbols(module).values()
        if function.name == "util.func" and len(function.regions[0].blocks)
        for part in _calls_of(function, kernels)
    ]
    refused: set[ir.Operation] = set()
    while True:
        made = [_Made(calls, one) for _, calls in parts for one in calls.sequences(refused)]
        wrong = _replaced_in_part([calls for _, calls in parts], made)
        if wrong is None:
            break
        refused.add(wrong.last)
    found: dict[str, FoundSequence] = {}
    for owner, calls in parts:
        own = [one for one in made if one.calls is calls]
        together = _together(owner, calls.dispatches([one.members for one in own]))
        for one in own:
            if not one.alone.obstacle:
                found.setdefault(one.alone.digest, FoundSequence(one.alone.module, together))
                together = 1
    return list(found.values())


class _Made:
    """Calls that can be one dispatch, and the same as a module of their own."""

    def __init__(self, calls: _Calls, members: set[ir.Operation]) -> None:
        self.calls, self.members = calls, members
        self.last = next(op for op in reversed(calls.in_order()) if op in members)
        self.alone = calls.isolated(members)

    @property
    def size(self) -> int:
        """Ops that are recognised."""
        function = symbols(self.alone.module)[SITE_FUNCTION]
        return len(list(function.regions[0].blocks[0].operations))


def _replaced_in_part(parts: Sequence[_Calls], made: Sequence[_Made]) -> _Made | None:
    """A sequence that would be found where not only its last result is used; None: no such.

    What recognises calls does not look at who else uses a value, and finds longer sequences first,
    each length in the order of the program. Layers and the norm behind them that ends a network are
    one sequence; between other layers the next one, too, uses what that norm is of, and all of it
    would be computed twice.
    """
    left = {op for calls in parts for op in calls.in_order()}
    usable = [one for one in made if not one.alone.obstacle]
    for size in sorted({one.size for one in usable}, reverse=True):
        level = [one for one in usable if one.size == size]
        for calls in parts:
            for root in calls.in_order():
                for one in level:
                    matched = one.calls.matched(one.members, calls, root)
                    if not matched or not matched <= left:
                        continue
                    if calls.is_used_beside(matched, root):
                        return one
                    left -= matched
    return None


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
            op: list(op.operands)[int(kernels[called(op)].claimed) :]
            for op in ops
            if _is_stage(op, kernels)
        }
        # Concatenations of what calls make, each of its own, and what they read.
        self._joins = {
            op: list(op.operands) for op in ops if op.name == CONCAT and self._is_joined(op)
        }

    def _is_joined(self, join: ir.Operation) -> bool:
        makers = {self._source(value) for value in join.operands}
        return (
            len(makers) == len(join.operands)
            and makers <= set(self._reads)
            and parts_of(join) != []
        )

    def sequences(self, refused: set[ir.Operation]) -> Iterator[set[ir.Operation]]:
        """Sets of calls that can be one dispatch each, of two at least.

        Args:
            refused: what none ends with.
        """
        left = set(self._reads)
        for op in reversed(self.in_order()):
            if op in refused or (op not in left and op not in self._joins):
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
        apart = [op for op in others if op.name == DISPATCH or op.name.startswith("linalg.")]
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

    def matched(
        self, members: set[ir.Operation], there: _Calls, root: ir.Operation
    ) -> set[ir.Operation]:
        """The calls in another place that are what some calls here are; none where they are others.

        Args:
            members: the calls here.
            there: the calls among which those may be.
            root: what the last one here would be.
        """
        same: dict[ir.Operation, ir.Operation] = {}
        last = max(members, key=self._place.__getitem__)
        return set(same.values()) if self._is_same(last, there, root, members, same) else set()

    def _is_same(
        self,
        op: ir.Operation,
        there: _Calls,
        other: ir.Operation | None,
        members: set[ir.Operation],
        same: dict[ir.Operation, ir.Operation],
    ) -> bool:
        """Whether an op is one of a set's, with what it reads of the set; `same` gets the pairs."""
        if op in same or other is None:
            return same.get(op) == other
        if not there.is_call(other) or self._what(op) != there._what(other):
            return False
        same[op] = other
        return all(
            self._is_same(source, there, there._source(theirs), members, same)
            for mine, theirs in zip(self._read_by(op), there._read_by(other), strict=True)
            if (source := self._source(mine)) is not None and source in members
        )

    def is_call(self, op: ir.Operation) -> bool:
        """Whether an op calls a kernel, or joins what such calls make."""
        return op in self._reads or op in self._joins

    def in_order(self) -> list[ir.Operation]:
        """The calls, and what joins their results, as the program has them."""
        return sorted((*self._reads, *self._joins), key=self._place.__getitem__)

    def is_used_beside(self, members: set[ir.Operation], last: ir.Operation) -> bool:
        """Whether others than some calls use what these make, but for the last one."""
        return any(not self._users(op.results[0]) <= members for op in members - {last})

    def _what(self, op: ir.Operation) -> tuple[str, int]:
        """The kernel that an op calls, or '' of a concatenation; how much it reads."""
        return "" if op in self._joins else called(op), len(self._read_by(op))

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
    kernel = kernels.get(called(op)) if op.name == DISPATCH else None
    if kernel is None:
        return False
    others = list(op.results)[1:]
    given = ir.ArrayAttr(op.attributes[_TIED]) if _TIED in op.attributes else ()
    ties = [ir.IntegerAttr(one).value for one in given] or [-1] * len(op.results)
    own = [0] if kernel.claimed else []
    return ties == [-1] * (len(op.results) - len(own)) + own and not any(
        list(value.uses) for value in others
    )
