"""Reductions over threads: each reduces its part, then all together."""

from __future__ import annotations

from tilewright.schedule import nest
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import (
    TRUE,
    Expr,
    index,
    is_true,
)
from tilewright.schedule.functions import conjunction
from tilewright.schedule.plan import REDUCED, RESULT, StagePlan
from tilewright.schedule.stage_lowering import StageLowering
from tilewright.schedule.tensor import (
    BLOCK_TAGS,
    THREAD_TAGS,
    IterVar,
)


def reduced_by_threads(plan: StagePlan) -> list[str]:
    """The thread tags that loops of the reduction are bound to."""
    return [
        plan.thread(leaf)
        for leaf in plan.leaves
        if plan.marks[leaf] & REDUCED and plan.thread(leaf) in (*BLOCK_TAGS, *THREAD_TAGS)
    ]


def lowered_across_threads(stage: StageLowering) -> nest.Stmt:
    """Loops of the result, then this thread's part of the reduction into a `local` buffer, then
    the combination of all threads' parts, stored.

    Args:
        stage: a reduction with loops bound to threads.

    Raises:
        ScheduleError: loops are in an order or fused in a way that threads cannot reduce, or
            vectorized.
    """
    plan, reduction = stage.plan, stage.reduction
    assert reduction is not None
    tags = tuple(reduced_by_threads(plan))
    for leaf in plan.leaves:
        if plan.marks[leaf] == REDUCED | RESULT:
            raise ScheduleError(
                f"bind to {tags[0]}: axis '{leaf.name}' of stage '{plan.name}' fuses a "
                "reduction axis with an axis of the result, which a reduction over threads cannot "
                "have"
            )
        if plan.stage.marked(leaf).kind == nest.VECTORIZED:
            raise ScheduleError(
                f"vectorize: axis '{leaf.name}' of stage '{plan.name}' cannot be vectorized, since "
                f"the stage's reduction is bound to {tags[0]}, where its threads wait for each "
                "other"
            )
    serial = [
        i
        for i, leaf in enumerate(plan.leaves)
        if plan.marks[leaf] & REDUCED and not plan.thread(leaf)
    ]
    begin = serial[0] if serial else len(plan.leaves)
    for leaf in plan.leaves[begin:]:
        is_loop = isinstance(plan.loop_values[leaf], IterVar) and plan.sizes[leaf] > 1
        if not plan.marks[leaf] & REDUCED and is_loop:
            raise ScheduleError(
                f"stage '{plan.name}': its reduction is bound to {tags[0]}, so axis '{leaf.name}' "
                "of the result cannot be inside of the reduction's loops; reorder it outwards"
            )
    result = stage.result_buffers()
    part = [_local(f"{b.name}.part", b.dtype) for b in result] if serial else []
    total = [_local(f"{b.name}.total", b.dtype) for b in result]
    zero = (index(0),)
    sources = [stage.resolved(s) for s in reduction.sources]
    data_checks = stage.checks(RESULT)
    own = stage.checks(REDUCED)
    condition = stage.resolved(reduction.condition)
    conditions = [] if is_true(condition) else [condition]
    identity = [stage.resolved(e) for e in reduction.combiner.identity]

    def contributed() -> tuple[list[Expr], Expr, nest.Stmt | None]:
        """What this thread gives, when, and the statements that compute it before."""
        if not serial:
            held = conjunction([*(c for _, c in data_checks), *(c for _, c in own), *conditions])
            return sources, held, None
        loads = [nest.Load(b, zero) for b in part]
        combined = reduction.combiner.combine(loads, sources)
        update = nest.stored([nest.Store(b, zero, v) for b, v in zip(part, combined, strict=True)])
        if conditions:
            update = nest.If(conjunction(list(conditions)), update)
        checks = [(max(level, begin), c) for level, c in (*data_checks, *own)]
        first = nest.stored([nest.Store(b, zero, v) for b, v in zip(part, identity, strict=True)])
        loops = stage.loops(begin, len(plan.leaves), checks, lambda: update)
        return list(loads), TRUE, nest.flat(first, loops)

    def body() -> nest.Stmt:
        values, held, before = contributed()
        targets = tuple(nest.Store(b, zero, v) for b, v in zip(total, values, strict=True))
        final: list[Expr] = [nest.Load(b, zero) for b in total]
        if reduction.init is not None:
            final = list(reduction.combiner.combine(stage.start(), final))
        last = stage.store(final)
        bounds = [c for _, c in data_checks]
        if bounds:
            last = nest.If(conjunction(bounds), last, likely=True)
        return nest.flat(before, nest.ThreadReduce(reduction.combiner, targets, tags, held), last)

    # The bound checks of the result do not stand around this: every thread has to take part.
    made = body()
    for buffer in reversed((*part, *total)):
        made = nest.Allocate(buffer, made)
    return stage.loops(0, begin, [], lambda: made)


def _local(name: str, dtype: str) -> nest.Buffer:
    return nest.Buffer(name, (1,), dtype, nest.LOCAL)
