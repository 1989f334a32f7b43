"""The loop nest that a schedule lowers to: statements over buffers, and the kernels they form.

All sizes are constants. Every loop counts from 0 in steps of 1; what a loop stands for is in the
index expressions. Statements are immutable; buffers and variables are known by identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from tilewright.schedule.expr import Combiner, Expr, Var

if TYPE_CHECKING:
    from tilewright.schedule.intrinsic import TensorIntrinsic

SERIAL = "serial"
PARALLEL = "parallel"
VECTORIZED = "vectorized"
UNROLLED = "unrolled"
THREAD = "thread"
KINDS = (SERIAL, PARALLEL, VECTORIZED, UNROLLED, THREAD)

BLOCK_TAGS = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
THREAD_TAGS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
VTHREAD = "vthread"

GLOBAL = "global"
SHARED = "shared"
LOCAL = "local"
SCOPES = (GLOBAL, SHARED, LOCAL)


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
    """Row-major strides without gaps."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


@dataclass(frozen=True, eq=False, slots=True)
class Region:
    """Part of a buffer: from `mins` on (one for each dimension), `extents` elements long."""

    buffer: Buffer
    mins: tuple[Expr, ...]
    extents: tuple[int, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Seq:
    """Statements one after the other."""

    body: tuple[Stmt, ...]


@dataclass(frozen=True, eq=False, slots=True)
class For:
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


@dataclass(frozen=True, eq=False, slots=True)
class If:
    """`then` where the condition holds, else `otherwise`. `likely` for bounds of splits that do
    not divide, which hold for all but the last iterations."""

    condition: Expr
    then: Stmt
    otherwise: Stmt | None = None
    likely: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Store:
    """`buffer[indices] = value`.

    combiner: set where the value combines the element's former value with something new, for
        what keeps accumulators in registers; the value says everything without it.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    combiner: Combiner | None = None


@dataclass(frozen=True, eq=False, slots=True)
class StoreAll:
    """Stores at once: every value and index is evaluated before the first element is written."""

    stores: tuple[Store, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Allocate:
    """`buffer` exists (uninitialised) while `body` runs, anew for each run of this statement.

    A `local` buffer is one per thread, a `shared` one per workgroup.
    """

    buffer: Buffer
    body: Stmt


@dataclass(frozen=True, eq=False, slots=True)
class Prefetch:
    """A hint that the region will be read soon. Indices may lie outside of the buffer."""

    region: Region


@dataclass(frozen=True, eq=False, slots=True)
class Barrier:
    """All threads of a workgroup wait here, and see each other's shared memory after it."""


@dataclass(frozen=True, eq=False, slots=True)
class ThreadReduce:
    """Combines values over the threads of `tags` (the reduction's), the result in every thread.

    targets: stores of `local` buffers, one for each value of the combiner: its `value` is what
        this thread contributes; it is written the combination over all threads that differ in
        the given tags only. Threads for which `condition` is false contribute the identity.
    """

    combiner: Combiner
    targets: tuple[Store, ...]
    tags: tuple[str, ...]
    condition: Expr


@dataclass(frozen=True, eq=False, slots=True)
class Intrinsic:
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


Stmt: TypeAlias = (
    Seq | For | If | Store | StoreAll | Allocate | Prefetch | Barrier | ThreadReduce | Intrinsic
)


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
    """

    name: str
    arguments: tuple[Buffer, ...]
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    temporaries: tuple[Buffer, ...]
    kernels: tuple[Kernel, ...]
