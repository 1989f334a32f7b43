"""Delete old runs."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass

from tilewright.errors import UserError
from tilewright.store import owner
from tilewright.store.connection import Connection
from tilewright.store.records import RowCounts, RunStatus


@dataclass(frozen=True)
class Condition:
    """Which runs to delete: those that meet all that is not None."""

    before: float | None
    target: str | None
    compiler: str | None
    not_compiler: str | None

    def sql(self, created: str, table: str) -> tuple[str, list[object]]:
        """The condition on a table with the columns target and compiler, and a creation time.

        Args:
            created: the column with the creation time.
            table: with the columns target and compiler.

        Returns:
            The condition with question marks, and its parameters.
        """
        terms = (
            (f"{created} < ?", self.before),
            (f"{table}.target = ?", self.target),
            (f"{table}.compiler = ?", self.compiler),
            (f"{table}.compiler <> ?", self.not_compiler),
        )
        given = [(sql, value) for sql, value in terms if value is not None]
        return " AND ".join(sql for sql, _ in given), [value for _, value in given]


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
    which, values = condition.sql("runs.created", "runs")
    if not which:
        raise UserError(
            "prune: say which runs to delete: an age, a target or a compiler version "
            "(--older-than, --target, --compiler, --not-compiler)"
        )
    counts = RowCounts()
    with contextlib.suppress(_DryRun), db.transaction() as sqlite:
        before = _count(sqlite)
        alive = [
            (row["id"],)
            for row in sqlite.execute("SELECT * FROM runs WHERE status = ?", (RunStatus.RUNNING,))
            if owner.is_alive(row["owner"])
        ]
        sqlite.execute("CREATE TEMP TABLE kept_runs (id INTEGER PRIMARY KEY)")
        sqlite.executemany("INSERT INTO kept_runs VALUES (?)", alive)
        sqlite.execute(
            f"DELETE FROM runs WHERE {which} AND id NOT IN (SELECT id FROM kept_runs)", values
        )
        if not keep_results:
            which, values = condition.sql("results.created", "tasks")
            sqlite.execute(
                "DELETE FROM results WHERE task_id IN (SELECT tasks.id FROM tasks"
                f" JOIN results ON results.task_id = tasks.id WHERE {which})"
                " AND (run_id IS NULL OR run_id NOT IN (SELECT id FROM kept_runs))",
                values,
            )
        # A run that goes on may hold the id of a task that has no trial yet: keep all then.
        if not alive:
            sqlite.execute(
                "DELETE FROM tasks WHERE id NOT IN (SELECT task_id FROM trials)"
                " AND id NOT IN (SELECT task_id FROM results)"
            )
        sqlite.execute("DROP TABLE kept_runs")
        after = _count(sqlite)
        counts = RowCounts(*(b - a for b, a in zip(before, after, strict=True)))
        if dry_run:
            raise _DryRun
    if not dry_run and any(vars(counts).values()):
        # Giving the space back is a courtesy: it fails while others use the file.
        with contextlib.suppress(UserError, sqlite3.Error):
            db.query("VACUUM")
            db.query("PRAGMA wal_checkpoint(TRUNCATE)")
    return counts


def _count(sqlite: sqlite3.Connection) -> tuple[int, ...]:
    """Rows of each table, in the order of the fields of `RowCounts`."""
    tables = ("runs", "tasks", "trials", "results", "measurements")
    return tuple(sqlite.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in tables)
