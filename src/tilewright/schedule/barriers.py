"""Where threads wait for each other because another's shared memory is next.

A barrier is needed between a write of a shared buffer and a read of it, in either order, unless
both are provably of one thread. Within a loop the end of one iteration meets the start of the next.
Writes need none between them: one stage writes a buffer, each element by one thread (or by several
the same value), and what that stage reads of its own result is the thread's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

from tilewright.schedule import nest
from tilewright.schedule.arith import Arithmetic
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import Binary, Const, Expr, Var, variables
from tilewright.schedule.walk import Node, nodes


class SharedAccess(NamedTuple):
    """A use of a shared buffer; `pinned` are the threads that it is limited to, by variable."""

    buffer: nest.Buffer
    writes: bool
    indices: tuple[Expr, ...] | None
    pinned: tuple[tuple[Var, int], ...]


class _Done(NamedTuple):
    """A statement with its barriers: what it accesses before the first and after the last."""

    stmt: nest.Stmt
    head: list[SharedAccess]
    tail: list[SharedAccess]
    waits: bool


def with_barriers(body: nest.Stmt, arithmetic: Arithmetic, threads: dict[Var, int]) -> nest.Stmt:
    """The body of a kernel with its barriers.

    Args:
        body: of a kernel, without its thread loops.
        arithmetic: knows the bounds of all its variables.
        threads: the variables of the threads of a workgroup, with their extents.

    Raises:
        ScheduleError: threads would have to wait where not all of them come.
    """
    shared = any(
        isinstance(s, nest.Allocate) and s.buffer.scope == nest.SHARED
        for s in nest.statements(body)
    )
    if not shared or prod(threads.values()) == 1:
        return body
    return _Planner(arithmetic, threads).done(body, ()).stmt


class _Planner:
    def __init__(self, arithmetic: Arithmetic, threads: dict[Var, int]) -> None:
        self.arithmetic = arithmetic
        self.threads = {v: e for v, e in threads.items() if e > 1}

    def done(self, stmt: nest.Stmt, pinned: tuple[tuple[Var, int], ...]) -> _Done:
        match stmt:
            case nest.Seq():
                return self._sequence(stmt, pinned)
            case nest.For():
                return self._loop(stmt, pinned)
            case nest.Allocate():
                body = self.done(stmt.body, pinned)
                return body._replace(stmt=nest.Allocate(stmt.buffer, body.stmt))
            case nest.If():
                return self._branch(stmt, pinned)
        own = list(self._accesses(stmt, pinned))
        return _Done(stmt, own, own, False)

    def _sequence(self, stmt: nest.Seq, pinned: tuple[tuple[Var, int], ...]) -> _Done:
        parts: list[nest.Stmt] = []
        head: list[SharedAccess] = []
        pending: list[SharedAccess] = []
        waits = False
        for part in stmt.body:
            made = self.done(part, pinned)
            if self._conflict(pending, made.head):
                parts.append(nest.Barrier())
                pending, waits = [], True
            elif not waits:
                head = [*head, *made.head]
            if made.waits:
                pending, waits = list(made.tail), True
            else:
                pending = [*pending, *made.tail]
            parts.append(made.stmt)
        return _Done(nest.flat(*parts), head, pending, waits)

    def _loop(self, stmt: nest.For, pinned: tuple[tuple[Var, int], ...]) -> _Done:
        body = self.done(stmt.body, pinned)
        if stmt.extent > 1 and self._conflict(body.tail, body.head):
            # The next iteration touches what some thread may still be using in this one.
            inside = nest.flat(nest.Barrier(), body.stmt)
            return _Done(replace(stmt, body=inside), [], body.tail, True)
        return body._replace(stmt=replace(stmt, body=body.stmt))

    def _branch(self, stmt: nest.If, pinned: tuple[tuple[Var, int], ...]) -> _Done:
        here = (*pinned, *_pins(stmt.condition, self.threads))
        then = self.done(stmt.then, here)
        other = self.done(stmt.otherwise, pinned) if stmt.otherwise is not None else None
        waits = then.waits or (other is not None and other.waits)
        if waits and variables(stmt.condition) & set(self.threads):
            raise ScheduleError(
                f"threads would have to wait for each other under '{stmt.condition}', which does "
                "not hold for all of them; compute what is shared further out"
            )
        read = list(self._accesses(stmt.condition, pinned))
        head = [*read, *then.head, *(other.head if other else [])]
        tail = [*then.tail, *(other.tail if other else [])]
        # One branch may wait and the other not: what was pending before may still be.
        if waits:
            tail = [*head, *tail]
        new = replace(stmt, then=then.stmt, otherwise=other.stmt if other else None)
        return _Done(new, head, [*read, *tail] if not waits else tail, False)

    def _accesses(
        self, stmt: Node[Any], pinned: tuple[tuple[Var, int], ...]
    ) -> Iterator[SharedAccess]:
        """The uses of shared buffers in a statement without others inside, or in a condition."""
        own: set[nest.Buffer] = set()
        if isinstance(stmt, nest.Store | nest.StoreAll):
            own = {node.buffer for node in nodes(stmt) if isinstance(node, nest.Store)}
        for node in nodes(stmt):
            indices: tuple[Expr, ...] | None = None
            match node:
                case nest.Load() if node.buffer not in own:
                    writes, indices = False, node.indices
                case nest.Store():
                    writes = True
                    indices = node.indices if not isinstance(stmt, nest.ThreadReduce) else None
                case nest.Region() if isinstance(stmt, nest.Intrinsic):
                    writes = node in stmt.outputs
                case _:
                    continue
            if node.buffer.scope == nest.SHARED:
                yield SharedAccess(node.buffer, writes, indices, pinned)

    # -- conflicts ---------------------------------------------------------------------------------

    def _conflict(self, before: list[SharedAccess], after: list[SharedAccess]) -> bool:
        return any(
            a.buffer is b.buffer and a.writes != b.writes and not self._one_thread(a, b)
            for a in before
            for b in after
        )

    def _one_thread(self, a: SharedAccess, b: SharedAccess) -> bool:
        """Whether two accesses meet in an element only if one thread makes both."""
        mine, theirs = dict(a.pinned), dict(b.pinned)
        for var in self.threads:
            if var in mine and mine[var] == theirs.get(var):
                continue
            step = self._step(a, var)
            if step is None or step != self._step(b, var):
                return False
        return True

    def _step(self, access: SharedAccess, var: Var) -> tuple[int, int] | None:
        """Dimension and step if an index is `var * step` plus less than a step: the element then
        tells the thread."""
        for i, expr in enumerate(access.indices or ()):
            form = self.arithmetic.linear(expr)
            own, rest = form.part(lambda atom, _: atom.args[0] is var)
            rest = rest.plus(form.constant)
            for step in own.terms.values():
                if rest.low >= 0 and rest.high < step:
                    return i, step
        return None


def _pins(condition: Expr, threads: dict[Var, int]) -> Iterator[tuple[Var, int]]:
    """Threads that a condition limits to one value."""
    if isinstance(condition, Binary):
        if condition.op == "logical_and":
            yield from _pins(condition.a, threads)
            yield from _pins(condition.b, threads)
        elif condition.op == "eq":
            a, b = condition.a, condition.b
            if isinstance(a, Var) and a in threads and isinstance(b, Const):
                yield a, int(b.value)
