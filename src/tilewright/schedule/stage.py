"""A stage: one operation's loops, where they stand, and the primitives that change them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import Expr, as_expr
from tilewright.schedule.nest import (
    BLOCK_TAGS,
    GLOBAL,
    PARALLEL,
    SCOPES,
    UNROLLED,
    VECTORIZED,
    VTHREAD,
)
from tilewright.schedule.relations import Fuse, Relation, Split
from tilewright.schedule.tensor import (
    DATA,
    REDUCE,
    THREAD_AXIS,
    ComputeOp,
    IterVar,
    Operation,
    PlaceholderOp,
    Tensor,
)
from tilewright.schedule.trace import primitive
from tilewright.schedule.types import BOOL

if TYPE_CHECKING:
    from tilewright.schedule.intrinsic import TensorIntrinsic
    from tilewright.schedule.schedule import Schedule

ROOT = "root"
INLINE = "inline"
AT = "at"


@dataclass(slots=True)
class LoopMarks:
    """What was said of one loop."""

    kind: str = ""
    thread: IterVar | None = None
    pragmas: dict[str, Any] = field(default_factory=dict)
    prefetches: list[tuple[Tensor, int]] = field(default_factory=list)
    intrinsic: TensorIntrinsic | None = None


class Placed:
    """What can be placed: a stage or a group of stages."""

    name: str
    schedule: Schedule
    group: Group | None
    attach: str
    attach_stage: Stage | None
    attach_axis: IterVar | None

    def _place_at(self, parent: Any, scope: Any) -> None:
        stage = self.schedule[parent]
        where = f"compute_at of '{self.name}'"
        if stage is self:
            raise ScheduleError(f"{where}: a stage cannot be computed inside of itself")
        axis = stage.leaf(scope, where)
        group = stage.group
        while self.group is not None and group is not self.group:
            if group is None:
                raise ScheduleError(
                    f"{where}: '{self.name}' belongs to group '{self.group.name}' and can only be "
                    f"computed at stages of that group, not at '{stage.name}'"
                )
            group = group.group
        self._check_read(stage, axis)
        self.attach, self.attach_stage, self.attach_axis = AT, stage, axis

    def _check_read(self, stage: Stage, axis: IterVar) -> None:
        raise NotImplementedError

    def _place_root(self) -> None:
        self.attach, self.attach_stage, self.attach_axis = ROOT, None, None


class Group(Placed):
    """Several stages that are placed together (:meth:`Schedule.create_group`)."""

    def __init__(self, schedule: Schedule, name: str, members: list[Placed]) -> None:
        self.schedule = schedule
        self.name = name
        self.members = members
        self.group: Group | None = None
        self._place_root()

    def stages(self) -> list[Stage]:
        """The stages of the group and of the groups in it."""
        found: list[Stage] = []
        for member in self.members:
            found.extend(member.stages() if isinstance(member, Group) else [member])  # type: ignore[list-item]
        return found

    def _check_read(self, stage: Stage, axis: IterVar) -> None:
        if not any(self.schedule.feeds(member, stage) for member in self.stages()):
            raise ScheduleError(
                f"compute_at of group '{self.name}': '{stage.name}' reads nothing of it"
            )

    @primitive
    def compute_at(self, parent: Any, scope: Any) -> Group:
        """Compute the whole group inside of a loop of another stage (:meth:`Stage.compute_at`)."""
        self._place_at(parent, scope)
        return self

    @primitive
    def compute_root(self) -> Group:
        """Compute the group at root level."""
        self._place_root()
        return self


class Stage(Placed):
    """The schedule of one operation.

    `op` is the operation as it is now (cache_write and rfactor change it), `leaf_iter_vars` its
    loops from the outermost in.
    """

    def __init__(self, schedule: Schedule, op: Operation, name: str) -> None:
        self.schedule = schedule
        self.name = name
        self.group: Group | None = None
        self.scope = ""
        self._place_root()
        self.reset(op)

    def reset(self, op: Operation) -> None:
        """Starts anew with another operation of the same outputs: no splits, no marks."""
        self.op = op
        self.leaf_iter_vars: list[IterVar] = []
        if isinstance(op, ComputeOp):
            self.leaf_iter_vars = [*op.axis, *op.reduce_axis]
        self.relations: list[Relation] = []
        self.marks: dict[IterVar, LoopMarks] = {}
        self.store_predicate: Expr | None = None
        self.alignments: dict[int, tuple[int, int]] = {}

    def __repr__(self) -> str:
        return f"Stage({self.name})"

    @property
    def is_placeholder(self) -> bool:
        return isinstance(self.op, PlaceholderOp)

    @property
    def compute(self) -> ComputeOp:
        """The operation of a stage that computes something."""
        if not isinstance(self.op, ComputeOp):
            raise ScheduleError(
                f"stage '{self.name}' is a placeholder: there is nothing to schedule "
                "(use cache_read to copy it somewhere)"
            )
        return self.op

    def mark(self, axis: IterVar) -> LoopMarks:
        """What was said of a loop, to be added to."""
        return self.marks.setdefault(axis, LoopMarks())

    def leaf(self, axis: Any, where: str) -> IterVar:
        """The axis, checked to be a loop of this stage."""
        if not isinstance(axis, IterVar):
            raise ScheduleError(
                f"{where}: stage '{self.name}' has no axis {axis!r} (loops: {self._loops()})"
            )
        self.compute  # noqa: B018  (a placeholder has no loops)
        if any(axis is leaf for leaf in self.leaf_iter_vars):
            return axis
        for relation in self.relations:
            if isinstance(relation, Split) and relation.parent is axis:
                made = f"was split into '{relation.outer.name}' and '{relation.inner.name}'"
            elif isinstance(relation, Fuse) and (relation.outer is axis or relation.inner is axis):
                made = f"was fused into '{relation.fused.name}'"
            else:
                continue
            raise ScheduleError(
                f"{where}: axis '{axis.name}' of stage '{self.name}' {made}; use what it became "
                f"(loops: {self._loops()})"
            )
        raise ScheduleError(
            f"{where}: axis '{axis.name}' is not a loop of stage '{self.name}' "
            f"(loops: {self._loops()})"
        )

    def _loops(self) -> str:
        return ", ".join(a.name for a in self.leaf_iter_vars) or "none"

    def _check_read(self, stage: Stage, axis: IterVar) -> None:
        self.compute  # noqa: B018
        if not self.schedule.feeds(self, stage):
            raise ScheduleError(
                f"compute_at of '{self.name}': '{stage.name}' does not read it, so it cannot be "
                f"computed at axis '{axis.name}' of '{stage.name}'"
            )

    def _no_intrinsic(self, axis: IterVar, where: str) -> None:
        marks = self.marks.get(axis)
        if marks is not None and marks.intrinsic is not None:
            raise ScheduleError(f"{where}: axis '{axis.name}' of stage '{self.name}' is tensorized")

    def _data_only(self, axis: IterVar, doing: str) -> None:
        if axis.kind == REDUCE:
            raise ScheduleError(
                f"{doing}: axis '{axis.name}' of stage '{self.name}' is a reduction axis, whose "
                "iterations depend on each other; rfactor it and use the axis that this makes"
            )

    # -- loops -------------------------------------------------------------------------------------

    @primitive
    def split(
        self, parent: IterVar, factor: int | None = None, nparts: int | None = None
    ) -> tuple[IterVar, IterVar]:
        where = f"split of stage '{self.name}'"
        axis = self.leaf(parent, where)
        if (factor is None) == (nparts is None):
            raise ScheduleError(
                f"{where}, axis '{axis.name}': give either factor (iterations of the inner loop) "
                "or nparts (of the outer loop)"
            )
        name, value = ("factor", factor) if factor is not None else ("nparts", nparts)
        value = _positive(value, f"{where}, axis '{axis.name}': {name}")
        self._unmarked(axis, "split")
        outer = IterVar(f"{axis.name}.outer", None, axis.kind)
        inner = IterVar(f"{axis.name}.inner", None, axis.kind)
        made = (value, None) if factor is not None else (None, value)
        self.relations.append(Split(axis, outer, inner, *made))
        at = self.position(axis)
        self.leaf_iter_vars[at : at + 1] = [outer, inner]
        return outer, inner

    def _unmarked(self, axis: IterVar, doing: str) -> None:
        """Refuses to remake a loop of which something was said, which would silently be lost."""
        marks = self.marks.get(axis)
        if marks is not None and marks != LoopMarks():
            said = (
                "bound to " + marks.thread.tag
                if marks.thread is not None
                else marks.kind or "marked"
            )
            raise ScheduleError(
                f"{doing} of stage '{self.name}': axis '{axis.name}' is {said} already; {doing} "
                "it before that"
            )

    def position(self, axis: IterVar) -> int:
        """Where a loop stands, 0 for the outermost."""
        return next(i for i, leaf in enumerate(self.leaf_iter_vars) if leaf is axis)

    @primitive
    def fuse(self, *args: Any) -> IterVar:
        where = f"fuse of stage '{self.name}'"
        given = list(args[0]) if len(args) == 1 and isinstance(args[0], list | tuple) else args
        axes = [self.leaf(a, where) for a in given]
        if not axes:
            raise ScheduleError(f"{where}: no axis given")
        fused = axes[0]
        for axis in axes[1:]:
            at = self.position(fused)
            if self.position(axis) != at + 1:
                raise ScheduleError(
                    f"{where}: '{fused.name}' and '{axis.name}' are not one directly inside of the "
                    f"other (loops: {self._loops()}); reorder them first"
                )
            self._unmarked(fused, "fuse")
            self._unmarked(axis, "fuse")
            kind = REDUCE if REDUCE in (fused.kind, axis.kind) else DATA
            new = IterVar(f"{fused.name}.{axis.name}.fused", None, kind)
            self.relations.append(Fuse(fused, axis, new))
            self.leaf_iter_vars[at : at + 2] = [new]
            fused = new
        return fused

    @primitive
    def reorder(self, *args: IterVar) -> Stage:
        where = f"reorder of stage '{self.name}'"
        axes = [self.leaf(a, where) for a in args]
        if len(set(axes)) < len(axes):
            twice = next(a for i, a in enumerate(axes) if a in set(axes[:i]))
            raise ScheduleError(f"{where}: axis '{twice.name}' is given twice")
        places = sorted(self.position(a) for a in axes)
        for place, axis in zip(places, axes, strict=True):
            self.leaf_iter_vars[place] = axis
        return self

    @primitive
    def tile(
        self,
        x_parent: IterVar,
        y_parent: IterVar,
        x_factor: int,
        y_factor: int,
    ) -> tuple[IterVar, IterVar, IterVar, IterVar]:
        if x_parent is y_parent:
            raise ScheduleError(f"tile of stage '{self.name}': the two axes are one and the same")
        self.leaf(y_parent, f"tile of stage '{self.name}'")
        _positive(y_factor, f"tile of stage '{self.name}': y_factor")
        x_outer, x_inner = self.split(x_parent, factor=x_factor)
        y_outer, y_inner = self.split(y_parent, factor=y_factor)
        self.reorder(x_outer, y_outer, x_inner, y_inner)
        return x_outer, y_outer, x_inner, y_inner

    @primitive
    def unroll(self, var: IterVar) -> Stage:
        self._set_kind(var, UNROLLED, "unroll")
        return self

    # -- parallel ----------------------------------------------------------------------------------

    @primitive
    def vectorize(self, var: IterVar) -> Stage:
        axis = self.leaf(var, f"vectorize of stage '{self.name}'")
        self._data_only(axis, "vectorize")
        self._set_kind(axis, VECTORIZED, "vectorize")
        return self

    @primitive
    def parallel(self, var: IterVar) -> Stage:
        axis = self.leaf(var, f"parallel of stage '{self.name}'")
        self._data_only(axis, "parallel")
        self._set_kind(axis, PARALLEL, "parallel")
        return self

    def _set_kind(self, var: IterVar, kind: str, doing: str) -> None:
        axis = self.leaf(var, f"{doing} of stage '{self.name}'")
        self._no_intrinsic(axis, doing)
        marks = self.mark(axis)
        if marks.thread is not None:
            raise ScheduleError(
                f"{doing}: axis '{axis.name}' of stage '{self.name}' is bound to {marks.thread.tag}"
            )
        marks.kind = kind

    @primitive
    def bind(self, ivar: IterVar, thread_ivar: IterVar) -> Stage:
        where = f"bind of stage '{self.name}'"
        axis = self.leaf(ivar, where)
        if not isinstance(thread_ivar, IterVar) or thread_ivar.kind != THREAD_AXIS:
            raise ScheduleError(
                f"{where}: axis '{axis.name}' can be bound to a te.thread_axis only"
            )
        tag = thread_ivar.tag
        if tag in BLOCK_TAGS or tag == VTHREAD:
            self._data_only(axis, f"bind to {tag}")
        self._no_intrinsic(axis, "bind")
        marks = self.mark(axis)
        if marks.thread is not None or marks.kind:
            said = marks.thread.tag if marks.thread is not None else marks.kind
            raise ScheduleError(
                f"{where}: axis '{axis.name}' is {said} already, it cannot be {tag} too"
            )
        for other in self.leaf_iter_vars:
            bound = self.marks.get(other)
            if bound is None or bound.thread is None or tag == VTHREAD:
                continue
            if bound.thread.tag == tag:
                raise ScheduleError(
                    f"{where}: axis '{other.name}' is bound to {tag} already, so '{axis.name}' "
                    "cannot be; fuse the two and bind what that makes"
                )
        marks.thread = thread_ivar
        return self

    # -- placement ---------------------------------------------------------------------------------

    @primitive
    def compute_at(self, parent: Any, scope: IterVar) -> Stage:
        if any(out in self.schedule.output_tensors for out in self.op.outputs):
            raise ScheduleError(
                f"compute_at of '{self.name}': it is an output of the schedule, which is computed "
                "as a whole, at root level"
            )
        self._place_at(parent, scope)
        return self

    @primitive
    def compute_inline(self) -> Stage:
        where = f"compute_inline of '{self.name}'"
        if self.compute.reduction is not None:
            raise ScheduleError(
                f"{where}: it is a reduction (over "
                f"{', '.join(a.name for a in self.compute.reduce_axis)}), which has to be stored; "
                "use compute_at"
            )
        if any(out in self.schedule.output_tensors for out in self.op.outputs):
            raise ScheduleError(f"{where}: it is an output of the schedule")
        self.attach, self.attach_stage, self.attach_axis = INLINE, None, None
        return self

    @primitive
    def compute_root(self) -> Stage:
        self.compute  # noqa: B018
        self._place_root()
        return self

    # -- storage -----------------------------------------------------------------------------------

    @primitive
    def set_scope(self, scope: str) -> Stage:
        self.compute  # noqa: B018
        wanted = _scope(scope, f"set_scope of stage '{self.name}'")
        if wanted != GLOBAL and any(t in self.schedule.output_tensors for t in self.op.outputs):
            raise ScheduleError(
                f"set_scope of stage '{self.name}': it is an output of the schedule, which is in "
                f"the caller's memory (global), not {wanted}; use cache_write"
            )
        self.scope = wanted
        return self

    @primitive
    def storage_align(self, axis: IterVar, factor: int, offset: int) -> Stage:
        where = f"storage_align of stage '{self.name}'"
        axes = self.compute.axis
        found = [i for i, a in enumerate(axes) if a is axis]
        if not found:
            shown = axis.name if isinstance(axis, IterVar) else axis
            raise ScheduleError(
                f"{where}: '{shown}' is not an axis of the stage's result, which the alignment is "
                f"of (allowed: {', '.join(a.name for a in axes)})"
            )
        factor = _positive(factor, f"{where}, axis '{axis.name}': factor")
        if not isinstance(offset, int) or offset < 0:
            raise ScheduleError(f"{where}, axis '{axis.name}': offset {offset!r} is negative")
        if any(out in self.schedule.output_tensors for out in self.op.outputs):
            raise ScheduleError(
                f"{where}: it is an output of the schedule, whose layout is the caller's; align "
                "what cache_write makes"
            )
        self.alignments[found[0]] = (factor, offset)
        return self

    # -- other -------------------------------------------------------------------------------------

    @primitive
    def pragma(self, var: IterVar, pragma_type: str, pragma_value: Any = None) -> Stage:
        from tilewright.schedule.pragmas import checked

        axis = self.leaf(var, f"pragma of stage '{self.name}'")
        key, value = checked(pragma_type, pragma_value, axis, self.name)
        if key == "vectorize":
            self._data_only(axis, "pragma vectorize")
        self.mark(axis).pragmas[key] = value
        return self

    @primitive
    def prefetch(self, tensor: Tensor, var: IterVar, offset: int) -> Stage:
        where = f"prefetch of stage '{self.name}'"
        axis = self.leaf(var, where)
        source = self.schedule.tensor(tensor, where)
        if not any(r.tensor is source for r in self.schedule.reads_of(self)):
            raise ScheduleError(f"{where}: it does not read tensor '{source.name}'")
        if not isinstance(offset, int) or isinstance(offset, bool):
            raise ScheduleError(f"{where}: offset {offset!r} is not an integer")
        self.mark(axis).prefetches.append((source, offset))
        return self

    @primitive
    def tensorize(self, var: IterVar, tensor_intrin: TensorIntrinsic) -> Stage:
        from tilewright.schedule.intrinsic import TensorIntrinsic

        axis = self.leaf(var, f"tensorize of stage '{self.name}'")
        if not isinstance(tensor_intrin, TensorIntrinsic):
            raise ScheduleError(
                f"tensorize of stage '{self.name}': {tensor_intrin!r} is not made by "
                "te.decl_tensor_intrin"
            )
        marks = self.mark(axis)
        if marks.kind or marks.thread is not None:
            said = marks.thread.tag if marks.thread is not None else marks.kind
            raise ScheduleError(
                f"tensorize of stage '{self.name}': axis '{axis.name}' is {said} already"
            )
        marks.intrinsic = tensor_intrin
        return self

    @primitive
    def set_store_predicate(self, predicate: Any) -> Stage:
        self.compute  # noqa: B018
        condition = as_expr(predicate)
        if condition.dtype != BOOL:
            raise ScheduleError(
                f"set_store_predicate of stage '{self.name}': '{condition}' is {condition.dtype}, "
                "not a condition"
            )
        self.store_predicate = condition
        return self


def _positive(value: Any, what: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < 1:
        raise ScheduleError(f"{what} is {value!r} (allowed: integers from 1)")
    return int(value)


def _scope(scope: Any, where: str) -> str:
    if not isinstance(scope, str) or not (scope in SCOPES or "." in scope):
        raise ScheduleError(
            f"{where}: unknown scope {scope!r} (allowed: {', '.join(SCOPES)}, and names with a dot "
            "for intrinsics, such as wmma.accumulator)"
        )
    return scope
