"""Statements to operations: unrolled loops written out, vectorized ones made of vectors.

A vectorized loop of any extent becomes vectors: as many of the longest as fit, then shorter powers
of two down to the last element. What depends on the loop's variable has lanes; a condition that
does becomes a mask. A buffer that lives within the loop gets a place for each lane.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from iree.compiler import ir
from iree.compiler.dialects import arith, gpu, memref, scf, vector

from tilewright.schedule import nest
from tilewright.schedule.codegen.allocation import Allocator
from tilewright.schedule.codegen.extern import ImportedFunctions
from tilewright.schedule.codegen.machine import PIECES_UNROLLED, Processor
from tilewright.schedule.codegen.memory import Storage
from tilewright.schedule.codegen.sums import is_vector
from tilewright.schedule.codegen.values import ValueEmitter
from tilewright.schedule.codegen.versions import (
    MOST_VERSIONED,
    Check,
    GuardedComparison,
    checks,
    comparisons,
)
from tilewright.schedule.codegen.view import BufferView, IntrinsicBuilder
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import Binary, Const, Expr, Var
from tilewright.schedule.intrinsic import BODY, RESET
from tilewright.schedule.linear import Linear, number
from tilewright.schedule.nest import Buffer, Stmt
from tilewright.schedule.types import bits
from tilewright.schedule.unrolling import (
    has_vectors,
    statements,
    unroll_marked,
    widest_bytes,
)

#: Statements that unrolling may make of one kernel. Compilers take minutes for more.
MOST_STATEMENTS = 8192
# Vectors of different lengths behind the longest ones that are made instead of one with a mask.
_MOST_PIECES = 2
# Iterations that are code of their own each where checks do not hold: of 7x7 windows at an edge.
_MOST_APART = 3
# Cache lines that one hint fetches at most: more are no longer a hint.
_MOST_LINES = 64


class KernelEmitter(ValueEmitter):
    """Emits the statements of one kernel into its function.

    entry: an operation before which memory is allocated.
    bindings: the memory of the buffers that exist outside of the kernel.
    scratch: as of an :class:`Allocator`.
    block: threads of a workgroup in each dimension, by tag.
    functions: that intrinsics can call.
    """

    def __init__(
        self,
        processor: Processor,
        entry: ir.Operation,
        bindings: Mapping[Buffer, Storage],
        scratch: Sequence[ir.Value],
        block: Mapping[str, int],
        functions: ImportedFunctions,
    ) -> None:
        super().__init__(processor)
        self._functions = functions
        self.storages = dict(bindings)
        memory = [storage.memory for storage in bindings.values()]
        self._memory = Allocator(processor, entry, memory, scratch)
        self._block = block
        self._allocated: dict[tuple[Stmt, int], ir.Value] = {}
        self._lane_vars: dict[int, Var] = {}
        self._conditions: dict[Stmt, list[GuardedComparison]] = {}
        self._statements = 0
        # On GPUs the loops are short, and code with branches costs all threads.
        self._versioned = not processor.is_gpu
        # The loops over workgroups while what these do is not begun.
        self._grid: tuple[nest.For, ...] = ()

    @property
    def large(self) -> list[tuple[int, str]]:
        """Elements, with their type, of each buffer that is in `scratch` or should be."""
        return self._memory.large

    def statement(self, stmt: Stmt) -> None:
        """Emit a statement at the insertion point.

        Args:
            stmt: with all that is in it.

        Raises:
            ScheduleError: unrolling makes too much code, or an intrinsic is in a vectorized loop or
                lacks what it needs.
        """
        if self._grid and not isinstance(stmt, nest.Seq | nest.Allocate):
            loops, self._grid = self._grid, ()
            self._part(stmt, loops)
            self._grid = loops
            return
        match stmt:
            case nest.Seq():
                for part in stmt.body:
                    self.statement(part)
            case nest.For():
                self._for(unroll_marked(stmt))
            case nest.If():
                self._if(stmt)
            case nest.Store():
                self._stores((stmt,))
            case nest.StoreAll():
                self._stores(stmt.stores)
            case nest.Allocate():
                self._allocate(stmt)
            case nest.Prefetch():
                self._prefetch(stmt.region, stmt.cache)
            case nest.Barrier():
                gpu.BarrierOp()
                self.changed()
            case nest.Intrinsic():
                if stmt.intrinsic.collective and not self.processor.is_gpu:
                    self.statement(stmt.as_loops())
                else:
                    self._intrinsic(stmt)
            case _:
                raise TypeError(f"no code for {type(stmt).__name__}")

    # -- loops -------------------------------------------------------------------------------------

    def _for(self, loop: nest.For) -> None:
        if loop.kind == nest.VECTORIZED and self.lane is None and not has_vectors(loop.body):
            self._vectors(loop)
        elif loop.kind in (nest.VECTORIZED, nest.UNROLLED) or loop.extent == 1:
            self._unrolled(loop)
        elif self._versioned:
            self._versions_of(loop)
        else:
            self._range(loop, 0, loop.extent)

    def _loop(self, name: str, extent: int, body: Callable[[Linear], None]) -> None:
        """A loop from 0 on around what `body` emits, given the loop's variable."""
        made = scf.ForOp(self.number(0), self.number(extent), self.number(1))
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
            self._loop(loop.var.name, end - first, body)

    def _versions_of(self, loop: nest.For) -> None:
        """The loop cut where its checks begin and cease to hold."""
        first, end, known = self._held(loop, self._checks)
        if known and first >= end and loop.extent == 2:
            # Both are at an edge, each at one of its own.
            first = end = 1
        elif not known or first >= end:
            self._range(loop, 0, loop.extent)
            return
        self._remainder(loop, 0, first)
        self._range(loop, first, end, known)
        self._remainder(loop, end, loop.extent)

    def _remainder(self, loop: nest.For, first: int, end: int) -> None:
        """Iterations in which a check does not hold. A few are code of their own each, where loops
        within come in versions as well: they may be a good part of all the work."""
        outer, count = self._versioned, end - first
        few = count <= _MOST_APART and count * statements(loop.body) <= MOST_VERSIONED // 2
        self._versioned = outer and few
        cuts = range(first, end + 1) if self._versioned else (first, end)
        for begin, stop in pairwise(cuts):
            self._range(loop, begin, stop)
        self._versioned = outer

    def _held(
        self, loop: nest.For, found: Callable[[Stmt, frozenset[Var]], list[Check]]
    ) -> tuple[int, int, list[Expr]]:
        """The iterations, from one up to another, in which the checks of a loop's variable alone
        hold, and what is compared in these."""
        first, end = 0, loop.extent
        var = self.loop_var(loop.var.name, loop.extent)
        with self.bound({loop.var: self.sums.variable(var)}):
            fixed = [c for c in found(loop.body, frozenset((var,))) if c.is_of(var)]
        for check in fixed:
            low, high = check.range(loop.extent)
            first, end = max(first, low), min(end, high)
        return first, end, [check.part for check in fixed]

    def _checks(self, body: Stmt, outer: frozenset[Var]) -> list[Check]:
        """The checks that decide on versions of a body, by the variables around it."""
        if not self._versioned or statements(body) > MOST_VERSIONED:
            return []
        return checks(self, self._comparisons(body), outer)

    def _comparisons(self, body: Stmt) -> list[GuardedComparison]:
        """As `comparisons`; unrolled loops ask for those of their bodies over and over."""
        if body not in self._conditions:
            self._conditions[body] = list(comparisons(body))
        return self._conditions[body]

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

    def _unrolled(self, loop: nest.For) -> None:
        if loop.extent * statements(loop.body) > MOST_STATEMENTS:
            raise ScheduleError(
                f"unrolling '{loop.var.name}' ({loop.extent} times) makes "
                f"{loop.extent * statements(loop.body)} statements; allowed: {MOST_STATEMENTS}; "
                "split the axis and unroll the inner part"
            )
        for value in range(loop.extent):
            with self.bound({loop.var: number(value)}):
                self.statement(loop.body)

    def _vectors(self, loop: nest.For) -> None:
        """A vectorized loop as vectors, cut where its checks end if few are left then: a mask costs
        more than a shorter vector."""
        first, end, known = self._held(loop, self._lane_checks)
        rest = self.processor.widths.pieces(max(0, end - first), widest_bytes(loop.body))[1]
        if known and first < end and len(rest) <= _MOST_PIECES:
            self._pieces(loop, 0, first)
            with self.bound({}, known):
                self._pieces(loop, first, end)
            self._pieces(loop, end, loop.extent)
        else:
            self._pieces(loop, 0, loop.extent)

    def _lane_checks(self, body: Stmt, outer: frozenset[Var]) -> list[Check]:
        return [] if self.processor.is_gpu else checks(self, self._comparisons(body), outer)

    def _pieces(self, loop: nest.For, first: int, end: int) -> None:
        """The iterations from `first` up to `end` in vectors."""
        widths = self.processor.widths
        (count, lanes), rest = widths.pieces(end - first, widest_bytes(loop.body))
        done = first
        if count > PIECES_UNROLLED:
            self._loop(
                loop.var.name,
                count,
                lambda value: self._vector(loop, value.times(lanes).plus(first), lanes),
            )
            done += count * lanes
        else:
            rest = [lanes] * count + rest
        for lanes in rest:
            self._vector(loop, number(done), lanes)
            done += lanes

    def _vector(self, loop: nest.For, start: Linear, lanes: int) -> None:
        """The code of `lanes` iterations from `start` on, at once."""
        if lanes == 1:
            with self.bound({loop.var: start}):
                self.statement(loop.body)
            return
        if lanes not in self._lane_vars:
            self._lane_vars[lanes] = self.loop_var("lane", lanes)
        lane = self._lane_vars[lanes]
        value = start.plus(self.sums.variable(lane))
        with self.vector(lane, lanes), self.bound({loop.var: value}):
            self.statement(loop.body)

    # -- conditions --------------------------------------------------------------------------------

    def _if(self, stmt: nest.If) -> None:
        condition, test = self.condition(stmt.condition), stmt.condition
        if isinstance(condition, bool):
            chosen = stmt.then if condition else stmt.otherwise
            if chosen is not None:
                self.statement(chosen)
        elif not is_vector(condition):
            branch = scf.IfOp(condition, has_else=stmt.otherwise is not None)
            for block, arm in ((0, stmt.then), (1, stmt.otherwise)):
                if arm is not None:
                    with self.block(branch.regions[block].blocks[0]):
                        self.statement(arm)
                        scf.YieldOp([])
        elif isinstance(test, Binary) and test.op == "logical_and" and stmt.otherwise is None:
            # One by one: what is the same in all lanes stays a branch.
            inner = replace(stmt, condition=test.b)
            self._if(replace(stmt, condition=test.a, then=inner))
        else:
            with self.masked(condition):
                self.statement(stmt.then)
            if stmt.otherwise is not None:
                with self.masked(self.negated(condition)):
                    self.statement(stmt.otherwise)

    # -- stores and memory -------------------------------------------------------------------------

    def _stores(self, stores: tuple[nest.Store, ...]) -> None:
        """All values are computed before the first is written."""
        self._statements += 1
        if self._statements > MOST_STATEMENTS:
            raise ScheduleError(
                f"unrolling makes more than {MOST_STATEMENTS} statements of one kernel; split "
                "the unrolled or vectorized axes and leave their outer parts as loops"
            )
        writes = []
        for store in stores:
            access, value = self.access(store.buffer, store.indices), self.value(store.value)
            if access.lanes:
                value = self.spread(value)
            elif is_vector(value):
                # One element written by all lanes: the last one's value is what a loop leaves.
                value = self._last(value)
            writes.append((access, value))
        for access, value in writes:
            if self.mask is None or access.lanes:
                self.write(access, value)
                continue
            branch = scf.IfOp(self.any(self.mask))
            with self.block(branch.then_block):
                self.write(access, value)
                scf.YieldOp([])

    def _last(self, value: ir.Value) -> ir.Value:
        """The last lane of a vector, or the last of those that the mask has."""
        if self.mask is None:
            return vector.ExtractOp(value, [], [self.lanes - 1]).result
        result = vector.ExtractOp(value, [], [0]).result
        for lane in range(1, self.lanes):
            wanted = vector.ExtractOp(self.mask, [], [lane]).result
            one = vector.ExtractOp(value, [], [lane]).result
            result = arith.SelectOp(wanted, one, result).result
        return result

    def _allocate(self, stmt: nest.Allocate) -> None:
        buffer, spread = stmt.buffer, max(1, self.lanes)
        size = buffer.size * spread
        memory = self._allocated.get((stmt, spread))
        if memory is None:
            memory = self._allocated[stmt, spread] = self._memory.memory(size, buffer)
        lane = self.sums.variable(self.lane) if self.lane is not None else number(0)
        outer = self.storages.get(buffer)
        own = not self.processor.is_gpu
        self.storages[buffer] = Storage(memory, size, buffer.dtype, spread, lane, own)
        self.statement(stmt.body)
        if outer is not None:
            self.storages[buffer] = outer

    def _prefetch(self, region: nest.Region, cache: int) -> None:
        """Fetch the cache lines of a region's rows. They may lie outside of the buffer.

        Args:
            region: what is fetched.
            cache: the level that it is brought into; 3 is the innermost of `localityHint`.
        """
        if not self.processor.is_llvm:
            return
        storage = self.storages[region.buffer]
        corner = self.flat(region.buffer, region.mins)
        if self.lane is not None:
            # Of the first lane; where the lanes' rows are anywhere there is no hint.
            step, corner = corner.step(self.lane)
            if step is None:
                return
        layout = [stride * storage.spread for stride in region.buffer.layout]
        step = max(1, nest.LINE_BYTES // (bits(storage.dtype) // 8))
        runs = [(extent, layout[dimension]) for extent, dimension in region.runs]

        def rows(place: Linear, run: int) -> None:
            extent, stride = runs[run]
            if run + 1 < len(runs):
                if extent == 1:
                    rows(place, run + 1)
                else:
                    self._loop(
                        "row",
                        extent,
                        lambda row: rows(place.plus(row, stride), run + 1),
                    )
                return
            length = (extent - 1) * stride + storage.spread
            starts = list(range(0, length, step))[:_MOST_LINES]
            # Rows that do not begin where a line does may end in one more.
            if any(pitch % step for pitch in layout[:-1]) and starts[-1] < length - 1:
                starts.append(length - 1)
            for start in starts:
                memref.PrefetchOp(
                    storage.memory,
                    [self.sum(place.plus(start))],
                    isWrite=False,
                    localityHint=4 - cache,
                    isDataCache=True,
                )

        rows(corner, 0)

    # -- intrinsics --------------------------------------------------------------------------------

    def _intrinsic(self, stmt: nest.Intrinsic) -> None:
        inputs = [self._view(region) for region in stmt.inputs]
        outputs = [self._view(region) for region in stmt.outputs]
        if calls := stmt.calls():
            if stmt.phase == BODY and stmt.intrinsic.reduction is not None:
                self.statement(replace(stmt, phase=RESET, inputs=()).as_loops())
            for call in calls:
                args = [a if isinstance(a, Const) else (self._view(a[0]), a[1]) for a in call.args]
                self._functions.call(call.name, call.dtype, args)
        else:
            builder = IntrinsicBuilder(self, self.processor, self._block)
            stmt.intrinsic.emit(builder, stmt.phase, inputs, outputs)
        self.changed(*(view.flat for view in outputs))

    def _view(self, region: nest.Region) -> BufferView:
        place, storage = self.flat(region.buffer, region.mins), self.storages[region.buffer]
        if self.lane in place.variables or storage.spread != 1:
            raise ScheduleError(
                f"'{region.buffer.name}' is used by an intrinsic within a vectorized loop; "
                "vectorize no loop around a tensorized one"
            )
        return BufferView(
            storage.memory, self.sum(place), region.extents, region.buffer.layout, storage.dtype
        )
