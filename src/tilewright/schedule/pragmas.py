"""Pragmas of loops: what each is given, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tilewright.schedule.errors import ScheduleError

if TYPE_CHECKING:
    from tilewright.schedule.tensor import IterVar

#: Where functions come from that intrinsics call: source or a file, by its language.
IMPORTS = ("import_c", "import_llvm", "import_mlir", "import_object")
# What each with an effect is given: nothing, a number, a choice, a text.
PRAGMAS = {
    "unroll": None,
    "vectorize": None,
    "auto_unroll_max_step": int,
    "auto_unroll_max_depth": int,
    "auto_unroll_max_extent": int,
    "unroll_explicit": bool,
    **dict.fromkeys(IMPORTS, str),
}
# Texts are shown up to this length.
_SHOWN = 40


def checked(name: Any, value: Any, axis: IterVar, stage: str) -> tuple[str, Any]:
    """A pragma's name and value, or ScheduleError.

    Args:
        name, value: what the user gave.
        axis, stage: for the message.

    Returns:
        The name and the value as loops carry them.

    Raises:
        ScheduleError: the name is no text, or the pragma takes no such value.
    """
    where = f"pragma of stage '{stage}', axis '{axis.name}'"
    value = getattr(value, "value", value)
    if not isinstance(name, str) or not name:
        raise ScheduleError(f"{where}: {name!r} is no name of a pragma")
    if name not in PRAGMAS:
        if value is not None and not isinstance(value, bool | int | float | str):
            raise ScheduleError(f"{where}: '{name}' is given {value!r}, no number and no text")
        return name, value
    kind = PRAGMAS[name]
    if kind is None:
        if value not in (None, True, 1, ""):
            raise ScheduleError(f"{where}: '{name}' takes no value, got {value!r}")
        return name, None
    if kind is bool:
        if value not in (None, True, False, 0, 1):
            raise ScheduleError(f"{where}: '{name}' is True or False, got {value!r}")
        return name, value is None or bool(value)
    if kind is str:
        if not isinstance(value, str) or not value:
            raise ScheduleError(f"{where}: '{name}' needs a text, got {value!r}")
        return name, value
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ScheduleError(f"{where}: '{name}' needs an integer from 0, got {value!r}")
    return name, value


def shown(pragmas: Mapping[str, Any]) -> str:
    """The pragmas of a loop in one line; those that nothing here looks at are told.

    Args:
        pragmas: as loops carry them.
    """
    parts = []
    for name, value in pragmas.items():
        if isinstance(value, str):
            value = repr(value) if len(value) <= _SHOWN else f"<{len(value)} characters>"
        text = name if value is None else f"{name}={value}"
        parts.append(text if name in PRAGMAS else f"{text} (no effect)")
    return ", ".join(parts)
