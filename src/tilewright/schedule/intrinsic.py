"""Intrinsics: instructions and micro-kernels that `tensorize` puts in place of loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.errors import did_you_mean
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import TRUE, Expr, Load, Reduce, TensorRead, Var, index
from tilewright.schedule.nest import For, If, Intrinsic, Region, Stmt, Store, StoreAll
from tilewright.schedule.tensor import ComputeOp, IterVar, PlaceholderOp, Tensor, TensorOp
from tilewright.schedule.walk import flat, reads, transform

BODY = "body"
RESET = "reset"
UPDATE = "update"
PHASES = (BODY, RESET, UPDATE)

_REGISTERED: dict[str, TensorIntrinsic] = {}


class TensorIntrinsic:
    """What an intrinsic computes, and the code that it becomes.

    op: the pattern: a computation of placeholders, of the shape that the intrinsic handles.
    inputs, outputs: the pattern's tensors, inputs in the order in which its body reads them.
    emit: writes the code: `emit(builder, phase, inputs, outputs)`, see
        :func:`decl_tensor_intrin`.
    phases: what it can do of a reduction: `body`, `reset`, `update`.
    collective: whether all threads of `threadIdx.x` do it together, as one.
    """

    def __init__(
        self,
        name: str,
        op: ComputeOp,
        emit: Callable[..., Any],
        phases: Sequence[str],
        collective: bool = False,
    ) -> None:
        self.collective = collective
        self.name = name
        self.op = op
        self.emit = emit
        self.phases = tuple(phases)
        self.outputs = op.outputs
        self.inputs = op.input_tensors

    def __repr__(self) -> str:
        return f"TensorIntrinsic({self.name})"

    @property
    def reduction(self) -> Reduce | None:
        """The pattern's reduction, if it is one."""
        return self.op.reduction

    @property
    def has_reset(self) -> bool:
        return RESET in self.phases

    @property
    def has_update(self) -> bool:
        return UPDATE in self.phases

    def as_loops(self, node: Intrinsic) -> Stmt:
        """What a use of the intrinsic does, as plain loops over its regions."""
        axes: dict[Expr, Expr] = {}
        for axis in (*self.op.axis, *self.op.reduce_axis):
            axes[axis] = Var(axis.name)
        regions = dict(zip(self.inputs, node.inputs, strict=node.phase != RESET))

        def resolved(expr: Expr) -> Expr:
            def change(part: Expr) -> Expr | None:
                if isinstance(part, TensorRead):
                    region = regions[part.tensor]
                    return Load(region.buffer, _place(region, part.indices))
                if isinstance(part, IterVar):
                    low = part.dom[0] if part.dom else 0
                    return axes[part] + index(low)
                return None

            return transform(expr, change)

        place = [_place(r, tuple(axes[a] for a in self.op.axis)) for r in node.outputs]

        def stored(values: Sequence[Expr]) -> Stmt:
            stores = [
                Store(r.buffer, p, v) for r, p, v in zip(node.outputs, place, values, strict=True)
            ]
            return stores[0] if len(stores) == 1 else StoreAll(tuple(stores))

        reduction = self.reduction
        if reduction is None:
            return self._over(self.op.axis, axes, stored([resolved(e) for e in self.op.body]))
        parts: list[Stmt] = []
        if node.phase in (BODY, RESET):
            start = reduction.init or reduction.combiner.identity
            parts.append(self._over(self.op.axis, axes, stored([resolved(e) for e in start])))
        if node.phase in (BODY, UPDATE):
            old = [Load(r.buffer, p) for r, p in zip(node.outputs, place, strict=True)]
            new = reduction.combiner.combine(old, [resolved(s) for s in reduction.sources])
            update = stored(new)
            if reduction.condition is not TRUE:
                update = If(resolved(reduction.condition), update)
            parts.append(self._over((*self.op.axis, *self.op.reduce_axis), axes, update))
        return flat(*parts)

    @staticmethod
    def _over(loops: Sequence[IterVar], axes: dict[Expr, Expr], body: Stmt) -> Stmt:
        for axis in reversed(loops):
            var = axes[axis]
            assert isinstance(var, Var)
            assert axis.dom is not None
            body = For(var, axis.dom[1], body)
        return body


def _place(region: Region, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Indices of a pattern's tensor as those of the buffer that stands for it."""
    lead = len(region.mins) - len(indices)
    return (
        *region.mins[:lead],
        *(low + i for low, i in zip(region.mins[lead:], indices, strict=True)),
    )


def decl_tensor_intrin(
    op: TensorOp | Tensor,
    emit: Callable[..., Any],
    name: str = "tensor_intrin",
    phases: Sequence[str] = PHASES,
    collective: bool = False,
) -> TensorIntrinsic:
    """Declares an intrinsic for :meth:`Stage.tensorize`.

    op: what it computes: the operation (or the tensor) of a `te.compute` over placeholders.
    emit: called as `emit(builder, phase, inputs, outputs)` when code is written, with an MLIR
        context and insertion point in force; `inputs` and `outputs` have a `memref` (a strided
        view of the region), `shape` and `dtype` each.
    phases: for a reduction, what `emit` can do: `body` (start and compute), `reset` (store the
        start; it gets no inputs), `update` (add to what is there).
    collective: whether all threads of `threadIdx.x` run it together (subgroup matrices), rather
        than each for itself.

        def emit(builder, phase, inputs, outputs): ...
        gemv = te.decl_tensor_intrin(c.op, emit, name="gemv")
    """
    if isinstance(op, Tensor):
        op = op.op
    if not isinstance(op, ComputeOp):
        raise ScheduleError(f"decl_tensor_intrin '{name}': {op!r} is no computation")
    for expr in op.body:
        for read in reads(expr):
            if not isinstance(read.tensor.op, PlaceholderOp):
                raise ScheduleError(
                    f"decl_tensor_intrin '{name}': the pattern reads '{read.tensor.name}', which "
                    "is computed; it may read placeholders only"
                )
    unknown = [p for p in phases if p not in PHASES]
    if unknown or not phases:
        raise ScheduleError(
            f"decl_tensor_intrin '{name}': phases {list(phases)} (allowed: {', '.join(PHASES)})"
        )
    if op.reduction is None:
        phases = (BODY,)
    made = TensorIntrinsic(name, op, emit, phases, collective)
    _REGISTERED[name] = made
    return made


def registered(name: str) -> TensorIntrinsic:
    """The intrinsic declared last under a name (for schedules loaded from a file)."""
    if name not in _REGISTERED:
        raise ScheduleError(
            f"intrinsic '{name}' is not declared{did_you_mean(name, list(_REGISTERED))}; declare "
            "it with te.decl_tensor_intrin before the schedule is applied"
        )
    return _REGISTERED[name]
