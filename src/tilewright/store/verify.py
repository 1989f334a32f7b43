"""Is what a database has what was put into it? Every row is read as those who use it read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from tilewright.errors import UserError
from tilewright.store import rows
from tilewright.store.connection import Connection
from tilewright.store.stored_tables import (
    MACHINES,
    MEASUREMENTS,
    RESULTS,
    RUNS,
    STATE,
    TASKS,
    TRIALS,
    StoredTable,
)

# Sentences on one table at most: a file with a hole in it has thousands.
_MOST = 20


def verify(db: Connection) -> list[str]:
    """See :meth:`tilewright.store.Database.verify`.

    Args:
        db: the database.

    Returns:
        A sentence for each thing that is wrong.
    """
    found = db.damage()[:_MOST]
    readers: tuple[tuple[StoredTable, Callable[[Any], object]], ...] = (
        (MACHINES, MACHINES.fields),
        (RUNS, rows.run_of),
        (TASKS, _task),
        (TRIALS, rows.trial_of),
        (RESULTS, rows.result_of),
        (MEASUREMENTS, rows.measurement_of),
        (STATE, STATE.fields),
    )
    with db.snapshot() as connection:
        for table, read in readers:
            wrong = list[str]()
            for row in connection.execute(sa.select(table.table)):
                try:
                    read(row)
                except (UserError, ValueError, TypeError, KeyError, AttributeError) as error:
                    why = error.__cause__ or error
                    wrong.append(f"{table.table.name}: row {row[0]} cannot be read ({why})")
            found += wrong[:_MOST]
            if len(wrong) > _MOST:
                found.append(f"{table.table.name}: {len(wrong) - _MOST} more rows")
        found += _repeated(connection)
    return found


def _task(row: sa.Row[Any]) -> None:
    task = rows.task_of(row)
    if task.key.workload.key != row.workload_key:
        raise ValueError("its digest is not that of its workload")


def _repeated(connection: sa.Connection) -> list[str]:
    """Trials of one run with one number: two processes took it for theirs."""
    trials = TRIALS.table
    same = (trials.c.run_id, trials.c.ordinal)
    twice = sa.select(*same).group_by(*same).having(sa.func.count() > 1).limit(_MOST)
    return [f"trials: run {run} has number {n} twice" for run, n in connection.execute(twice)]
