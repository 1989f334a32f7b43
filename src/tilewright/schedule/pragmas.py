"""The pragmas of loops: their names and values, and what they do to a nest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.errors import did_you_mean
from tilewright.schedule.errors import ScheduleError

if TYPE_CHECKING:
    from tilewright.schedule.tensor import IterVar

# What each is given: nothing, or an integer.
PRAGMAS = {
    "unroll": None,
    "vectorize": None,
    "auto_unroll_max_step": int,
    "auto_unroll_max_depth": int,
    "auto_unroll_max_extent": int,
    "unroll_explicit": bool,
}


def checked(name: Any, value: Any, axis: IterVar, stage: str) -> tuple[str, Any]:
    """A pragma's name and value, or ScheduleError.

    Args:
        name, value: what the user gave.
        axis, stage: for the message.

    Returns:
        The name and the value as loops carry them.

    Raises:
        ScheduleError: the pragma is unknown, or takes no such value.
    """
    where = f"pragma of stage '{stage}', axis '{axis.name}'"
    if not isinstance(name, str) or name not in PRAGMAS:
        near = did_you_mean(str(name), list(PRAGMAS))
        raise ScheduleError(
            f"{where}: unknown pragma {name!r}{near} (allowed: {', '.join(PRAGMAS)})"
        )
    kind = PRAGMAS[name]
    value = getattr(value, "value", value)
    if kind is None:
        if value not in (None, True, 1, ""):
            raise ScheduleError(f"{where}: '{name}' takes no value, got {value!r}")
        return name, None
    if kind is bool:
        if value not in (None, True, False, 0, 1):
            raise ScheduleError(f"{where}: '{name}' is True or False, got {value!r}")
        return name, value is None or bool(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ScheduleError(f"{where}: '{name}' needs an integer from 0, got {value!r}")
    return name, value
