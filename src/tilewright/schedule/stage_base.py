"""What every primitive of a stage works on: its loops, what was said of them, where it stands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import Expr
from tilewright.schedule.nest import SCOPES
from tilewright.schedule.relations import Fuse, Relation, Split
from tilewright.schedule.tensor import (
    REDUCE,
    ComputeOp,
    IterVar,
    PlaceholderOp,
    Tensor,
    TensorOp,
)

if TYPE_CHECKING:
    from tilewright.schedule.intrinsic import TensorIntrinsic
    from tilewright.schedule.schedule import Schedule
    from tilewright.schedule.stage import Group, Stage

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


class Placed(ABC):
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

    @abstractmethod
    def _check_read(self, stage: Stage, axis: IterVar) -> None:
        """Raises ScheduleError unless `stage` reads what this one computes."""

    def _place_root(self) -> None:
        self.attach, self.attach_stage, self.attach_axis = ROOT, None, None


class StageBase(Placed):
    """The state of a stage, and the checks that its primitives share."""

    def __init__(self, schedule: Schedule, op: TensorOp, name: str) -> None:
        self.schedule = schedule
        self.name = name
        self.group: Group | None = None
        self.scope = ""
        self._place_root()
        self.reset(op)

    def reset(self, op: TensorOp) -> None:
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

    def position(self, axis: IterVar) -> int:
        """Where a loop stands, 0 for the outermost."""
        return next(i for i, leaf in enumerate(self.leaf_iter_vars) if leaf is axis)

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

    def _set_kind(self, var: IterVar, kind: str, doing: str) -> None:
        axis = self.leaf(var, f"{doing} of stage '{self.name}'")
        self._no_intrinsic(axis, doing)
        marks = self.mark(axis)
        if marks.thread is not None:
            raise ScheduleError(
                f"{doing}: axis '{axis.name}' of stage '{self.name}' is bound to {marks.thread.tag}"
            )
        marks.kind = kind


def positive(value: Any, what: str) -> int:
    """The value as a positive integer, or ScheduleError."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < 1:
        raise ScheduleError(f"{what} is {value!r} (allowed: integers from 1)")
    return int(value)


def memory_scope(scope: Any, where: str) -> str:
    """The name of a scope, or ScheduleError."""
    if not isinstance(scope, str) or not (scope in SCOPES or "." in scope):
        raise ScheduleError(
            f"{where}: unknown scope {scope!r} (allowed: {', '.join(SCOPES)}, and names with a dot "
            "for intrinsics, such as wmma.accumulator)"
        )
    return scope
