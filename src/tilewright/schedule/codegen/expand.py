"""From the loop nest to code: unrolled loops written out, vectorized ones made of vectors.

A vectorized loop of any extent becomes vectors: as many of the widest as fit, then shorter
powers of two down to the last element. What depends on the loop's variable has
lanes; a condition that does becomes a mask. A buffer that lives within the loop gets a place for
each lane.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.schedule import nest
from tilewright.schedule.codegen.code import (
    Access,
    Branch,
    Code,
    Fence,
    Hint,
    Loop,
    Part,
    Scope,
    Storage,
    Tensorized,
    Write,
)
from tilewright.schedule.codegen.indices import Indices
from tilewright.schedule.codegen.linear import Atom, Linear, constant
from tilewright.schedule.codegen.shape import (
    has_vectors,
    pieces,
    statements,
    unroll_marked,
    widest_bytes,
)
from tilewright.schedule.codegen.versions import MOST_STATEMENTS as MOST_VERSIONED
from tilewright.schedule.codegen.versions import checks, comparisons
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import Binary, Expr
from tilewright.schedule.nest import Buffer, Stmt

#: Statements that unrolling may make of one kernel. Compilers take minutes for more.
MOST_STATEMENTS = 8192
# Vectors of one vectorized loop that are written out; more become a loop over them.
_PIECES_UNROLLED = 8


@dataclass(frozen=True)
class Widths:
    """register: bytes of a vector register. vector: bytes of the longest vectors made. lanes: of
    the longest vectors that there are, where that is a limit."""

    register: int
    vector: int
    lanes: int | None = None


@dataclass(frozen=True)
class _Place:
    """Where a buffer is: its storage, and elements between neighbours (lanes lie in between)."""

    storage: Storage
    spread: int
    lane: Linear


class Expander(Indices):
    """Makes the code of one kernel. `storages` are those that exist outside of it; `versions`:
    whether loops and workgroups come in versions with and without checks (`versions`);
    `collective`: whether threads can run an intrinsic together, which is loops otherwise."""

    def __init__(
        self,
        widths: Widths,
        storages: dict[Buffer, Storage],
        versions: bool = False,
        collective: bool = True,
    ) -> None:
        super().__init__()
        self._collective = collective
        self._versioned = versions
        self._widths = widths
        self._places = {b: _Place(s, 1, constant(0)) for b, s in storages.items()}
        self._allocated: dict[tuple[Stmt, int], Storage] = {}
        self._statements = 0

    def code(self, stmt: Stmt) -> list[Code]:
        """The code of a statement."""
        match stmt:
            case nest.Seq():
                return [code for part in stmt.body for code in self.code(part)]
            case nest.For():
                return self._for(unroll_marked(stmt))
            case nest.If():
                return self._if(stmt)
            case nest.Store():
                return self._stores((stmt,))
            case nest.StoreAll():
                return self._stores(stmt.stores)
            case nest.Allocate():
                return self._allocate(stmt)
            case nest.Prefetch():
                return self._prefetch(stmt)
            case nest.Barrier():
                return [Fence()]
            case nest.Intrinsic():
                if stmt.intrinsic.collective and not self._collective:
                    return self.code(stmt.as_loops())
                return [
                    Tensorized(
                        stmt,
                        tuple(self.part(region) for region in stmt.inputs),
                        tuple(self.part(region) for region in stmt.outputs),
                    )
                ]
        raise TypeError(f"no code for {type(stmt).__name__}")

    # -- loops -------------------------------------------------------------------------------------

    def _for(self, loop: nest.For) -> list[Code]:
        if loop.kind == nest.VECTORIZED:
            if self.lane is None and not has_vectors(loop.body):
                return self._vectors(loop)
            return self._unrolled(loop)
        if loop.kind == nest.UNROLLED or loop.extent == 1:
            return self._unrolled(loop)
        return self._versions(loop) if self._versioned else self._range(loop, 0, loop.extent)

    def _range(
        self, loop: nest.For, first: int, end: int, known: Sequence[Expr] = ()
    ) -> list[Code]:
        """The iterations from `first` up to `end`, for which the `known` comparisons hold."""
        if first >= end:
            return []
        if end - first == 1:
            with self.bound(loop.var, constant(first)), self.assuming(known):
                return self.code(loop.body)
        atom = self.space.loop(end - first)
        with self.bound(loop.var, Linear(((atom, 1),), first)), self.assuming(known):
            body = self.code(loop.body)
        if len(body) == 1 and isinstance(body[0], Branch) and not body[0].otherwise:
            branch = body[0]
            if atom not in branch.condition.loops and not branch.condition.reads:
                return [Branch(branch.condition, [Loop(atom, end - first, branch.then)], [])]
        return [Loop(atom, end - first, body)]

    def _versions(self, loop: nest.For) -> list[Code]:
        """The loop cut where its checks begin and cease to hold."""
        atom = self.space.loop(loop.extent)
        found = list(comparisons(loop.body))
        if not found or statements(loop.body) > MOST_VERSIONED:
            return self._range(loop, 0, loop.extent)
        with self.bound(loop.var, Linear(((atom, 1),), 0)):
            fixed = checks(self, found, frozenset((atom,)))
        fixed = [c for c in fixed if len(c.bound.terms) == 1 and c.bound.terms[0][0] is atom]
        first, end = 0, loop.extent
        for check in fixed:
            low, high = check.range(atom, loop.extent)
            first, end = max(first, low), min(end, high)
        if not fixed or first >= end:
            return self._range(loop, 0, loop.extent)
        inside = self._range(loop, first, end, [check.part for check in fixed])
        self._versioned = False
        before = self._range(loop, 0, first)
        after = self._range(loop, end, loop.extent)
        self._versioned = True
        return before + inside + after

    def workgroup(self, body: Stmt, numbers: frozenset[Atom]) -> list[Code]:
        """The code of a workgroup: a branch where checks depend on its numbers."""
        found = list(comparisons(body)) if self._versioned else []
        if found and statements(body) <= MOST_VERSIONED:
            known = checks(self, found, numbers)
            if known:
                condition = self.values.constant(True, "bool")
                for check in known:
                    holds = self.compared(check.op, check.bound)
                    condition = self.logical("logical_and", condition, holds)
                with self.assuming(check.part for check in known):
                    inside = self.code(body)
                self._versioned = False
                return [Branch(condition, inside, self.code(body))]
        return self.code(body)

    def _unrolled(self, loop: nest.For) -> list[Code]:
        if loop.extent * statements(loop.body) > MOST_STATEMENTS:
            raise ScheduleError(
                f"unrolling '{loop.var.name}' ({loop.extent} times) makes "
                f"{loop.extent * statements(loop.body)} statements; allowed: {MOST_STATEMENTS}; "
                "split the axis and unroll the inner part"
            )
        code: list[Code] = []
        for number in range(loop.extent):
            with self.bound(loop.var, constant(number)):
                code += self.code(loop.body)
        return code

    def _vectors(self, loop: nest.For) -> list[Code]:
        whole, rest = pieces(loop.extent, widest_bytes(loop.body), self._widths)
        code: list[Code] = []
        done = 0
        count, lanes = whole
        if count > _PIECES_UNROLLED:
            atom = self.space.loop(count)
            start = Linear(((atom, lanes),), 0)
            code.append(Loop(atom, count, self._vector(loop, start, lanes)))
            done = count * lanes
        else:
            rest = [lanes] * count + rest
        for lanes in rest:
            code += self._vector(loop, constant(done), lanes)
            done += lanes
        return code

    def _vector(self, loop: nest.For, start: Linear, lanes: int) -> list[Code]:
        """The code of `lanes` iterations from `start` on, at once."""
        if lanes == 1:
            with self.bound(loop.var, start):
                return self.code(loop.body)
        lane = Linear(((self.space.lane(lanes), 1),), 0)
        with self.vector(lane, lanes), self.bound(loop.var, start + lane):
            return self.code(loop.body)

    # -- conditions --------------------------------------------------------------------------------

    def _if(self, stmt: nest.If) -> list[Code]:
        condition = self.value(stmt.condition)
        if condition.op == "const":
            chosen = stmt.then if condition.data else stmt.otherwise
            return self.code(chosen) if chosen is not None else []
        if condition.lanes:
            test = stmt.condition
            joined = isinstance(test, Binary) and test.op == "logical_and"
            if isinstance(test, Binary) and joined and stmt.otherwise is None:
                # One by one: what is the same in all lanes stays a branch.
                inner = replace(stmt, condition=test.b)
                return self._if(replace(stmt, condition=test.a, then=inner))
            with self.masked(condition):
                code = self.code(stmt.then)
            if stmt.otherwise is not None:
                with self.masked(self.negated(condition)):
                    code += self.code(stmt.otherwise)
            return code
        then = self.code(stmt.then)
        otherwise = self.code(stmt.otherwise) if stmt.otherwise is not None else []
        return [Branch(condition, then, otherwise)] if then or otherwise else []

    # -- stores and memory -------------------------------------------------------------------------

    def _stores(self, stores: tuple[nest.Store, ...]) -> list[Code]:
        self._statements += 1
        if self._statements > MOST_STATEMENTS:
            raise ScheduleError(
                f"unrolling makes more than {MOST_STATEMENTS} statements of one kernel; split "
                "the unrolled or vectorized axes and leave their outer parts as loops"
            )
        guard = self.mask
        writes = []
        for store in stores:
            access = self.access(store.buffer, store.indices)
            value = self.value(store.value)
            if self.lane is not None and not access.lanes:
                # One element written by all lanes: the last one's value is what a loop leaves.
                if value.lanes:
                    args = (value,) if guard is None else (value, guard)
                    value = self.values.make("last", value.dtype, args)
                access = Access(access.storage, access.place, 0, None)
            elif access.lanes and not value.lanes:
                value = self.values.make("splat", value.dtype, (value,), lanes=access.lanes)
            writes.append((access, value))
        write: list[Code] = [Write(tuple(writes))]
        if guard is not None and any(not access.lanes for access, _ in writes):
            single = tuple(w for w in writes if not w[0].lanes)
            many = tuple(w for w in writes if w[0].lanes)
            some = self.values.make("any", "bool", (guard,))
            write = [Branch(some, [Write(single)], [])]
            if many:
                write.insert(0, Write(many))
        return write

    def _allocate(self, stmt: nest.Allocate) -> list[Code]:
        buffer = stmt.buffer
        spread = self.lanes if self.lane is not None else 1
        storage = self._allocated.get((stmt, spread))
        if storage is None:
            storage = Storage(buffer.name, buffer.size * spread, buffer.dtype, buffer.scope, True)
            self._allocated[stmt, spread] = storage
        lane = self.lane if self.lane is not None else constant(0)
        outer = self._places.get(buffer)
        self._places[buffer] = _Place(storage, spread, lane)
        body = self.code(stmt.body)
        if outer is None:
            del self._places[buffer]
        else:
            self._places[buffer] = outer
        return [Scope(storage, body)]

    def access(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Access:
        place = self._places[buffer]
        flat = place.lane
        for index, stride in zip(indices, buffer.layout, strict=True):
            flat += self.linear(index).scaled(stride * place.spread)
        lanes = self.lanes if flat.lane else 0
        return Access(place.storage, flat, lanes, self.mask if lanes else None)

    def part(self, region: nest.Region) -> Part:
        place = self._places[region.buffer]
        flat = place.lane
        for index, stride in zip(region.mins, region.buffer.layout, strict=True):
            flat += self.linear(index).scaled(stride * place.spread)
        if flat.lane or place.spread != 1:
            raise ScheduleError(
                f"'{region.buffer.name}' is used by an intrinsic within a vectorized loop; "
                "vectorize no loop around a tensorized one"
            )
        return Part(place.storage, flat, region.extents, region.buffer.layout)

    def _prefetch(self, stmt: nest.Prefetch) -> list[Code]:
        region = stmt.region
        place = self._places[region.buffer]
        layout = region.buffer.layout
        corner = place.lane.without_lane()[0]
        for index, stride in zip(region.mins, layout, strict=True):
            start, _ = self.linear(index).without_lane()
            if start.lane:
                return []
            corner += start.scaled(stride * place.spread)
        return list(_hints(place.storage, corner, region.extents, layout, place.spread, self))


def _hints(
    storage: Storage,
    corner: Linear,
    extents: tuple[int, ...],
    strides: tuple[int, ...],
    spread: int,
    expander: Expander,
) -> Iterator[Code]:
    """Hints for all rows of a region, in loops over the rows."""
    if len(extents) == 1:
        yield Hint(storage, corner, ((extents[0] - 1) * strides[0] + 1) * spread)
        return
    if extents[0] == 1:
        yield from _hints(storage, corner, extents[1:], strides[1:], spread, expander)
        return
    atom = expander.space.loop(extents[0])
    inner = corner + Linear(((atom, strides[0] * spread),), 0)
    yield Loop(
        atom,
        extents[0],
        list(_hints(storage, inner, extents[1:], strides[1:], spread, expander)),
    )
