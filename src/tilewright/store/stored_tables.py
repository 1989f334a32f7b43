"""The tables of the database: their columns, and how rows of them are stored and read.

What a table's columns hold is said once. Records that are stored, lines that are imported and rows
that are exported go through the same conversions; JSON columns are texts in the file alone. How the
tables are made is in :mod:`tilewright.store.schema`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql import ColumnCollection

from tilewright.errors import UserError
from tilewright.files import parse_json
from tilewright.store.column_values import (
    dumps,
    optional_integer,
    optional_json,
    optional_number,
    text,
)

Fields = dict[str, Any]


class _StoredText(sa.TypeDecorator[str]):
    """Text; PostgreSQL has none with NUL characters in it, which are written out there."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        if value is None or dialect.name == "sqlite":
            return value
        return value.replace("\0", "\\x00")


_TYPES: dict[Callable[[Any], object], type[sa.types.TypeEngine[Any]]] = {
    text: _StoredText,
    float: sa.Double,
    optional_number: sa.Double,
    int: sa.BigInteger,
    optional_integer: sa.BigInteger,
}
_OPTIONAL = (optional_number, optional_integer, optional_json)
Conflict = Literal["error", "keep", "replace", "newer"]


@contextlib.contextmanager
def readable(table: str) -> Iterator[None]:
    """A block that reads a row.

    Args:
        table: its name.

    Raises:
        UserError: what is read is not what was written.
    """
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"the database is damaged: a row of {table} cannot be read ({error}); move the file "
            "away, or import an export of it into a new one (tilewright db import)"
        ) from error


class StoredTable:
    """A table of the database.

    Args:
        name: of the table.
        key: the columns by which rows are the same; of what has an `id`, those besides.
        columns: how a field becomes what its column holds; ValueError or TypeError where it cannot.
    """

    def __init__(
        self, name: str, key: tuple[str, ...], /, **columns: Callable[[Any], object]
    ) -> None:
        self._columns = columns
        self._key = key
        own = [_id_column()] if name in ("runs", "tasks", "trials") else []
        self.table = sa.Table(
            name,
            sa.MetaData(),
            *own,
            *(sa.Column(one, _TYPES.get(how, sa.Text)()) for one, how in columns.items()),
        )
        self._first = next(iter(self.table.c))
        self._inserts: dict[tuple[str, Conflict], sa.Executable] = {}

    @property
    def c(self) -> ColumnCollection[str, sa.Column[Any]]:
        """The columns by their names."""
        return self.table.c

    def fields(self, row: sa.Row[Any]) -> Fields:
        """The fields of a row, by the names of the columns.

        Args:
            row: with all columns of the table.

        Raises:
            UserError: a column is not what was written.
        """
        found: Fields = {}
        for name, convert in self._columns.items():
            value = row._mapping[name]
            is_json = convert in (dumps, optional_json) and value is not None
            with readable(self.table.name):
                if value is None and convert not in _OPTIONAL:
                    raise ValueError(f"no {name}")
                found[name] = parse_json(value) if is_json else value
        return found

    def insert(
        self, connection: sa.Connection, fields: Mapping[str, Any], conflict: Conflict = "error"
    ) -> int | None:
        """Add a row.

        Args:
            connection: in a transaction.
            fields: those of the table, and an `id` if it is to be that; more are left out.
            conflict: what becomes of a row with the same key: it is an error, is kept, replaced, or
                replaced when it is older.

        Returns:
            The id of the row, or the first column of what has none; None where the old one is kept.

        Raises:
            KeyError: a field is missing.
            ValueError: a field is not what the column holds; TypeError as well.
        """
        values: Fields = {}
        for name, convert in self._columns.items():
            try:
                values[name] = convert(fields[name])
            except (ValueError, TypeError, OverflowError) as error:
                raise ValueError(f"{name!r}: {error}") from error
            if type(values[name]) is int and not -(2**63) <= values[name] < 2**63:
                raise ValueError(f"{name!r}: {values[name]} is too large")
        if "id" in self.c and fields.get("id"):
            values["id"] = fields["id"]
        insert = self._insert(connection.dialect.name, conflict)
        found: int | None = connection.execute(insert, values).scalar()
        return found

    def _insert(self, dialect: str, conflict: Conflict) -> sa.Executable:
        """The statement, made once: making it takes longer than storing a row."""
        known = self._inserts.get((dialect, conflict))
        if known is not None:
            return known
        insert = (sqlite if dialect == "sqlite" else postgresql).insert(self.table)
        if conflict == "keep":
            insert = insert.on_conflict_do_nothing(index_elements=self._key)
        elif conflict != "error":
            newer = insert.excluded["created"] > self.c.created if conflict == "newer" else None
            updates = {one: insert.excluded[one] for one in self._columns if one not in self._key}
            insert = insert.on_conflict_do_update(
                index_elements=self._key, set_=updates, where=newer
            )
        made: sa.Executable = insert.returning(self._first)
        self._inserts[dialect, conflict] = made
        return made


def _id_column() -> sa.Column[int]:
    return sa.Column("id", sa.BigInteger, primary_key=True)


RUNS = StoredTable(
    "runs",
    ("uid",),
    uid=text,
    created=float,
    program=text,
    program_digest=text,
    target=text,
    compiler=text,
    options=dumps,
    options_digest=text,
    seed=int,
    status=text,
    finished=optional_number,
    owner=text,
    machine=text,
)
TASKS = StoredTable(
    "tasks",
    ("workload_key", "target", "compiler", "flags"),
    workload_key=text,
    target=text,
    compiler=text,
    flags=text,
    workload=dumps,
    name=text,
    default_s=optional_number,
    space=optional_json,
)
TRIALS = StoredTable(
    "trials",
    ("run_id", "task_id", "configuration"),
    run_id=int,
    task_id=int,
    ordinal=int,
    created=float,
    configuration=dumps,
    status=text,
    time_s=optional_number,
    samples=dumps,
    message=text,
    binary_digest=text,
    origin=text,
    phase_s=dumps,
)
RESULTS = StoredTable(
    "results",
    ("task_id", "machine"),
    task_id=int,
    machine=text,
    run_id=optional_integer,
    configuration=optional_json,
    default_s=float,
    tuned_s=float,
    speedup_low=float,
    speedup_high=float,
    verification=text,
    trials=int,
    created=float,
)
MACHINES = StoredTable("machines", ("digest",), digest=text, data=dumps)
MEASUREMENTS = StoredTable(
    "measurements",
    ("run_id", "kind", "name"),
    run_id=int,
    kind=text,
    name=text,
    data=dumps,
    created=float,
)
STATE = StoredTable("state", ("run_id", "key"), run_id=int, key=text, value=dumps)
