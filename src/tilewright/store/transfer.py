"""Export to JSON lines, and import with a merge that makes no duplicates.

The format, version 1: one JSON object a line, UTF-8. The first line is
`{"format": "tilewright-db", "version": 1}`. Each other line has a `type`:

- `run`: `uid`, `created`, `program`, `program_digest`, `target`, `compiler`, `options`,
  `options_digest`, `seed`, `status`, `finished`
- `task`: `id` (a number to refer to it within this file), `workload`, `target`, `compiler`,
  `flags`, `default_s`
- `trial`: `run` (a uid), `task` (an id), `ordinal`, `created`, `configuration`, `status`,
  `time_s`, `samples`, `message`, `binary`, `origin`, `phase_s`
- `result`: `task`, `run` (or null), `created`, `configuration` (null: the default stays),
  `default_s`, `tuned_s`, `speedup_low`, `speedup_high`, `verification`, `trials`
- `measurement`: `run`, `kind`, `name`, `data`, `created`

A line refers only to lines before it. Checkpoints of sessions are not exported, so a run that was
not finished cannot be resumed where it is imported. When merged, runs are the same by uid, tasks by
workload, target, compiler and flags, trials by run, task and configuration; of two results of a
task the newer stays.
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
from tilewright.store.connection import Connection
from tilewright.store.records import (
    Filter,
    RowCounts,
    RunStatus,
    TaskKey,
)
from tilewright.store.rows import Fields
from tilewright.workload import Workload

FORMAT = "tilewright-db"
VERSION = 1


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
            return _write(connection, which, out)
    except OSError as error:
        raise UserError(
            f"export {path}: cannot write it ({error.strerror}); name a file that can be written"
        ) from error


def _write(connection: sa.Connection, which: Filter, out: TextIO) -> RowCounts:
    written = {"run": 0, "task": 0, "trial": 0, "result": 0, "measurement": 0}

    def line(kind: str, /, **values: object) -> None:
        out.write(rows.dumps({"type": kind, **values}) + "\n")
        written[kind] += 1

    out.write(rows.dumps({"format": FORMAT, "version": VERSION}) + "\n")
    runs, tasks, trials, results = (
        one.table for one in (rows.RUNS, rows.TASKS, rows.TRIALS, rows.RESULTS)
    )
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

    uids: dict[int, str] = {}
    for row in wanted(runs, "run_id"):
        fields = rows.RUNS.fields(row)
        del fields["owner"]
        uids[row.id] = fields["uid"]
        line("run", **fields)
    for row in wanted(tasks, "task_id"):
        fields = rows.TASKS.fields(row)
        del fields["workload_key"], fields["name"]
        line("task", id=row.id, **fields)
    in_order = of_tasks(trials).order_by(trials.c.run_id, trials.c.ordinal)
    for row in connection.execution_options(yield_per=1000).execute(in_order):
        fields = rows.TRIALS.fields(row)
        fields["binary"] = fields.pop("binary_digest")
        line("trial", run=uids[fields.pop("run_id")], task=fields.pop("task_id"), **fields)
    for row in connection.execute(of_tasks(results).order_by(results.c.task_id)):
        fields = rows.RESULTS.fields(row)
        line("result", run=uids.get(fields.pop("run_id")), task=fields.pop("task_id"), **fields)
    measured = rows.MEASUREMENTS.table
    for row in connection.execute(
        sa.select(measured).order_by(measured.c.run_id, measured.c.created)
    ):
        fields = rows.MEASUREMENTS.fields(row)
        run = uids.get(fields.pop("run_id"))
        if run is not None:
            line("measurement", run=run, **fields)
    return RowCounts(*written.values())


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
        merge = _Merge(connection)
        for number, data in lines:
            with _blamed(path, number):
                merge.add(data)
        return merge.counts()


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
        elif data.get("version") != VERSION:
            raise UserError(
                f"import {path}, line 1: format version {data.get('version')}; this tilewright "
                f"reads version {VERSION}: update tilewright"
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


class _Merge:
    """Adds the lines of one file to a database."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._runs: dict[str, int] = {}
        self._tasks: dict[int, int] = {}
        self._added = {"run": 0, "task": 0, "trial": 0, "result": 0, "measurement": 0}

    def counts(self) -> RowCounts:
        return RowCounts(*self._added.values())

    def add(self, data: Fields) -> None:
        """Add one line; ValueError, TypeError or KeyError when it is malformed."""
        add = {
            "run": self._run,
            "task": self._task,
            "trial": self._trial,
            "result": self._result,
            "measurement": self._measurement,
        }
        kind = data["type"]
        if kind not in add:
            raise ValueError(f"unknown type {kind!r} (allowed: {', '.join(add)})")
        self._added[kind] += add[kind](data)

    def _run(self, data: Fields) -> bool:
        status = RunStatus(data["status"])
        if status is not RunStatus.FINISHED:
            status = RunStatus.IMPORTED
        fields = {**data, "options": dict(data["options"]), "status": status, "owner": ""}
        run_id = rows.RUNS.insert(self._connection, {**fields, "id": None}, "keep")
        uid, columns = data["uid"], rows.RUNS.c
        if run_id is not None:
            self._runs[uid] = run_id
            return True
        if status is RunStatus.FINISHED:  # exported before and after it finished
            self._connection.execute(
                sa.update(rows.RUNS.table)
                .where(columns.uid == uid, columns.status == RunStatus.IMPORTED)
                .values(status=status, finished=data["finished"])
            )
        found = sa.select(columns.id).where(columns.uid == uid)
        self._runs[uid] = self._connection.execute(found).scalar_one()
        return False

    def _task(self, data: Fields) -> bool:
        workload = Workload.from_json(data["workload"])
        key = TaskKey(workload, *(data[name] for name in ("target", "compiler", "flags")))
        task_id, added = rows.find_or_add_task(self._connection, key)
        space = data.get("space")
        rows.tell_task(self._connection, task_id, data["default_s"], space, known=False)
        self._tasks[int(data["id"])] = task_id
        return added

    def _trial(self, data: Fields) -> bool:
        trial = rows.trial_from({**data, "binary_digest": data["binary"]})
        place = {"run_id": self._runs[data["run"]], "task_id": self._tasks[data["task"]]}
        return rows.add_trial(
            self._connection, {**data, **place, **rows.trial_fields(trial), "id": None}
        )

    def _result(self, data: Fields) -> bool:
        if data["configuration"] is not None:
            rows.configuration_from_json(data["configuration"])
        run_id = None if data["run"] is None else self._runs[data["run"]]
        place = {"run_id": run_id, "task_id": self._tasks[data["task"]]}
        return rows.put_result(self._connection, {**data, **place})

    def _measurement(self, data: Fields) -> bool:
        fields = {**data, "run_id": self._runs[data["run"]]}
        return rows.MEASUREMENTS.insert(self._connection, fields, "keep") is not None
