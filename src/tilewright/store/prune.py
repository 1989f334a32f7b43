"""Delete old runs, and what serves nothing."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import sqlalchemy as sa

from tilewright.errors import UserError
from tilewright.store.connection import Connection
from tilewright.store.records import RowCounts
from tilewright.store.runs import going_on
from tilewright.store.stored_tables import MACHINES, MEASUREMENTS, RESULTS, RUNS, TASKS, TRIALS


@dataclass(frozen=True)
class Condition:
    """Which runs to delete: those that meet all that is not None."""

    before: float | None
    target: str | None
    compiler: str | None
    not_compiler: str | None

    def on(self, created: sa.Column[float], table: sa.Table) -> list[sa.ColumnElement[bool]]:
        """The condition on a table with the columns target and compiler, and a creation time.

        Args:
            created: the column with the creation time.
            table: with the columns target and compiler.

        Returns:
            Its parts, all of which must hold.
        """
        terms: list[sa.ColumnElement[bool]] = []
        if self.before is not None:
            terms.append(created < self.before)
        if self.target is not None:
            terms.append(table.c.target == self.target)
        if self.compiler is not None:
            terms.append(table.c.compiler == self.compiler)
        if self.not_compiler is not None:
            terms.append(table.c.compiler != self.not_compiler)
        return terms


class _DryRun(Exception):
    """Rolls the transaction back after counting."""


def prune(db: Connection, condition: Condition, keep_results: bool, dry_run: bool) -> RowCounts:
    """See :meth:`tilewright.store.Database.prune`.

    Args:
        db: the database.
        condition: which runs.
        keep_results: the results of tasks outlive their runs.
        dry_run: delete nothing, only count.

    Returns:
        How many rows of each kind went.

    Raises:
        UserError: there is no condition.
    """
    runs, tasks, results = RUNS.table, TASKS.table, RESULTS.table
    which = condition.on(runs.c.created, runs)
    if not which:
        raise UserError(
            "prune: say which runs to delete: an age, a target or a compiler version "
            "(--older-than, --target, --compiler, --not-compiler)"
        )
    counts = RowCounts()
    with contextlib.suppress(_DryRun), db.transaction() as connection:
        before = _count(connection)
        alive = going_on(connection)
        connection.execute(sa.delete(runs).where(*which, runs.c.id.not_in(alive)))
        if not keep_results:
            of_tasks = sa.select(tasks.c.id).join(results, results.c.task_id == tasks.c.id)
            connection.execute(
                sa.delete(results).where(
                    results.c.task_id.in_(of_tasks.where(*condition.on(results.c.created, tasks))),
                    results.c.run_id.is_(None) | results.c.run_id.not_in(alive),
                )
            )
        # A run that goes on may hold the id of a task that has no trial yet: keep all then.
        if not alive:
            _drop_unused_tasks(connection)
        after = _count(connection)
        counts = RowCounts(*(b - a for b, a in zip(before, after, strict=True)))
        if dry_run:
            raise _DryRun
    if not dry_run and any(vars(counts).values()):
        # Giving the space back is a courtesy: it fails while others use the file.
        with contextlib.suppress(UserError):
            db.compact()
    return counts


def gc(db: Connection, dry_run: bool) -> RowCounts:
    """See :meth:`tilewright.store.Database.gc`.

    Args:
        db: the database.
        dry_run: delete nothing, only count.

    Returns:
        How many rows of each kind went.
    """
    runs, trials, results, machines = (one.table for one in (RUNS, TRIALS, RESULTS, MACHINES))
    counts = RowCounts()
    with contextlib.suppress(_DryRun), db.transaction() as connection:
        before = _count(connection)
        alive = going_on(connection)
        of_runs = (trials, results, MEASUREMENTS.table)
        used = [sa.select(one.c.run_id).where(one.c.run_id.is_not(None)) for one in of_runs]
        connection.execute(
            sa.delete(runs).where(runs.c.id.not_in(alive), *(runs.c.id.not_in(u) for u in used))
        )
        if not alive:
            _drop_unused_tasks(connection)
            named = [sa.select(one.c.machine) for one in (runs, results)]
            connection.execute(
                sa.delete(machines).where(*(machines.c.digest.not_in(one) for one in named))
            )
        after = _count(connection)
        counts = RowCounts(*(b - a for b, a in zip(before, after, strict=True)))
        if dry_run:
            raise _DryRun
    if not dry_run:
        with contextlib.suppress(UserError):
            db.compact()
    return counts


def _drop_unused_tasks(connection: sa.Connection) -> None:
    tasks, trials, results = TASKS.table, TRIALS.table, RESULTS.table
    connection.execute(
        sa.delete(tasks).where(
            tasks.c.id.not_in(sa.select(trials.c.task_id)),
            tasks.c.id.not_in(sa.select(results.c.task_id)),
        )
    )


def _count(connection: sa.Connection) -> tuple[int, ...]:
    """Rows of each table, in the order of the fields of `RowCounts`."""
    tables = (RUNS, TASKS, TRIALS, RESULTS, MEASUREMENTS)
    return tuple(
        connection.execute(sa.select(sa.func.count()).select_from(one.table)).scalar_one()
        for one in tables
    )
