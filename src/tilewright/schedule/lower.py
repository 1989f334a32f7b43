"""From a schedule to its loop nests (`te.lower`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.schedule import nest
from tilewright.schedule.barriers import with_barriers
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import variables
from tilewright.schedule.intrinsic import UPDATE
from tilewright.schedule.plan import Plan, StagePlan
from tilewright.schedule.pragmas import IMPORTS
from tilewright.schedule.printer import show
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stage_lowering import KernelParts, StageLowering
from tilewright.schedule.tensor import (
    BLOCK_TAGS,
    THREAD_TAGS,
    IterVar,
    PlaceholderOp,
    Tensor,
    TensorOp,
    distinct,
    reads,
)
from tilewright.schedule.tensorize import tensorized, tensorized_leaf
from tilewright.schedule.thread_reductions import lowered_across_threads, reduced_by_threads
from tilewright.schedule.threads import virtual_serialized
from tilewright.schedule.unrolling import expanded
from tilewright.schedule.walk import nodes
from tilewright.target import Target


class Lowered:
    """The loop nests of a schedule. `print` shows them as readable loops; `program` is the tree.

    said: the loops as the schedule says them, where some run otherwise (a note in the text tells
        which); else the same as `program`. expand: whether the text has unrolled loops written out.
    """

    def __init__(
        self,
        program: nest.LoopProgram,
        said: nest.LoopProgram | None = None,
        expand: bool = False,
    ) -> None:
        self.program = program
        self.said = said or program
        self.expand = expand

    @property
    def text(self) -> str:
        """The loops as text."""
        return show(expanded(self.said) if self.expand else self.said)

    def __str__(self) -> str:
        return self.text

    def mlir(self, target: str | Target | None = None) -> Any:
        """The MLIR module for a target (without one: this machine's processor).

        Args:
            target: by name, or a Target.

        Returns:
            The module.
        """
        from tilewright.schedule.codegen import module_for

        return module_for(self.program, target)


def lower(
    schedule: Schedule,
    args: Sequence[Any],
    name: str = "main",
    simple_mode: bool = True,
    expand: bool = False,
) -> Lowered:
    """Turns a schedule into loops.

    Args:
        schedule: What to lower.
        args: the tensors that the caller hands over, in the order in which it does: every
            placeholder that is read, and what it wants to have. An output of the schedule that is
            not among them is computed and left.
        name: of the function.
        simple_mode: accepted for TVM's sake; loops are always shown plainly.
        expand: whether the text shows unrolled loops written out, as code is made of them.

    Returns:
        The loops.

    Raises:
        ScheduleError: the schedule cannot be carried out; names stage and axis.
    """
    tensors = _arguments(schedule, args)
    program = _program(schedule, tensors, name, False)
    said = _program(schedule, tensors, name, True) if _said_otherwise(schedule) else program
    return Lowered(program, said, expand)


def _said_otherwise(schedule: Schedule) -> bool:
    """Whether loops run otherwise than the schedule says, or a predicate has a thread's number."""
    for stage in schedule.stages:
        given = stage.store_predicate
        used = variables(given) if given is not None else set()
        threads = any(isinstance(v, IterVar) and v.tag for v in used)
        if threads or any(map(stage.in_order, stage.leaf_iter_vars)):
            return True
    return False


def _program(schedule: Schedule, tensors: list[Tensor], name: str, said: bool) -> nest.LoopProgram:
    """The loops as they run, or as they were said."""
    outputs = tuple(t for t in tensors if not _is_placeholder(t))
    plan = Plan(schedule, frozenset(outputs), said)
    buffers = _buffers(plan, tensors)
    roots = [p for p in plan.plans.values() if p.parent is None]
    made = [(t, b) for p in roots for t, b in zip(p.stage.op.outputs, p.buffers, strict=True)]
    return nest.LoopProgram(
        name,
        tuple(buffers[t] for t in tensors),
        tuple(buffers[t] for t in tensors if _is_placeholder(t)),
        tuple(buffers[t] for t in outputs),
        tuple(buffer for tensor, buffer in made if tensor not in outputs),
        tuple(_kernel(plan, root, buffers) for root in roots),
        _imports(schedule),
    )


def _imports(schedule: Schedule) -> tuple[tuple[str, str], ...]:
    """Where the schedule says that functions come from."""
    pragmas = [m.pragmas for stage in schedule.stages for m in stage.marks.values()]
    found = [(name, said[name]) for said in pragmas for name in IMPORTS if name in said]
    return tuple(dict.fromkeys(found))


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
    return tensors


def _buffers(plan: Plan, tensors: list[Tensor]) -> dict[Tensor, nest.Buffer]:
    """A buffer for every tensor, each with a name of its own."""
    buffers: dict[Tensor, nest.Buffer] = {}

    def add(tensor: Tensor, name: str, shape: tuple[int, ...], scope: str, **more: Any) -> None:
        unique = distinct(name, {b.name for b in buffers.values()})
        buffers[tensor] = nest.Buffer(unique, shape or (1,), tensor.dtype, scope, **more)

    for tensor in tensors:
        add(tensor, tensor.name, tensor.shape, nest.GLOBAL)
    for stage, its in plan.plans.items():
        for read in (read for expr in its.body for read in reads(expr)):
            if read.tensor not in plan.of and read.tensor not in buffers:
                raise ScheduleError(
                    f"lower: '{stage.name}' reads placeholder '{read.tensor.name}', which is not "
                    "among the arguments"
                )
    for stage, its in plan.plans.items():
        for tensor in stage.op.outputs:
            if tensor not in buffers:
                strides = aligned(its.extents, stage.alignments) if stage.alignments else None
                name = stage.name + (f".v{tensor.index}" if stage.op.num_outputs > 1 else "")
                add(tensor, name, its.extents, its.scope, strides=strides)
        its.buffers = tuple(buffers[t] for t in stage.op.outputs)
    return buffers


def _kernel(plan: Plan, root: StagePlan, buffers: dict[Tensor, nest.Buffer]) -> nest.Kernel:
    sizes: dict[str, int] = {}
    bound: dict[StagePlan, set[str]] = {}
    for its in root.subtree():
        tags = {its.thread(leaf): its.sizes[leaf] for leaf in its.leaves}
        bound[its] = set(tags) & {*BLOCK_TAGS, *THREAD_TAGS}
        sizes.update(tags)
    grid = {t: sizes[t] for t in BLOCK_TAGS if t in sizes}
    block = {t: sizes[t] for t in THREAD_TAGS if t in sizes}
    body = lowered(StageLowering(KernelParts(plan, buffers, bound, block, lowered), root))
    threads = {plan.thread_var(root, t): e for t, e in block.items()}
    body = with_barriers(virtual_serialized(body), plan.arithmetic, threads)
    for tag in (*reversed(block), *reversed(grid)):
        added = any(root.thread(a) == tag and root.stage.in_order(a) for a in root.leaves)
        body = nest.For(plan.thread_var(root, tag), sizes[tag], body, nest.THREAD, tag, added)
    read, written = used(body)
    return nest.Kernel(root.name, body, read, written, grid, block)


def lowered(stage: StageLowering) -> nest.Stmt:
    """The loops of one stage, with those of the stages computed inside of it.

    Args:
        stage: what the lowering knows of the stage.

    Raises:
        ScheduleError: the stage cannot be computed as its schedule says.
    """
    stage.check_vectorized()
    level = tensorized_leaf(stage.plan)
    if level is not None:
        return tensorized(stage, level)
    if stage.reduction is not None and reduced_by_threads(stage.plan):
        return lowered_across_threads(stage)
    return stage.lowered()


def used(body: nest.Stmt) -> tuple[tuple[nest.Buffer, ...], tuple[nest.Buffer, ...]]:
    """The buffers from outside that a body reads and writes.

    Args:
        body: of a kernel.

    Returns:
        The buffers that are read, and those that are written, in the order of their first use.
    """
    own: set[nest.Buffer] = set()
    read: dict[nest.Buffer, None] = {}
    written: dict[nest.Buffer, None] = {}
    for part in nodes(body):
        match part:
            case nest.Allocate():
                own.add(part.buffer)
            case nest.Load():
                read[part.buffer] = None
            case nest.Store():
                written[part.buffer] = None
            case nest.Prefetch():
                read[part.region.buffer] = None
            case nest.Intrinsic():
                written.update((r.buffer, None) for r in part.outputs)
                held = part.outputs if part.phase == UPDATE else ()
                read.update((r.buffer, None) for r in (*part.inputs, *held))
    return tuple(b for b in read if b not in own), tuple(b for b in written if b not in own)


def aligned(shape: tuple[int, ...], alignments: dict[int, tuple[int, int]]) -> tuple[int, ...]:
    """Strides such that `stride % factor == offset` for the aligned dimensions.

    Args:
        shape: extents.
        alignments: the factor and the offset for some dimensions.

    Returns:
        Strides in elements.
    """
    strides = [1] * len(shape)
    step = 1
    for i in reversed(range(len(shape))):
        if i in alignments:
            factor, offset = alignments[i]
            step += (offset - step) % factor
        strides[i] = step
        step *= shape[i]
    return tuple(strides)
