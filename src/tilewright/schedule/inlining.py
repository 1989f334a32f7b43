"""Inlined stages put in place of their reads, and which stages are left to compute."""

from __future__ import annotations

from tilewright.schedule.expr import Expr, substitute
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stage import Stage
from tilewright.schedule.state import INLINE
from tilewright.schedule.tensor import IterVar, Tensor, TensorRead, reads
from tilewright.schedule.walk import transform


def inlined_bodies(schedule: Schedule) -> dict[Stage, tuple[Expr, ...]]:
    """The body of every computed stage, with inlined stages put in place of their reads.

    Args:
        schedule: the schedule.

    Returns:
        One expression for each output of every stage that computes something.
    """
    bodies: dict[Stage, tuple[Expr, ...]] = {}
    inline: dict[Tensor, tuple[tuple[IterVar, ...], Expr]] = {}

    def replaced(node: Expr) -> Expr | None:
        if isinstance(node, TensorRead) and node.tensor in inline:
            axes, body = inline[node.tensor]
            return substitute(body, dict(zip(axes, node.indices, strict=True)))
        return None

    for stage in schedule.stages:
        if stage.is_placeholder:
            continue
        op = stage.compute
        if not inline:
            body = op.body
        else:
            done: dict[Expr, Expr] = {}
            body = tuple(done.setdefault(e, transform(e, replaced)) for e in op.body)
        bodies[stage] = body
        if stage.attach == INLINE:
            for tensor, expr in zip(op.outputs, body, strict=True):
                inline[tensor] = (op.axis, expr)
    return bodies


def needed(
    schedule: Schedule, bodies: dict[Stage, tuple[Expr, ...]], whole: frozenset[Tensor]
) -> list[Stage]:
    """The stages whose results reach the caller, in order.

    Args:
        schedule: the schedule.
        bodies: as :func:`inlined_bodies` gives them.
        whole: the tensors that the caller gets.

    Returns:
        Producers first, without inlined stages.
    """
    found = {schedule[t] for t in whole}
    for stage in reversed(schedule.stages):
        if stage in found and stage in bodies:
            for expr in bodies[stage]:
                found.update(schedule[r.tensor] for r in reads(expr))
    return [s for s in schedule.stages if s in found and s in bodies and s.attach != INLINE]
