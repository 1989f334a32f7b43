"""Export to JSON lines, and import with a merge that makes no duplicates.

The format, version 2: one JSON object a line, UTF-8. The first line is
`{"format": "tilewright-db", "version": 2}`. Each other line has a `type`:

- `machine`: `digest`, `data`: what measurements were taken under, which runs and results name
- `run`: `uid`, `machine`, `created`, `program`, `program_digest`, `target`, `compiler`, `options`,
  `options_digest`, `seed`, `status`, `finished`
- `task`: `id` (a number to refer to it within this file), `workload`, `target`, `compiler`,
  `flags`, `default_s`
- `trial`: `run` (a uid), `task` (an id), `ordinal`, `created`, `configuration`, `status`,
  `time_s`, `samples`, `message`, `binary`, `origin`, `phase_s`
- `result`: `task`, `machine`, `run` (or null), `created`, `configuration` (null: the default
  stays), `default_s`, `tuned_s`, `speedup_low`, `speedup_high`, `verification`, `trials`
- `measurement`: `run`, `kind`, `name`, `data`, `created`

A line refers only to lines before it. Checkpoints of sessions are not exported, so a run that was
not finished cannot be resumed where it is imported. When merged, runs are the same by uid, tasks by
workload, target, compiler and flags, trials by run, task and configuration; of two results of a
task on one machine the newer stays.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import sqlalchemy as sa

from tilewright.errors import UserError
from tilewright.files import parse_json, whole_file
from tilewright.store import rows
from tilewright.store.column_values import configuration_from_json, dumps
from tilewright.store.connection import Connection
from tilewright.store.records import (
    Filter,
    RowCounts,
    RunStatus,
    TaskKey,
)
from tilewright.store.stored_tables import (
    MACHINES,
    MEASUREMENTS,
    RESULTS,
    RUNS,
    TASKS,
    TRIALS,
    Fields,
)
from tilewright.workload import Workload

FORMAT = "tilewright-db"
VERSION = 2
_EVERYTHING = Filter()
# Version 1 had no machines.
_READ = (1, 2)
# The kinds of lines that are counted, in the order of the fields of `RowCounts`.
_COUNTED = ("run", "task", "trial", "result", "measurement")


def export(db: Connection, path: Path, which: Filter) -> RowCounts:
    """See :meth:`tilewright.store.Database.export`.

    Args:
        db: the database.
        path: of the file.
        which: tasks to export.

    Returns:
        How many rows of each kind were written.

    Raises:
        UserError: the file cannot be written.
    """
    try:
        with (
            whole_file(path) as partial,
            partial.open("w", encoding="utf-8") as out,
            db.snapshot() as connection,
        ):
            out.write(dumps({"format": FORMAT, "version": VERSION}) + "\n")
            written = dict.fromkeys(_COUNTED, 0)
            for line in lines(connection, which):
                out.write(dumps(line) + "\n")
                if line["type"] in written:
                    written[line["type"]] += 1
            return RowCounts(*written.values())
    except OSError as error:
        raise UserError(
            f"export {path}: cannot write it ({error.strerror}); name a file that can be written"
        ) from error


def lines(connection: sa.Connection, which: Filter = _EVERYTHING) -> Iterator[Fields]:
    """The lines of an export, but the first.

    Args:
        connection: in a snapshot.
        which: tasks to export.

    Yields:
        One object for each line, those before it that it refers to first.
    """
    runs, tasks, trials, results = (one.table for one in (RUNS, TASKS, TRIALS, RESULTS))
    since = 0.0 if which.since is None else which.since

    def of_tasks(table: sa.Table, *columns: sa.Column[Any]) -> sa.Select[Any]:
        chosen = sa.select(*columns or [table]).join(tasks, tasks.c.id == table.c.task_id)
        return chosen.where(table.c.created >= since, *rows.where_task(which))

    def wanted(table: sa.Table, column: str) -> sa.CursorResult[Any]:
        select = sa.select(table).order_by(table.c.id)
        if which != Filter():
            ids = sa.union(*(of_tasks(one, one.c[column]) for one in (trials, results)))
            select = select.where(table.c.id.in_(ids))
        return connection.execute(select)

    for row in connection.execute(sa.select(MACHINES.table)):
        yield {"type": "machine", **MACHINES.fields(row)}
    uids: dict[int, str] = {}
    for row in wanted(runs, "run_id"):
        fields = RUNS.fields(row)
        del fields["owner"]
        uids[row.id] = fields["uid"]
        yield {"type": "run", **fields}
    for row in wanted(tasks, "task_id"):
        fields = TASKS.fields(row)
        del fields["workload_key"], fields["name"]
        yield {"type": "task", "id": row.id, **fields}
    in_order = of_tasks(trials).order_by(trials.c.run_id, trials.c.ordinal)
    for row in connection.execution_options(yield_per=1000).execute(in_order):
        fields = TRIALS.fields(row)
        fields["binary"] = fields.pop("binary_digest")
        yield {
            "type": "trial",
            "run": uids[fields.pop("run_id")],
            "task": fields.pop("task_id"),
            **fields,
        }
    for row in connection.execute(of_tasks(results).order_by(results.c.task_id)):
        fields = RESULTS.fields(row)
        yield {
            "type": "result",
            "run": uids.get(fields.pop("run_id")),
            "task": fields.pop("task_id"),
            **fields,
        }
    measured = MEASUREMENTS.table
    for row in connection.execute(
        sa.select(measured).order_by(measured.c.run_id, measured.c.created)
    ):
        fields = MEASUREMENTS.fields(row)
        run = uids.get(fields.pop("run_id"))
        if run is not None:
            yield {"type": "measurement", "run": run, **fields}


def import_(db: Connection, path: Path) -> RowCounts:
    """See :meth:`tilewright.store.Database.import_`.

    Args:
        db: the database.
        path: of the file.

    Returns:
        How many rows of each kind were new.

    Raises:
        UserError: it cannot be read or is not an export.
    """
    try:
        with path.open(encoding="utf-8") as file:
            # Parsed before the transaction begins, so that the write lock is held briefly.
            lines = list(_read(path, file))
    except OSError as error:
        raise UserError(f"import {path}: cannot read it ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UserError(f"import {path}: it is not UTF-8 text; it must be an export") from error
    with db.transaction(lasting=True) as connection:
        merge = Merge(connection)
        for number, data in lines:
            with _blamed(path, number):
                merge.add(data)
        return merge.counts()


def merge(db: Connection, other: Connection) -> RowCounts:
    """See :meth:`tilewright.store.Database.merge`.

    Args:
        db: the database.
        other: what is added to it.

    Returns:
        How many rows of each kind were new.

    Raises:
        UserError: one of them cannot be read or written.
    """
    with other.snapshot() as source, db.transaction(lasting=True) as connection:
        adding = Merge(connection)
        try:
            for line in lines(source):
                adding.add(line)
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise UserError(
                f"merge {other.place}: a row of it is not as it should be ({error}); nothing was "
                "added; see `tilewright db verify`"
            ) from error
        except sa.exc.IntegrityError as error:
            raise UserError(f"merge {other.place}: {error.orig}; nothing was added") from error.orig
        return adding.counts()


def _read(path: Path, file: TextIO) -> Iterator[tuple[int, Fields]]:
    number = 0
    for number, text in enumerate(file, start=1):
        with _blamed(path, number):
            data = parse_json(text)
            if not isinstance(data, dict):
                raise ValueError("not an object")
        if number > 1:
            yield number, data
        elif data.get("format") != FORMAT:
            raise UserError(f"import {path}, line 1: it is not an export of a tilewright database")
        elif data.get("version") not in _READ:
            raise UserError(
                f"import {path}, line 1: format version {data.get('version')}; this tilewright "
                f"reads versions up to {VERSION}: update tilewright"
            )
    if number == 0:
        raise UserError(f"import {path}: the file is empty; it must be an export")


@contextlib.contextmanager
def _blamed(path: Path, number: int) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except KeyError as error:
        raise UserError(
            f"import {path}, line {number}: {error.args[0]!r} is missing or names nothing above; "
            "nothing was imported"
        ) from error
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise UserError(f"import {path}, line {number}: {error}; nothing was imported") from error
    except sa.exc.IntegrityError as error:
        raise UserError(
            f"import {path}, line {number}: {error.orig}; nothing was imported"
        ) from error.orig


class Merge:
    """Adds the lines of one export to a database.

    `run_ids` are the ids there by uid, `task_ids` by the numbers that the lines have.
    """

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self.run_ids: dict[str, int] = {}
        self.task_ids: dict[int, int] = {}
        self._added = dict.fromkeys(_COUNTED, 0)

    def counts(self) -> RowCounts:
        """How many rows of each kind were new."""
        return RowCounts(*self._added.values())

    def add(self, data: Fields) -> None:
        """Add one line.

        Args:
            data: the line.

        Raises:
            ValueError: it is malformed; TypeError and KeyError as well.
        """
        add = {
            "machine": self._machine,
            "run": self._run,
            "task": self._task,
            "trial": self._trial,
            "result": self._result,
            "measurement": self._measurement,
        }
        kind = data["type"]
        if kind not in add:
            raise ValueError(f"unknown type {kind!r} (allowed: {', '.join(add)})")
        new = add[kind](data)
        if kind in self._added:
            self._added[kind] += new

    def _machine(self, data: Fields) -> bool:
        fields = {**data, "data": dict(data["data"])}
        return MACHINES.insert(self._connection, fields, "keep") is not None

    def _run(self, data: Fields) -> bool:
        status = RunStatus(data["status"])
        if status is not RunStatus.FINISHED:
            status = RunStatus.IMPORTED
        fields = {
            **data,
            "options": dict(data["options"]),
            "status": status,
            "owner": "",
            "machine": data.get("machine", ""),
        }
        run_id = RUNS.insert(self._connection, {**fields, "id": None}, "keep")
        uid, columns = data["uid"], RUNS.c
        if run_id is not None:
            self.run_ids[uid] = run_id
            return True
        if status is RunStatus.FINISHED:  # exported before and after it finished
            self._connection.execute(
                sa.update(RUNS.table)
                .where(columns.uid == uid, columns.status == RunStatus.IMPORTED)
                .values(status=status, finished=data["finished"])
            )
        found = sa.select(columns.id).where(columns.uid == uid)
        self.run_ids[uid] = self._connection.execute(found).scalar_one()
        return False

    def _task(self, data: Fields) -> bool:
        workload = Workload.from_json(data["workload"])
        key = TaskKey(workload, *(data[name] for name in ("target", "compiler", "flags")))
        task_id, added = rows.find_or_add_task(self._connection, key)
        space = data.get("space")
        rows.tell_task(self._connection, task_id, data["default_s"], space, known=False)
        self.task_ids[int(data["id"])] = task_id
        return added

    def _trial(self, data: Fields) -> bool:
        trial = rows.trial_from({**data, "binary_digest": data["binary"]})
        place = {"run_id": self.run_ids[data["run"]], "task_id": self.task_ids[data["task"]]}
        return rows.add_trial(
            self._connection, {**data, **place, **rows.trial_fields(trial), "id": None}
        )

    def _result(self, data: Fields) -> bool:
        if data["configuration"] is not None:
            configuration_from_json(data["configuration"])
        run_id = None if data["run"] is None else self.run_ids[data["run"]]
        place = {"run_id": run_id, "task_id": self.task_ids[data["task"]]}
        return rows.put_result(self._connection, {"machine": "", **data, **place})

    def _measurement(self, data: Fields) -> bool:
        fields = {**data, "run_id": self.run_ids[data["run"]]}
        return MEASUREMENTS.insert(self._connection, fields, "keep") is not None
