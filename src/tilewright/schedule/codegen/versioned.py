"""Loops and workgroups in versions: cut where checks begin and cease to hold, so that what is
within need not ask."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise

from iree.compiler import ir
from iree.compiler.dialects import scf

from tilewright.schedule import nest
from tilewright.schedule.codegen.cuts import Cut, busy, cuts
from tilewright.schedule.codegen.machine import Processor
from tilewright.schedule.codegen.values import ValueEmitter
from tilewright.schedule.codegen.versions import (
    MOST_VERSIONED,
    Check,
    GuardedComparison,
    checks,
    comparisons,
)
from tilewright.schedule.expr import Expr, Var
from tilewright.schedule.linear import Linear, number
from tilewright.schedule.nest import Stmt
from tilewright.schedule.types import BOOL
from tilewright.schedule.unrolling import statements

# Iterations that are code of their own each where checks do not hold: of 7x7 windows at an edge.
_MOST_APART = 3


class VersionedEmitter(ValueEmitter):
    """Emits loops, and what workgroups do, in as many versions as their checks need.

    processor: what it is for.
    """

    def __init__(self, processor: Processor) -> None:
        super().__init__(processor)
        self._conditions: dict[Stmt, list[GuardedComparison]] = {}
        # On GPUs the loops are short, and code with branches costs all threads.
        self._versioned = not processor.is_gpu
        # The loops over workgroups while what these do is not begun.
        self._grid: tuple[nest.For, ...] = ()

    @abstractmethod
    def statement(self, stmt: Stmt) -> None:
        """Emit a statement at the insertion point.

        Args:
            stmt: with all that is in it.
        """

    # -- loops -------------------------------------------------------------------------------------

    def emit_loop(self, name: str, extent: int, body: Callable[[Linear], None]) -> None:
        """Emit a loop from 0 on.

        Args:
            name: of its variable.
            extent: its iterations.
            body: emits what is in it, given the variable.
        """
        self._loop(name, extent, (number(0), number(extent)), body)

    def _loop(
        self,
        name: str,
        extent: int,
        ends: tuple[Linear, Linear],
        body: Callable[[Linear], None],
    ) -> None:
        """A loop from one sum up to another, both within 0 and `extent`."""
        first, end = map(self.sum, ends)
        made = scf.ForOp(first, end, self.number(1))
        var = self.loop_var(name, extent)
        self.loops[var] = made.induction_variable
        # What was read before the loop is out of date in its second iteration.
        self.changed()
        with self.block(made.body):
            body(self.sums.variable(var))
            scf.YieldOp([])

    def _range(self, loop: nest.For, first: int, end: int, known: Sequence[Expr] = ()) -> None:
        """The iterations from `first` up to `end`, for which the `known` comparisons hold."""

        def body(value: Linear) -> None:
            with self.bound({loop.var: value.plus(first)}, known):
                self.statement(loop.body)

        if end - first == 1:
            body(number(0))
        elif first < end:
            self.emit_loop(loop.var.name, end - first, body)

    def in_versions(self, loop: nest.For) -> None:
        """Emit a loop, cut where its checks begin and cease to hold.

        Args:
            loop: that stays a loop.
        """
        if not self._versioned:
            self._range(loop, 0, loop.extent)
            return
        first, end, known = self.held(loop, self._checks)
        if known and first >= end and loop.extent == 2:
            # Both are at an edge, each at one of its own.
            first = end = 1
        elif not known or first >= end:
            self._part_of(loop, *busy(self, loop, 0, loop.extent), ())
            return
        self._remainder(loop, 0, first)
        self._part_of(loop, first, end, known)
        self._remainder(loop, end, loop.extent)

    def _part_of(self, loop: nest.For, first: int, end: int, known: Sequence[Expr]) -> None:
        """As `_range`, cut where that depends on what is around the loop."""
        found: list[Cut] = []
        if first < end and self._is_small(loop.body):
            with self.bound({}, known):
                found = cuts(self, loop, self.comparisons_of(loop.body))
        if found:
            self._between_cuts(loop, found, first, end, known)
        else:
            self._range(loop, first, end, known)

    def _remainder(self, loop: nest.For, first: int, end: int) -> None:
        """Iterations in which a check does not hold. A few are code of their own each, where loops
        within come in versions as well: they may be a good part of all the work."""
        first, end = busy(self, loop, first, end)
        outer, count = self._versioned, end - first
        few = count <= _MOST_APART and count * statements(loop.body) <= MOST_VERSIONED // 2
        self._versioned = outer and few
        ends = range(first, end + 1) if self._versioned else (first, end)
        for begin, stop in pairwise(ends):
            self._range(loop, begin, stop)
        self._versioned = outer

    def _between_cuts(
        self, loop: nest.For, found: Sequence[Cut], first: int, end: int, known: Sequence[Expr]
    ) -> None:
        """As `_range`, with cuts at sums that are known only when the code runs."""
        some = [cut for cut in found if cut.leaves_out(loop.extent)]
        firsts, lasts = ([c for c in some if (c.factor > 0) == b] for b in (True, False))
        begin, stop = number(first), number(end)
        low, high = begin, stop
        for cut in firsts:
            low = self.sums.combined("max", low, cut.place(self.sums))
        for cut in lasts:
            high = self.sums.combined("min", high, cut.place(self.sums))
        holds = [part for cut in found for part in cut.parts]

        def body(value: Linear) -> None:
            reached = [value.times(cut.factor).plus(cut.rest) for cut in found]
            with self.bound({loop.var: value}, holds), self.nonnegative(reached):
                self.statement(loop.body)

        with self.bound({}, known):
            before = begin, self.sums.combined("min", low, stop)
            self._outside(loop, firsts, before, (first, end))
            self._loop(loop.var.name, loop.extent, (low, high), body)
            behind = self.sums.combined("max", high, begin), stop
            self._outside(loop, lasts, behind, (first, end))

    def _outside(
        self,
        loop: nest.For,
        found: Sequence[Cut],
        ends: tuple[Linear, Linear],
        part: tuple[int, int],
    ) -> None:
        """The iterations of a part of the loop on the other side of cuts, which are between two
        sums: for each value of the one cut's sum code of its own, in which all is known, as long as
        these values are few."""
        values = [v for cut in found for v in cut.values(loop.extent, _MOST_APART + 1)]
        if len(found) > 1 or len(values) > _MOST_APART:

            def body(value: Linear) -> None:
                with self.bound({loop.var: value}):
                    self.statement(loop.body)

            outer, self._versioned = self._versioned, False
            self._loop(loop.var.name, loop.extent, self._busy_ends(found, ends), body)
            self._versioned = outer
            return
        for cut in found:
            for value in values:
                with self.known(cut.atoms(value)):
                    first, end = cut.outside(value, loop.extent)
                    first, end = busy(self, loop, max(first, part[0]), min(end, part[1]))
                    if first < end:
                        branch = scf.IfOp(self._equal(cut.rest, value))
                        with self.block(branch.then_block):
                            self._remainder(loop, first, end)
                            scf.YieldOp([])

    def _busy_ends(
        self, found: Sequence[Cut], ends: tuple[Linear, Linear]
    ) -> tuple[Linear, Linear]:
        """The ends of iterations outside of cuts, without those in which nothing is done."""
        first, end = ends
        active = found[0].active() if len(found) == 1 else None
        if active is None:
            return first, end
        place = active.place(self.sums)
        if active.factor > 0:
            return self.sums.combined("max", first, place), end
        return first, self.sums.combined("min", end, place)

    def _equal(self, place: Linear, value: int) -> ir.Value:
        found = self.compared("eq", place.plus(-value))
        return self.constant(found, BOOL) if isinstance(found, bool) else found

    def held(
        self, loop: nest.For, found: Callable[[Stmt, frozenset[Var]], list[Check]]
    ) -> tuple[int, int, list[Expr]]:
        """Where the checks of a loop's variable alone hold.

        Args:
            loop: the loop.
            found: the checks of a body that depend on some variables alone.

        Returns:
            The first such iteration, the one behind the last, and what is compared in these.
        """
        first, end = 0, loop.extent
        var = self.stand_in(loop.var, loop.extent)
        with self.bound({loop.var: self.sums.variable(var)}):
            fixed = [c for c in found(loop.body, frozenset((var,))) if c.is_of(var)]
        for check in fixed:
            low, high = check.range(loop.extent)
            first, end = max(first, low), min(end, high)
        return first, end, [check.part for check in fixed]

    def _checks(self, body: Stmt, outer: frozenset[Var]) -> list[Check]:
        """The checks that decide on versions of a body, by the variables around it."""
        if not self._is_small(body):
            return []
        return checks(self, self.comparisons_of(body), outer)

    def _is_small(self, body: Stmt) -> bool:
        """Whether a body may be written out several times."""
        return self._versioned and statements(body) <= MOST_VERSIONED

    def comparisons_of(self, body: Stmt) -> list[GuardedComparison]:
        """As `comparisons`; unrolled loops ask for those of their bodies over and over.

        Args:
            body: of a loop.
        """
        if body not in self._conditions:
            self._conditions[body] = list(comparisons(body))
        return self._conditions[body]

    # -- workgroups --------------------------------------------------------------------------------

    def workgroup(self, body: Stmt, loops: Sequence[nest.For]) -> None:
        """The code of a workgroup: branches where checks depend on its numbers, around each part of
        it that has such checks.

        Args:
            body: what a workgroup does.
            loops: whose iterations are workgroups.
        """
        self._grid = tuple(loops)
        self.statement(body)
        self._grid = ()

    def begins_work(self, stmt: Stmt) -> bool:
        """Emit a statement in branches by the number of the workgroup, where it is the outermost
        one that is neither a sequence nor memory.

        Args:
            stmt: what is to be emitted.

        Returns:
            Whether it was; else it is left to who asked.
        """
        if not self._grid or isinstance(stmt, nest.Seq | nest.Allocate):
            return False
        loops, self._grid = self._grid, ()
        self._part(stmt, loops)
        self._grid = loops
        return True

    def _part(self, body: Stmt, loops: Sequence[nest.For]) -> None:
        """A part of what a workgroup does."""
        variables = {loop: self.linear(loop.var) for loop in loops if loop.extent > 1}
        known = self._checks(body, frozenset().union(*(v.variables for v in variables.values())))
        for loop, number_ in variables.items():
            last = loop.extent - 1
            mine = [c for c in known if any(c.is_of(var) for var in number_.variables)]
            first = max((c.range(loop.extent)[0] for c in mine), default=0)
            end = min((c.range(loop.extent)[1] for c in mine), default=loop.extent)
            edges = [0] * (first == 1) + [last] * (end == last)
            if not edges or first > 1 or end < last or first >= end:
                continue
            # Only the first and the last one are not whole: where their number is known, it is
            # known where loops begin and end.
            others = [other for other in variables if other is not loop]

            def inside(rest: list[nest.For] = others, mine: list[Check] = mine) -> None:
                with self.bound({}, [c.part for c in mine]):
                    self._part(body, rest)

            self._edges(body, loop, edges, others, inside)
            return
        holds: bool | ir.Value = True
        for check in known:
            holds = self.logical("logical_and", holds, self.compared(check.op, check.bound))
        if isinstance(holds, bool):
            self.statement(body)
            return
        branch = scf.IfOp(holds, has_else=True)
        with self.block(branch.then_block), self.bound({}, [check.part for check in known]):
            self.statement(body)
            scf.YieldOp([])
        outer = self._versioned
        self._versioned = outer and statements(body) <= MOST_VERSIONED // 2
        with self.block(branch.else_block):
            self.statement(body)
            scf.YieldOp([])
        self._versioned = outer

    def _edges(
        self,
        body: Stmt,
        loop: nest.For,
        edges: Sequence[int],
        others: Sequence[nest.For],
        inside: Callable[[], None],
    ) -> None:
        """Branches for the numbers at the edges of a loop over workgroups, then for the others."""
        if not edges:
            inside()
            return
        edge, *more = edges
        distance = self.linear(loop.var).plus(-edge)
        branch = scf.IfOp(self.compared("ne", distance), has_else=True)
        with self.block(branch.then_block):
            self._edges(body, loop, more, others, inside)
            scf.YieldOp([])
        with self.block(branch.else_block), self.bound({loop.var: number(edge)}):
            self._part(body, others)
            scf.YieldOp([])
