"""Reductions over threads: each thread reduces its part, then all of them together."""

from __future__ import annotations

from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import TRUE, Expr, index, is_true
from tilewright.schedule.functions import conjunction
from tilewright.schedule.nest import (
    LOCAL,
    VECTORIZED,
    Allocate,
    Buffer,
    If,
    Load,
    Stmt,
    Store,
    ThreadReduce,
    flat,
    stored,
)
from tilewright.schedule.plan import REDUCED, RESULT, StagePlan
from tilewright.schedule.stage_lowering import StageLowering
from tilewright.schedule.tensor import THREAD_TAGS, IterVar


def reduced_by_threads(plan: StagePlan) -> list[str]:
    """The thread tags that loops of the reduction are bound to."""
    return [
        plan.thread(leaf)
        for leaf in plan.leaves
        if plan.marks[leaf] & REDUCED and plan.thread(leaf) in THREAD_TAGS
    ]


def lowered_across_threads(stage: StageLowering) -> Stmt:
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
        if plan.stage.marked(leaf).kind == VECTORIZED:
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

    def contributed() -> tuple[list[Expr], Expr, Stmt | None]:
        """What this thread gives, when, and the statements that compute it before."""
        if not serial:
            held = conjunction([*(c for _, c in data_checks), *(c for _, c in own), *conditions])
            return sources, held, None
        loads = [Load(b, zero) for b in part]
        combined = reduction.combiner.combine(loads, sources)
        update = stored([Store(b, zero, v) for b, v in zip(part, combined, strict=True)])
        if conditions:
            update = If(conjunction(list(conditions)), update)
        checks = [(max(level, begin), c) for level, c in (*data_checks, *own)]
        first = stored([Store(b, zero, v) for b, v in zip(part, identity, strict=True)])
        loops = stage.loops(begin, len(plan.leaves), checks, lambda: update)
        return list(loads), TRUE, flat(first, loops)

    def body() -> Stmt:
        values, held, before = contributed()
        targets = tuple(Store(b, zero, v) for b, v in zip(total, values, strict=True))
        final: list[Expr] = [Load(b, zero) for b in total]
        if reduction.init is not None:
            final = list(reduction.combiner.combine(stage.start(), final))
        last = stage.store(final)
        bounds = [c for _, c in data_checks]
        if bounds:
            last = If(conjunction(bounds), last, likely=True)
        return flat(before, ThreadReduce(reduction.combiner, targets, tags, held), last)

    # The bound checks of the result do not stand around this: every thread has to take part.
    nest = body()
    for buffer in reversed((*part, *total)):
        nest = Allocate(buffer, nest)
    return stage.loops(0, begin, [], lambda: nest)


def _local(name: str, dtype: str) -> Buffer:
    return Buffer(name, (1,), dtype, LOCAL)
