"""Threads as loops: what a nest means where there are no threads.

Statements between two barriers are run for one thread after the other; a loop with a barrier inside
goes outside of the threads; what is each thread's own gets a place for every thread. The same is
done for virtual threads, which are loops of one thread that go inside of what all of them share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from tilewright.schedule import nest
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import Binary, Expr, Var, index, is_true, variables
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
