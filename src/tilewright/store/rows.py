"""Rows of the tables as records, and records as rows; tasks by their keys.

Of numbers that JSON cannot say, stored as null, those in `samples` read back as NaN, and `time_s`
as None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from tilewright.store.column_values import (
    configuration_from_json,
    configuration_to_json,
    optional_json,
    optional_number,
    text,
)
from tilewright.store.records import (
    Filter,
    ProgramMeasurement,
    RunRecord,
    RunStatus,
    TaskKey,
    TaskRecord,
    TaskResult,
    TrialRecord,
)
from tilewright.store.stored_tables import (
    MEASUREMENTS,
    RESULTS,
    RUNS,
    TASKS,
    TRIALS,
    Fields,
    readable,
)
from tilewright.trial import Status, Trial
from tilewright.workload import Workload

MESSAGE_LIMIT = 16_384
"""Characters kept of a trial's message: compilers can print megabytes of IR."""


@readable("runs")
def run_of(row: sa.Row[Any]) -> RunRecord:
    """A row of `runs` as a record.

    Args:
        row: with all columns.
    """
    fields = RUNS.fields(row)
    return RunRecord(**{**fields, "id": row._mapping["id"], "status": RunStatus(fields["status"])})


@readable("tasks")
def task_of(row: sa.Row[Any]) -> TaskRecord:
    """A row of `tasks` as a record.

    Args:
        row: with all columns.
    """
    fields = TASKS.fields(row)
    workload = Workload.from_json(fields["workload"])
    key = TaskKey(workload, fields["target"], fields["compiler"], fields["flags"])
    return TaskRecord(row._mapping["id"], key, fields["default_s"], fields["space"])


@readable("trials")
def trial_of(row: sa.Row[Any]) -> TrialRecord:
    """A row of `trials` as a record.

    Args:
        row: with all columns.
    """
    fields = TRIALS.fields(row)
    place = {name: fields[name] for name in ("run_id", "task_id", "ordinal", "created")}
    return TrialRecord(**place, trial=trial_from(fields))


@readable("results")
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


@readable("measurements")
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
        time_s=optional_number(fields["time_s"]),
        samples=tuple(math.nan if s is None else float(s) for s in fields["samples"]),
        message=text(fields["message"]),
        binary=text(fields["binary_digest"]),
        origin=text(fields["origin"]),
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
        (TASKS.c.default_s, optional_number(default_s)),
        (TASKS.c.space, optional_json(space)),
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
