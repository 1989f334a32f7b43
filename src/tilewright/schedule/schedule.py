"""A schedule: the stages of an expression, and the primitives that add stages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tilewright.errors import UnknownNameError
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.rewrite import read_cached, rfactored, write_cached
from tilewright.schedule.stage import Group, Stage
from tilewright.schedule.stage_base import INLINE, Placed, StageBase, memory_scope
from tilewright.schedule.tensor import (
    ComputeOp,
    IterVar,
    PlaceholderOp,
    Tensor,
    TensorOp,
    TensorRead,
    distinct,
    reads,
)
from tilewright.schedule.trace import Recorder, Trace, primitive


def create_schedule(ops: Any) -> Schedule:
    """The default schedule: every computation with its axes as serial loops, at root level.

    ops: the output tensor or operation, or a list of them.
    """
    given = ops if isinstance(ops, list | tuple) else (ops,)
    outputs = []
    for item in given:
        op = item.op if isinstance(item, Tensor) else item
        if not isinstance(op, TensorOp):
            raise ScheduleError(f"create_schedule: {item!r} is neither a tensor nor an operation")
        if op not in outputs:
            outputs.append(op)
    if not outputs:
        raise ScheduleError("create_schedule: no output given")
    return Schedule(outputs)


class Schedule:
    """The stages of an expression, producers before their consumers.

    `schedule[tensor]` is the stage of a tensor (or of an operation, or by name).
    """

    def __init__(self, outputs: Sequence[TensorOp]) -> None:
        self.outputs = tuple(outputs)
        self.output_tensors = frozenset(t for op in outputs for t in op.outputs)
        self.stages: list[Stage] = []
        self.groups: list[Group] = []
        self.recorder = Recorder(self)
        self._of: dict[TensorOp | Tensor, Stage] = {}
        for op in _in_order(outputs):
            self.add_stage(op, len(self.stages))

    # -- looking up --------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Stage:
        if isinstance(key, Stage):
            if key in self.stages:
                return key
            raise ScheduleError(f"stage '{key.name}' belongs to another schedule")
        if isinstance(key, str):
            return self.named(key)
        if isinstance(key, Tensor | TensorOp):
            stage = self._of.get(key)
            if stage is None and isinstance(key, TensorOp):
                stage = self._of.get(key.outputs[0])
            if stage is not None:
                return stage
            raise ScheduleError(
                f"'{key.name}' is not part of this schedule (stages: {self._names()})"
            )
        raise ScheduleError(f"{key!r} is neither a tensor nor an operation nor a stage")

    def named(self, name: str) -> Stage:
        """The stage with a name."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise UnknownStageError(name, [s.name for s in self.stages])

    def _names(self) -> str:
        return ", ".join(s.name for s in self.stages)

    def tensor(self, key: Any, where: str) -> Tensor:
        """A tensor of this schedule, given itself or by an operation with one output."""
        if isinstance(key, TensorOp) and key.num_outputs == 1:
            key = key.outputs[0]
        if not isinstance(key, Tensor):
            raise ScheduleError(f"{where}: {key!r} is no tensor")
        self[key]
        return key

    def reads_of(self, stage: StageBase) -> list[TensorRead]:
        """What a stage reads, as its operation stands."""
        if not isinstance(stage.op, ComputeOp):
            return []
        found: dict[TensorRead, None] = {}
        for expr in stage.op.body:
            for read in reads(expr):
                found[read] = None
        return list(found)

    def readers(self, stage: Stage) -> list[Stage]:
        """The stages that read a stage directly."""
        outputs = set(stage.op.outputs)
        return [s for s in self.stages if any(r.tensor in outputs for r in self.reads_of(s))]

    def feeds(self, producer: StageBase, consumer: StageBase) -> bool:
        """Whether a stage reads another, directly or through others."""
        pending: list[StageBase] = [consumer]
        seen: set[StageBase] = set()
        while pending:
            stage = pending.pop()
            for read in self.reads_of(stage):
                source = self._of[read.tensor]
                if source is producer:
                    return True
                if source not in seen:
                    seen.add(source)
                    pending.append(source)
        return False

    # -- changing stages ---------------------------------------------------------------------------

    def add_stage(self, op: TensorOp, position: int) -> Stage:
        """Makes the stage of a new operation."""
        stage = Stage(self, op, distinct(op.name, {s.name for s in self.stages}))
        self.stages.insert(position, stage)
        for tensor in op.outputs:
            self._of[tensor] = stage
        self._of[op] = stage
        return stage

    def replace_op(self, stage: Stage, op: ComputeOp) -> None:
        """Gives a stage another operation with the same outputs, and no splits or marks."""
        self._of[op] = stage
        stage.reset(op)

    # -- primitives --------------------------------------------------------------------------------

    @primitive
    def cache_read(self, tensor: Any, scope: str, readers: Any) -> Tensor:
        """Copies a tensor into other memory, from where some of its readers read it.

        tensor: a placeholder or a computed tensor.
        scope: `global`, `shared` or `local`.
        readers: the stages (or tensors) that shall read the copy.

        Gives the copy; place its stage with compute_at.

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
        return read_cached(self, source, scope, stages)

    @primitive
    def cache_write(self, tensor: Any, scope: str) -> Any:
        """Computes a tensor in other memory; what is left of its stage copies the result.

        tensor: a computed tensor (for several outputs a list of all of them).
        scope: `global`, `shared` or `local`.

        Gives the tensor that holds the computation. Where the axes were split before, its
        dimensions are the loops: the result is laid out in tiles.

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
        made = write_cached(self, stage, scope)
        return made if several else made[tensors[0].index]

    @primitive
    def rfactor(self, tensor: Any, axis: IterVar, factor_axis: int = 0) -> Any:
        """Splits a reduction in two: one for every value of a loop, and one over that loop.

        tensor: a reduction.
        axis: one of its reduction loops.
        factor_axis: where the new dimension goes.

        Gives the tensor of the first reduction. The axis is one of its result, so it can be made
        parallel, vectorised or bound to threads; `s[tensor].op.reduce_axis` has the axis of the
        second.

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
        made = rfactored(self, stage, axis, factor_axis)
        return made if len(made) > 1 else made[0]

    @primitive
    def create_group(self, outputs: Any, inputs: Any, include_inputs: bool = False) -> Group:
        """Makes a group of stages, to be placed together.

        outputs, inputs: stages (or tensors); the group has what lies on the ways from the inputs
            to the outputs.
        include_inputs: whether the inputs belong to it (placeholders never do).

        Gives the group, which has compute_at and compute_root. Its stages can still be placed at
        each other.

        >>> s = te.create_schedule(E)
        >>> g = s.create_group(outputs=D, inputs=[A, B])
        >>> g.compute_at(s[E], E.op.axis[0])
        Group(group0)
        >>> print(te.lower(s, [A, B, E]))
        def main(A: f32[1024, 1024], B: f32[1024, 1024], E: f32[1024, 1024]):
          for i in range(1024):
            D = allocate(f32[1, 1024], scope=global)
            for j in range(1024):
              D[0, j] = A[i, j] + B[i, j]
            for j in range(1024):
              E[i, j] = D[0, j]*2.0
        """
        where = "create_group"
        ends = [self[o] for o in (outputs if isinstance(outputs, list | tuple) else [outputs])]
        starts = [self[i] for i in (inputs if isinstance(inputs, list | tuple) else [inputs])]
        members = self._between(starts, ends, include_inputs)
        if not members:
            raise ScheduleError(f"{where}: there is nothing between the inputs and the outputs")
        units: list[Placed] = []
        for stage in members:
            unit: Placed = stage
            while unit.group is not None:
                unit = unit.group
            if unit not in units:
                units.append(unit)
        inside = set(members)
        for unit in units:
            if isinstance(unit, Group) and not inside.issuperset(unit.stages()):
                raise ScheduleError(
                    f"{where}: group '{unit.name}' would be only partly inside of the new group"
                )
        for stage in members:
            if any(t in self.output_tensors for t in stage.op.outputs):
                raise ScheduleError(
                    f"{where}: '{stage.name}' is an output of the schedule, which is computed at "
                    "root level; a group holds intermediate stages"
                )
        group = Group(self, f"group{len(self.groups)}", units)
        for unit in units:
            unit.group = group
        self.groups.append(group)
        return group

    def _between(self, starts: list[Stage], ends: list[Stage], include: bool) -> list[Stage]:
        """Compute stages on a way from a start to an end; ends belong to it."""
        found: list[Stage] = []
        for stage in self.stages:
            if stage.is_placeholder or (stage in starts and not include):
                continue
            from_start = stage in starts or any(self.feeds(s, stage) for s in starts)
            to_end = stage in ends or any(self.feeds(stage, e) for e in ends)
            if from_start and to_end:
                found.append(stage)
        return found

    # -- the schedule as data ----------------------------------------------------------------------

    def trace(self) -> Trace:
        """The primitives applied so far, as data (:class:`tilewright.schedule.trace.Trace`)."""
        return Trace(self.recorder.steps)

    def inlined(self) -> Iterable[Stage]:
        """The stages that are to be inlined."""
        return [s for s in self.stages if s.attach == INLINE]


class UnknownStageError(ScheduleError, UnknownNameError):
    """A stage name that the schedule does not have."""

    def __init__(self, name: str, names: list[str]) -> None:
        UnknownNameError.__init__(self, "stage", name, names)


def _in_order(outputs: Iterable[TensorOp]) -> list[TensorOp]:
    """All operations behind the outputs, producers first."""
    found: dict[TensorOp, None] = {}
    active: list[tuple[TensorOp, bool]] = [(op, False) for op in reversed(list(outputs))]
    while active:
        op, done = active.pop()
        if op in found:
            continue
        if done:
            found[op] = None
            continue
        active.append((op, True))
        if isinstance(op, ComputeOp):
            sources = [r.tensor.op for e in op.body for r in reads(e)]
            active.extend((s, False) for s in reversed(list(dict.fromkeys(sources))))
        else:
            assert isinstance(op, PlaceholderOp)
    return list(found)
