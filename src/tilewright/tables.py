"""Tables as plain data: what is shown on a terminal, in Markdown, on pages, and CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tilewright.errors import UserError


@dataclass(frozen=True)
class Table:
    """Columns, those that are numbers, and rows of cells."""

    columns: tuple[str, ...]
    right: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""

    def markdown(self) -> str:
        """As a table in GitHub's Markdown."""
        rule = ["---:" if c in self.right else "---" for c in self.columns]
        lines = [self.columns, rule, *([_escaped(c) for c in row] for row in self.rows)]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def csv_text(
    columns: Sequence[str], rows: Iterable[Mapping[str, object]], header: bool = True
) -> str:
    """Rows as lines of a CSV file.

    Args:
        columns: their names in order.
        rows: the cells of each row by column.
        header: whether the names come first.

    Returns:
        The lines, each with its end.
    """
    file = io.StringIO()
    writer = csv.DictWriter(file, columns)
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def check_columns(path: Path, columns: Sequence[str], hint: str = "") -> None:
    """Ask whether rows can be added to a CSV file.

    Args:
        path: the file.
        columns: those of the rows that will be added.
        hint: what else can be done than to write another file, such as `append with ..., or `.

    Raises:
        UserError: it has other columns.
    """
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        have = next(csv.reader(file), [])
    if have != list(columns):
        different = [c for c in columns if c not in have] or [c for c in have if c not in columns]
        raise UserError(
            f"--append: {path} has other columns (such as {', '.join(different[:3] or have[:3])}); "
            f"{hint}write another file"
        )


class CsvFile:
    """A CSV file that is written row by row, so that what ends early leaves its rows.

    Args:
        path: the file.
        columns: their names in order.
        append: go on in a file that has these columns.
        hint: see `check_columns`.

    Raises:
        UserError: the file cannot be written, or has other columns.
    """

    def __init__(
        self, path: Path, columns: Sequence[str], append: bool = False, hint: str = ""
    ) -> None:
        self._columns = columns
        try:
            goes_on = append and path.is_file() and path.stat().st_size > 0
            if goes_on:
                check_columns(path, columns, hint)
            self._file = path.open("a" if append else "w", newline="", encoding="utf-8")
        except OSError as error:
            raise UserError(f"--output: {path}: cannot write it ({error.strerror})") from error
        if not goes_on:
            self._file.write(csv_text(columns, ()))

    def add(self, row: Mapping[str, object]) -> None:
        """Write a row, given by column; it is in the file at once."""
        self._file.write(csv_text(self._columns, [row], header=False))
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
