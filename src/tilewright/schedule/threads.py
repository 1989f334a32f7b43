"""Threads as loops: what a nest means where there are no threads; and where threads need barriers.

Statements between two barriers are run for one thread after the other; a loop with a barrier inside
goes outside of the threads; what is each thread's own gets a place for every thread. The same is
done for virtual threads, which are loops of one thread that go inside of what all of them share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

from tilewright.schedule import nest
from tilewright.schedule.arith import Arithmetic
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import Binary, Const, Expr, Var, index, is_true, variables
from tilewright.schedule.tensor import VTHREAD
from tilewright.schedule.types import BOOL
from tilewright.schedule.walk import Node, nodes, transform

# Virtual threads up to this many are unrolled, so that what is theirs can stay in registers.
_UNROLLED = 16


def serialize(program: nest.LoopProgram) -> nest.LoopProgram:
    """The program without threads: blocks become parallel loops, threads serial ones between their
    barriers, reductions over threads loops.

    Args:
        program: any program.

    Returns:
        A program that computes the same.

    Raises:
        ScheduleError: threads wait for each other where not all of them come.
    """
    return replace(program, kernels=tuple(_serialized(k) for k in program.kernels))


def _serialized(kernel: nest.Kernel) -> nest.Kernel:
    if not kernel.grid and not kernel.block:
        return kernel
    kernel = expand_reductions(kernel)
    body, loops = _without_threads(kernel.body)
    threads = [loop for loop in loops if loop.tag in kernel.block]
    body = _Fission({t.var: t.extent for t in threads}, nest.SERIAL).split(body)
    for loop in reversed(loops):
        if loop.tag in kernel.grid:
            body = nest.For(loop.var, loop.extent, body, nest.PARALLEL)
    return replace(kernel, body=body, grid={}, block={})


def _without_threads(body: nest.Stmt) -> tuple[nest.Stmt, list[nest.For]]:
    """A kernel's body inside of its thread loops, and those, outermost first."""
    loops: list[nest.For] = []
    while isinstance(body, nest.For) and body.kind == nest.THREAD and body.tag != VTHREAD:
        loops.append(body)
        body = body.body
    return body, loops


def virtual_serialized(body: nest.Stmt) -> nest.Stmt:
    """The body with virtual threads as loops around each part that is theirs.

    Args:
        body: of a kernel.
    """
    if not any(isinstance(s, nest.For) and s.tag == VTHREAD for s in nest.statements(body)):
        return body

    def lowered(stmt: Node[Any]) -> nest.Stmt | None:
        if isinstance(stmt, nest.For) and stmt.tag == VTHREAD:
            kind = nest.UNROLLED if stmt.extent <= _UNROLLED else nest.SERIAL
            return _Fission({stmt.var: stmt.extent}, kind).split(stmt.body)
        return None

    return transform(body, lowered)


class _Fission:
    """Takes loops over threads into a statement, as far as what the threads do together needs."""

    def __init__(self, threads: Mapping[Var, int], kind: str) -> None:
        self.threads = {v: e for v, e in threads.items() if e > 1}
        self.kind = kind
        self.spread: set[nest.Buffer] = set()

    def split(self, stmt: nest.Stmt) -> nest.Stmt:
        """The statement for all threads."""
        match stmt:
            case nest.Seq():
                return nest.flat(*self._runs(stmt.body))
            case _ if not _together(stmt):
                return self._looped(stmt)
            case nest.For():
                return replace(stmt, body=self.split(stmt.body))
            case nest.If():
                if variables(stmt.condition) & set(self.threads):
                    raise ScheduleError(
                        f"threads wait for each other under '{stmt.condition}', which does not "
                        "hold for all of them"
                    )
                otherwise = self.split(stmt.otherwise) if stmt.otherwise is not None else None
                return replace(stmt, then=self.split(stmt.then), otherwise=otherwise)
            case nest.Allocate():
                if stmt.buffer.scope == nest.SHARED:
                    return nest.Allocate(stmt.buffer, self.split(stmt.body))
                wider, body = self._widened(stmt.buffer, stmt.body)
                self.spread.add(wider)
                return nest.Allocate(wider, self.split(body))
            case nest.Barrier():
                return nest.Seq(())
        return self._looped(stmt)

    def _runs(self, body: Iterable[nest.Stmt]) -> Iterator[nest.Stmt]:
        """The statements in order, with one loop around neighbours that the same threads run."""
        run: list[nest.Stmt] = []
        threads: set[Var] = set()
        for part in body:
            together = _together(part)
            used = set() if together else self._threads_of(part)
            if run and (together or used != threads):
                yield self._looped(nest.flat(*run))
                run = []
            if together:
                yield self.split(part)
            else:
                run.append(part)
                threads = used
        if run:
            yield self._looped(nest.flat(*run))

    def _looped(self, stmt: nest.Stmt) -> nest.Stmt:
        """Loops over the threads that a statement differs for."""
        used = self._threads_of(stmt)
        for var, extent in reversed(self.threads.items()):
            if var in used:
                stmt = nest.For(var, extent, stmt, self.kind)
        return stmt

    def _threads_of(self, stmt: nest.Stmt) -> set[Var]:
        return {v for v in nodes(stmt) if isinstance(v, Var) and v in self.threads}

    def _widened(self, buffer: nest.Buffer, body: nest.Stmt) -> tuple[nest.Buffer, nest.Stmt]:
        """A buffer with a place for each thread, and the body that uses it."""
        threads = list(self.threads)
        if "." in buffer.scope:
            # What an intrinsic of all threads of threadIdx.x works on, they hold together.
            threads = [v for v in threads if v.name != "threadIdx.x"]
        sizes = tuple(self.threads[v] for v in threads)
        strides = None
        if buffer.strides is not None:
            step, outer = buffer.size, []
            for extent in reversed(sizes):
                outer.append(step)
                step *= extent
            strides = (*reversed(outer), *buffer.strides)
        wider = replace(buffer, shape=(*sizes, *buffer.shape), strides=strides)
        return wider, moved(body, buffer, wider, tuple(threads))


def _together(stmt: nest.Stmt) -> bool:
    """Whether a statement has something in it that threads do together."""
    return any(
        isinstance(s, nest.Barrier | nest.ThreadReduce)
        or (isinstance(s, nest.Intrinsic) and s.intrinsic.collective)
        or (isinstance(s, nest.Allocate) and s.buffer.scope == nest.SHARED)
        for s in nest.statements(stmt)
    )


def moved(
    body: nest.Stmt, old: nest.Buffer, new: nest.Buffer, prefix: tuple[Expr, ...]
) -> nest.Stmt:
    """The body with elements of a buffer taken from another, under more leading indices.

    Args:
        body: a statement.
        old, new: buffers.
        prefix: the indices that come before those of the old buffer.
    """

    def change(node: Node[Any]) -> Node[Any] | None:
        match node:
            case nest.Load(buffer=buffer) if buffer is old:
                return nest.Load(new, (*prefix, *node.indices))
            case nest.Region(buffer=buffer) if buffer is old:
                return nest.Region(
                    new, (*prefix, *node.mins), (*(1 for _ in prefix), *node.extents)
                )
            case nest.Store(buffer=buffer) if buffer is old:
                return replace(node, buffer=new, indices=(*prefix, *node.indices))
        return None

    return transform(body, change)


# -- reductions over threads -----------------------------------------------------------------------


def expand_reductions(kernel: nest.Kernel) -> nest.Kernel:
    """The kernel with reductions over threads as trees in shared memory, with their barriers.

    Args:
        kernel: any kernel.

    Returns:
        The kernel itself where it reduces nothing over threads.
    """
    if not any(isinstance(s, nest.ThreadReduce) for s in nest.statements(kernel.body)):
        return kernel
    body, loops = _without_threads(kernel.body)
    tree = _Tree({loop.tag: loop for loop in loops if loop.tag in kernel.block})
    again = {
        s
        for loop in nest.statements(body)
        if isinstance(loop, nest.For)
        for s in nest.statements(loop.body)
    }

    def expanded(stmt: Node[Any]) -> nest.Stmt | None:
        return tree.of(stmt, stmt in again) if isinstance(stmt, nest.ThreadReduce) else None

    new = transform(body, expanded)
    for loop in reversed(loops):
        new = replace(loop, body=new)
    return replace(kernel, body=new)


class _Tree:
    def __init__(self, threads: Mapping[str, nest.For]) -> None:
        self.threads = threads
        self.number = 0

    def of(self, stmt: nest.ThreadReduce, in_loop: bool) -> nest.Stmt:
        """What combines the threads' values; `in_loop` where it is run again and again."""
        own = [loop for tag, loop in self.threads.items() if tag in stmt.tags]
        others = [loop for tag, loop in self.threads.items() if tag not in stmt.tags]
        count = prod(loop.extent for loop in own)
        place: Expr = index(0)
        for loop in reversed(own):
            place = place * index(loop.extent) + _value(loop)
        shape = (*(loop.extent for loop in others), count)
        prefix = tuple(_value(loop) for loop in others)
        scratch = []
        for target in stmt.targets:
            suffix = f".{self.number}" if self.number else ""
            name = f"{target.buffer.name}.tree{suffix}"
            scratch.append(nest.Buffer(name, shape, target.buffer.dtype, nest.SHARED))
            self.number += 1

        def at(where: Expr) -> list[Expr]:
            return [nest.Load(b, (*prefix, where)) for b in scratch]

        def put(where: Expr, values: Iterable[Expr]) -> nest.Stmt:
            return nest.stored(
                [nest.Store(b, (*prefix, where), v) for b, v in zip(scratch, values, strict=True)]
            )

        given: nest.Stmt = put(place, (t.value for t in stmt.targets))
        if not is_true(stmt.condition):
            given = nest.If(stmt.condition, given, put(place, stmt.combiner.identity))
        steps: list[nest.Stmt] = [given, nest.Barrier()]
        half = 1 << (count - 1).bit_length() - 1 if count > 1 else 0
        while half:
            held: Expr = Binary("lt", place, index(min(half, count - half)), BOOL)
            other = place + index(half)
            steps.append(nest.If(held, put(place, stmt.combiner.combine(at(place), at(other)))))
            steps.append(nest.Barrier())
            half //= 2
        result = [replace(t, value=v) for t, v in zip(stmt.targets, at(index(0)), strict=True)]
        steps.append(nest.stored(result))
        if in_loop:
            steps.append(nest.Barrier())
        body = nest.flat(*steps)
        for buffer in reversed(scratch):
            body = nest.Allocate(buffer, body)
        return body


def _value(loop: nest.For) -> Expr:
    return loop.var if loop.extent > 1 else index(0)


# -- barriers: where threads wait because another's shared memory is next --------------------------
#
# A barrier is needed between a write of a shared buffer and a read of it, in either order, unless
# both are provably of one thread. Within a loop the end of one iteration meets the start of the
# next. Writes need none between them: one stage writes a buffer, each element by one thread (or by
# several the same value), and what that stage reads of its own result is the thread's own.


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
