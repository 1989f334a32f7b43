"""Texts of options as values: durations, counts, parameter files.

Each `parse` takes the text and the name of the option that it came from; a UserError names the
option, the text, what is allowed, and the nearest match. Each `read` takes what a caller of the
Python API gives as well, values that are what the option means already.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.errors import UserError, did_you_mean

PARAMETER_EXTENSIONS = (".irpa", ".gguf", ".safetensors")

_UNIT_S = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}
_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_DURATION = re.compile("".join(rf"(?:{_NUMBER}{unit})?" for unit in _UNIT_S))
_PLAIN = re.compile(_NUMBER)


@dataclass(frozen=True)
class ParameterFile:
    """Weights outside the program: the scope that the program names them by, and their file."""

    scope: str
    path: Path

    def __str__(self) -> str:
        return f"{self.scope}={self.path}"


def parse_duration(text: str, option: str = "--time-limit") -> float:
    """Seconds of `90s`, `10m`, `1h30m`, `1.5h`, `2d`, `200ms` or `45` (a plain number is
    seconds).

    Args:
        text: as the user wrote it.
        option: for the message.

    Raises:
        UserError: it is no duration above zero.
    """
    given = text.strip().lower()
    seconds = 0.0
    if _PLAIN.fullmatch(given):
        seconds = float(given)
    elif match := _DURATION.fullmatch(given):
        parts = zip(match.groups(), _UNIT_S.values(), strict=True)
        seconds = sum(float(number) * unit for number, unit in parts if number is not None)
    if not 0.0 < seconds < float("inf"):
        raise UserError(
            f"{option}: '{text}' is not a duration above zero; write it as 90s, 10m, 1h30m, 2d, "
            "200ms or a number of seconds"
        )
    return seconds


def parse_count(text: str, option: str, least: int = 1) -> int:
    """A whole number of at least `least`.

    Args:
        text: as the user wrote it.
        option: for the message.
        least: the smallest that is allowed.

    Raises:
        UserError: it is no such number.
    """
    given = text.strip()
    if not (given.isascii() and given.isdigit() and len(given) < 19 and int(given) >= least):
        raise UserError(f"{option}: '{text}' is not a whole number of at least {least}")
    return int(given)


def parse_share(text: str, option: str) -> float:
    """A part of a whole: `10%` or `0.1`.

    Args:
        text: as the user wrote it.
        option: for the message.

    Raises:
        UserError: it is no number, or not from 0 to below 1.
    """
    given = text.strip()
    number = given.removesuffix("%").rstrip()
    if _PLAIN.fullmatch(number):
        share = float(number) / (100 if given.endswith("%") else 1)
        if share < 1:
            return share
    raise UserError(f"{option}: '{text}' is no part of a whole; write it as 10% or 0.1")


def parse_parameters(text: str, option: str = "--parameters") -> ParameterFile:
    """`SCOPE=FILE`; `=FILE` for parameters that the program names without a scope.

    Args:
        text: as the user wrote it.
        option: for the message.

    Raises:
        UserError: it is written otherwise, or the file is of another kind or cannot be read.
    """
    scope, equals, name = text.partition("=")
    if not equals or not name:
        raise UserError(
            f"{option}: '{text}' must be SCOPE=FILE, such as model=weights.irpa "
            "(=FILE for parameters without a scope)"
        )
    path = Path(os.path.expanduser(name))
    if path.suffix.lower() not in PARAMETER_EXTENSIONS:
        raise UserError(
            f"{option}: '{text}': unknown kind of file '{path.suffix}'"
            f"{did_you_mean(path.suffix, PARAMETER_EXTENSIONS)} "
            f"(allowed: {', '.join(PARAMETER_EXTENSIONS)})"
        )
    try:
        with path.open("rb"):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{option}: '{text}': cannot read the file ({reason})") from error
    return ParameterFile(scope, path)


# Of texts or values; each is told the option, for the message


def as_given(value: Any, option: str) -> Any:
    """The value itself."""
    return value


def read_choice(value: Any, option: str, allowed: tuple[str, ...]) -> str:
    """One of the allowed words."""
    if value not in allowed:
        names = ", ".join(allowed)
        near = did_you_mean(str(value), allowed)
        raise UserError(f"{option}: '{value}' is not a choice{near} (allowed: {names})")
    return str(value)


def read_path(value: str | os.PathLike[str], option: str = "") -> Path:
    """A path; `~` is the home directory."""
    return Path(os.path.expanduser(value))


def read_texts(value: str | Iterable[str], option: str = "") -> tuple[str, ...]:
    """Several texts, or one."""
    return (value,) if isinstance(value, str) else tuple(value)


def read_count(value: Any, option: str, least: int = 1) -> Any:
    """A whole number of at least `least`; see :func:`parse_count`."""
    return parse_count(value, option, least) if isinstance(value, str) else value


def read_count_or_zero(value: Any, option: str) -> Any:
    """A whole number of at least 0."""
    return read_count(value, option, 0)


def read_duration(value: str | float, option: str) -> float:
    """Seconds; see :func:`parse_duration`."""
    return parse_duration(value, option) if isinstance(value, str) else float(value)


def read_parameters(
    value: str | Mapping[str, str | os.PathLike[str]] | Iterable[str | ParameterFile],
    option: str = "--parameters",
) -> tuple[ParameterFile, ...]:
    """Parameter files: texts as :func:`parse_parameters` takes them, or files by scope."""
    if isinstance(value, Mapping):
        value = [f"{scope}={os.fspath(file)}" for scope, file in value.items()]
    return tuple(
        one if isinstance(one, ParameterFile) else parse_parameters(one, option)
        for one in ((value,) if isinstance(value, str) else value)
    )


def read_settings(value: str | Mapping[str, Any] | Iterable[str], option: str) -> tuple[str, ...]:
    """Texts `NAME=VALUE`, from values by name too."""
    if isinstance(value, Mapping):
        value = [f"{name}={setting}" for name, setting in value.items()]
    return read_texts(value)
