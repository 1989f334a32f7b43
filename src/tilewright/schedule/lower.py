"""From a schedule to its loop nests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.schedule.barriers import with_barriers
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import Load
from tilewright.schedule.nest import (
    BLOCK_TAGS,
    THREAD,
    THREAD_TAGS,
    VTHREAD,
    Allocate,
    Buffer,
    For,
    Intrinsic,
    Kernel,
    LoopProgram,
    Prefetch,
    Stmt,
    Store,
    StoreAll,
    ThreadReduce,
)
from tilewright.schedule.plan import Plan, StagePlan
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stage_lowering import StageLowering
from tilewright.schedule.tensor import PlaceholderOp, Tensor, TensorOp
from tilewright.schedule.threads import virtual_serialized
from tilewright.schedule.walk import (
    expressions,
    nodes,
    reads,
    statements,
)


def lower_program(schedule: Schedule, args: Sequence[Any], name: str = "main") -> LoopProgram:
    """The loop nests of a schedule.

    args: the tensors that the caller hands over, in the order in which it does: every placeholder
        that is read and every output.
    """
    tensors = _arguments(schedule, args)
    plan = Plan(schedule, frozenset(t for t in tensors if not _is_placeholder(t)))
    return Lowering(plan, tensors).program(name)


def _is_placeholder(tensor: Tensor) -> bool:
    return isinstance(tensor.op, PlaceholderOp)


def _arguments(schedule: Schedule, args: Sequence[Any]) -> list[Tensor]:
    tensors: list[Tensor] = []
    for arg in args:
        if isinstance(arg, TensorOp):
            tensors.extend(arg.outputs)
        elif isinstance(arg, Tensor):
            tensors.append(arg)
        else:
            raise ScheduleError(f"lower: argument {arg!r} is no tensor")
    for tensor in tensors:
        # A placeholder that nothing reads is handed over all the same.
        if not _is_placeholder(tensor):
            schedule[tensor]
    if len(set(tensors)) < len(tensors):
        raise ScheduleError("lower: a tensor is given twice among the arguments")
    missing = [t.name for op in schedule.outputs for t in op.outputs if t not in tensors]
    if missing:
        raise ScheduleError(
            f"lower: output '{missing[0]}' is not among the arguments "
            f"({', '.join(t.name for t in tensors)})"
        )
    return tensors


class Lowering:
    """The kernels and buffers of a plan."""

    def __init__(self, plan: Plan, tensors: list[Tensor]) -> None:
        self.plan = plan
        self.tensors = tensors
        self.arithmetic = plan.arithmetic
        self.buffers: dict[Tensor, Buffer] = {}
        self.names: set[str] = set()
        for tensor in tensors:
            self._buffer(tensor, tensor.name, tensor.shape or (1,), "global", None)
        self._check_inputs()
        for stage in plan.stages:
            self._allocate(plan.plans[stage])

    def _buffer(
        self,
        tensor: Tensor,
        name: str,
        shape: tuple[int, ...],
        scope: str,
        strides: tuple[int, ...] | None,
    ) -> None:
        unique, number = name, 0
        while unique in self.names:
            number += 1
            unique = f"{name}_{number}"
        self.names.add(unique)
        self.buffers[tensor] = Buffer(unique, shape, tensor.dtype, scope, strides)

    def _check_inputs(self) -> None:
        for stage in self.plan.stages:
            for expr in self.plan.plans[stage].body:
                for read in reads(expr):
                    tensor = read.tensor
                    if tensor not in self.plan.of and tensor not in self.buffers:
                        raise ScheduleError(
                            f"lower: '{stage.name}' reads placeholder '{tensor.name}', which is "
                            "not among the arguments"
                        )

    def _allocate(self, plan: StagePlan) -> None:
        stage = plan.stage
        for tensor in stage.op.outputs:
            if tensor in self.buffers:
                continue
            shape = plan.extents or (1,)
            strides = aligned(shape, stage.alignments) if stage.alignments else None
            name = stage.name + (f".v{tensor.index}" if stage.op.num_outputs > 1 else "")
            self._buffer(tensor, name, shape, plan.scope, strides)
        plan.buffers = tuple(self.buffers[t] for t in stage.op.outputs)

    # -- program -----------------------------------------------------------------------------------

    def program(self, name: str) -> LoopProgram:
        kernels: list[Kernel] = []
        temporaries: list[Buffer] = []
        for stage in self.plan.stages:
            plan = self.plan.plans[stage]
            if plan.parent is None:
                kernels.append(self._kernel(plan))
                temporaries.extend(
                    b
                    for b, t in zip(plan.buffers, stage.op.outputs, strict=True)
                    if t not in self.tensors
                )
        return LoopProgram(
            name,
            tuple(self.buffers[t] for t in self.tensors),
            tuple(self.buffers[t] for t in self.tensors if _is_placeholder(t)),
            tuple(self.buffers[t] for t in self.tensors if not _is_placeholder(t)),
            tuple(temporaries),
            tuple(kernels),
        )

    def _kernel(self, root: StagePlan) -> Kernel:
        plans = list(root.subtree())
        sizes: dict[str, int] = {}
        bound: dict[StagePlan, set[str]] = {}
        for plan in plans:
            bound[plan] = set()
            for leaf in plan.leaves:
                tag = plan.thread(leaf)
                if tag and tag != VTHREAD:
                    sizes[tag] = plan.sizes[leaf]
                    bound[plan].add(tag)
        grid = {t: sizes[t] for t in BLOCK_TAGS if t in sizes}
        block = {t: sizes[t] for t in THREAD_TAGS if t in sizes}
        body = StageLowering(self, root, bound, block).lowered()
        threads = {self.plan.thread_var(root, t): e for t, e in block.items()}
        body = with_barriers(virtual_serialized(body), self.arithmetic, threads)
        for tag in (*reversed(block), *reversed(grid)):
            body = For(self.plan.thread_var(root, tag), sizes[tag], body, THREAD, tag)
        read, written = used(body)
        return Kernel(root.name, body, read, written, grid, block)


def used(body: Stmt) -> tuple[tuple[Buffer, ...], tuple[Buffer, ...]]:
    """The buffers from outside that a body reads and writes."""
    own: set[Buffer] = set()
    read: dict[Buffer, None] = {}
    written: dict[Buffer, None] = {}
    for stmt in statements(body):
        if isinstance(stmt, Allocate):
            own.add(stmt.buffer)
        elif isinstance(stmt, Store):
            written[stmt.buffer] = None
        elif isinstance(stmt, StoreAll | ThreadReduce):
            stores = stmt.stores if isinstance(stmt, StoreAll) else stmt.targets
            written.update((s.buffer, None) for s in stores)
        elif isinstance(stmt, Intrinsic):
            written.update((r.buffer, None) for r in stmt.outputs)
            read.update((r.buffer, None) for r in stmt.inputs)
            if stmt.phase == "update":
                read.update((r.buffer, None) for r in stmt.outputs)
        elif isinstance(stmt, Prefetch):
            read[stmt.region.buffer] = None
        for expr in expressions(stmt):
            read.update((n.buffer, None) for n in nodes(expr) if isinstance(n, Load))
    return tuple(b for b in read if b not in own), tuple(b for b in written if b not in own)


def aligned(shape: tuple[int, ...], alignments: dict[int, tuple[int, int]]) -> tuple[int, ...]:
    """Strides such that `stride % factor == offset` for the aligned dimensions."""
    strides = [1] * len(shape)
    step = 1
    for i in reversed(range(len(shape))):
        if i in alignments:
            factor, offset = alignments[i]
            step += (offset - step) % factor
        strides[i] = step
        step *= shape[i]
    return tuple(strides)
