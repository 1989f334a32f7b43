"""Writing to the terminal, or to a file: consoles, tables, JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table as RichTable

from tilewright import words
from tilewright.plain_data import fields_of
from tilewright.tables import Table

# Where nobody's screen sets a limit: rows stay on one line, for grep and awk.
_FILE_WIDTH = 400


def console(stderr: bool = False) -> Console:
    """A console that writes plain text as it is: no markup, no highlighting of its own.

    Args:
        stderr: write there, not to stdout.
    """
    found = Console(stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=False)
    if not found.is_terminal:
        found.width = _FILE_WIDTH
    return found


def table(columns: Sequence[str], right: Sequence[str] = (), title: str = "") -> RichTable:
    """An empty table without lines; the columns in `right` are numbers.

    Args:
        columns: their names.
        right: those that are numbers.
        title: above the table.
    """
    made = RichTable(
        box=None,
        pad_edge=False,
        header_style="bold",
        title=title or None,
        title_justify="left",
        title_style="bold",
    )
    for name in columns:
        made.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=name in right,
            overflow="fold",
        )
    return made


def print_table(made: Table) -> None:
    """A table of plain data.

    Args:
        made: the table.
    """
    shown = table(made.columns, made.right, made.title)
    for cells in made.rows:
        shown.add_row(*cells)
    console().print(shown)


def print_json(data: object) -> None:
    """JSON on stdout.

    Args:
        data: what JSON can say; dataclasses are objects, paths texts.
    """
    click.echo(json.dumps(data, indent=2, default=_as_json))


def _as_json(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return fields_of(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


if TYPE_CHECKING:
    from tilewright.tuning.apply import AppliedProgram
    from tilewright.tuning.proof import ConfigurationChange


def change_lines(
    changes: Iterable[ConfigurationChange], *, with_entries: bool = True
) -> Iterator[str]:
    """Dispatches with what they were configured as before, and what after.

    Args:
        changes: one for each dispatch.
        with_entries: name the entry of the spec that did it, where it is known.
    """
    for change in changes:
        entry = f" (entry {change.entry})" if change.entry and with_entries else ""
        yield f"  {change.function}{entry}"
        yield f"    before  {change.before}"
        yield f"    after   {change.after}"


def print_changes(applied: AppliedProgram) -> None:
    """Every dispatch whose configuration changed, with both.

    Args:
        applied: the program with the spec.
    """
    for note in applied.notes:
        click.echo(f"note: {note}", err=True)
    if not applied.entries:
        click.echo(f"{applied.spec}: no entries; the compiler's own choices stay")
    elif applied.changes:
        number = words.plural(len(applied.changes), "dispatch", "dispatches")
        click.echo(f"{applied.spec}: applied to {number} of {applied.program}:")
    for line in change_lines(applied.changes):
        click.echo(line)
    if applied.unused and applied.changes:
        click.echo(f"entries without a dispatch here: {', '.join(applied.unused)}")
