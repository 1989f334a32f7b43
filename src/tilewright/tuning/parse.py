"""Texts of options as values: durations, counts, parameter files, variants.

Each parser takes the text and the name of the option that it came from; a UserError names the
option, the text, what is allowed, and the nearest match.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import UserError, did_you_mean

PARAMETER_EXTENSIONS = (".irpa", ".gguf", ".safetensors")

_UNIT_S = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}
_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_DURATION = re.compile("".join(rf"(?:{_NUMBER}{unit})?" for unit in _UNIT_S))
_PLAIN = re.compile(_NUMBER)
_VARIANT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.+-]*")


@dataclass(frozen=True)
class ParameterFile:
    """Weights outside the program: the scope that the program names them by, and their file."""

    scope: str
    path: Path

    def __str__(self) -> str:
        return f"{self.scope}={self.path}"


@dataclass(frozen=True)
class VariantChoice:
    """A variant that the user asked for; `flags` is None for a built-in one."""

    name: str
    flags: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return self.name if self.flags is None else f"{self.name}={shlex.join(self.flags)}"


def parse_duration(text: str, option: str = "--time-limit") -> float:
    """Seconds of `90s`, `10m`, `1h30m`, `1.5h`, `2d`, `200ms` or `45` (a plain number is
    seconds)."""
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
    """A whole number of at least `least`."""
    given = text.strip()
    if not (given.isascii() and given.isdigit() and len(given) < 19 and int(given) >= least):
        raise UserError(f"{option}: '{text}' is not a whole number of at least {least}")
    return int(given)


def parse_parameters(text: str, option: str = "--parameters") -> ParameterFile:
    """`SCOPE=FILE`; `=FILE` for parameters that the program names without a scope."""
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


def parse_variants(
    text: str, known: Collection[str], option: str = "--variants"
) -> tuple[VariantChoice, ...]:
    """Variants in the order given: `default,data-tiling,mine=--flag --other`.

    Built-in names and `NAME=FLAGS`, separated by commas; flags are separated by spaces or commas.
    A flag that has a comma or space in it is quoted: `mine='--iree-llvmcpu-target-cpu=a,b'`.
    """
    choices: dict[str, VariantChoice] = {}
    for entry in _entries(text, option):
        name, equals, rest = entry.partition("=")
        name = name.strip()
        if name in choices:
            raise UserError(f"{option}: '{name}' is given twice; keep one")
        if not equals:
            choices[name] = VariantChoice(_built_in(name, known, option))
            continue
        if not _VARIANT_NAME.fullmatch(name):
            raise UserError(
                f"{option}: '{name}' cannot name a variant; begin with a letter and go on with "
                "letters, digits and _ . + -"
            )
        if name in known:
            raise UserError(
                f"{option}: '{name}' is a built-in variant; choose another name for '{entry}'"
            )
        choices[name] = VariantChoice(name, _flags(name, rest, option))
    return tuple(choices.values())


def _built_in(name: str, known: Collection[str], option: str) -> str:
    if name not in known:
        names = sorted(known)
        raise UserError(
            f"{option}: unknown variant '{name}'{did_you_mean(name, names)} (allowed: "
            f"{', '.join(names)}, or NAME=FLAGS; quote a flag that has a comma in it)"
        )
    return name


def _entries(text: str, option: str) -> list[str]:
    """The text split at commas outside quotes; an entry that begins with `-` goes on with flags."""
    entries: list[str] = []
    part, quote = "", ""
    for char in text + ",":
        if char == "," and not quote:
            if part.lstrip().startswith("-") and entries and "=" in entries[-1]:
                entries[-1] += " " + part
            else:
                entries.append(part.strip())
            part = ""
            continue
        if char in "'\"" and quote in ("", char):
            quote = "" if quote else char
        part += char
    if quote:
        raise UserError(f"{option}: '{text}': a quote ({quote}) is not closed")
    if not all(entries):
        raise UserError(f"{option}: '{text}': a name is missing; write names separated by commas")
    return entries


def _flags(name: str, text: str, option: str) -> tuple[str, ...]:
    try:
        flags = tuple(shlex.split(text))
    except ValueError as error:
        raise UserError(f"{option}: '{name}={text}': {error}") from error
    wrong = [flag for flag in flags if not flag.startswith("-")]
    if wrong or not flags:
        what = f"'{wrong[0]}' is not a flag" if wrong else "no flags are given"
        raise UserError(
            f"{option}: '{name}={text}': {what}; write NAME=--flag or NAME='--flag --other'"
        )
    return flags
