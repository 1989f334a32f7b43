"""The tables as dictionaries of fields: rows from records, records from rows.

What a table's columns hold is said once. Records that are stored, lines that are imported and rows
that are exported go through the same conversions; JSON columns are texts in the file alone. What is
read back equals what was stored: a configuration is a JSON object with sorted keys and no spaces,
tuples as arrays; equal configurations have equal text, and `1` and `true` differ. JSON has no NaN
and no infinity: they become null, which in `samples` reads back as NaN and in `time_s` as None.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, cast

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql import ColumnCollection

from tilewright.errors import UserError
from tilewright.files import parse_json
from tilewright.store.records import (
    Filter,
    Json,
    ProgramMeasurement,
    RunRecord,
    RunStatus,
    TaskKey,
    TaskRecord,
    TaskResult,
    TrialRecord,
)
from tilewright.trial import Configuration, Status, Trial, Value
from tilewright.workload import Workload

MESSAGE_LIMIT = 16_384
"""Characters kept of a trial's message: compilers can print megabytes of IR."""


def dumps(value: object) -> str:
    """Strict, compact JSON with sorted keys; numbers that JSON cannot say become null.

    Args:
        value: what JSON can say.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


def clean(text: str) -> str:
    """Text that can be stored: lone surrogates, as in undecodable output, are written out.

    Args:
        text: any.
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def configuration_to_json(configuration: Configuration) -> dict[str, Value]:
    """The JSON object of a configuration; `dumps` makes the canonical text of it.

    Raises:
        TypeError: a value is of another type than those that knobs have.

    Args:
        configuration: of knobs.
    """
    for name, value in configuration.items:
        if not (
            type(value) in (int, str, bool)
            or (type(value) is tuple and all(type(v) in (int, bool) for v in value))
        ):
            raise TypeError(f"knob '{name}': {value!r} is not an int, str, bool or tuple of ints")
    return dict(configuration.items)


def configuration_from_json(data: Json) -> Configuration:
    """The configuration of a parsed JSON object.

    Args:
        data: what JSON was.

    Raises:
        ValueError: it is no configuration.
    """
    if not isinstance(data, dict):
        raise ValueError(f"a configuration is an object, not {data!r}")
    values: dict[str, Value] = {}
    for name, value in data.items():
        if isinstance(value, list):
            if not all(isinstance(v, int) for v in value):
                raise ValueError(f"knob '{name}': {value!r} is not a list of integers")
            values[name] = tuple(cast(list[int], value))
        elif isinstance(value, int | str):
            values[name] = value
        else:
            raise ValueError(f"knob '{name}': {value!r} is not an int, str, bool or list of ints")
    return Configuration.of(values)


Fields = dict[str, Any]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a string")
    return clean(value)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _maybe_json(value: Any) -> str | None:
    return None if value is None else dumps(value)


def _maybe_id(value: Any) -> int | None:
    return None if value is None else int(value)


class _StoredText(sa.TypeDecorator[str]):
    """Text; PostgreSQL has none with NUL characters in it, which are written out there."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        if value is None or dialect.name == "sqlite":
            return value
        return value.replace("\0", "\\x00")


_TYPES: dict[Callable[[Any], object], type[sa.types.TypeEngine[Any]]] = {
    _text: _StoredText,
    float: sa.Double,
    _number: sa.Double,
    int: sa.BigInteger,
    _maybe_id: sa.BigInteger,
}
Conflict = Literal["error", "keep", "replace", "newer"]


@contextlib.contextmanager
def _readable(table: str) -> Iterator[None]:
    """Raises UserError where what is read of a row is not what was written."""
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
        """
        found = {}
        for name, convert in self._columns.items():
            value = row._mapping[name]
            is_json = convert in (dumps, _maybe_json) and value is not None
            with _readable(self.table.name):
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
    uid=_text,
    created=float,
    program=_text,
    program_digest=_text,
    target=_text,
    compiler=_text,
    options=dumps,
    options_digest=_text,
    seed=int,
    status=_text,
    finished=_number,
    owner=_text,
    machine=_text,
)
TASKS = StoredTable(
    "tasks",
    ("workload_key", "target", "compiler", "flags"),
    workload_key=_text,
    target=_text,
    compiler=_text,
    flags=_text,
    workload=dumps,
    name=_text,
    default_s=_number,
    space=_maybe_json,
)
TRIALS = StoredTable(
    "trials",
    ("run_id", "task_id", "configuration"),
    run_id=int,
    task_id=int,
    ordinal=int,
    created=float,
    configuration=dumps,
    status=_text,
    time_s=_number,
    samples=dumps,
    message=_text,
    binary_digest=_text,
    origin=_text,
    phase_s=dumps,
)
RESULTS = StoredTable(
    "results",
    ("task_id", "machine"),
    task_id=int,
    machine=_text,
    run_id=_maybe_id,
    configuration=_maybe_json,
    default_s=float,
    tuned_s=float,
    speedup_low=float,
    speedup_high=float,
    verification=_text,
    trials=int,
    created=float,
)
MACHINES = StoredTable("machines", ("digest",), digest=_text, data=dumps)
MEASUREMENTS = StoredTable(
    "measurements",
    ("run_id", "kind", "name"),
    run_id=int,
    kind=_text,
    name=_text,
    data=dumps,
    created=float,
)
STATE = StoredTable("state", ("run_id", "key"), run_id=int, key=_text, value=dumps)


@_readable("runs")
def run_of(row: sa.Row[Any]) -> RunRecord:
    """A row of `runs` as a record.

    Args:
        row: with all columns.
    """
    fields = RUNS.fields(row)
    return RunRecord(**{**fields, "id": row._mapping["id"], "status": RunStatus(fields["status"])})


@_readable("tasks")
def task_of(row: sa.Row[Any]) -> TaskRecord:
    """A row of `tasks` as a record.

    Args:
        row: with all columns.
    """
    fields = TASKS.fields(row)
    workload = Workload.from_json(fields["workload"])
    key = TaskKey(workload, fields["target"], fields["compiler"], fields["flags"])
    return TaskRecord(row._mapping["id"], key, fields["default_s"], fields["space"])


@_readable("trials")
def trial_of(row: sa.Row[Any]) -> TrialRecord:
    """A row of `trials` as a record.

    Args:
        row: with all columns.
    """
    fields = TRIALS.fields(row)
    place = {name: fields[name] for name in ("run_id", "task_id", "ordinal", "created")}
    return TrialRecord(**place, trial=trial_from(fields))


@_readable("results")
def result_of(row: sa.Row[Any]) -> TaskResult:
    """A row of `results` as a record.

    Args:
        row: with all columns.
    """
    fields = RESULTS.fields(row)
    del fields["task_id"]
    if fields["configuration"] is not None:
        fields["configuration"] = configuration_from_json(fields["configuration"])
    return TaskResult(**fields)


@_readable("measurements")
def measurement_of(row: sa.Row[Any]) -> ProgramMeasurement:
    """A row of `measurements` as a record.

    Args:
        row: with all columns.
    """
    return ProgramMeasurement(**MEASUREMENTS.fields(row))


def trial_fields(trial: Trial) -> Fields:
    """The fields of a trial, without its place.

    Raises:
        TypeError: a value of the configuration cannot be stored.

    Args:
        trial: a trial.
    """
    finite = trial.time_s is not None and math.isfinite(trial.time_s)
    return {
        "configuration": configuration_to_json(trial.configuration),
        "status": str(trial.status),
        "time_s": trial.time_s if finite else None,
        "samples": list(trial.samples),
        "message": trial.message[:MESSAGE_LIMIT],
        "binary_digest": trial.binary,
        "origin": trial.origin,
        "phase_s": dict(trial.phase_s),
    }


def trial_from(fields: Mapping[str, Any]) -> Trial:
    """The trial that has these fields.

    Raises:
        KeyError: a field is missing.
        ValueError: a field is not what it should be; TypeError and AttributeError as well.

    Args:
        fields: by the names of the columns.
    """
    return Trial(
        configuration=configuration_from_json(fields["configuration"]),
        status=Status(fields["status"]),
        time_s=_number(fields["time_s"]),
        samples=tuple(math.nan if s is None else float(s) for s in fields["samples"]),
        message=_text(fields["message"]),
        binary=_text(fields["binary_digest"]),
        origin=_text(fields["origin"]),
        phase_s={k: math.nan if v is None else float(v) for k, v in fields["phase_s"].items()},
    )


def where_task(which: Filter) -> list[sa.ColumnElement[bool]]:
    """Conditions on the table `tasks`, all of which must hold.

    Args:
        which: tasks that are wanted.
    """
    conditions: list[sa.ColumnElement[bool]] = []
    if which.target is not None:
        conditions.append(TASKS.c.target == which.target)
    if which.compiler is not None:
        conditions.append(TASKS.c.compiler == which.compiler)
    if which.workload is not None:
        name = sa.func.lower(TASKS.c.name)
        conditions.append(name.contains(which.workload.lower(), autoescape=True))
    return conditions


def of_key(key: TaskKey) -> list[sa.ColumnElement[bool]]:
    """Conditions on the table `tasks`: it is the task with this key.

    Args:
        key: of the task.
    """
    return [
        TASKS.c.workload_key == key.workload.key,
        TASKS.c.target == key.target,
        TASKS.c.compiler == key.compiler,
        TASKS.c.flags == key.flags,
    ]


def find_or_add_task(
    connection: sa.Connection, key: TaskKey, task_id: int | None = None
) -> tuple[int, bool]:
    """The id of the task with this key, and whether it had to be added.

    Args:
        connection: in a transaction.
        key: of the task.
        task_id: the id to give it where it is added; by default the next.
    """
    find = sa.select(TASKS.c.id).where(*of_key(key))
    found = connection.execute(find).scalar()
    if found is not None:
        return int(found), False
    fields = {
        "id": task_id,
        "workload_key": key.workload.key,
        "target": key.target,
        "compiler": key.compiler,
        "flags": key.flags,
        "workload": key.workload.to_json(),
        "name": key.workload.name,
        "default_s": None,
        "space": None,
    }
    added = TASKS.insert(connection, fields, "keep")
    if added is None:  # another process has just added it
        return int(connection.execute(find).scalar_one()), False
    return added, True


def tell_task(
    connection: sa.Connection,
    task_id: int,
    default_s: float | None,
    space: Any,
    *,
    known: bool = True,
) -> None:
    """Store what is told of a task: what is None is not.

    Args:
        connection: in a transaction.
        task_id: the task.
        default_s: seconds of the compiler's own choice.
        space: what its search space is made from.
        known: also where it was told before.
    """
    for column, value in (
        (TASKS.c.default_s, _number(default_s)),
        (TASKS.c.space, _maybe_json(space)),
    ):
        if value is not None:
            update = sa.update(TASKS.table).where(TASKS.c.id == task_id)
            if not known:
                update = update.where(column.is_(None))
            connection.execute(update.values({column: value}))


def add_trial(connection: sa.Connection, fields: Mapping[str, Any]) -> bool:
    """Store a trial unless its run has this configuration of the task already.

    Args:
        connection: in a transaction.
        fields: of the trial, with its place.

    Returns:
        Whether it was stored.
    """
    return TRIALS.insert(connection, fields, "keep") is not None


def put_result(connection: sa.Connection, fields: Mapping[str, Any]) -> bool:
    """Store the result of a task unless there is one that is as new or newer.

    Args:
        connection: in a transaction.
        fields: of the result.

    Returns:
        Whether it was stored.
    """
    return RESULTS.insert(connection, fields, "newer") is not None
