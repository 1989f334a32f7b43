"""Writing to the terminal, or to a file: consoles, tables, JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table as RichTable

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
