"""What makes a primitive of a method: every call that a user makes of it becomes a step."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import Binary, Const, Expr, Not
from tilewright.schedule.intrinsic import TensorIntrinsic
from tilewright.schedule.state import GroupState, Record, ScheduleState, StageState, Step
from tilewright.schedule.tensor import THREAD_AXIS, IterVar, Tensor, TensorOp

P = ParamSpec("P")
R = TypeVar("R")


def primitive(function: Callable[P, R]) -> Callable[P, R]:
    """Makes a primitive of a method of a stage, a group or a schedule.

    Its calls are recorded; those that it makes of other primitives are part of it. Arguments that
    it does not have are a ScheduleError.

    Args:
        function: the method.

    Returns:
        The method, recorded.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def recorded(*args: P.args, **kwargs: P.kwargs) -> R:
        owner: Any = args[0]
        record: Record = owner.schedule.record
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ScheduleError(
                f"{function.__name__} of '{owner.name}': {error} "
                f"(arguments: {', '.join(list(signature.parameters)[1:])})"
            ) from None
        if record.depth:
            return function(*args, **kwargs)
        record.depth += 1
        threads = dict(record.threads)
        try:
            # Described before the call: a primitive may change what names an axis.
            named = list(bound.arguments.items())[1:]
            arguments = {name: _described(owner.schedule, value) for name, value in named}
            result = function(*args, **kwargs)
        except BaseException:
            # A call that failed numbers no thread axes.
            record.threads = threads
            raise
        finally:
            record.depth -= 1
        made = result if isinstance(result, tuple) else (result,)
        for position, part in enumerate(made):
            if isinstance(part, IterVar | GroupState):
                record.made.setdefault(part, [len(record.steps), position])
        record.steps.append(Step(function.__name__, _owner(owner), arguments))
        return result

    return recorded


def _owner(owner: Any) -> Any:
    if isinstance(owner, GroupState):
        return {"result": owner.schedule.record.made[owner]}
    return owner.name if isinstance(owner, StageState) else None


def _described(schedule: ScheduleState[StageState], value: Any) -> Any:
    """An argument as a JSON value with references (:class:`tilewright.schedule.state.Step`)."""
    match value:
        case None | str() | bool() | int() | float():
            return value
        case IterVar():
            return _axis(schedule, value)
        case StageState():
            return {"stage": value.name}
        case TensorOp():
            return {"stage": schedule[value].name}
        case Tensor():
            return {"tensor": [schedule[value].name, value.index]}
        case TensorIntrinsic():
            return {"intrinsic": value.name}
        case Expr():
            return {"expr": _predicate(schedule, value)}
        case Sequence():
            return [_described(schedule, v) for v in value]
    if hasattr(value, "__index__"):
        return int(value)
    raise ScheduleError(f"argument {value!r} of type {type(value).__name__} is not understood")


def _axis(schedule: ScheduleState[StageState], axis: IterVar) -> dict[str, Any]:
    record = schedule.record
    if axis.kind == THREAD_AXIS:
        number = record.threads.setdefault(axis, len(record.threads))
        return {"thread": [axis.tag, axis.dom[1] if axis.dom else None, number]}
    if axis in record.made:
        return {"result": record.made[axis]}
    for stage in schedule.stages:
        if not stage.is_placeholder:
            for kind, axes in (("axis", stage.op.axis), ("reduce_axis", stage.op.reduce_axis)):
                for position, known in enumerate(axes):
                    if known is axis:
                        return {kind: [stage.name, position]}
    return {"unknown": axis.name}


def _predicate(schedule: ScheduleState[StageState], expr: Expr) -> Any:
    match expr:
        case IterVar():
            return _axis(schedule, expr)
        case Const():
            return ["const", expr.value, expr.dtype]
        case Binary():
            return [expr.op, _predicate(schedule, expr.a), _predicate(schedule, expr.b)]
        case Not():
            return ["not", _predicate(schedule, expr.a)]
    raise ScheduleError(
        f"'{expr}' cannot be part of a predicate (allowed: axes, thread axes, constants, "
        "arithmetic, comparisons, te.all, te.any)"
    )
