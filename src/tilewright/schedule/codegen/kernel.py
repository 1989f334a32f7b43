"""Statements to operations: unrolled loops written out, vectorized ones made of vectors.

A vectorized loop of any extent becomes vectors: as many of the longest as fit, then shorter powers
of two down to the last element. What depends on the loop's variable has lanes; a condition that
does becomes a mask. A buffer that lives within the loop gets a place for each lane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from iree.compiler import ir
from iree.compiler.dialects import arith, gpu, memref, scf, vector

from tilewright.schedule import nest
from tilewright.schedule.codegen.allocation import Allocator
from tilewright.schedule.codegen.extern import ImportedFunctions
from tilewright.schedule.codegen.machine import PIECES_UNROLLED, Processor
from tilewright.schedule.codegen.memory import Storage
from tilewright.schedule.codegen.sums import is_vector
from tilewright.schedule.codegen.versioned import VersionedEmitter
from tilewright.schedule.codegen.versions import Check, checks
from tilewright.schedule.codegen.view import BufferView, IntrinsicBuilder, KernelStart
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import Binary, Const, Var
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
# Cache lines that one hint fetches at most: more are no longer a hint.
_MOST_LINES = 64


class KernelEmitter(VersionedEmitter):
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
        self._start = KernelStart(entry)
        self._allocated: dict[tuple[Stmt, int], ir.Value] = {}
        self._lane_vars: dict[int, Var] = {}
        self._statements = 0

    @property
    def large(self) -> list[tuple[int, str]]:
        """Elements, with their type, of each buffer that is in `scratch` or should be."""
        return self._memory.large

    def finish(self) -> None:
        """Emit what is done when the kernel ends, behind all statements."""
        self._start.finish()

    def statement(self, stmt: Stmt) -> None:
        """Emit a statement at the insertion point.

        Args:
            stmt: with all that is in it.

        Raises:
            ScheduleError: unrolling makes too much code, or an intrinsic is in a vectorized loop or
                lacks what it needs.
        """
        if self.begins_work(stmt):
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
        else:
            self.in_versions(loop)

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
        first, end, known = self.held(loop, self._lane_checks)
        rest = self.processor.widths.pieces(max(0, end - first), widest_bytes(loop.body))[1]
        if known and first < end and len(rest) <= _MOST_PIECES:
            self._pieces(loop, 0, first)
            with self.bound({}, known):
                self._pieces(loop, first, end)
            self._pieces(loop, end, loop.extent)
        else:
            self._pieces(loop, 0, loop.extent)

    def _lane_checks(self, body: Stmt, outer: frozenset[Var]) -> list[Check]:
        return [] if self.processor.is_gpu else checks(self, self.comparisons_of(body), outer)

    def _pieces(self, loop: nest.For, first: int, end: int) -> None:
        """The iterations from `first` up to `end` in vectors."""
        widths = self.processor.widths
        (count, lanes), rest = widths.pieces(end - first, widest_bytes(loop.body))
        done = first
        if count > PIECES_UNROLLED:
            self.emit_loop(
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
                    self.emit_loop(
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
            builder = IntrinsicBuilder(self, self.processor, self._block, self._start)
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
