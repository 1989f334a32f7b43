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
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from tilewright.errors import UserError
from tilewright.files import whole_file
from tilewright.store import codec, rows
from tilewright.store.connection import Connection
from tilewright.store.records import (
    Filter,
    RowCounts,
    RunStatus,
    TaskKey,
    TaskResult,
    TrialRecord,
)
from tilewright.trial import Status, Trial
from tilewright.workload import Workload

FORMAT = "tilewright-db"
VERSION = 1


def export(db: Connection, path: Path, which: Filter) -> RowCounts:
    """See :meth:`tilewright.store.Store.export`."""
    try:
        with (
            whole_file(path) as partial,
            partial.open("w", encoding="utf-8") as out,
            db.snapshot() as sqlite,
        ):
            return _write(sqlite, which, out)
    except OSError as error:
        raise UserError(
            f"export {path}: cannot write it ({error.strerror}); name a file that can be written"
        ) from error


def _write(sqlite: sqlite3.Connection, which: Filter, out: TextIO) -> RowCounts:
    written = {"run": 0, "task": 0, "trial": 0, "result": 0, "measurement": 0}

    def line(kind: str, /, **values: object) -> None:
        out.write(codec.dumps({"type": kind, **values}) + "\n")
        written[kind] += 1

    out.write(codec.dumps({"format": FORMAT, "version": VERSION}) + "\n")
    condition, values = rows.where_task(which)
    since = 0.0 if which.since is None else which.since
    recent = f"{condition} AND created >= ?"
    of_tasks = f"JOIN tasks ON tasks.id = task_id WHERE {recent}"
    limits = (*values, since)
    whole = which == Filter()
    wanted_runs = (
        "1"
        if whole
        else f"id IN (SELECT run_id FROM trials {of_tasks}"
        f" UNION SELECT run_id FROM results {of_tasks})"
    )
    wanted_tasks = (
        "1"
        if whole
        else f"id IN (SELECT task_id FROM trials {of_tasks}"
        f" UNION SELECT task_id FROM results {of_tasks})"
    )
    twice = () if whole else limits * 2
    uids: dict[int, str] = {}
    for row in sqlite.execute(f"SELECT * FROM runs WHERE {wanted_runs} ORDER BY id", twice):
        run = rows.run_of(row)
        uids[run.id] = run.uid
        fields = {k: v for k, v in vars(run).items() if k not in ("id", "owner")}
        line("run", **fields)
    for row in sqlite.execute(f"SELECT * FROM tasks WHERE {wanted_tasks} ORDER BY id", twice):
        task = rows.task_of(row)
        key = task.key
        line(
            "task",
            id=task.id,
            workload=key.workload.to_json(),
            target=key.target,
            compiler=key.compiler,
            flags=key.flags,
            default_s=task.default_s,
            space=task.space,
        )
    for row in sqlite.execute(
        f"SELECT trials.* FROM trials {of_tasks} ORDER BY run_id, ordinal", limits
    ):
        record = rows.trial_of(row)
        fields = dict(vars(record.trial))
        fields["configuration"] = json.loads(row["configuration"])
        place = {"ordinal": record.ordinal, "created": record.created}
        line("trial", run=uids[record.run_id], task=record.task_id, **place, **fields)
    for row in sqlite.execute(f"SELECT results.* FROM results {of_tasks} ORDER BY task_id", limits):
        fields = {name: row[name] for name in rows.RESULT_COLUMNS if name != "run_id"}
        text = row["configuration"]
        fields["configuration"] = None if text is None else json.loads(text)
        line("result", task=row["task_id"], run=uids.get(row["run_id"]), **fields)
    for row in sqlite.execute("SELECT * FROM measurements ORDER BY run_id, created"):
        if row["run_id"] in uids:
            line(
                "measurement",
                run=uids[row["run_id"]],
                kind=row["kind"],
                name=row["name"],
                data=json.loads(row["data"]),
                created=row["created"],
            )
    return RowCounts(*written.values())


def import_(db: Connection, path: Path) -> RowCounts:
    """See :meth:`tilewright.store.Store.import_`."""
    try:
        with path.open(encoding="utf-8") as file:
            # Parsed before the transaction begins, so that the write lock is held briefly.
            lines = list(_read(path, file))
    except OSError as error:
        raise UserError(f"import {path}: cannot read it ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UserError(f"import {path}: it is not UTF-8 text; it must be an export") from error
    with db.transaction() as sqlite:
        merge = _Merge(sqlite)
        for number, data in lines:
            with _blamed(path, number):
                merge.add(data)
        return merge.counts()


def _read(path: Path, file: TextIO) -> Iterator[tuple[int, dict[str, Any]]]:
    number = 0
    for number, text in enumerate(file, start=1):
        with _blamed(path, number):
            data = json.loads(text)
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
    except (ValueError, TypeError, AttributeError, sqlite3.IntegrityError) as error:
        raise UserError(f"import {path}, line {number}: {error}; nothing was imported") from error


class _Merge:
    """Adds the lines of one file to a database."""

    def __init__(self, sqlite: sqlite3.Connection) -> None:
        self._sqlite = sqlite
        self._runs: dict[str, int] = {}
        self._tasks: dict[int, int] = {}
        self._added = {"run": 0, "task": 0, "trial": 0, "result": 0, "measurement": 0}

    def counts(self) -> RowCounts:
        return RowCounts(*self._added.values())

    def add(self, data: dict[str, Any]) -> None:
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

    def _run(self, data: dict[str, Any]) -> bool:
        status = RunStatus(data["status"])
        if status is not RunStatus.FINISHED:
            status = RunStatus.IMPORTED
        uid = _text(data, "uid")
        cursor = self._sqlite.execute(
            "INSERT INTO runs (uid, created, program, program_digest, target, compiler, options,"
            " options_digest, seed, status, finished) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (uid) DO NOTHING",
            (
                uid,
                float(data["created"]),
                _text(data, "program"),
                _text(data, "program_digest"),
                _text(data, "target"),
                _text(data, "compiler"),
                codec.dumps(dict(data["options"])),
                _text(data, "options_digest"),
                int(data["seed"]),
                status,
                _number(data, "finished"),
            ),
        )
        added = cursor.rowcount == 1
        if not added and status is RunStatus.FINISHED:  # exported before and after it finished
            self._sqlite.execute(
                "UPDATE runs SET status = ?, finished = ? WHERE uid = ? AND status = ?",
                (status, _number(data, "finished"), uid, RunStatus.IMPORTED),
            )
        found = self._sqlite.execute("SELECT id FROM runs WHERE uid = ?", (uid,)).fetchone()
        self._runs[uid] = found[0]
        return added

    def _task(self, data: dict[str, Any]) -> bool:
        workload = Workload.from_json(data["workload"])
        key = TaskKey(
            workload, _text(data, "target"), _text(data, "compiler"), _text(data, "flags")
        )
        task_id, added = rows.find_or_add_task(self._sqlite, key)
        self._sqlite.execute(
            "UPDATE tasks SET default_s = ? WHERE id = ? AND default_s IS NULL",
            (_number(data, "default_s"), task_id),
        )
        if data.get("space") is not None:
            self._sqlite.execute(
                "UPDATE tasks SET space = ? WHERE id = ? AND space IS NULL",
                (codec.dumps(data["space"]), task_id),
            )
        self._tasks[int(data["id"])] = task_id
        return added

    def _trial(self, data: dict[str, Any]) -> bool:
        trial = Trial(
            configuration=codec.configuration_from_json(data["configuration"]),
            status=Status(data["status"]),
            time_s=_number(data, "time_s"),
            samples=tuple(float("nan") if s is None else float(s) for s in data["samples"]),
            message=_text(data, "message"),
            binary=_text(data, "binary"),
            origin=_text(data, "origin"),
            phase_s={
                str(k): float("nan") if v is None else float(v)
                for k, v in dict(data["phase_s"]).items()
            },
        )
        return rows.add_trial(
            self._sqlite,
            TrialRecord(
                self._runs[data["run"]],
                self._tasks[data["task"]],
                int(data["ordinal"]),
                float(data["created"]),
                trial,
            ),
        )

    def _result(self, data: dict[str, Any]) -> bool:
        winner = data["configuration"]
        result = TaskResult(
            configuration=None if winner is None else codec.configuration_from_json(winner),
            default_s=float(data["default_s"]),
            tuned_s=float(data["tuned_s"]),
            speedup_low=float(data["speedup_low"]),
            speedup_high=float(data["speedup_high"]),
            verification=_text(data, "verification"),
            trials=int(data["trials"]),
        )
        run_id = None if data["run"] is None else self._runs[data["run"]]
        task_id = self._tasks[data["task"]]
        return rows.put_result(self._sqlite, task_id, result, run_id, float(data["created"]))

    def _measurement(self, data: dict[str, Any]) -> bool:
        cursor = self._sqlite.execute(
            "INSERT INTO measurements (run_id, kind, name, data, created) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (run_id, kind, name) DO NOTHING",
            (
                self._runs[data["run"]],
                _text(data, "kind"),
                _text(data, "name"),
                codec.dumps(data["data"]),
                float(data["created"]),
            ),
        )
        return cursor.rowcount == 1


def _text(data: dict[str, Any], name: str) -> str:
    value = data[name]
    if not isinstance(value, str):
        raise ValueError(f"{name!r} is {value!r}, not a string")
    return codec.clean(value)


def _number(data: dict[str, Any], name: str) -> float | None:
    value = data[name]
    return None if value is None else float(value)
