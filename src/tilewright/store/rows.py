"""Rows of the tables as records."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from tilewright.store import codec
from tilewright.store.records import (
    Filter,
    RunRecord,
    RunStatus,
    TaskKey,
    TaskRecord,
    TaskResult,
    TrialRecord,
)
from tilewright.workload import Workload

RESULT_COLUMNS = (
    "run_id",
    "configuration",
    "default_s",
    "tuned_s",
    "speedup_low",
    "speedup_high",
    "verification",
    "trials",
    "created",
)


def run_of(row: sqlite3.Row) -> RunRecord:
    return RunRecord(
        program=row["program"],
        program_digest=row["program_digest"],
        target=row["target"],
        compiler=row["compiler"],
        options=json.loads(row["options"]),
        options_digest=row["options_digest"],
        seed=row["seed"],
        status=RunStatus(row["status"]),
        id=row["id"],
        uid=row["uid"],
        created=row["created"],
        finished=row["finished"],
        owner=row["owner"],
    )


def task_of(row: sqlite3.Row) -> TaskRecord:
    workload = Workload.from_json(json.loads(row["workload"]))
    key = TaskKey(workload, row["target"], row["compiler"], row["flags"])
    space = None if row["space"] is None else json.loads(row["space"])
    return TaskRecord(row["id"], key, row["default_s"], space)


def trial_of(row: sqlite3.Row) -> TrialRecord:
    return TrialRecord(
        row["run_id"],
        row["task_id"],
        row["ordinal"],
        row["created"],
        codec.decode_trial(row),  # type: ignore[arg-type]  # sqlite3.Row is a mapping in all but name
    )


def result_of(row: sqlite3.Row) -> TaskResult:
    text = row["configuration"]
    return TaskResult(
        configuration=None if text is None else codec.decode_configuration(text),
        default_s=row["default_s"],
        tuned_s=row["tuned_s"],
        speedup_low=row["speedup_low"],
        speedup_high=row["speedup_high"],
        verification=row["verification"],
        trials=row["trials"],
        run_id=row["run_id"],
        created=row["created"],
    )


def result_values(result: TaskResult, run_id: int | None, created: float) -> tuple[Any, ...]:
    """The columns `RESULT_COLUMNS` of a result."""
    winner = result.configuration
    return (
        run_id,
        None if winner is None else codec.encode_configuration(winner),
        result.default_s,
        result.tuned_s,
        result.speedup_low,
        result.speedup_high,
        codec.clean(result.verification),
        result.trials,
        created,
    )


def where_task(which: Filter) -> tuple[str, tuple[object, ...]]:
    """A condition on the table `tasks`, with its parameters."""
    parts, values = ["1"], list[object]()
    for column in ("target", "compiler"):
        value = getattr(which, column)
        if value is not None:
            parts.append(f"tasks.{column} = ?")
            values.append(value)
    if which.workload is not None:
        parts.append("instr(lower(tasks.name), lower(?)) > 0")
        values.append(which.workload)
    return " AND ".join(parts), tuple(values)


def find_or_add_task(sqlite: sqlite3.Connection, key: TaskKey) -> tuple[int, bool]:
    """The id of the task with this key, and whether it had to be added."""
    identity = (key.workload.key, key.target, key.compiler, key.flags)
    found = sqlite.execute(
        "SELECT id FROM tasks WHERE workload_key = ? AND target = ? AND compiler = ? AND flags = ?",
        identity,
    ).fetchone()
    if found:
        return int(found[0]), False
    cursor = sqlite.execute(
        "INSERT INTO tasks (workload_key, target, compiler, flags, workload, name)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (*identity, codec.dumps(key.workload.to_json()), key.workload.name),
    )
    return int(cursor.lastrowid or 0), True


_ADD_TRIAL = (
    f"INSERT INTO trials (run_id, task_id, ordinal, created, {', '.join(codec.TRIAL_COLUMNS)})"
    f" VALUES (?, ?, ?, ?, {', '.join('?' * len(codec.TRIAL_COLUMNS))})"
    " ON CONFLICT (run_id, task_id, configuration) DO NOTHING"
)


def add_trial(sqlite: sqlite3.Connection, record: TrialRecord) -> bool:
    """Store a trial unless its run has this configuration of the task already."""
    cursor = sqlite.execute(
        _ADD_TRIAL,
        (
            record.run_id,
            record.task_id,
            record.ordinal,
            record.created,
            *codec.encode_trial(record.trial),
        ),
    )
    return cursor.rowcount == 1


def put_result(
    sqlite: sqlite3.Connection,
    task_id: int,
    result: TaskResult,
    run_id: int | None,
    created: float,
) -> bool:
    """Store the result of a task unless there is one that is as new or newer."""
    columns = ", ".join(RESULT_COLUMNS)
    updates = ", ".join(f"{c} = excluded.{c}" for c in RESULT_COLUMNS)
    cursor = sqlite.execute(
        f"INSERT INTO results (task_id, {columns}) VALUES (?{', ?' * len(RESULT_COLUMNS)})"
        f" ON CONFLICT (task_id) DO UPDATE SET {updates} WHERE excluded.created > results.created",
        (task_id, *result_values(result, run_id, created)),
    )
    return cursor.rowcount == 1
