"""A schedule with its primitives, and its trace: the primitives that made it.

Tensors keep their identity: a consumer of `C` goes on reading `C` however `C` is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tilewright.schedule import trace
from tilewright.schedule.dataflow_primitives import DataflowPrimitives
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.primitive import primitive
from tilewright.schedule.stage import Group, Stage
from tilewright.schedule.state import Placed, Step
from tilewright.schedule.tensor import Tensor, TensorOp
from tilewright.schedule.trace import replay


def create_schedule(ops: Any) -> Schedule:
    """The default schedule: every computation with its axes as serial loops, at root level.

    Args:
        ops: the output tensor or operation, or a list of them.

    Returns:
        The schedule.

    Raises:
        ScheduleError: there is no output, or one is neither a tensor nor an operation.
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


class Schedule(DataflowPrimitives):
    """The stages of an expression, producers before their consumers.

    `schedule[tensor]` is the stage of a tensor (or of an operation, or by name).
    """

    def _new_stage(self, op: TensorOp, name: str) -> Stage:
        return Stage(self, op, name)

    def trace(self) -> Trace:
        """The primitives applied so far, as data."""
        return Trace(self.record.steps)

    @primitive
    def create_group(self, outputs: Any, inputs: Any, include_inputs: bool = False) -> Group:
        """Makes a group of stages, to be placed together.

        Its stages can still be placed at each other.

        Args:
            outputs, inputs: stages (or tensors); the group has what lies on the ways from the
                inputs to the outputs.
            include_inputs: whether the inputs belong to it (placeholders never do).

        Returns:
            The group, which has compute_at and compute_root.

        Raises:
            ScheduleError: there is nothing between them, an output would belong to it, or part of
                another group.

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
            if stage.is_output:
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


class Trace:
    """The primitives of a schedule, in order (`Schedule.trace`)."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = tuple(steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trace) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return self.to_python()

    def to_json(self) -> str:
        """The steps as JSON."""
        return trace.to_json(self.steps)

    @staticmethod
    def from_json(text: str) -> Trace:
        """The steps written by :meth:`to_json`.

        Args:
            text: JSON.

        Returns:
            The trace.

        Raises:
            ScheduleError: for anything else.
        """
        return Trace(trace.from_json(text))

    def to_python(self) -> str:
        """The steps as the source of a function that schedules what it is given."""
        return trace.to_python(self.steps)

    @staticmethod
    def from_python(text: str) -> Trace:
        """The steps written by :meth:`to_python`. Reads the source as data: nothing is run.

        Args:
            text: source of a function `schedule(s)`.

        Returns:
            The trace.

        Raises:
            ScheduleError: for any other source.
        """
        return Trace(trace.from_python(text))

    def save(self, path: str | Path) -> None:
        """Writes a file: Python where the name ends in .py, JSON otherwise.

        Args:
            path: the file.
        """
        path = Path(path)
        path.write_text(self.to_python() if path.suffix == ".py" else self.to_json())

    @staticmethod
    def load(path: str | Path) -> Trace:
        """Reads a file that :meth:`save` wrote; nothing in it is run.

        Args:
            path: the file.

        Returns:
            The trace.

        Raises:
            ScheduleError: there is no such file, or it is no trace.
        """
        path = Path(path)
        if not path.is_file():
            raise ScheduleError(f"schedule trace: no file '{path}'")
        read = Trace.from_python if path.suffix == ".py" else Trace.from_json
        return read(path.read_text())

    def apply(self, outputs: Any) -> Schedule:
        """A new schedule of the same expression (of any shape) with these primitives.

        Args:
            outputs: its output tensor or tensors.

        Returns:
            The schedule.

        Raises:
            ScheduleError: a step does not fit; says which.
        """
        schedule = create_schedule(outputs)
        self.replay(schedule)
        return schedule

    def replay(self, schedule: Schedule) -> None:
        """Applies the steps to a schedule.

        Args:
            schedule: of the same expression.

        Raises:
            ScheduleError: a step does not fit; says which.
        """
        replay(self.steps, schedule)
