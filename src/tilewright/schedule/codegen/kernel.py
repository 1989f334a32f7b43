"""Statements to operations: unrolled loops written out, vectorized ones made of vectors.

A vectorized loop of any extent becomes vectors: as many of the longest as fit, then shorter powers
of two down to the last element. What depends on the loop's variable has lanes; a condition that
does becomes a mask. A buffer that lives within the loop gets a place for each lane.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from iree.compiler import ir
from iree.compiler.dialects import arith, gpu, memref, scf, vector

from tilewright.ir.hand_written import index
from tilewright.schedule import nest
from tilewright.schedule.arith import Linear, number
from tilewright.schedule.codegen import scalars
from tilewright.schedule.codegen.machine import Processor
from tilewright.schedule.codegen.values import Storage, ValueEmitter, is_pure, is_vector
from tilewright.schedule.codegen.view import BufferView, IntrinsicBuilder, part_of
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import Binary, Expr, Select, Var
from tilewright.schedule.nest import Buffer, Load, Stmt, expressions, inner
from tilewright.schedule.nest import statements as all_statements
from tilewright.schedule.types import BOOL, INDEX, bits
from tilewright.schedule.walk import nodes, transform

# -- a nest's loops: which are unrolled, how much code that makes, how wide it is ------------------


def kind_of(loop: nest.For) -> str:
    """What a loop is, its own pragmas considered.

    Args:
        loop: whose pragmas `vectorize` and `unroll` count.

    Returns:
        One of :data:`tilewright.schedule.nest.KINDS`.
    """
    if loop.kind == nest.SERIAL and loop.pragmas:
        if "vectorize" in loop.pragmas:
            return nest.VECTORIZED
        if "unroll" in loop.pragmas and loop.pragmas.get("unroll_explicit", True):
            return nest.UNROLLED
    return loop.kind


def has_vectors(stmt: Stmt) -> bool:
    """Whether a vectorized loop, or what cannot be in one, is within.

    Args:
        stmt: looked at with all that is in it.
    """
    return any(
        isinstance(part, nest.Intrinsic | nest.Barrier)
        or (isinstance(part, nest.For) and kind_of(part) == nest.VECTORIZED and part.extent > 1)
        for part in all_statements(stmt)
    )


def statements(stmt: Stmt) -> int:
    """Statements that there are once all unrolled loops within are written out.

    Args:
        stmt: loops that are vectorized count as one iteration.
    """
    if isinstance(stmt, nest.For):
        written_out = kind_of(stmt) == nest.UNROLLED
        return statements(stmt.body) * (stmt.extent if written_out else 1)
    below = inner(stmt)
    return sum(statements(part) for part in below) if below else 1


@functools.lru_cache(maxsize=256)
def widest_bytes(stmt: Stmt) -> int:
    """Bytes of the widest element that is computed with in a statement.

    Args:
        stmt: whose stores and loads count.

    Returns:
        1 to 8.
    """
    stores = [s for s in all_statements(stmt) if isinstance(s, nest.Store)]
    types = {
        node.dtype
        for store in stores
        for expr in expressions(store)
        for node in nodes(expr)
        if isinstance(node, Load) or node.dtype not in (INDEX, BOOL)
    }
    return max((bits(dtype) // 8 for dtype in types), default=1)


def unroll_marked(loop: nest.For) -> nest.For:
    """The loop with what its pragmas say: `vectorize`, `unroll`, and the limits up to which loops
    within it are unrolled as well: `auto_unroll_max_step` (statements), `auto_unroll_max_extent`
    (iterations), `auto_unroll_max_depth` (loops within each other). With `unroll_explicit` false
    the loops are left to LLVM.

    Args:
        loop: any.

    Returns:
        The loop itself where its pragmas say nothing of these.
    """
    pragmas = loop.pragmas
    if not pragmas or loop.kind != nest.SERIAL:
        return loop
    if kind_of(loop) != nest.SERIAL:
        return replace(loop, kind=kind_of(loop))
    limits = _Limits(
        int(pragmas.get("auto_unroll_max_step") or 0),
        int(pragmas.get("auto_unroll_max_extent") or 0),
        int(pragmas.get("auto_unroll_max_depth", 8)),
    )
    if (limits.steps or limits.extent) and pragmas.get("unroll_explicit", True):
        marked = transform(loop, limits.unrolled)
        return replace(marked, pragmas={})
    return loop


@dataclass(frozen=True)
class _Limits:
    steps: int
    extent: int
    depth: int

    def unrolled(self, stmt: Stmt | Expr) -> Stmt | None:
        """A loop that is small enough to be unrolled, as such."""
        if not isinstance(stmt, nest.For) or kind_of(stmt) != nest.SERIAL:
            return None
        small = _steps(stmt) <= self.steps or stmt.extent <= self.extent
        return replace(stmt, kind=nest.UNROLLED) if small and _depth(stmt) <= self.depth else None


def _steps(stmt: Stmt) -> int:
    """Statements run, vectorized loops counted as one step."""
    if isinstance(stmt, nest.For):
        return _steps(stmt.body) * (1 if kind_of(stmt) == nest.VECTORIZED else stmt.extent)
    below = inner(stmt)
    return sum(_steps(part) for part in below) if below else 1


def _depth(stmt: Stmt) -> int:
    """Loops around the innermost statement."""
    deepest = max((_depth(part) for part in inner(stmt)), default=0)
    return deepest + (1 if isinstance(stmt, nest.For) and kind_of(stmt) != nest.VECTORIZED else 0)


#: Statements of a loop's body beyond which it is not written out several times.
MOST_VERSIONED = 256

_ORDER = ("lt", "le", "gt", "ge")


# -- loops in versions: where no bounds need checking, and where they do ---------------------------
#
# The check that a split does not run past the end of its axis holds for nearly all iterations, and
# so do the checks at the border of a padded tensor. A loop over which a check depends on its
# variable alone is cut into the iterations where the check holds whatever the loops within do, and
# the others. Where it depends on other loops' variables as well, a branch asks at run time.


@dataclass(frozen=True)
class Check:
    """A comparison within a loop's body: it holds in every iteration of the loops within if
    `bound` is negative (op `lt`) or not negative (op `ge`)."""

    part: Expr
    op: str
    bound: Linear

    def is_of(self, var: Var) -> bool:
        """Whether the bound is a multiple of one variable, and a number.

        Args:
            var: a loop's variable.
        """
        return [atom.args[0] for atom in self.bound.terms] == [var]

    def range(self, extent: int) -> tuple[int, int]:
        """The values of that variable for which it holds: from, up to but without.

        Args:
            extent: iterations of that variable's loop.
        """
        (factor,) = self.bound.terms.values()
        offset = self.bound.constant
        if self.op == "lt":
            factor, offset = -factor, -offset - 1
        # factor * v + offset >= 0
        if factor > 0:
            return max(0, -(offset // factor)), extent
        return 0, min(extent, offset // -factor + 1)


def comparisons(body: Stmt) -> Iterator[tuple[Expr, tuple[nest.For, ...]]]:
    """The comparisons of indices in the conditions of a statement that need versions: those of
    splits that do not divide, of what is reduced only under a condition, and of values that are
    there only under one. With each come the loops around it within the statement.

    Args:
        body: of the loop that may come in versions.

    Returns:
        Pairs of a comparison and the loops, outermost first.
    """

    def visit(
        stmt: Stmt, loops: tuple[nest.For, ...]
    ) -> Iterator[tuple[Expr, tuple[nest.For, ...]]]:
        if isinstance(stmt, nest.If):
            for part in _parts(stmt.condition):
                yield part, loops
        if isinstance(stmt, nest.Store):
            for expr in expressions(stmt):
                for node in nodes(expr):
                    if isinstance(node, Select) and node.guarded:
                        for part in _parts(node.condition):
                            yield part, loops
        if isinstance(stmt, nest.For):
            loops = (*loops, stmt)
        for below in inner(stmt):
            yield from visit(below, loops)

    return visit(body, ())


def _parts(condition: Expr) -> Iterator[Expr]:
    """The comparisons of indices that a conjunction is made of."""
    if isinstance(condition, Binary):
        if condition.op == "logical_and":
            yield from _parts(condition.a)
            yield from _parts(condition.b)
        elif condition.op in _ORDER and condition.a.dtype == INDEX and is_pure(condition):
            yield condition


def checks(
    emitter: ValueEmitter,
    found: Sequence[tuple[Expr, tuple[nest.For, ...]]],
    outer: frozenset[Var],
) -> list[Check]:
    """The checks that depend on nothing but the loops `outer`, and hold for some of their values.

    A comparison that is used in several places is there if all of them are so.

    Args:
        emitter: knows the values of the variables around.
        found: what :func:`comparisons` gives.
        outer: variables that the emitter's loops have.
    """
    made, useless = [], set()
    for part, loops in found:
        if id(part) in emitter.assumed:
            continue
        check = _check(emitter, part, loops)
        bound = check.bound
        never = bound.low >= 0 if check.op == "lt" else bound.high < 0
        if never or not bound.variables <= outer:
            useless.add(id(part))
        elif bound.terms:
            made.append(check)
    return [check for check in made if id(check.part) not in useless]


def _check(emitter: ValueEmitter, part: Expr, loops: tuple[nest.For, ...]) -> Check:
    assert isinstance(part, Binary)
    within = {loop.var: emitter.loop_var(loop.var.name, loop.extent) for loop in loops}
    hidden = frozenset(within.values())
    with emitter.bound({v: emitter.sums.variable(w) for v, w in within.items()}):
        difference = emitter.linear(part.a).plus(emitter.linear(part.b), -1)
    op = part.op
    if op in ("le", "gt"):
        op, difference = ("lt" if op == "le" else "ge"), difference.plus(-1)
    inside, bound = difference.part(lambda atom, _: bool(atom.variables & hidden))
    bound = bound.plus(difference.constant + (inside.high if op == "lt" else inside.low))
    return Check(part, op, bound)


#: Statements that unrolling may make of one kernel. Compilers take minutes for more.
MOST_STATEMENTS = 8192
# Vectors of one vectorized loop that are written out; more become a loop over them.
_PIECES_UNROLLED = 8
# Vectors of different lengths behind the longest ones that are made instead of one with a mask.
_MOST_PIECES = 2
_LINE_BYTES = 64
# Cache lines that one hint fetches at most: more are no longer a hint.
_MOST_LINES = 64


# -- statements ------------------------------------------------------------------------------------


class KernelEmitter(ValueEmitter):
    """Emits the statements of one kernel into its function.

    entry: an operation before which memory is allocated.
    bindings: the memory of the buffers that exist outside of the kernel.
    scratch: the memory given for buffers that neither the stack nor a workgroup's memory has room
        for, in the order in which they are met. How many elements of which type each needs is in
        `large` afterwards; those that `scratch` has nothing for make the code unusable.
    block: threads of a workgroup in each dimension, by tag.
    """

    def __init__(
        self,
        processor: Processor,
        entry: ir.Operation,
        bindings: Mapping[Buffer, Storage],
        scratch: Sequence[ir.Value],
        block: Mapping[str, int],
    ) -> None:
        super().__init__(processor)
        self.large: list[tuple[int, str]] = []
        self.storages = dict(bindings)
        self._entry = entry
        self._bindings = [storage.memory for storage in bindings.values()]
        self._scratch = scratch
        self._block = block
        self._allocated: dict[tuple[Stmt, int], ir.Value] = {}
        self._stack_bytes = self._workgroup_bytes = 0
        self._lane_vars: dict[int, Var] = {}
        self._conditions: dict[Stmt, list[tuple[Expr, tuple[nest.For, ...]]]] = {}
        self._statements = 0
        # On GPUs the loops are short, and code with branches costs all threads.
        self._versioned = not processor.is_gpu
        # The loops over workgroups while what these do is not begun.
        self._grid: tuple[nest.For, ...] = ()

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
                self._prefetch(stmt.region)
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
        if not known or first >= end:
            self._range(loop, 0, loop.extent)
            return
        self._remainder(loop, 0, first)
        self._range(loop, first, end, known)
        self._remainder(loop, end, loop.extent)

    def _remainder(self, loop: nest.For, first: int, end: int) -> None:
        """Iterations in which a check does not hold. Of a single one, which is code of its own in
        any case, loops within come in versions as well: it may be a good part of all the work."""
        outer = self._versioned
        single = end - first == 1 and statements(loop.body) <= MOST_VERSIONED // 2
        self._versioned = outer and single
        self._range(loop, first, end)
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

    def _comparisons(self, body: Stmt) -> list[tuple[Expr, tuple[nest.For, ...]]]:
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
        if count > _PIECES_UNROLLED:
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
            memory = self._allocated[stmt, spread] = self._memory(size, buffer)
        lane = self.sums.variable(self.lane) if self.lane is not None else number(0)
        outer = self.storages.get(buffer)
        own = not self.processor.is_gpu
        self.storages[buffer] = Storage(memory, size, buffer.dtype, spread, lane, own)
        self.statement(stmt.body)
        if outer is not None:
            self.storages[buffer] = outer

    def _memory(self, size: int, buffer: Buffer) -> ir.Value:
        """New memory of `size` elements for a buffer."""
        processor = self.processor
        element = scalars.memory_element(buffer.dtype)
        size_bytes = size * bits(buffer.dtype) // 8
        on_stack = processor.on_stack(buffer.scope, size_bytes, self._stack_bytes)
        loose = not on_stack and not processor.is_gpu
        if on_stack:
            self._stack_bytes += size_bytes
        elif loose and self._workgroup_bytes + size_bytes > processor.workgroup_bytes:
            self.large.append((size, buffer.dtype))
            if len(self.large) <= len(self._scratch):
                return self._scratch[len(self.large) - 1]
        else:
            self._workgroup_bytes += size_bytes
        space = processor.memory_space(on_stack)
        # The runtime aligns a workgroup's memory on CPUs as malloc does.
        more = _LINE_BYTES * 8 // bits(buffer.dtype) if loose else 0
        attribute = scalars.parsed_attribute(space) if space else None
        type_ = ir.MemRefType.get([size + more], element, memory_space=attribute)
        make = memref.AllocaOp if on_stack else memref.AllocOp
        with ir.InsertionPoint(self._entry):
            made = make(type_, [], [], alignment=_LINE_BYTES).result
            return self._aligned(made, size, buffer.dtype) if loose else made

    def _aligned(self, buffer: ir.Value, size: int, dtype: str) -> ir.Value:
        """The part of a buffer that begins where a cache line does, distinct from the bindings.

        It is not said to be distinct from a workgroup's other memory: all of that has one base, of
        which LLVM would then believe that nothing in it overlaps, also within one buffer.
        """
        address = memref.ExtractAlignedPointerAsIndexOp(buffer).result
        missing = arith.SubIOp(index(0), address).result
        missing = arith.AndIOp(missing, index(_LINE_BYTES - 1)).result
        start = arith.DivUIOp(missing, index(max(1, bits(dtype) // 8))).result
        # IREE knows the memory space of what is allocated only.
        own = ir.MemRefType(buffer.type)
        plain = memref.MemorySpaceCastOp(ir.MemRefType.get(own.shape, own.element_type), buffer)
        return distinct([part_of(plain.result, start, [size]), *self._bindings])[0]

    def _prefetch(self, region: nest.Region) -> None:
        """Fetch the cache lines of a region's rows. They may lie outside of the buffer."""
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
        step = max(1, _LINE_BYTES // (bits(storage.dtype) // 8))

        def rows(place: Linear, dimension: int) -> None:
            extent, stride = region.extents[dimension], layout[dimension]
            if dimension + 1 < len(layout):
                if extent == 1:
                    rows(place, dimension + 1)
                else:
                    self._loop(
                        "row",
                        extent,
                        lambda row: rows(place.plus(row, stride), dimension + 1),
                    )
                return
            length = (extent - 1) * stride + storage.spread
            for line in range(min(_MOST_LINES, -(-length // step))):
                memref.PrefetchOp(
                    storage.memory,
                    [self.sum(place.plus(line * step))],
                    isWrite=False,
                    localityHint=3,
                    isDataCache=True,
                )

        rows(corner, 0)

    # -- intrinsics --------------------------------------------------------------------------------

    def _intrinsic(self, stmt: nest.Intrinsic) -> None:
        inputs = [self._view(region) for region in stmt.inputs]
        outputs = [self._view(region) for region in stmt.outputs]
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


def distinct(buffers: Sequence[ir.Value]) -> list[ir.Value]:
    """Buffers of which LLVM knows that none overlaps another.

    With that it keeps what a loop reads and writes in one place in registers.

    Args:
        buffers: memrefs that are not parts of one another.

    Returns:
        The same buffers, to be used in their place.
    """
    if len(buffers) < 2:
        return list(buffers)
    return list(memref.DistinctObjectsOp(buffers).operation.results)
