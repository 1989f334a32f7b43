"""Which ops of a program are computed together, as the compiler forms dispatches.

What was fused into others without a trace belongs where it is used. Ops of constants alone, which
the compiler evaluates ahead, stay outside: sites take their results.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set

from iree.compiler import ir

from tilewright.ir.reference.quantised import DEQUANTIZE, QUANTIZE
from tilewright.ir.site_dispatches import FormedDispatch
from tilewright.ir.site_module import IsolatedSite, isolate_value, needed
from tilewright.ir.site_ops import (
    DATA,
    FREE,
    OUTSIDE,
    ProgramOps,
    is_cheap,
    is_costly,
    is_move,
    is_spread,
    is_widening,
)

# Another way to look at the same data.
_RESHAPES = ("tensor.cast", "tensor.collapse_shape", "tensor.expand_shape")
_VIEWS = (*_RESHAPES, "tensor.empty")
# Moves of data, which happen where it is made or in a dispatch of their own, not where it is used.
_MOVES = ("tensor.concat", "tensor.insert_slice")

# Tensors that are beside each other, each of which who reads the whole has to choose between.
_MOST_PARTS = 4


class SiteGroups:
    """Which ops are computed together: those of a dispatch, or of several that share an op.

    A group is called by the position of its first dispatch. `results`: for each group the values
    that are used where they are not computed; one of them makes the group a site.
    """

    def __init__(self, ops: ProgramOps, dispatches: Sequence[FormedDispatch]) -> None:
        self._ops = ops
        self._dispatches = dispatches
        # For each op the dispatches that it is computed in, by the first of each group.
        self._where: list[set[int]] = [set() for _ in ops.ops]
        for index, dispatch in enumerate(dispatches):
            for number in dispatch.ops or ():
                self._where[number].add(index)
        self._group = self._joined()
        self._where = [{self._group[index] for index in where} for where in self._where]
        self._append()
        self._absorb()
        self._hand_on()
        self._widen_late()
        self.results = self._results()

    def _joined(self) -> list[int]:
        """Dispatches that are parts of one computation: a product on packed data, with packing."""
        group = list(range(len(self._dispatches)))
        for number, where in enumerate(self._where):
            if len(where) > 1 and not is_cheap(self._ops.ops[number]):
                first = min(group[index] for index in where)
                joined = {group[index] for index in where}
                group = [first if one in joined else one for one in group]
        return group

    def _append(self) -> None:
        """Transposes and their like that the compiler does where it makes what they transpose."""
        perhaps: dict[int, set[int]] = defaultdict(set)
        for group, dispatch in zip(self._group, self._dispatches, strict=True):
            for number in dispatch.perhaps:
                perhaps[number].add(group)
        for number, op in enumerate(self._ops.ops):
            if self._where[number] or op.name in (*_VIEWS, *_MOVES) or not op.operands:
                continue
            source = op.operands[0]
            while self._ops.known(source) == DATA and self._is_lost_view(source):
                source = source.owner.operands[0]
            maker = self._ops.maker(source)
            if maker != OUTSIDE:
                self._where[number] = self._where[maker] & perhaps[number]
                if op.name == QUANTIZE and len(self._where[maker]) == 1:
                    # Bytes are stored, not the numbers that they are made of, whatever IREE does.
                    self._where[number] = set(self._where[maker])

    def _is_lost_view(self, value: ir.Value) -> bool:
        maker = self._ops.maker(value)
        return maker != OUTSIDE and self._ops.ops[maker].name in _VIEWS and not self._where[maker]

    def _absorb(self) -> None:
        """Find a place for ops that left no trace: where they are used, or what they use is."""
        lost = []
        for number, op in reversed(list(enumerate(self._ops.ops))):
            if self._where[number]:
                continue
            users = {user for value in op.results for user in self._ops.users(value)}
            where = set().union(*(self._at(user) for user in users))
            view = op.name in _VIEWS
            if op.name in _MOVES:
                where = {OUTSIDE}
            if len(where) == 1 or view or (is_cheap(op) and OUTSIDE not in where):
                self._where[number] = where
            if not view and where & {OUTSIDE}:
                lost.append(number)
        for number in reversed(lost):
            makers, seen = set[int](), set[int]()
            for value in needed(self._ops.ops[number]):
                if self._ops.known(value) == DATA:
                    makers |= self._at(self._ops.maker(value)) - {OUTSIDE}
                    seen |= self._at(self._ops.maker(self._behind_views(value))) - {OUTSIDE}
            if len(makers) == 1:
                self._where[number] = self._taking_moved(number, makers)
            elif not makers and len(seen) == 1:
                moved = self._taking_moved(number, seen)
                self._where[number] = moved if moved != seen else self._where[number]

    def _behind_views(self, value: ir.Value) -> ir.Value:
        """What another way to look at the same data looks at, where nobody else computes that."""
        number = self._ops.maker(value)
        while number != OUTSIDE and self._ops.ops[number].name in _RESHAPES:
            if self._where[number] - {OUTSIDE}:
                break
            value = self._ops.ops[number].operands[0]
            number = self._ops.maker(value)
        return value

    def _taking_moved(self, number: int, makers: set[int]) -> set[int]:
        """Where an op belongs that left no trace, and uses what one group makes: there.

        What is reduced has its own order, and is not written to other places by who makes it: the
        zeros between the elements of what a transposed convolution reads are its own.
        """
        op = self._ops.ops[number]
        users = {user for value in op.results for user in self._ops.users(value)}
        readers = set().union(*map(self._at, users))
        late = op.name in _MOVES and self._reduces(makers) and _is_one_group(readers)
        return readers if late else makers

    def _hand_on(self) -> None:
        """Where elementwise ops of one result of a group make others: they go to who uses these.

        IREE stores both where several dispatches use the first. A kernel has one result. What takes
        a function of each element is not for products, which would compute it for each that they
        add up: the state of an LSTM is stored, and is a site where it is a dispatch of its own.
        """
        for group, values in self._results().items():
            for first in values:
                moved = self._behind(first, values, group) if len(values) > 1 else set()
                costly = any(is_costly(self._ops.ops[number]) for number in moved)
                for number in sorted(moved, reverse=True):
                    users = {u for v in self._ops.ops[number].results for u in self._ops.users(v)}
                    self._where[number] -= {group}
                    to = set().union(*map(self._at, users)) - {group}
                    self._where[number] |= set() if costly and self._reduces(to) else to
                if moved:
                    break

    def _reduces(self, groups: Set[int]) -> bool:
        """Whether any of some groups has ops that are not elementwise."""
        return any(
            where & groups and not is_cheap(op)
            for op, where in zip(self._ops.ops, self._where, strict=True)
        )

    def _widen_late(self) -> None:
        """Where numbers are only made wider for others: it is done by who uses them.

        IREE stores the wider ones where several dispatches use them and one makes the others. A
        product of bytes is to read bytes.
        """
        for number, op in reversed(list(enumerate(self._ops.ops))):
            where = self._where[number]
            if not where or not is_widening(op) or self._ops.known(op.results[0]) != DATA:
                continue
            users = set().union(*map(self._at, self._ops.users(op.results[0])))
            if users and OUTSIDE not in users and not users & where:
                self._where[number] = users

    def _behind(self, first: ir.Value, results: Sequence[ir.Value], group: int) -> set[int]:
        """The ops between one result of a group and all the others; none where that is not all."""
        before = self._behind_value(first, group)
        found: set[int] = set()
        for value in results:
            if value != first:
                found |= self._behind_value(value, group) - before
        for number in found:
            op = self._ops.ops[number]
            makers = {self._ops.maker(v) for v in needed(op) if v != first}
            users = {u for v in op.results for u in self._ops.users(v)}
            if not is_cheap(op) or makers & before or OUTSIDE in users:
                return set()
        used = any(v == first for number in found for v in needed(self._ops.ops[number]))
        return found if used else set()

    def _behind_value(self, value: ir.Value, group: int) -> set[int]:
        """The ops of data that a group computes for a value."""
        found: set[int] = set()
        left = [value]
        while left:
            one = left.pop()
            number = self._ops.maker(one)
            if number in found or group not in self._at(number) or self._ops.known(one) != DATA:
                continue
            found.add(number)
            left += needed(self._ops.ops[number])
        return found

    def _at(self, user: int) -> set[int]:
        return {OUTSIDE} if user == OUTSIDE else self._where[user]

    def members(self) -> dict[int, list[FormedDispatch]]:
        """The dispatches of each group, in order."""
        found: dict[int, list[FormedDispatch]] = defaultdict(list)
        for group, dispatch in zip(self._group, self._dispatches, strict=True):
            found[group].append(dispatch)
        return found

    def is_elementwise(self, value: ir.Value) -> bool:
        """Whether the result of a group is made by elementwise ops and moves of data alone.

        Args:
            value: the result.
        """
        return all(map(is_cheap, self._made_by(value)))

    def is_moved(self, value: ir.Value) -> bool:
        """Whether the result of a group is data that was transposed, padded, put apart with zeros
        between as for a transposed convolution, or read as the numbers that bytes stand for, and no
        more.

        Args:
            value: the result.
        """
        return all(
            (is_move(op) and (op.name not in _MOVES or is_spread(op))) or op.name == DEQUANTIZE
            for op in self._made_by(value)
        )

    def _made_by(self, value: ir.Value) -> list[ir.Operation]:
        groups = {group for group, values in self.results.items() for v in values if v == value}
        return [self._ops.ops[one] for one in self._behind_value(value, min(groups))]

    def users(self, value: ir.Value) -> set[int]:
        """The groups that use a value; OUTSIDE is one where something else uses it, an op of no
        group, too.

        Args:
            value: of the program.
        """
        return set().union(*(self._at(user) or {OUTSIDE} for user in self._ops.users(value)))

    def joins(self, inputs: Iterable[ir.Value], groups: Set[int]) -> set[int]:
        """The ops that only put tensors beside each other for groups: nothing else uses what they
        make, which need not be in memory then.

        Args:
            inputs: of the groups.
            groups: the groups.
        """
        makers = {self._ops.maker(value): value for value in inputs}
        return {
            number
            for number, value in makers.items()
            if number != OUTSIDE and self._ops.ops[number].name == "tensor.concat"
            if len(self._ops.ops[number].operands) <= _MOST_PARTS and self.users(value) <= groups
        }

    def isolate(
        self, value: ir.Value, groups: Set[int], more: Set[int] = frozenset()
    ) -> IsolatedSite:
        """What groups compute for a value as a module.

        Args:
            value: the result of one of them.
            groups: the groups.
            more: ops that are of no group, and belong to the module all the same.
        """

        def inside(op: ir.Operation) -> bool:
            number = self._ops.number.get(op, OUTSIDE)
            known = self._ops.known(op.results[0])
            if known == DATA:
                if number == OUTSIDE or self._ops.is_placed_late(op):
                    return False
                return number in more or bool(self._where[number] & groups)
            return known == FREE or (number != OUTSIDE and not self._ops.stays_outside(op))

        return isolate_value(value, inside)

    def _results(self) -> dict[int, list[ir.Value]]:
        """For each group the values that are used where they are not computed."""
        found: dict[int, list[ir.Value]] = defaultdict(list)
        shared = []
        for number, op in enumerate(self._ops.ops):
            where = self._where[number] - {OUTSIDE}
            for value in op.results:
                if not where or not self._is_used_outside(value, self._where[number]):
                    continue
                if len(where) == 1:
                    found[min(where)].append(value)
                else:
                    shared.append((value, where))
        for value, where in shared:
            found[min(where, key=lambda one: (len(found[one]), one))].append(value)
        return found

    def _is_used_outside(self, value: ir.Value, where: set[int]) -> bool:
        if self._ops.known(value) != DATA:
            # Whoever uses it computes it, or takes it for an input that is known ahead.
            return OUTSIDE in self._ops.users(value)
        return any(self._at(user) - where for user in self._ops.users(value))


def _is_one_group(groups: Set[int]) -> bool:
    return len(groups) == 1 and OUTSIDE not in groups
