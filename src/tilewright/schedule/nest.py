"""The loop nest that a schedule lowers to: statements over buffers, and the kernels they form.

All sizes are constants. Every loop counts from 0 in steps of 1; what a loop stands for is in the
index expressions. Statements are immutable; buffers and variables are known by identity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import TRUE, Combiner, Const, Expr, Var, is_true, listed
from tilewright.schedule.extern_calls import AccessPointer, number_of
from tilewright.schedule.intrinsic import BODY, RESET, UPDATE, CallIntrinsic, TensorIntrinsic
from tilewright.schedule.tensor import IterVar, TensorRead
from tilewright.schedule.walk import Node, children, node, transform

SERIAL = "serial"
PARALLEL = "parallel"
VECTORIZED = "vectorized"
UNROLLED = "unrolled"
THREAD = "thread"

GLOBAL = "global"
SHARED = "shared"
LOCAL = "local"
SCOPES = (GLOBAL, SHARED, LOCAL)

#: Bytes that come into a cache together.
LINE_BYTES = 64


@dataclass(frozen=True, eq=False, slots=True)
class Buffer:
    """Storage of elements.

    shape: extents, one at least (a tensor without dimensions has a buffer of shape (1,)).
    strides: elements from one index to the next of each dimension; None for compact row-major.
    scope: `global` (memory that every workgroup sees), `shared` (one workgroup's), `local` (one
        thread's: registers or its stack), or a name of the user's for an intrinsic, such as
        `wmma.accumulator`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scope: str = GLOBAL
    strides: tuple[int, ...] | None = None

    @property
    def layout(self) -> tuple[int, ...]:
        """The strides, compact row-major ones where none were set."""
        return self.strides if self.strides is not None else compact(self.shape)

    @property
    def size(self) -> int:
        """Elements from the first to the last, gaps of the strides included."""
        return 1 + sum((e - 1) * s for e, s in zip(self.shape, self.layout, strict=True))


def compact(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides without gaps.

    Args:
        shape: extents.

    Returns:
        As many strides, in elements.
    """
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


@node("indices")
class Load(Expr):
    """An element of a buffer: one index for each of the buffer's dimensions."""

    buffer: Buffer
    indices: tuple[Expr, ...]

    @property
    def dtype(self) -> str:
        return self.buffer.dtype

    def text(self, names: Mapping[Var, str], level: int = -1) -> str:
        return f"{self.buffer.name}[{listed(self.indices, names)}]"


@node("mins")
class Region(Node[Expr]):
    """Part of a buffer: from `mins` on (one for each dimension), `extents` elements long."""

    buffer: Buffer
    mins: tuple[Expr, ...]
    extents: tuple[int, ...]

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Extents with the dimensions that they are along; dimensions whose elements follow each
        other in memory are one, along the innermost of them."""
        layout, found = self.buffer.layout, list[tuple[int, int]]()
        for dimension, extent in enumerate(self.extents):
            if found and layout[found[-1][1]] == extent * layout[dimension]:
                found[-1] = found[-1][0] * extent, dimension
            else:
                found.append((extent, dimension))
        return found

    def at(self, indices: Sequence[Expr]) -> Load:
        """An element of the region; it may have fewer dimensions, the inner ones.

        Args:
            indices: counted from where the region begins.

        Returns:
            The element, as it is loaded.
        """
        lead = len(self.mins) - len(indices)
        inside = (low + i for low, i in zip(self.mins[lead:], indices, strict=True))
        return Load(self.buffer, (*self.mins[:lead], *inside))


class Stmt(Node[Node[Any]]):
    """Base of all statements."""

    __slots__ = ()


@node("body")
class Seq(Stmt):
    """Statements one after the other."""

    body: tuple[Stmt, ...]

    def remade(self, values: Sequence[Any]) -> Stmt:
        (body,) = values
        return flat(*body)


@node("body")
class For(Stmt):
    """A loop: `var` from 0 to `extent` - 1.

    kind: `serial`; `parallel` (iterations independent, on any worker); `vectorized` (in the
        lanes of a vector: every iteration independent of the others); `unrolled`; `thread` (the
        iterations are the GPU's blocks or threads named by `tag`, all running at once).
    tag: `blockIdx.x` to `threadIdx.z` for kind `thread`, else empty. `vthread` loops are `thread`
        loops too, which lowering has made serial or unrolled before anybody sees the nest.
    reduction: whether the loop runs over a reduction's axis (or a part of one).
    pragmas: what `pragma` attached to the loop, e.g. {"auto_unroll_max_step": 16}.
    """

    var: Var
    extent: int
    body: Stmt
    kind: str = SERIAL
    tag: str = ""
    reduction: bool = False
    pragmas: dict[str, Any] = field(default_factory=dict)


@node("condition", "then", "otherwise")
class If(Stmt):
    """`then` where the condition holds, else `otherwise`. `likely` for bounds of splits that do
    not divide, which hold for all but the last iterations."""

    condition: Expr
    then: Stmt
    otherwise: Stmt | None = None
    likely: bool = False


@node("indices", "value")
class Store(Stmt):
    """`buffer[indices] = value`."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr


@node("stores")
class StoreAll(Stmt):
    """Stores at once: every value and index is evaluated before the first element is written."""

    stores: tuple[Store, ...]


@node("body")
class Allocate(Stmt):
    """`buffer` exists (uninitialised) while `body` runs, anew for each run of this statement.

    A `local` buffer is one per thread, a `shared` one per workgroup.
    """

    buffer: Buffer
    body: Stmt


@node("region")
class Prefetch(Stmt):
    """A hint that the region will be read soon. Indices may lie outside of the buffer.

    cache: the level that it is brought into, counted from 1.
    """

    region: Region
    cache: int = 1


@node()
class Barrier(Stmt):
    """All threads of a workgroup wait here, and see each other's shared memory after it."""


@node("targets", "condition")
class ThreadReduce(Stmt):
    """Combines values over the threads of `tags` (the reduction's), the result in every thread.

    targets: stores of `local` buffers, one for each value of the combiner: its `value` is what
        this thread contributes; it is written the combination over all threads that differ in
        the given tags only. Threads for which `condition` is false contribute the identity.
    """

    combiner: Combiner
    targets: tuple[Store, ...]
    tags: tuple[str, ...]
    condition: Expr


@node("inputs", "outputs")
class Intrinsic(Stmt):
    """A tensorized loop: what the intrinsic puts in place of the loops of its pattern.

    phase: `body` (initialise and compute all), `reset` (initialise only) or `update` (go on from
        what the output holds).
    inputs, outputs: regions in the order of the pattern's tensors, no inputs for `reset`. Extents
        are those of the pattern's tensors, with leading extents of 1 where the buffer has more
        dimensions.
    """

    intrinsic: TensorIntrinsic
    phase: str
    inputs: tuple[Region, ...]
    outputs: tuple[Region, ...]

    def calls(self) -> tuple[BoundCall, ...]:
        """What it calls, with the regions and strides that there are; nothing where it is code.

        Raises:
            ScheduleError: a region has other strides than a function wants, or a call takes what
                there is not.
        """
        intrinsic = self.intrinsic
        if not isinstance(intrinsic, CallIntrinsic):
            return ()
        where = f"intrinsic '{intrinsic.name}'"
        tensors = (*intrinsic.inputs, *intrinsic.outputs)
        there = (*(self.inputs or (None,) * len(intrinsic.inputs)), *self.outputs)
        regions = dict(zip(tensors, there, strict=True))
        strides: dict[Var, int] = {}
        for buffer, tensor in intrinsic.tensors.items():
            region = regions[tensor]
            if region is None:
                continue
            layout = region.buffer.layout[len(region.extents) - len(tensor.shape) :]
            for wanted, step, extent in zip(buffer.strides, layout, tensor.shape, strict=True):
                value = strides.setdefault(wanted, step) if isinstance(wanted, Var) else wanted
                if value != step and extent > 1:
                    raise ScheduleError(
                        f"{where}: buffer '{buffer.name}' has strides {list(buffer.strides)}, the "
                        f"region of '{region.buffer.name}' {list(layout)}"
                    )
        made = []
        for call in intrinsic.calls[self.phase]:
            args: list[tuple[Region, int] | Const] = []
            for arg in call.args:
                if not isinstance(arg, AccessPointer):
                    args.append(number_of(arg, strides, f"{where}, '{call.name}'"))
                    continue
                region = regions.get(intrinsic.tensors[arg.buffer])
                if region is None:
                    raise ScheduleError(
                        f"{where}, '{call.name}': the phase '{self.phase}' has no inputs, so it "
                        f"cannot be given '{arg.buffer.name}'"
                    )
                args.append((region, arg.offset))
            made.append(BoundCall(call.name, call.dtype, tuple(args)))
        return tuple(made)

    def as_loops(self) -> Stmt:
        """What it does, as plain loops over its regions."""
        pattern, reduction = self.intrinsic.op, self.intrinsic.reduction
        axes: dict[IterVar, Var] = {a: Var(a.name) for a in (*pattern.axis, *pattern.reduce_axis)}
        regions = dict(zip(self.intrinsic.inputs, self.inputs, strict=self.phase != RESET))

        def resolved(exprs: Sequence[Expr]) -> list[Expr]:
            def change(part: Expr) -> Expr | None:
                if isinstance(part, TensorRead):
                    return regions[part.tensor].at(part.indices)
                if isinstance(part, IterVar):
                    return axes[part] + (part.dom[0] if part.dom else 0)
                return None

            return [transform(expr, change) for expr in exprs]

        def looped(loops: Sequence[IterVar], values: Sequence[Expr], where: Expr = TRUE) -> Stmt:
            body = stored(
                [Store(p.buffer, p.indices, v) for p, v in zip(place, values, strict=True)]
            )
            if not is_true(where):
                body = If(where, body)
            for axis in reversed(loops):
                assert axis.dom is not None
                body = For(axes[axis], axis.dom[1], body)
            return body

        place = [region.at([axes[a] for a in pattern.axis]) for region in self.outputs]
        if reduction is None:
            return looped(pattern.axis, resolved(pattern.body))
        parts: list[Stmt] = []
        if self.phase in (BODY, RESET):
            start = reduction.init or reduction.combiner.identity
            parts.append(looped(pattern.axis, resolved(start)))
        if self.phase in (BODY, UPDATE):
            (where,) = resolved([reduction.condition])
            combined = reduction.combiner.combine(place, resolved(reduction.sources))
            parts.append(looped((*pattern.axis, *pattern.reduce_axis), combined, where))
        return flat(*parts)


@dataclass(frozen=True)
class BoundCall:
    """A call of a function from elsewhere: its name, the type of its result ('' for none), and its
    arguments: numbers, and pointers as regions with an offset in elements."""

    name: str
    dtype: str
    args: tuple[tuple[Region, int] | Const, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Kernel:
    """One dispatch: the loops of one stage at root level, with all that is attached to it.

    The thread loops of the grid (`blockIdx.*`, then `threadIdx.*`) are the outermost statements
    of the body, each tag at most once. Every buffer that the body does not allocate is in
    `reads` or `writes` (one that is both is in both).
    """

    name: str
    body: Stmt
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]
    grid: dict[str, int]
    block: dict[str, int]


@dataclass(frozen=True, eq=False, slots=True)
class LoopProgram:
    """All kernels of a schedule, in the order in which they run.

    arguments: buffers of the tensors given to `lower`, in that order.
    inputs, outputs: those of the arguments that are placeholders, and those that are computed.
    temporaries: buffers between the kernels, in memory whatever scope they name.
    imports: where functions come from that intrinsics call: names of pragmas, and their texts.
    """

    name: str
    arguments: tuple[Buffer, ...]
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    temporaries: tuple[Buffer, ...]
    kernels: tuple[Kernel, ...]
    imports: tuple[tuple[str, str], ...] = ()


# -- what a statement has in it --------------------------------------------------------------------


def flat(*statements: Stmt | None) -> Stmt:
    """Statements as one, without nested or empty sequences.

    Args:
        statements: in order; None for nothing.

    Returns:
        The statement itself where there is one.
    """
    body: list[Stmt] = []
    for statement in statements:
        if isinstance(statement, Seq):
            body.extend(statement.body)
        elif statement is not None:
            body.append(statement)
    return body[0] if len(body) == 1 else Seq(tuple(body))


def stored(stores: Sequence[Store]) -> Stmt:
    """Stores as one statement: at once, where there are several.

    Args:
        stores: one at least.
    """
    return stores[0] if len(stores) == 1 else StoreAll(tuple(stores))


def inner(stmt: Stmt) -> tuple[Stmt, ...]:
    """The statements directly inside of a statement."""
    return tuple(part for part in children(stmt) if isinstance(part, Stmt))


def statements(stmt: Stmt) -> Iterator[Stmt]:
    """The statement and every statement inside of it, outer ones first."""
    yield stmt
    for part in inner(stmt):
        yield from statements(part)


def expressions(stmt: Stmt) -> Iterator[Expr]:
    """The expressions of one statement, without those of the statements inside of it."""
    for part in children(stmt):
        if isinstance(part, Region):
            yield from part.mins
        elif isinstance(part, Expr):
            yield part
