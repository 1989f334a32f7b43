"""Steps applied to a schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import Expr, as_expr, binary, const
from tilewright.schedule.functions import logical_not
from tilewright.schedule.intrinsic import registered
from tilewright.schedule.state import ScheduleState, StageState
from tilewright.schedule.tensor import IterVar, Tensor, thread_axis
from tilewright.schedule.trace import Step


def replay(steps: Iterable[Step], schedule: ScheduleState[StageState]) -> None:
    """Applies steps to a schedule.

    Args:
        steps: as recorded from a schedule of the same expression, of any shape.
        schedule: What they are applied to.

    Raises:
        ScheduleError: a step does not fit; says which.
    """
    player = _Player(schedule)
    for number, step in enumerate(steps):
        try:
            player.run(step)
        except ScheduleError as error:
            raise ScheduleError(
                f"schedule trace, step {number} ({step.primitive}): {error}"
            ) from None


class _Player:
    def __init__(self, schedule: ScheduleState[StageState]) -> None:
        self.schedule = schedule
        self.results: list[Any] = []
        self.threads: dict[int, IterVar] = {}
        # What each kind of reference refers to.
        self.kinds: dict[str, Callable[[Any], Any]] = {
            "stage": schedule.named,
            "tensor": self.tensor,
            "axis": lambda what: self.axis("axis", *what),
            "reduce_axis": lambda what: self.axis("reduce_axis", *what),
            "result": self.result,
            "thread": lambda what: self.thread(*what),
            "intrinsic": registered,
            "expr": self.expr,
        }

    def run(self, step: Step) -> None:
        """Calls a primitive as a step says."""
        owner: Any = self.schedule
        if step.stage is not None:
            named = isinstance(step.stage, str)
            owner = self.schedule.named(step.stage) if named else self.decoded(step.stage)
        method = getattr(owner, step.primitive, None)
        if method is None or not hasattr(method, "__wrapped__"):
            raise ScheduleError(f"there is no primitive '{step.primitive}'")
        arguments = {name: self.decoded(value) for name, value in step.arguments.items()}
        positional = arguments.pop("args", [])
        self.results.append(method(*positional, **arguments))

    def decoded(self, value: Any) -> Any:
        """The argument that a JSON value with references stands for."""
        if isinstance(value, list):
            return [self.decoded(v) for v in value]
        if not isinstance(value, dict):
            return value
        if len(value) == 1 and set(value) <= set(self.kinds):
            ((kind, what),) = value.items()
            return self.kinds[kind](what)
        raise ScheduleError(f"'{value}' is no reference")

    def tensor(self, what: list[Any]) -> Tensor:
        return self.schedule.named(what[0]).op.output(what[1])

    def axis(self, kind: str, stage: str, position: int) -> IterVar:
        axes: tuple[IterVar, ...] = getattr(self.schedule.named(stage).op, kind)
        if not 0 <= position < len(axes):
            raise ScheduleError(f"stage '{stage}' has {len(axes)} of {kind}, no {position}")
        return axes[position]

    def result(self, what: list[int]) -> Any:
        made = self.results[what[0]]
        return made[what[1]] if isinstance(made, tuple) else made

    def thread(self, tag: str, extent: int | None, number: int) -> IterVar:
        if number not in self.threads:
            dom = (0, extent) if extent is not None else None
            self.threads[number] = thread_axis(dom, tag)
        return self.threads[number]

    def expr(self, value: Any) -> Expr:
        """The condition that a nested list stands for."""
        if isinstance(value, dict):
            return as_expr(self.decoded(value))
        if value[0] == "const":
            return const(value[1], value[2])
        if value[0] == "not":
            return logical_not(self.expr(value[1]))
        return binary(value[0], self.expr(value[1]), self.expr(value[2]))
