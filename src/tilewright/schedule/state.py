"""What primitives work on: stages with their loops, groups of them, and the schedule of all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tilewright.errors import UnknownNameError
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import Expr
from tilewright.schedule.intrinsic import TensorIntrinsic
from tilewright.schedule.nest import PARALLEL, SCOPES
from tilewright.schedule.relations import Fuse, Relation, Split
from tilewright.schedule.tensor import (
    BLOCK_TAGS,
    REDUCE,
    ComputeOp,
    IterVar,
    PlaceholderOp,
    Tensor,
    TensorOp,
    TensorRead,
    distinct,
    reads,
)

ROOT = "root"
INLINE = "inline"
AT = "at"


@dataclass(frozen=True, slots=True)
class Step:
    """One primitive: on which stage (None for the schedule's own), with which arguments.

    Arguments are JSON values; an object with one key is a reference: `axis` and `reduce_axis`
    ([stage, position]), `result` ([step, position]), `stage`, `tensor` ([stage, output]),
    `thread` ([tag, extent, number]), `intrinsic`, `expr`.
    """

    primitive: str
    stage: Any
    arguments: dict[str, Any]


@dataclass(slots=True)
class Record:
    """The steps of one schedule so far.

    made: the step and the position in its result that each axis and group comes from. threads: a
    number for each thread axis. depth: how many primitives are at work, one within the other.
    """

    steps: list[Step] = field(default_factory=list)
    made: dict[Hashable, list[int]] = field(default_factory=dict)
    threads: dict[Hashable, int] = field(default_factory=dict)
    depth: int = 0


@dataclass(slots=True)
class LoopMarks:
    """What was said of one loop."""

    kind: str = ""
    thread: IterVar | None = None
    pragmas: dict[str, Any] = field(default_factory=dict)
    prefetches: list[tuple[Tensor, int]] = field(default_factory=list)
    # Of what an iteration of a loop further out reads.
    shares: list[tuple[Tensor, IterVar, int]] = field(default_factory=list)
    intrinsic: TensorIntrinsic | None = None

    @property
    def tag(self) -> str:
        """The tag of the thread axis that it is bound to, or nothing."""
        return self.thread.tag if self.thread is not None else ""

    @property
    def said(self) -> str:
        """What makes another loop of it than a plain one, in a word; empty for hints."""
        if self.thread is not None:
            return f"bound to {self.tag}"
        return self.kind or ("tensorized" if self.intrinsic is not None else "")


class Placed(ABC):
    """What can be placed: a stage or a group of stages."""

    schedule: ScheduleState[StageState]
    name: str
    group: GroupState | None = None
    attach = ROOT
    attach_stage: StageState | None = None
    attach_axis: IterVar | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"

    @abstractmethod
    def stages(self) -> list[StageState]:
        """The stages that are placed: itself, or those of the group and of the groups in it."""

    def place(
        self, attach: str, stage: StageState | None = None, axis: IterVar | None = None
    ) -> None:
        """Lets it be computed at root level, inline, or at an axis of a stage.

        Args:
            attach: `root`, `inline` or `at`.
            stage, axis: where, for `at`.
        """
        self.attach, self.attach_stage, self.attach_axis = attach, stage, axis


class StageState(Placed):
    """The state of a stage, and the checks that its primitives share.

    `op` is the operation as it is now (cache_write and rfactor change it), `leaf_iter_vars` its
    loops from the outermost in.
    """

    def __init__(self, schedule: ScheduleState[StageState], op: TensorOp, name: str) -> None:
        self.schedule = schedule
        self.name = name
        self.scope = ""
        self.store_predicate: Expr | None = None
        self.alignments: dict[int, tuple[int, int]] = {}
        self.extent_factors: dict[int, int] = {}
        self.reset(op)

    def reset(self, op: TensorOp) -> None:
        """Starts anew with another operation of the same outputs: no splits, no marks."""
        self.op = op
        self.leaf_iter_vars: list[IterVar] = []
        if isinstance(op, ComputeOp):
            self.leaf_iter_vars = [*op.axis, *op.reduce_axis]
        self.relations: list[Relation] = []
        self.marks: dict[IterVar, LoopMarks] = {}

    def stages(self) -> list[StageState]:
        return [self]

    @property
    def is_placeholder(self) -> bool:
        return isinstance(self.op, PlaceholderOp)

    @property
    def is_output(self) -> bool:
        """Whether the schedule's caller gets what it computes."""
        return any(t in self.schedule.output_tensors for t in self.op.outputs)

    @property
    def compute(self) -> ComputeOp:
        """The operation of a stage that computes something."""
        if not isinstance(self.op, ComputeOp):
            raise ScheduleError(
                f"stage '{self.name}' is a placeholder: there is nothing to schedule "
                "(use cache_read to copy it somewhere)"
            )
        return self.op

    def in_order(self, axis: IterVar) -> bool:
        """Whether a loop's iterations, said to run at once, run in order all the same: those of a
        reduction add to the same elements, and blocks or workers cannot do that together."""
        marks = self.marked(axis)
        return axis.kind == REDUCE and (marks.kind == PARALLEL or marks.tag in BLOCK_TAGS)

    def mark(self, axis: IterVar) -> LoopMarks:
        """What was said of a loop, to be added to."""
        return self.marks.setdefault(axis, LoopMarks())

    def marked(self, axis: IterVar) -> LoopMarks:
        """What was said of a loop, to be looked at."""
        return self.marks.get(axis) or LoopMarks()

    def leaf(self, axis: Any, where: str) -> IterVar:
        """The axis, checked to be a loop of this stage.

        Args:
            axis: what the user gave.
            where: the primitive and the stage, for the message.

        Returns:
            The axis.

        Raises:
            ScheduleError: it is no loop of the stage; says what became of it.
        """
        if not isinstance(axis, IterVar):
            raise ScheduleError(
                f"{where}: stage '{self.name}' has no axis {axis!r} (loops: {self.loops()})"
            )
        self.compute  # noqa: B018  (a placeholder has no loops)
        if any(axis is leaf for leaf in self.leaf_iter_vars):
            return axis
        became = f"is not a loop of stage '{self.name}' "
        for relation in self.relations:
            if isinstance(relation, Split) and relation.parent is axis:
                made = f"was split into '{relation.outer.name}' and '{relation.inner.name}'"
            elif isinstance(relation, Fuse) and (relation.outer is axis or relation.inner is axis):
                made = f"was fused into '{relation.fused.name}'"
            else:
                continue
            became = f"of stage '{self.name}' {made}; use what it became "
        raise ScheduleError(f"{where}: axis '{axis.name}' {became}(loops: {self.loops()})")

    def position(self, axis: IterVar) -> int:
        """Where a loop stands, 0 for the outermost."""
        return next(i for i, leaf in enumerate(self.leaf_iter_vars) if leaf is axis)

    def loops(self) -> str:
        """The names of the loops, for messages."""
        return ", ".join(a.name for a in self.leaf_iter_vars) or "none"

    def data_only(self, axis: IterVar, doing: str) -> None:
        """Refuses a reduction's axis.

        Args:
            axis: a loop.
            doing: the primitive.

        Raises:
            ScheduleError: it is one.
        """
        if axis.kind == REDUCE:
            raise ScheduleError(
                f"{doing}: axis '{axis.name}' of stage '{self.name}' is a reduction axis, whose "
                "iterations depend on each other; rfactor it and use the axis that this makes"
            )

    def unmarked(self, axes: Sequence[IterVar], doing: str, hints: bool = False) -> None:
        """Refuses to remake loops of which something was said, which would silently be lost.

        Args:
            axes: the loops.
            doing: the primitive that remakes them.
            hints: whether it takes along what is only a hint: pragmas and prefetches.

        Raises:
            ScheduleError: something was said.
        """
        for axis in axes:
            marks = self.marked(axis)
            said = marks.said or ("" if hints or marks == LoopMarks() else "marked")
            if said:
                raise ScheduleError(
                    f"{doing} of stage '{self.name}': axis '{axis.name}' is {said} already, which "
                    f"{doing} would undo; call {doing} before that"
                )


class GroupState(Placed):
    """Several stages that are placed together (:meth:`Schedule.create_group`)."""

    def __init__(
        self, schedule: ScheduleState[StageState], name: str, members: list[Placed]
    ) -> None:
        self.schedule = schedule
        self.name = name
        self.members = members

    def stages(self) -> list[StageState]:
        return [stage for member in self.members for stage in member.stages()]


S_co = TypeVar("S_co", bound=StageState, covariant=True)


class ScheduleState(ABC, Generic[S_co]):
    """The stages of an expression, producers before their consumers.

    `schedule[tensor]` is the stage of a tensor (or of an operation, or by name).
    """

    name = "schedule"

    def __init__(self, outputs: Sequence[TensorOp]) -> None:
        self.outputs = tuple(outputs)
        self.output_tensors = frozenset(t for op in outputs for t in op.outputs)
        self.stages: list[S_co] = []
        self.groups: list[GroupState] = []
        self.record = Record()
        self._of: dict[TensorOp | Tensor, S_co] = {}
        for op in _in_order(outputs):
            self._enter(op, len(self.stages))

    @abstractmethod
    def _new_stage(self, op: TensorOp, name: str) -> S_co:
        """The stage of an operation."""

    @property
    def schedule(self) -> ScheduleState[S_co]:
        """The schedule to which a primitive's owner belongs: itself."""
        return self

    # -- looking up --------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> S_co:
        if isinstance(key, StageState):
            for stage in self.stages:
                if stage is key:
                    return stage
            raise ScheduleError(f"stage '{key.name}' belongs to another schedule")
        if isinstance(key, str):
            return self.named(key)
        if isinstance(key, Tensor | TensorOp):
            found = self._of.get(key)
            if found is None and isinstance(key, TensorOp):
                found = self._of.get(key.outputs[0])
            if found is not None:
                return found
            raise ScheduleError(
                f"'{key.name}' is not part of this schedule "
                f"(stages: {', '.join(s.name for s in self.stages)})"
            )
        raise ScheduleError(f"{key!r} is neither a tensor nor an operation nor a stage")

    def named(self, name: str) -> S_co:
        """The stage with a name.

        Args:
            name: of the stage.

        Returns:
            The stage.

        Raises:
            UnknownStageError: there is none of that name.
        """
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise UnknownStageError(name, [s.name for s in self.stages])

    def tensor(self, key: Any, where: str) -> Tensor:
        """A tensor of this schedule, given itself or by an operation with one output.

        Args:
            key: what the user gave.
            where: the primitive, for the message.

        Returns:
            The tensor.

        Raises:
            ScheduleError: it is none of this schedule.
        """
        if isinstance(key, TensorOp) and key.num_outputs == 1:
            key = key.outputs[0]
        if not isinstance(key, Tensor):
            raise ScheduleError(f"{where}: {key!r} is no tensor")
        self[key]
        return key

    def reads_of(self, stage: StageState) -> list[TensorRead]:
        """What a stage reads, as its operation stands."""
        if not isinstance(stage.op, ComputeOp):
            return []
        return list(dict.fromkeys(read for expr in stage.op.body for read in reads(expr)))

    def touches(self, stage: StageState, tensor: Tensor) -> bool:
        """Whether a stage computes a tensor, or reads it, itself or through what is inlined in it.

        Args:
            stage: one of this schedule.
            tensor: any tensor.
        """
        if tensor in stage.op.outputs:
            return True
        for read in self.reads_of(stage):
            producer = self._of[read.tensor]
            inlined = producer.attach == INLINE
            if read.tensor is tensor or (inlined and self.touches(producer, tensor)):
                return True
        return False

    def readers(self, stage: StageState) -> list[S_co]:
        """The stages that read a stage directly."""
        outputs = set(stage.op.outputs)
        return [s for s in self.stages if any(r.tensor in outputs for r in self.reads_of(s))]

    def feeds(self, producer: StageState, consumer: StageState) -> bool:
        """Whether a stage reads another, directly or through others.

        Args:
            producer, consumer: stages.
        """
        pending: list[StageState] = [consumer]
        seen: set[StageState] = set()
        while pending:
            for read in self.reads_of(pending.pop()):
                source = self._of[read.tensor]
                if source is producer:
                    return True
                if source not in seen:
                    seen.add(source)
                    pending.append(source)
        return False

    # -- changing stages ---------------------------------------------------------------------------

    def _enter(self, op: TensorOp, position: int) -> S_co:
        stage = self._new_stage(op, distinct(op.name, {s.name for s in self.stages}))
        self.stages.insert(position, stage)
        self._of.update(dict.fromkeys((op, *op.outputs), stage))
        return stage

    def add_stage(self, op: ComputeOp, beside: StageState, after: bool = False) -> S_co:
        """Makes the stage of a new operation, in the group of the one that it stands beside.

        Args:
            op: The operation.
            beside: a stage; the new one comes before it, or `after` it.

        Returns:
            The stage.
        """
        stage = self._enter(op, self.stages.index(self[beside]) + after)
        stage.group = beside.group
        if beside.group is not None:
            beside.group.members.append(stage)
        return stage

    def replace_op(self, key: StageState, op: ComputeOp) -> None:
        """Gives a stage another operation with the same outputs; its loops stay as they are.

        Args:
            key: the stage.
            op: the operation.
        """
        stage = self._of[op] = self[key]
        stage.op = op


class UnknownStageError(ScheduleError, UnknownNameError):
    """A stage name that the schedule does not have."""

    def __init__(self, name: str, names: list[str]) -> None:
        UnknownNameError.__init__(self, "stage", name, names)


def _in_order(outputs: Sequence[TensorOp]) -> list[TensorOp]:
    """All operations behind the outputs, producers first."""
    found: dict[TensorOp, None] = {}
    active: list[tuple[TensorOp, bool]] = [(op, False) for op in reversed(outputs)]
    while active:
        op, done = active.pop()
        if op in found:
            continue
        if done:
            found[op] = None
            continue
        active.append((op, True))
        if isinstance(op, ComputeOp):
            active.extend((t.op, False) for t in reversed(op.input_tensors))
    return list(found)


def positive(value: Any, what: str) -> int:
    """The value as a positive integer, or ScheduleError.

    Args:
        value: what the user gave.
        what: what it is, for the message.

    Returns:
        The integer.

    Raises:
        ScheduleError: it is none.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < 1:
        raise ScheduleError(f"{what} is {value!r} (allowed: integers from 1)")
    return int(value)


def memory_scope(scope: Any, where: str) -> str:
    """The name of a scope, or ScheduleError.

    Args:
        scope: what the user gave.
        where: the primitive, for the message.

    Returns:
        The scope.

    Raises:
        ScheduleError: it is none.
    """
    if not isinstance(scope, str) or not (scope in SCOPES or "." in scope):
        raise ScheduleError(
            f"{where}: unknown scope {scope!r} (allowed: {', '.join(SCOPES)}, and names with a dot "
            "for intrinsics, such as wmma.accumulator)"
        )
    return scope
