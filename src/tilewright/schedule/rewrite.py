"""The primitives that change what is computed where: cache_read, cache_write, rfactor.

Tensors keep their identity: a consumer of `C` goes on reading `C` however `C` is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.schedule.arith import Arithmetic
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import TRUE, Binary, Expr, const, index, substitute
from tilewright.schedule.functions import conjunction, if_then_else
from tilewright.schedule.relations import (
    Fuse,
    Relation,
    Split,
    extents_of,
    inexact,
    made_from,
    values_down,
    values_up,
)
from tilewright.schedule.stage import Stage
from tilewright.schedule.stage_base import LoopMarks
from tilewright.schedule.tensor import REDUCE, ComputeOp, IterVar, Range, Reduce, Tensor, TensorRead
from tilewright.schedule.types import BOOL
from tilewright.schedule.walk import transform

if TYPE_CHECKING:
    from tilewright.schedule.schedule import Schedule


def read_cached(schedule: Schedule, source: Tensor, scope: str, readers: Sequence[Stage]) -> Tensor:
    """A stage that copies a tensor, read by some stages in the tensor's place."""
    axes = tuple(IterVar(f"ax{i}", (0, e)) for i, e in enumerate(source.shape))
    copy = Tensor(f"{source.name}.{scope}", source.shape, source.dtype)
    copy.op = ComputeOp(copy.name, (copy,), axes, (TensorRead(source, axes),))
    producer = schedule[source]
    stage = schedule.add_stage(copy.op, schedule.stages.index(producer) + 1)
    stage.scope = scope
    stage.group = producer.group
    if producer.group is not None:
        producer.group.members.append(stage)
    copy.name = copy.op.name = stage.name

    def redirected(node: Expr) -> Expr | None:
        if isinstance(node, TensorRead) and node.tensor is source:
            return TensorRead(copy, node.indices)
        return None

    for reader in readers:
        op = reader.compute
        body = _body(op, [transform(e, redirected) for e in op.body])
        reader.op = ComputeOp(op.name, op.outputs, op.axis, body, op.tag, op.attrs)
        schedule._of[reader.op] = reader
    return copy


def _body(op: ComputeOp, bodies: list[Expr]) -> tuple[Expr, ...]:
    """Bodies with the sources of a reduction shared between its outputs, as they were."""
    first = bodies[0]
    if not isinstance(first, Reduce) or len(bodies) == 1:
        return tuple(bodies)
    return tuple(
        Reduce(first.combiner, first.sources, first.axes, first.condition, e.index, first.init)
        for e in op.body
        if isinstance(e, Reduce)
    )


def _extents(stage: Stage) -> dict[IterVar, int]:
    op = stage.compute
    roots = {a: a.dom[1] for a in (*op.axis, *op.reduce_axis) if a.dom}
    bound = [a for a, m in stage.marks.items() if m.thread is not None]
    return extents_of(stage.relations, roots, bound)


def _unmarked(stage: Stage, axes: Sequence[IterVar], doing: str) -> None:
    for axis in axes:
        marks = stage.marks.get(axis)
        if marks is not None and marks != LoopMarks():
            raise ScheduleError(
                f"{doing} of '{stage.name}': axis '{axis.name}' was bound, annotated or tensorized "
                f"already, which {doing} would undo; call {doing} before that"
            )


# -- cache_write -----------------------------------------------------------------------------------


def write_cached(schedule: Schedule, stage: Stage, scope: str) -> list[Tensor]:
    """Moves a stage's computation into a new one; what is left copies its results.

    Where the axes were split before, the new tensor has the loops as its dimensions: it is laid
    out in tiles.
    """
    op = stage.compute
    _unmarked(stage, stage.leaf_iter_vars, "cache_write")
    for relation in stage.relations:
        made = relation.outer if isinstance(relation, Split) else relation.fused
        if made.kind == REDUCE:
            raise ScheduleError(
                f"cache_write of '{stage.name}': its reduction was split or fused already (axis "
                f"'{made.name}'), which cache_write would undo; call cache_write before that"
            )
    extents = _extents(stage)
    leaves = [a for a in stage.leaf_iter_vars if a.kind != REDUCE]
    axes = tuple(IterVar(f"{a.name}.c", (0, extents[a])) for a in leaves)
    values = values_up(stage.relations, extents, dict(zip(leaves, axes, strict=True)))
    arithmetic = Arithmetic({a: (0, a.dom[1] - 1) for a in axes if a.dom})
    bounds = [
        Binary("lt", arithmetic.simplify(values[a]), index(extents[a]), BOOL)
        for a in inexact(stage.relations, extents)
    ]
    held = conjunction(list(bounds))
    roots: dict[Expr, Expr] = {a: arithmetic.simplify(values[a]) for a in op.axis}
    bodies = [_only_where(substitute(e, roots), held) for e in op.body]
    name = f"{op.name}.{scope}"
    shape = tuple(a.dom[1] for a in axes if a.dom)
    outputs = tuple(
        Tensor(f"{t.name}.{scope}", shape, t.dtype, i) for i, t in enumerate(op.outputs)
    )
    cache = ComputeOp(name, outputs, axes, _body(op, bodies), op.tag, op.attrs)
    for tensor in outputs:
        tensor.op = cache
    made_stage = schedule.add_stage(cache, schedule.stages.index(stage))
    made_stage.scope = scope
    made_stage.group = stage.group
    if stage.group is not None:
        stage.group.members.append(made_stage)
    known = Arithmetic({a: (0, extents[a] - 1) for a in op.axis})
    place = values_down(stage.relations, extents, {a: a for a in op.axis})
    indices = tuple(known.simplify(place[a]) for a in leaves)
    copies = tuple(TensorRead(t, indices) for t in outputs)
    kept = stage.store_predicate, stage.alignments
    schedule.replace_op(stage, ComputeOp(op.name, op.outputs, op.axis, copies, op.tag, op.attrs))
    stage.store_predicate, stage.alignments = kept
    return list(outputs)


def _only_where(body: Expr, held: Expr) -> Expr:
    """The body guarded by a condition; elsewhere 0, or what an empty reduction gives."""
    if held is TRUE:
        return body
    if isinstance(body, Reduce):
        condition = conjunction([held, body.condition])
        return Reduce(body.combiner, body.sources, body.axes, condition, body.index, body.init)
    return if_then_else(held, body, const(0, body.dtype))


# -- rfactor ---------------------------------------------------------------------------------------


def rfactored(schedule: Schedule, stage: Stage, axis: IterVar, factor_axis: int) -> list[Tensor]:
    """Splits a reduction in two: one for each value of an axis, and one over that axis."""
    op = stage.compute
    where = f"rfactor of '{stage.name}'"
    first = op.reduction
    if first is None:
        raise ScheduleError(f"{where}: it is no reduction")
    axis = stage.leaf(axis, where)
    if axis.kind != REDUCE:
        raise ScheduleError(
            f"{where}: axis '{axis.name}' is not a reduction axis (allowed: "
            f"{', '.join(a.name for a in stage.leaf_iter_vars if a.kind == REDUCE)})"
        )
    rank = len(op.axis)
    known = isinstance(factor_axis, int) and not isinstance(factor_axis, bool)
    if not known or not -rank - 1 <= factor_axis <= rank:
        raise ScheduleError(
            f"{where}, axis '{axis.name}': factor_axis {factor_axis!r} (allowed: {-rank - 1} to "
            f"{rank})"
        )
    position = factor_axis if factor_axis >= 0 else rank + 1 + factor_axis
    reduction_leaves = [a for a in stage.leaf_iter_vars if a.kind == REDUCE]
    _unmarked(stage, reduction_leaves, "rfactor")
    _check_unmixed(stage, where)
    extents = _extents(stage)

    # Reduction axes that the factored loop is made from give way to their loops.
    marks = made_from(stage.relations, {a: 1 << i for i, a in enumerate(op.reduce_axis)})
    taken = marks[axis]
    gone = [a for i, a in enumerate(op.reduce_axis) if taken >> i & 1]
    kept = [a for a in op.reduce_axis if a not in set(gone)]
    loops = [a for a in reduction_leaves if a is not axis and marks[a] & taken]
    inner = [r for r in stage.relations if _made(r).kind == REDUCE]
    dissolved = [r for r in inner if marks[_made(r)] & taken]

    factor = IterVar(axis.name, (0, extents[axis]))
    data = [IterVar(a.name, a.dom) for a in op.axis]
    axes = (*data[:position], factor, *data[position:])
    for loop in loops:
        loop.dom = Range(0, extents[loop])
    leaf_values: dict[IterVar, Expr] = {a: a for a in (*loops, *kept)}
    leaf_values[axis] = factor
    values = values_up(dissolved, extents, leaf_values)
    arithmetic = Arithmetic({a: (0, extents[a] - 1) for a in loops})
    arithmetic.bind(factor, 0, extents[axis] - 1)
    substituted: dict[Expr, Expr] = dict(zip(op.axis, data, strict=True))
    conditions: list[Expr] = [
        Binary("lt", arithmetic.simplify(values[a]), index(extents[a]), BOOL)
        for a in inexact(dissolved, extents)
    ]
    for root in gone:
        assert root.dom is not None
        value = arithmetic.simplify(values[root])
        substituted[root] = arithmetic.simplify(value + index(root.dom[0]))
    conditions.append(substitute(first.condition, substituted))
    held = conjunction(conditions)
    sources = tuple(substitute(s, substituted) for s in first.sources)
    order = [a for a in reduction_leaves if a in set(loops)]
    remaining = (*order, *kept)
    bodies: list[Expr]
    if remaining:
        bodies = [Reduce(first.combiner, sources, remaining, held, i) for i in range(len(sources))]
    else:
        identity = first.combiner.identity
        bodies = [
            s if held is TRUE else if_then_else(held, s, e)
            for s, e in zip(sources, identity, strict=True)
        ]
    shape = tuple(a.dom[1] for a in axes if a.dom)
    outputs = tuple(Tensor(f"{t.name}.rf", shape, t.dtype, i) for i, t in enumerate(op.outputs))
    factored = ComputeOp(f"{op.name}.rf", outputs, axes, tuple(bodies), op.tag, op.attrs)
    for tensor in outputs:
        tensor.op = factored
    made = schedule.add_stage(factored, schedule.stages.index(stage))
    made.group = stage.group
    if stage.group is not None:
        stage.group.members.append(made)
    made.relations = [r for r in inner if r not in set(dissolved)]
    made.leaf_iter_vars = [*axes, *(a for a in reduction_leaves if a is not axis)]

    over_axis = IterVar(f"{axis.name}.v", (0, extents[axis]), REDUCE)
    place = (*op.axis[:position], over_axis, *op.axis[position:])
    reads = tuple(TensorRead(t, place) for t in outputs)
    body = tuple(
        Reduce(first.combiner, reads, (over_axis,), TRUE, e.index, first.init)
        for e in op.body
        if isinstance(e, Reduce)
    )
    data_relations = [r for r in stage.relations if _made(r).kind != REDUCE]
    data_leaves = [a for a in stage.leaf_iter_vars if a.kind != REDUCE]
    said = stage.marks, stage.store_predicate, stage.alignments
    schedule.replace_op(stage, ComputeOp(op.name, op.outputs, op.axis, body, op.tag, op.attrs))
    stage.marks, stage.store_predicate, stage.alignments = said
    stage.relations = data_relations
    stage.leaf_iter_vars = [*data_leaves, over_axis]
    return list(outputs)


def _made(relation: Relation) -> IterVar:
    return relation.outer if isinstance(relation, Split) else relation.fused


def _check_unmixed(stage: Stage, where: str) -> None:
    for relation in stage.relations:
        if isinstance(relation, Fuse) and relation.outer.kind != relation.inner.kind:
            raise ScheduleError(
                f"{where}: axis '{relation.fused.name}' fuses a reduction axis with an axis of the "
                "result"
            )
