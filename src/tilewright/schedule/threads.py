"""Threads as loops: what a nest with threads means where there are none.

Statements between two barriers are run for one thread after the other; a loop with a barrier inside
goes outside of the threads; what is each thread's own gets a place for every thread. The same is
done for virtual threads, which are loops of one thread that go inside of what all of them share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import prod

from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import TRUE, Binary, Expr, Load, Var, index
from tilewright.schedule.nest import (
    PARALLEL,
    SERIAL,
    SHARED,
    THREAD,
    UNROLLED,
    VTHREAD,
    Allocate,
    Barrier,
    Buffer,
    For,
    If,
    Intrinsic,
    Kernel,
    LoopProgram,
    Prefetch,
    Region,
    Seq,
    Stmt,
    Store,
    StoreAll,
    ThreadReduce,
)
from tilewright.schedule.types import BOOL
from tilewright.schedule.walk import (
    expressions,
    flat,
    inner,
    nodes,
    rewrite,
    statements,
    transform,
    variables,
)

# Virtual threads up to this many are unrolled, so that what is theirs can stay in registers.
_UNROLLED = 16


def serialize(program: LoopProgram) -> LoopProgram:
    """The program without threads: blocks become parallel loops, threads serial ones between their
    barriers, reductions over threads loops."""
    return replace(program, kernels=tuple(_serialized(k) for k in program.kernels))


def _serialized(kernel: Kernel) -> Kernel:
    if not kernel.grid and not kernel.block:
        return kernel
    kernel = expand_reductions(kernel)
    body, loops = _without_threads(kernel.body)
    threads = [loop for loop in loops if loop.tag in kernel.block]
    body = _Fission({t.var: t.extent for t in threads}, SERIAL).split(body)
    for loop in reversed(loops):
        if loop.tag in kernel.grid:
            body = For(loop.var, loop.extent, body, PARALLEL)
    return replace(kernel, body=body, grid={}, block={})


def _without_threads(body: Stmt) -> tuple[Stmt, list[For]]:
    """A kernel's body inside of its thread loops, and those, outermost first."""
    loops: list[For] = []
    while isinstance(body, For) and body.kind == THREAD and body.tag != VTHREAD:
        loops.append(body)
        body = body.body
    return body, loops


def virtual_serialized(body: Stmt) -> Stmt:
    """The body with virtual threads as loops around each part that is theirs."""
    if not any(isinstance(s, For) and s.tag == VTHREAD for s in statements(body)):
        return body

    def lowered(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, For) and stmt.tag == VTHREAD:
            kind = UNROLLED if stmt.extent <= _UNROLLED else SERIAL
            return _Fission({stmt.var: stmt.extent}, kind).split(stmt.body)
        return None

    return rewrite(body, lambda e: e, lowered)


class _Fission:
    """Takes loops over threads into a statement, as far as what the threads do together needs."""

    def __init__(self, threads: Mapping[Var, int], kind: str) -> None:
        self.threads = {v: e for v, e in threads.items() if e > 1}
        self.kind = kind
        self.spread: set[Buffer] = set()

    def split(self, stmt: Stmt) -> Stmt:
        """The statement for all threads."""
        match stmt:
            case Seq():
                return flat(*self._runs(stmt.body))
            case _ if not _together(stmt):
                return self._looped(stmt)
            case For():
                return replace(stmt, body=self.split(stmt.body))
            case If():
                if self._touched([stmt.condition]):
                    raise ScheduleError(
                        f"threads wait for each other under '{stmt.condition}', which does not "
                        "hold for all of them"
                    )
                otherwise = self.split(stmt.otherwise) if stmt.otherwise is not None else None
                return replace(stmt, then=self.split(stmt.then), otherwise=otherwise)
            case Allocate():
                if stmt.buffer.scope == SHARED:
                    return Allocate(stmt.buffer, self.split(stmt.body))
                wider, body = self._widened(stmt.buffer, stmt.body)
                self.spread.add(wider)
                return Allocate(wider, self.split(body))
            case Barrier():
                return Seq(())
        return self._looped(stmt)

    def _runs(self, body: Iterable[Stmt]) -> Iterator[Stmt]:
        """The statements in order, with one loop around neighbours that the same threads run."""
        run: list[Stmt] = []
        threads: set[Var] = set()
        for part in body:
            together = _together(part)
            used = set() if together else self._threads_of(part)
            if run and (together or used != threads):
                yield self._looped(flat(*run))
                run = []
            if together:
                yield self.split(part)
            else:
                run.append(part)
                threads = used
        if run:
            yield self._looped(flat(*run))

    def _looped(self, stmt: Stmt) -> Stmt:
        """Loops over the threads that a statement differs for."""
        used = self._threads_of(stmt)
        for var, extent in reversed(self.threads.items()):
            if var in used:
                stmt = For(var, extent, stmt, self.kind)
        return stmt

    def _threads_of(self, stmt: Stmt) -> set[Var]:
        found: set[Var] = set()
        for part in statements(stmt):
            for expr in expressions(part):
                found.update(v for v in variables(expr) if v in self.threads)
        return found

    def _touched(self, exprs: Iterable[Expr]) -> bool:
        return any(v in self.threads for e in exprs for v in variables(e))

    def _widened(self, buffer: Buffer, body: Stmt) -> tuple[Buffer, Stmt]:
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


def _together(stmt: Stmt) -> bool:
    """Whether a statement has something in it that threads do together."""
    return any(
        isinstance(s, Barrier | ThreadReduce)
        or (isinstance(s, Intrinsic) and s.intrinsic.collective)
        or (isinstance(s, Allocate) and s.buffer.scope == SHARED)
        for s in statements(stmt)
    )


def moved(body: Stmt, old: Buffer, new: Buffer, prefix: tuple[Expr, ...]) -> Stmt:
    """The body with elements of a buffer taken from another, under more leading indices."""

    def load(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.buffer is old:
            return Load(new, (*prefix, *node.indices))
        return None

    def region(r: Region) -> Region:
        if r.buffer is not old:
            return r
        return Region(new, (*prefix, *r.mins), (*(1 for _ in prefix), *r.extents))

    def stored(s: Store) -> Store:
        return replace(s, buffer=new, indices=(*prefix, *s.indices)) if s.buffer is old else s

    def statement(stmt: Stmt) -> Stmt | None:
        match stmt:
            case Store():
                return stored(stmt)
            case StoreAll():
                return StoreAll(tuple(stored(s) for s in stmt.stores))
            case ThreadReduce():
                return replace(stmt, targets=tuple(stored(s) for s in stmt.targets))
            case Prefetch():
                return Prefetch(region(stmt.region))
            case Intrinsic():
                return replace(
                    stmt,
                    inputs=tuple(region(r) for r in stmt.inputs),
                    outputs=tuple(region(r) for r in stmt.outputs),
                )
        return None

    def changed(expr: Expr) -> Expr:
        if not any(isinstance(n, Load) and n.buffer is old for n in nodes(expr)):
            return expr
        return transform(expr, load)

    # Stores inside of StoreAll and ThreadReduce are changed with these, so not on their own.
    return rewrite(body, changed, statement)


# -- reductions over threads -----------------------------------------------------------------------


def expand_reductions(kernel: Kernel) -> Kernel:
    """The kernel with reductions over threads as trees in shared memory, with their barriers."""
    if not any(isinstance(s, ThreadReduce) for s in statements(kernel.body)):
        return kernel
    body, loops = _without_threads(kernel.body)
    tree = _Tree({loop.tag: loop for loop in loops if loop.tag in kernel.block})
    new = tree.expanded(body, in_loop=False)
    for loop in reversed(loops):
        new = replace(loop, body=new)
    return replace(kernel, body=new)


class _Tree:
    def __init__(self, threads: Mapping[str, For]) -> None:
        self.threads = threads
        self.number = 0

    def expanded(self, stmt: Stmt, in_loop: bool) -> Stmt:
        if isinstance(stmt, ThreadReduce):
            return self._tree(stmt, in_loop)
        if isinstance(stmt, For):
            return replace(stmt, body=self.expanded(stmt.body, True))
        if isinstance(stmt, Seq):
            return flat(*(self.expanded(s, in_loop) for s in stmt.body))
        if isinstance(stmt, Allocate):
            return replace(stmt, body=self.expanded(stmt.body, in_loop))
        if isinstance(stmt, If) and any(isinstance(s, ThreadReduce) for s in statements(stmt)):
            otherwise = stmt.otherwise
            return replace(
                stmt,
                then=self.expanded(stmt.then, in_loop),
                otherwise=self.expanded(otherwise, in_loop) if otherwise is not None else None,
            )
        assert not any(isinstance(s, ThreadReduce) for p in inner(stmt) for s in statements(p))
        return stmt

    def _tree(self, stmt: ThreadReduce, in_loop: bool) -> Stmt:
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
            scratch.append(Buffer(name, shape, target.buffer.dtype, SHARED))
            self.number += 1

        def at(where: Expr) -> list[Expr]:
            return [Load(b, (*prefix, where)) for b in scratch]

        def put(where: Expr, values: Iterable[Expr]) -> Stmt:
            stores = [Store(b, (*prefix, where), v) for b, v in zip(scratch, values, strict=True)]
            return stores[0] if len(stores) == 1 else StoreAll(tuple(stores))

        given: Stmt = put(place, (t.value for t in stmt.targets))
        if stmt.condition is not TRUE:
            given = If(stmt.condition, given, put(place, stmt.combiner.identity))
        steps: list[Stmt] = [given, Barrier()]
        half = 1 << (count - 1).bit_length() - 1 if count > 1 else 0
        while half:
            held: Expr = Binary("lt", place, index(min(half, count - half)), BOOL)
            other = place + index(half)
            steps.append(If(held, put(place, stmt.combiner.combine(at(place), at(other)))))
            steps.append(Barrier())
            half //= 2
        result = [replace(t, value=v) for t, v in zip(stmt.targets, at(index(0)), strict=True)]
        steps.append(result[0] if len(result) == 1 else StoreAll(tuple(result)))
        if in_loop:
            steps.append(Barrier())
        body = flat(*steps)
        for buffer in reversed(scratch):
            body = Allocate(buffer, body)
        return body


def _value(loop: For) -> Expr:
    return loop.var if loop.extent > 1 else index(0)


__all__ = ["expand_reductions", "moved", "serialize", "virtual_serialized"]
