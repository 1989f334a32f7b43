"""`--dispatches`: which of the generated dispatches a command works on, and patterns for them."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

from tilewright.errors import UserError, did_you_mean
from tilewright.kernels.suite import SuiteSelection
from tilewright.profiler.folder import GeneratedFolder, Selected
from tilewright.profiler.names import DEFAULT

OPTION = "--dispatches"


def select(
    generated: GeneratedFolder, selection: SuiteSelection, dispatches: str | None = None
) -> tuple[list[Selected], list[str]]:
    """The dispatches of the selected operations whose names fit the patterns.

    Args:
        generated: the folder.
        selection: of operations.
        dispatches: patterns; None: all.

    Returns:
        The dispatches in the order of their folders, the compiler's own configuration of an
        operation first; and remarks.

    Raises:
        UserError: nothing is left.
    """
    found: dict[str, Selected] = {}
    for folder in generated.operations():
        if selection.contains(folder.operation):
            for configuration in sorted(folder.dispatches, key=lambda name: name != DEFAULT):
                one = Selected(folder, configuration)
                found[one.name] = one
    if not found:
        raise UserError(f"{generated.root}: no generated dispatch is of the kinds and sizes given")
    if dispatches is None:
        return list(found.values()), []
    names, notes = match_names(dispatches, list(found))
    return [found[name] for name in names], notes


def match_names(text: str, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names that any of the patterns finds.

    Args:
        text: regular expressions (Python's `re`, found anywhere in a name), separated by commas; a
            comma inside brackets or behind a backslash belongs to the expression. One that finds
            nothing, or is no regular expression (`*softmax*`), is tried as a shell pattern for
            whole names.
        names: of the dispatches.

    Returns:
        The names in their order, and remarks on what was taken as a shell pattern.

    Raises:
        UserError: a pattern finds nothing either way.
    """
    wanted: set[str] = set()
    notes: list[str] = []
    for pattern in split_patterns(text):
        found, note = _match(pattern, names)
        wanted.update(found)
        if note:
            notes.append(note)
    return [name for name in names if name in wanted], notes


def _match(pattern: str, names: Sequence[str]) -> tuple[list[str], str]:
    problem = ""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        problem = f"is no regular expression: {error}"
    else:
        found = [name for name in names if expression.search(name)]
        if found:
            return found, ""
    found = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
    if found:
        return found, (
            f"{OPTION}: '{pattern}' {problem or 'matches nothing as a regular expression'}; taken "
            f"as a shell pattern (the regular expression is {_as_regex(pattern)})"
        )
    if problem:
        hint = f"; as a regular expression, '*' is written '.*': {_as_regex(pattern)}"
        raise UserError(f"{OPTION}: '{pattern}' {problem}{hint if '*' in pattern else ''}")
    raise UserError(
        f"{OPTION}: '{pattern}' matches none of the {len(names)} dispatches"
        f"{did_you_mean(pattern, names)}"
    )


def _as_regex(pattern: str) -> str:
    return "".join(".*" if c == "*" else "." if c == "?" else c for c in pattern)


def split_patterns(text: str) -> list[str]:
    """The patterns of a list.

    Args:
        text: see `match_names`.

    Raises:
        UserError: one is empty.
    """
    parts = [""]
    depth = 0
    escaped = False
    for char in text:
        if char == "," and depth == 0 and not escaped:
            parts.append("")
            continue
        parts[-1] += char
        if not escaped:
            depth += (char in "([{") - (char in ")]}")
            depth = max(0, depth)
        escaped = char == "\\" and not escaped
    if not all(part.strip() for part in parts):
        raise UserError(f"{OPTION}: '{text}' has an empty pattern; separate them by commas")
    return [part.strip() for part in parts]
