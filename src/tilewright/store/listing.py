"""What a database has of each task, as `tilewright db list` shows it."""

from __future__ import annotations

import sqlalchemy as sa

from tilewright.store import rows
from tilewright.store.connection import Connection
from tilewright.store.records import Filter, ListingRow
from tilewright.store.stored_tables import RESULTS, TASKS, TRIALS
from tilewright.trial import Status

# Columns of tasks, and what is counted of their trials: fields of the listing's rows as they are.
_KEYS = ("target", "compiler", "flags")
_COUNTED = ("runs", "trials", "ok", "best_s")


def listing(db: Connection, which: Filter) -> list[ListingRow]:
    """See :meth:`tilewright.store.Database.listing`.

    Args:
        db: the database.
        which: tasks to list.

    Returns:
        One row for each, the most recently used first.
    """
    tasks, trials = TASKS.table, TRIALS.table
    good = trials.c.status == Status.OK
    counted = (
        sa.select(
            tasks,
            sa.func.count(trials.c.id).label("trials"),
            sa.func.count(trials.c.run_id.distinct()).label("runs"),
            sa.func.count(trials.c.id).filter(good).label("ok"),
            sa.func.min(trials.c.time_s).filter(good).label("best_s"),
            sa.func.max(trials.c.created).label("last"),
        )
        .join(trials, trials.c.task_id == tasks.c.id, isouter=True)
        .where(*rows.where_task(which))
        .group_by(tasks.c.id)
    )
    with db.snapshot() as connection:
        found = connection.execute(counted).all()
        results = {
            row.task_id: rows.result_of(row)
            for row in connection.execute(sa.select(RESULTS.table).order_by(RESULTS.c.created))
        }
    listed = []
    for row in found:
        result = results.get(row.id)
        last: float | None = row.last
        if result is not None:
            last = max(last or 0.0, result.created)
        if which.since is not None and (last is None or last < which.since):
            continue
        task = TASKS.fields(row)
        counts = {name: row._mapping[name] for name in _COUNTED}
        keys = {name: task[name] for name in _KEYS}
        listed.append(ListingRow(row.id, task["name"], **keys, **counts, result=result, last=last))
    return sorted(listed, key=lambda row: (-(row.last or 0.0), row.task_id))
