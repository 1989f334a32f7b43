"""A schedule as data: the list of primitives that made it.

Every primitive that a user calls is recorded with its arguments, axes and stages by name, so that
the list can be written as JSON or as Python and carried over to another shape of the same
expression.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tilewright.schedule.errors import ScheduleError

if TYPE_CHECKING:
    from tilewright.schedule.schedule import Schedule

P = ParamSpec("P")
R = TypeVar("R")

FORMAT = 1


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


def primitive(function: Callable[P, R]) -> Callable[P, R]:
    """Records calls of a primitive; those that it makes of others are part of it."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def recorded(*args: P.args, **kwargs: P.kwargs) -> R:
        owner: Any = args[0]
        recorder: Recorder = (
            owner.recorder if hasattr(owner, "recorder") else owner.schedule.recorder
        )
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            name = getattr(owner, "name", "schedule")
            raise ScheduleError(
                f"{function.__name__} of '{name}': {error} "
                f"(arguments: {', '.join(list(signature.parameters)[1:])})"
            ) from None
        if recorder.depth:
            return function(*args, **kwargs)
        # Described before the call: a primitive may change what names an axis.
        encoded: dict[str, Any] | None = None
        recorder.depth += 1
        try:
            arguments = dict(list(bound.arguments.items())[1:])
            encoded = recorder.encoded(arguments)
            result = function(*args, **kwargs)
        except BaseException:
            recorder.forget()
            raise
        finally:
            recorder.depth -= 1
        recorder.add(function.__name__, owner, encoded, result)
        return result

    return recorded


class Recorder:
    """The steps of one schedule, and where the axes and groups that they made come from."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.steps: list[Step] = []
        self.depth = 0
        self._made: dict[Any, list[int]] = {}
        self._threads: dict[Any, int] = {}

    def add(self, name: str, owner: Any, arguments: dict[str, Any], result: Any) -> None:
        """Takes down a call that succeeded."""
        number = len(self.steps)
        stage = None if owner is self.schedule else self._owner(owner)
        self.steps.append(Step(name, stage, arguments))
        for position, part in enumerate(result if isinstance(result, tuple) else (result,)):
            if _is_axis(part) or _is_group(part):
                self._made.setdefault(part, [number, position])

    def forget(self) -> None:
        """Gives back the numbers of thread axes that only a failed call named."""
        named = {n for step in self.steps for n in _thread_numbers(step.arguments)}
        self._threads = {axis: n for axis, n in self._threads.items() if n in named}

    def _owner(self, owner: Any) -> Any:
        return {"result": self._made[owner]} if _is_group(owner) else owner.name

    def encoded(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {name: self._encode(value) for name, value in arguments.items()}

    def _encode(self, value: Any) -> Any:
        from tilewright.schedule.expr import Expr
        from tilewright.schedule.intrinsic import TensorIntrinsic
        from tilewright.schedule.stage import Stage
        from tilewright.schedule.tensor import Tensor, TensorOp

        if value is None or isinstance(value, str | bool | int | float):
            return value
        if _is_axis(value):
            return self._axis(value)
        if isinstance(value, Stage):
            return {"stage": value.name}
        if isinstance(value, TensorOp):
            return {"stage": self.schedule[value].name}
        if isinstance(value, Tensor):
            return {"tensor": [self.schedule[value].name, value.index]}
        if isinstance(value, TensorIntrinsic):
            return {"intrinsic": value.name}
        if isinstance(value, Expr):
            return {"expr": self._expr(value)}
        if isinstance(value, Sequence):
            return [self._encode(v) for v in value]
        if hasattr(value, "__index__"):
            return int(value)
        raise ScheduleError(f"argument {value!r} of type {type(value).__name__} is not understood")

    def _axis(self, axis: Any) -> dict[str, Any]:
        if axis.kind == "thread":
            number = self._threads.setdefault(axis, len(self._threads))
            return {"thread": [axis.tag, axis.dom[1] if axis.dom else None, number]}
        if axis in self._made:
            return {"result": self._made[axis]}
        for stage in self.schedule.stages:
            if stage.is_placeholder:
                continue
            for kind, axes in (("axis", stage.op.axis), ("reduce_axis", stage.op.reduce_axis)):
                for position, known in enumerate(axes):
                    if known is axis:
                        return {kind: [stage.name, position]}
        return {"unknown": axis.name}

    def _expr(self, expr: Any) -> Any:
        from tilewright.schedule.expr import Binary, Const, Not

        if _is_axis(expr):
            return self._axis(expr)
        if isinstance(expr, Const):
            return ["const", expr.value, expr.dtype]
        if isinstance(expr, Binary):
            return [expr.op, self._expr(expr.a), self._expr(expr.b)]
        if isinstance(expr, Not):
            return ["not", self._expr(expr.a)]
        raise ScheduleError(
            f"'{expr}' cannot be part of a predicate (allowed: axes, thread axes, constants, "
            "arithmetic, comparisons, te.all, te.any)"
        )


def _is_axis(value: Any) -> bool:
    from tilewright.schedule.tensor import IterVar

    return isinstance(value, IterVar)


def _is_group(value: Any) -> bool:
    from tilewright.schedule.stage import Group

    return isinstance(value, Group)


def _thread_numbers(value: Any) -> Iterator[int]:
    if isinstance(value, list):
        for part in value:
            yield from _thread_numbers(part)
    elif isinstance(value, dict):
        if set(value) == {"thread"}:
            yield value["thread"][2]
        else:
            yield from _thread_numbers(list(value.values()))


class Trace:
    """The primitives of a schedule, in order (`Schedule.trace`)."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = tuple(steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Any:
        return iter(self.steps)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trace) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return self.to_python()

    def to_json(self) -> str:
        """The steps as JSON."""
        steps = [
            {"primitive": s.primitive, "stage": s.stage, "arguments": s.arguments}
            for s in self.steps
        ]
        return json.dumps({"format": FORMAT, "steps": steps}, indent=1)

    @staticmethod
    def from_json(text: str) -> Trace:
        """The steps written by :meth:`to_json`; ScheduleError for anything else."""
        try:
            data = json.loads(text)
            if data["format"] != FORMAT:
                raise ScheduleError(
                    f"schedule trace: format {data['format']} is not known (this is {FORMAT})"
                )
            return Trace(
                [Step(s["primitive"], s["stage"], dict(s["arguments"])) for s in data["steps"]]
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ScheduleError(f"schedule trace: this is not one ({error!r})") from None

    def to_python(self) -> str:
        """The steps as the source of a function that schedules what it is given."""
        from tilewright.schedule.trace_python import source

        return source(self)

    @staticmethod
    def from_python(text: str) -> Trace:
        """The steps written by :meth:`to_python`. Reads the source as data: nothing is run."""
        from tilewright.schedule.trace_python import parsed

        return parsed(text)

    def save(self, path: str | Path) -> None:
        """Writes a file: Python where the name ends in .py, JSON otherwise."""
        path = Path(path)
        path.write_text(self.to_python() if path.suffix == ".py" else self.to_json())

    @staticmethod
    def load(path: str | Path) -> Trace:
        """Reads a file that :meth:`save` wrote."""
        path = Path(path)
        if not path.is_file():
            raise ScheduleError(f"schedule trace: no file '{path}'")
        text = path.read_text()
        return Trace.from_python(text) if path.suffix == ".py" else Trace.from_json(text)

    def apply(self, outputs: Any) -> Schedule:
        """A new schedule of the same expression (of any shape) with these primitives.

        outputs: its output tensor or tensors. ScheduleError where a step does not fit, with its
            number.
        """
        from tilewright.schedule.schedule import create_schedule

        schedule = create_schedule(outputs)
        self.replay(schedule)
        return schedule

    def replay(self, schedule: Schedule) -> None:
        """Applies the steps to a schedule."""
        replay = _Replay(schedule)
        for number, step in enumerate(self.steps):
            try:
                replay.run(step)
            except ScheduleError as error:
                raise ScheduleError(
                    f"schedule trace, step {number} ({step.primitive}): {error}"
                ) from None


class _Replay:
    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.results: list[Any] = []
        self.threads: dict[int, Any] = {}

    def run(self, step: Step) -> None:
        owner: Any = self.schedule
        if step.stage is not None:
            owner = (
                self._decode(step.stage)
                if isinstance(step.stage, dict)
                else self.schedule.named(step.stage)
            )
        method = getattr(owner, step.primitive, None)
        if not hasattr(method, "__wrapped__"):
            raise ScheduleError(f"there is no primitive '{step.primitive}'")
        arguments: dict[str, Any] = {}
        positional: list[Any] = []
        for name, value in step.arguments.items():
            decoded = self._decode(value)
            if name == "args":
                positional = decoded
            else:
                arguments[name] = decoded
        assert method is not None
        self.results.append(method(*positional, **arguments))

    def _decode(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._decode(v) for v in value]
        if not isinstance(value, dict):
            return value
        if len(value) != 1:
            raise ScheduleError(f"'{value}' is no reference")
        kind, what = next(iter(value.items()))
        if kind == "stage":
            return self.schedule.named(what)
        if kind == "tensor":
            return self.schedule.named(what[0]).op.output(what[1])
        if kind in ("axis", "reduce_axis"):
            axes = getattr(self.schedule.named(what[0]).op, kind)
            if not 0 <= what[1] < len(axes):
                raise ScheduleError(f"stage '{what[0]}' has {len(axes)} of {kind}, no {what[1]}")
            return axes[what[1]]
        if kind == "result":
            result = self.results[what[0]]
            return result[what[1]] if isinstance(result, tuple) else result
        if kind == "thread":
            return self._thread(*what)
        if kind == "intrinsic":
            from tilewright.schedule.intrinsic import registered

            return registered(what)
        if kind == "expr":
            return self._expr(what)
        raise ScheduleError(f"'{value}' is no reference")

    def _thread(self, tag: str, extent: int | None, number: int) -> Any:
        from tilewright.schedule.tensor import thread_axis

        if number not in self.threads:
            dom = (0, extent) if extent is not None else None
            self.threads[number] = thread_axis(dom, tag)
        return self.threads[number]

    def _expr(self, value: Any) -> Any:
        from tilewright.schedule.expr import as_expr, binary, const
        from tilewright.schedule.functions import logical_not

        if isinstance(value, dict):
            return as_expr(self._decode(value))
        if value[0] == "const":
            return const(value[1], value[2])
        if value[0] == "not":
            return logical_not(self._expr(value[1]))
        return binary(value[0], self._expr(value[1]), self._expr(value[2]))
