"""Primitives that put stages in between others: copies in other memory, partial reductions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright.schedule.arith import Arithmetic
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import TRUE, Binary, Expr, const, index, is_true, substitute
from tilewright.schedule.functions import conjunction, if_then_else
from tilewright.schedule.primitive import primitive
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
from tilewright.schedule.state import ScheduleState, StageState, memory_scope
from tilewright.schedule.tensor import REDUCE, ComputeOp, IterVar, Range, Reduce, Tensor, TensorRead
from tilewright.schedule.types import BOOL
from tilewright.schedule.walk import transform


class DataflowPrimitives(ScheduleState[Stage]):
    """Tensors read or written through copies, reductions split in two."""

    @primitive
    def cache_read(self, tensor: Any, scope: str, readers: Any) -> Tensor:
        """Copies a tensor into other memory, from where some of its readers read it.

        Args:
            tensor: a placeholder or a computed tensor.
            scope: `global`, `shared` or `local`.
            readers: the stages (or tensors) that shall read the copy.

        Returns:
            The copy; place its stage with compute_at.

        Raises:
            ScheduleError: a reader does not read the tensor, or the scope is unknown.

        >>> s = te.create_schedule(S)
        >>> print(te.lower(s, [A, S]))
        def main(A: f32[1024, 1024], S: f32[1024]):
          for i in range(1024):
            S[i] = 0.0
            for r in range(1024):
              S[i] = S[i] + A[i, r]
        >>> AA = s.cache_read(A, "shared", [S])
        >>> print(te.lower(s, [A, S]))
        def main(A: f32[1024, 1024], S: f32[1024]):
          A.shared = allocate(f32[1024, 1024], scope=shared)
          for ax0 in range(1024):
            for ax1 in range(1024):
              A.shared[ax0, ax1] = A[ax0, ax1]
          for i in range(1024):
            S[i] = 0.0
            for r in range(1024):
              S[i] = S[i] + A.shared[i, r]
        """
        where = "cache_read"
        source = self.tensor(tensor, where)
        scope = memory_scope(scope, f"{where} of '{source.name}'")
        given = readers if isinstance(readers, list | tuple) else [readers]
        stages = list(dict.fromkeys(self[r] for r in given))
        if not stages:
            raise ScheduleError(f"{where} of '{source.name}': no reader given")
        for stage in stages:
            if not any(r.tensor is source for r in self.reads_of(stage)):
                raise ScheduleError(
                    f"{where} of '{source.name}': '{stage.name}' does not read it (it is read by "
                    f"{', '.join(s.name for s in self.readers(self[source])) or 'nothing'})"
                )
        return _read_cached(self, source, scope, stages)

    @primitive
    def cache_write(self, tensor: Any, scope: str) -> Any:
        """Computes a tensor in other memory; what is left of its stage copies the result.

        Where the axes were split before, its dimensions are the loops: the result is laid out in
        tiles.

        Args:
            tensor: a computed tensor (for several outputs a list of all of them).
            scope: `global`, `shared` or `local`.

        Returns:
            The tensor that holds the computation.

        Raises:
            ScheduleError: something was said of a loop already, a reduction was split or fused, or
                some outputs of several are missing.

        >>> s = te.create_schedule(C)
        >>> CC = s.cache_write(C, "local")
        >>> print(te.lower(s, [A, B, C]))
        def main(A: f32[1024, 1024], B: f32[1024, 1024], C: f32[1024, 1024]):
          C.local = allocate(f32[1024, 1024], scope=local)
          for i.c in range(1024):
            for j.c in range(1024):
              C.local[i.c, j.c] = 0.0
              for k in range(1024):
                C.local[i.c, j.c] = C.local[i.c, j.c] + A[i.c, k]*B[k, j.c]
          for i in range(1024):
            for j in range(1024):
              C[i, j] = C.local[i, j]
        """
        where = "cache_write"
        several = isinstance(tensor, list | tuple)
        tensors = [self.tensor(t, where) for t in (tensor if several else [tensor])]
        if not tensors:
            raise ScheduleError(f"{where}: no tensor given")
        stage = self[tensors[0]]
        scope = memory_scope(scope, f"{where} of '{stage.name}'")
        if any(self[t] is not stage for t in tensors):
            raise ScheduleError(f"{where}: the tensors are outputs of different operations")
        if several and len(set(tensors)) != stage.op.num_outputs:
            raise ScheduleError(
                f"{where} of '{stage.name}': it has {stage.op.num_outputs} outputs, all of them "
                "are cached together"
            )
        made = _write_cached(self, stage, scope)
        return made if several else made[tensors[0].index]

    @primitive
    def rfactor(self, tensor: Any, axis: IterVar, factor_axis: int = 0) -> Any:
        """Splits a reduction in two: one for every value of a loop, and one over that loop.

        The axis is one of its result, so it can be made parallel, vectorised or bound to threads;
        `s[tensor].op.reduce_axis` has the axis of the second.

        Args:
            tensor: a reduction.
            axis: one of its reduction loops.
            factor_axis: where the new dimension goes, counted from the end where it is negative.

        Returns:
            The tensor of the first reduction.

        Raises:
            ScheduleError: it is no reduction, the axis is not one of its reduction's loops, or
                something was said of these already.

        >>> s = te.create_schedule(S)
        >>> ro, ri = s[S].split(S.op.reduce_axis[0], factor=32)
        >>> SF = s.rfactor(S, ri)
        >>> print(te.lower(s, [A, S]))
        def main(A: f32[1024, 1024], S: f32[1024]):
          S.rf = allocate(f32[32, 1024], scope=global)
          for r.inner in range(32):
            for i in range(1024):
              S.rf[r.inner, i] = 0.0
              for r.outer in range(32):
                S.rf[r.inner, i] = S.rf[r.inner, i] + A[i, r.outer*32 + r.inner]
          for i in range(1024):
            S[i] = 0.0
            for r.inner.v in range(32):
              S[i] = S[i] + S.rf[r.inner.v, i]
        """
        stage = self[self.tensor(tensor, "rfactor")]
        made = _rfactored(self, stage, axis, factor_axis)
        return made if len(made) > 1 else made[0]


def _read_cached(
    schedule: ScheduleState[StageState], source: Tensor, scope: str, readers: Sequence[StageState]
) -> Tensor:
    """A stage that copies a tensor, read by some stages in the tensor's place."""
    axes = tuple(IterVar(f"ax{i}", (0, e)) for i, e in enumerate(source.shape))
    copy = Tensor(f"{source.name}.{scope}", source.shape, source.dtype)
    copy.op = ComputeOp(copy.name, (copy,), axes, (TensorRead(source, axes),))
    stage = schedule.add_stage(copy.op, schedule[source], after=True)
    stage.scope = scope
    copy.name = copy.op.name = stage.name

    def redirected(node: Expr) -> Expr | None:
        if isinstance(node, TensorRead) and node.tensor is source:
            return TensorRead(copy, node.indices)
        return None

    for reader in readers:
        op = reader.compute
        body = _body(op, [transform(e, redirected) for e in op.body])
        schedule.replace_op(reader, op.with_body(body))
    return copy


def _write_cached(
    schedule: ScheduleState[StageState], stage: StageState, scope: str
) -> list[Tensor]:
    """Moves a stage's computation into a new one; what is left copies its results.

    Where the axes were split before, the new tensor has the loops as its dimensions: it is laid
    out in tiles.
    """
    op = stage.compute
    stage.unmarked(stage.leaf_iter_vars, "cache_write")
    for relation in stage.relations:
        made = _made(relation)
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
    cache = _computed(op, scope, axes, _body(op, bodies))
    made_stage = schedule.add_stage(cache, stage)
    made_stage.scope = scope
    known = Arithmetic({a: (0, extents[a] - 1) for a in op.axis})
    place = values_down(stage.relations, extents, {a: a for a in op.axis})
    indices = tuple(known.simplify(place[a]) for a in leaves)
    schedule.replace_op(stage, op.with_body(tuple(TensorRead(t, indices) for t in cache.outputs)))
    stage.reset(stage.op)
    return list(cache.outputs)


def _only_where(body: Expr, held: Expr) -> Expr:
    """The body guarded by a condition; elsewhere 0, or what an empty reduction gives."""
    if is_true(held):
        return body
    if isinstance(body, Reduce):
        return replace(body, condition=conjunction([held, body.condition]))
    return if_then_else(held, body, const(0, body.dtype))


def _rfactored(
    schedule: ScheduleState[StageState], stage: StageState, axis: IterVar, factor_axis: int
) -> list[Tensor]:
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
    stage.unmarked(reduction_leaves, "rfactor")
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
            s if is_true(held) else if_then_else(held, s, e)
            for s, e in zip(sources, identity, strict=True)
        ]
    factored = _computed(op, "rf", axes, tuple(bodies))
    made = schedule.add_stage(factored, stage)
    made.relations = [r for r in inner if r not in set(dissolved)]
    made.leaf_iter_vars = [*axes, *(a for a in reduction_leaves if a is not axis)]

    over_axis = IterVar(f"{axis.name}.v", (0, extents[axis]), REDUCE)
    place = (*op.axis[:position], over_axis, *op.axis[position:])
    reads = tuple(TensorRead(t, place) for t in factored.outputs)
    body = tuple(
        replace(e, sources=reads, axes=(over_axis,), condition=TRUE)
        for e in op.body
        if isinstance(e, Reduce)
    )
    schedule.replace_op(stage, op.with_body(body))
    stage.relations = [r for r in stage.relations if _made(r).kind != REDUCE]
    stage.leaf_iter_vars = [*(a for a in stage.leaf_iter_vars if a.kind != REDUCE), over_axis]
    return list(factored.outputs)


def _check_unmixed(stage: StageState, where: str) -> None:
    for relation in stage.relations:
        if isinstance(relation, Fuse) and relation.outer.kind != relation.inner.kind:
            raise ScheduleError(
                f"{where}: axis '{relation.fused.name}' fuses a reduction axis with an axis of the "
                "result"
            )


def _body(op: ComputeOp, bodies: list[Expr]) -> tuple[Expr, ...]:
    """Bodies with the sources of a reduction shared between its outputs, as they were."""
    first = bodies[0]
    if not isinstance(first, Reduce) or len(bodies) == 1:
        return tuple(bodies)
    return tuple(replace(first, index=e.index) for e in op.body if isinstance(e, Reduce))


def _computed(
    op: ComputeOp, suffix: str, axes: tuple[IterVar, ...], body: tuple[Expr, ...]
) -> ComputeOp:
    """An operation that computes other tensors for each of an operation's outputs."""
    shape = tuple(a.dom[1] for a in axes if a.dom)
    outputs = tuple(
        Tensor(f"{t.name}.{suffix}", shape, t.dtype, i) for i, t in enumerate(op.outputs)
    )
    made = ComputeOp(f"{op.name}.{suffix}", outputs, axes, body, op.tag, op.attrs)
    for tensor in outputs:
        tensor.op = made
    return made


def _extents(stage: StageState) -> dict[IterVar, int]:
    op = stage.compute
    roots = {a: a.dom[1] for a in (*op.axis, *op.reduce_axis) if a.dom}
    bound = [a for a, m in stage.marks.items() if m.tag]
    return extents_of(stage.relations, roots, bound)


def _made(relation: Relation) -> IterVar:
    return relation.outer if isinstance(relation, Split) else relation.fused
