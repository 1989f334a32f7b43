"""Runs that go on, that can be resumed, and how a process takes one over."""

from __future__ import annotations

import time
from collections.abc import Collection

import sqlalchemy as sa

from tilewright.errors import UserError
from tilewright.store import owner
from tilewright.store.connection import Connection
from tilewright.store.records import RunRecord, RunStatus
from tilewright.store.rows import run_of
from tilewright.store.stored_tables import RUNS, TRIALS

# A run of another machine that has stored nothing for so many seconds has ended.
_SILENT_S = 900.0


def going_on(connection: sa.Connection) -> list[int]:
    """The runs that go on, as far as can be told.

    Of a process of another machine nothing is known but what it has stored: on a server a run that
    has stored something within the last minutes goes on. A file is used on one machine alone, which
    may have another name now.

    Args:
        connection: in a transaction.
    """
    runs, trials = RUNS.table, TRIALS.table
    since = time.time() - _SILENT_S
    recent = sa.select(trials.c.run_id).where(trials.c.created > since)
    shared = connection.dialect.name != "sqlite"
    lately = sa.or_(runs.c.created > since, runs.c.id.in_(recent))
    running = runs.c.status == RunStatus.RUNNING
    found = connection.execute(sa.select(runs, lately.label("lately")).where(running))
    return [
        row.id
        for row in found
        if owner.is_alive(row.owner) or (shared and row.lately and owner.is_elsewhere(row.owner))
    ]


def find_resumable(
    db: Connection, program_digest: str, target: str, compiler: str, options_digest: str
) -> RunRecord | None:
    """See :meth:`tilewright.store.Database.find_resumable`.

    Args:
        db: the database.
        program_digest, target, compiler, options_digest: as the run stored them.
    """
    columns = RUNS.c
    fitting = (
        sa.select(RUNS.table)
        .where(
            columns.program_digest == program_digest,
            columns.target == target,
            columns.compiler == compiler,
            columns.options_digest == options_digest,
            columns.status.in_([RunStatus.RUNNING, RunStatus.INTERRUPTED]),
        )
        .order_by(columns.id.desc())
    )
    with db.snapshot() as connection:
        runs = [run_of(row) for row in connection.execute(fitting)]
        busy = going_on(connection)
    mine = owner.this_process()
    return min(runs, key=lambda run: run.id in busy and run.owner != mine, default=None)


def last_run(
    db: Connection, program_digest: str, targets: Collection[str], compiler: str
) -> RunRecord | None:
    """See :meth:`tilewright.store.Database.last_run`.

    Args:
        db: the database.
        program_digest, targets, compiler: as the run stored them.
    """
    columns = RUNS.c
    fitting = (
        sa.select(RUNS.table)
        .where(
            columns.program_digest == program_digest,
            columns.target.in_(targets),
            columns.compiler == compiler,
        )
        .order_by(columns.id.desc())
        .limit(1)
    )
    with db.snapshot() as connection:
        row = connection.execute(fitting).first()
    return None if row is None else run_of(row)


def take_over(db: Connection, run_id: int) -> None:
    """See :meth:`tilewright.store.Database.resume_run`.

    Args:
        db: the database.
        run_id: the run, which is this process's afterwards.

    Raises:
        UserError: its process is still alive, or there is nothing to resume.
    """
    with db.transaction() as connection:
        this = RUNS.c.id == run_id
        row = connection.execute(sa.select(RUNS.table).where(this).with_for_update()).first()
        if row is None:
            raise UserError(f"database {db.place}: there is no run {run_id} to resume")
        run = run_of(row)
        if run.status not in (RunStatus.RUNNING, RunStatus.INTERRUPTED):
            raise UserError(f"database {db.place}: run {run_id} is {run.status}: nothing to resume")
        if run.owner != owner.this_process() and run_id in going_on(connection):
            where = f" on {owner.host_of(run.owner)}" if owner.is_elsewhere(run.owner) else ""
            raise UserError(
                f"database {db.place}: run {run_id} is still going on in process "
                f"{owner.pid_of(run.owner)}{where}; wait for it or end it, then try again"
            )
        mine = {"status": RunStatus.RUNNING, "owner": owner.this_process(), "finished": None}
        connection.execute(sa.update(RUNS.table).where(this).values(mine))
