"""The database of tuning runs: every trial, every result, and the checkpoints for a resume."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Self

import sqlalchemy as sa

from tilewright.database_address import ServerAddress, default_database, read_database
from tilewright.errors import UserError
from tilewright.store import listing, owner, prune, rows, runs, transfer, verify
from tilewright.store.column_values import configuration_to_json
from tilewright.store.connection import BUSY_TIMEOUT_S, Connection
from tilewright.store.records import (
    Filter,
    Json,
    KnownResult,
    ListingRow,
    ProgramMeasurement,
    RowCounts,
    RunRecord,
    RunStatus,
    TaskKey,
    TaskRecord,
    TaskResult,
    TrialRecord,
)
from tilewright.store.server import ServerConnection
from tilewright.store.sqlite import FileConnection
from tilewright.store.stored_tables import (
    MACHINES,
    MEASUREMENTS,
    RESULTS,
    RUNS,
    STATE,
    TASKS,
    TRIALS,
    Fields,
)
from tilewright.trial import Trial

EVERYTHING = Filter()


class Database:
    """An open database; a context manager. Get one from :meth:`open`.

    Every method that stores has committed when it returns, so what it stored outlives the process
    (see :mod:`tilewright.store.sqlite` for what that covers). Faults of the file, the disk or the
    server are UserErrors. Several processes and threads may use one database; this object must not
    be carried across a fork.
    """

    def __init__(self, connection: Connection, clock: Callable[[], float] = time.time) -> None:
        self.connection = connection
        self._clock = clock

    @classmethod
    def open(
        cls,
        place: str | os.PathLike[str] | ServerAddress | None = None,
        create: bool = True,
        *,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        clock: Callable[[], float] = time.time,
    ) -> Self:
        """Open the database; an older version is migrated.

        Args:
            place: the file, or the server's address; :func:`default_database` if left out.
            create: make it where there is none; of a server, its tables.
            busy_timeout_s: seconds to wait for other processes.
            clock: seconds since 1970.

        Raises:
            UserError: there is no such file (without `create`), it is not a database or one of
                another program or of a newer version, there is no permission, the disk is full,
                another process keeps it locked, or the server cannot be reached.
        """
        where = default_database() if place is None else read_database(place)
        if isinstance(where, ServerAddress):
            return cls(ServerConnection(where, create, busy_timeout_s), clock)
        return cls(FileConnection(where, create, busy_timeout_s), clock)

    @property
    def place(self) -> Path | ServerAddress:
        """Where it is; as a text without a password."""
        return self.connection.place

    def close(self) -> None:
        """Close the database."""
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Runs

    def begin_run(self, run: RunRecord) -> int:
        """Store a new run that belongs to this process.

        Args:
            run: the record; what the database fills in is not read.

        Returns:
            Its id.
        """
        with self.connection.transaction() as connection:
            return RUNS.insert(connection, self._begun(run)) or 0

    def _begun(self, run: RunRecord) -> Fields:
        """The fields of a new run that belongs to this process."""
        filled_in = {
            "uid": uuid.uuid4().hex,
            "created": self._clock(),
            "options": dict(run.options),
            "status": RunStatus.RUNNING,
            "finished": None,
            "owner": owner.this_process(),
        }
        return {**vars(run), **filled_in, "id": None}

    def find_resumable(
        self, program_digest: str, target: str, compiler: str, options_digest: str
    ) -> RunRecord | None:
        """The newest unfinished run of the same program, target, compiler version and options.

        A run whose process is gone comes before one that still goes on (which :meth:`resume_run`
        refuses).

        Args:
            program_digest: as the run stored it.
            target: as the run stored it.
            compiler: the version.
            options_digest: as the run stored it.
        """
        return runs.find_resumable(
            self.connection, program_digest, target, compiler, options_digest
        )

    def last_run(
        self, program_digest: str, targets: Collection[str], compiler: str
    ) -> RunRecord | None:
        """The newest run of a program for one of these targets, whatever became of it.

        Args:
            program_digest: as the run stored it.
            targets: as the run stored them.
            compiler: the version.
        """
        return runs.last_run(self.connection, program_digest, targets, compiler)

    def resume_run(self, run_id: int) -> RunRecord:
        """Take over an unfinished run.

        Args:
            run_id: the run.

        Returns:
            Its record.

        Raises:
            UserError: its process is still alive, or there is nothing to resume.
        """
        runs.take_over(self.connection, run_id)
        return self.run(run_id)

    def finish_run(self, run_id: int, status: RunStatus = RunStatus.FINISHED) -> None:
        """Say that a run has ended: FINISHED, or INTERRUPTED when it can be resumed.

        Args:
            run_id: the run.
            status: FINISHED, or INTERRUPTED when it can be resumed.
        """
        with self.connection.transaction(lasting=True) as connection:
            connection.execute(
                sa.update(RUNS.table)
                .where(RUNS.c.id == run_id)
                .values(status=status, finished=self._clock(), owner="")
            )

    def run(self, run_id: int) -> RunRecord:
        """The run with this id.

        Args:
            run_id: the id.

        Raises:
            UserError: there is none.
        """
        found = self.connection.query(sa.select(RUNS.table).where(RUNS.c.id == run_id))
        if not found:
            raise UserError(f"database {self.place}: there is no run {run_id}")
        return rows.run_of(found[0])

    def runs(self) -> list[RunRecord]:
        """All runs, oldest first."""
        select = sa.select(RUNS.table).order_by(RUNS.c.id)
        return [rows.run_of(row) for row in self.connection.query(select)]

    # Machines

    def put_machine(self, digest: str, measured_on: Mapping[str, Json]) -> None:
        """Store what measurements are taken under, for the runs and results that name it.

        Args:
            digest: of it, which runs and results name.
            measured_on: its fields.
        """
        with self.connection.transaction() as connection:
            fields = {"digest": digest, "data": dict(measured_on)}
            MACHINES.insert(connection, fields, "keep")

    # Tasks and trials

    def task_id(self, key: TaskKey, default_s: float | None = None, space: Json = None) -> int:
        """The id of the task, stored now if it is new.

        Args:
            key: of the task.
            default_s: updates its default time, in seconds.
            space: updates what its search space is made from.
        """
        with self.connection.transaction() as connection:
            task_id, _ = rows.find_or_add_task(connection, key)
            rows.tell_task(connection, task_id, default_s, space)
            return task_id

    def similar_tasks(self, key: TaskKey) -> list[TaskRecord]:
        """Tasks of other shapes: of the same kind of workload, target and compiler, whose space is
        known, in the order stored.

        Args:
            key: of the task that they are similar to.
        """
        columns = TASKS.c
        found = self.connection.query(
            sa.select(TASKS.table)
            .where(
                columns.target == key.target,
                columns.compiler == key.compiler,
                columns.workload_key != key.workload.key,
                columns.space.is_not(None),
            )
            .order_by(columns.id)
        )
        tasks = [rows.task_of(row) for row in found]
        return [task for task in tasks if task.key.workload.kind == key.workload.kind]

    def task(self, task_id: int) -> TaskRecord:
        """The task with this id.

        Args:
            task_id: the id.

        Raises:
            UserError: there is none.
        """
        found = self.connection.query(sa.select(TASKS.table).where(TASKS.c.id == task_id))
        if not found:
            raise UserError(f"database {self.place}: there is no task {task_id}")
        return rows.task_of(found[0])

    def record_trial(self, run_id: int, task_id: int, trial: Trial) -> bool:
        """Store a trial.

        Args:
            run_id: the run that made it.
            task_id: of the task.
            trial: with its configuration.

        Returns:
            False when the run has this configuration already: the first stays.
        """
        return self.record_trials(run_id, task_id, [trial]) == 1

    def record_trials(self, run_id: int, task_id: int, trials: Iterable[Trial]) -> int:
        """Store several trials in one transaction.

        Args:
            run_id: the run that made them.
            task_id: of the task.
            trials: in the order to be stored.

        Returns:
            How many the run did not have yet.
        """
        stored = 0
        with self.connection.transaction() as connection:
            # Those who store trials of one run take turns (in SQLite all who write do): each
            # counts on from the last one's.
            runs, of_run = RUNS.c, TRIALS.c.run_id == run_id
            if connection.dialect.name != "sqlite":
                connection.execute(sa.select(runs.id).where(runs.id == run_id).with_for_update())
            last = connection.execute(sa.select(sa.func.max(TRIALS.c.ordinal)).where(of_run))
            ordinal = 1 + next(-1 if one is None else one for one in last.scalars())
            for trial in trials:
                place = {
                    "run_id": run_id,
                    "task_id": task_id,
                    "ordinal": ordinal + stored,
                    "created": self._clock(),
                }
                stored += rows.add_trial(connection, {**place, **rows.trial_fields(trial)})
        return stored

    def trial_records(
        self, run_id: int | None = None, task_id: int | None = None
    ) -> list[TrialRecord]:
        """The trials of a run, of a task, or of a task in a run, in the order stored.

        Args:
            run_id: the run; any if left out.
            task_id: of the task; any if left out.
        """
        columns = TRIALS.c
        select = sa.select(TRIALS.table).order_by(columns.run_id, columns.ordinal)
        if run_id is not None:
            select = select.where(columns.run_id == run_id)
        if task_id is not None:
            select = select.where(columns.task_id == task_id)
        return [rows.trial_of(row) for row in self.connection.query(select)]

    def trials(self, run_id: int | None = None, task_id: int | None = None) -> list[Trial]:
        """As :meth:`trial_records`, without their places.

        Args:
            run_id: the run; any if left out.
            task_id: of the task; any if left out.
        """
        return [record.trial for record in self.trial_records(run_id, task_id)]

    def count_trials(self, run_id: int) -> int:
        """How many trials the run has, its parts before a resume included.

        Args:
            run_id: the run.
        """
        of_run = TRIALS.c.run_id == run_id
        found = self.connection.query(sa.select(sa.func.count(TRIALS.c.id)).where(of_run))
        return int(found[0][0])

    # Results

    def record_result(self, task_id: int, result: TaskResult, run_id: int | None = None) -> None:
        """Store the outcome of a task; it takes the place of an older one of the same machine.

        Args:
            task_id: of the task.
            result: its `run_id` and `created` are not read: they are filled in.
            run_id: the run that found it; its machine is the result's.
        """
        with self.connection.transaction() as connection:
            winner = result.configuration
            filled_in: dict[str, object] = {
                "task_id": task_id,
                "run_id": run_id,
                "created": self._clock(),
                "configuration": None if winner is None else configuration_to_json(winner),
            }
            if run_id is not None:
                of_run = sa.select(RUNS.c.machine).where(RUNS.c.id == run_id)
                filled_in["machine"] = connection.execute(of_run).scalar() or ""
            RESULTS.insert(connection, {**vars(result), **filled_in}, "replace")

    def result_for(self, key: TaskKey, machine: str | None = None) -> TaskResult | None:
        """The result of the same workload, target, compiler version and flags, from any run.

        Args:
            key: of the task.
            machine: what it was measured under, by its digest; the newest of any if left out.
        """
        known = self._results(
            *rows.of_key(key), *([] if machine is None else [RESULTS.c.machine == machine])
        )
        return known[0].result if known else None

    def results_of(
        self, key: TaskKey | None = None, which: Filter = EVERYTHING, *, any_flags: bool = False
    ) -> list[KnownResult]:
        """Results with what they were measured under, the newest first.

        Args:
            key: the workload and the flags that they have in common with it, whatever the target
                and the compiler; any if left out.
            which: tasks that they are of.
            any_flags: of the key only the workload counts.
        """
        conditions = rows.where_task(which)
        if key is not None:
            columns = TASKS.c
            conditions.append(columns.workload_key == key.workload.key)
            if not any_flags:
                conditions.append(columns.flags == key.flags)
        return self._results(*conditions)

    def _results(self, *conditions: sa.ColumnElement[bool]) -> list[KnownResult]:
        results, tasks, machines = RESULTS.table, TASKS.table, MACHINES.table
        newest = results.c.created.desc()
        with self.connection.snapshot() as connection:
            found = connection.execute(
                sa.select(results)
                .join(tasks, tasks.c.id == results.c.task_id)
                .where(*conditions)
                .order_by(newest, results.c.task_id)
            ).all()
            of_tasks = sa.select(tasks).where(tasks.c.id.in_({row.task_id for row in found}))
            known = {row.id: rows.task_of(row) for row in connection.execute(of_tasks)}
            named = sa.select(machines).where(machines.c.digest.in_({row.machine for row in found}))
            told = {row.digest: MACHINES.fields(row)["data"]
                    for row in connection.execute(named)}  # fmt: skip
        return [
            KnownResult(known[row.task_id], rows.result_of(row), told.get(row.machine))
            for row in found
        ]

    # Measurements and checkpoints

    def record_measurement(self, run_id: int, kind: str, name: str, data: Json) -> None:
        """Store what was measured of a `kind` (such as `variant`) of thing; replaces an older one.

        Numbers that JSON cannot say (NaN, infinities) become null.

        Args:
            run_id: the run.
            kind: of thing that was measured, such as `variant`.
            name: of the thing.
            data: numbers that JSON cannot say (NaN, infinities) become null.
        """
        with self.connection.transaction() as connection:
            place = {"run_id": run_id, "kind": kind, "name": name}
            fields = {**place, "data": data, "created": self._clock()}
            MEASUREMENTS.insert(connection, fields, "replace")

    def measurements(self, run_id: int, kind: str | None = None) -> list[ProgramMeasurement]:
        """What was measured in a run, oldest first.

        Args:
            run_id: the run.
            kind: of thing; any if left out.
        """
        columns = MEASUREMENTS.c
        select = sa.select(MEASUREMENTS.table).where(columns.run_id == run_id)
        if kind is not None:
            select = select.where(columns.kind == kind)
        found = self.connection.query(select.order_by(columns.created, columns.kind, columns.name))
        return [rows.measurement_of(row) for row in found]

    def put_state(self, run_id: int, key: str, value: Json) -> None:
        """Store a checkpoint of a run under a name; replaces the one before.

        Args:
            run_id: the run.
            key: name of the checkpoint.
            value: its content.
        """
        with self.connection.transaction() as connection:
            fields = {"run_id": run_id, "key": key, "value": value}
            STATE.insert(connection, fields, "replace")

    def get_state(self, run_id: int, key: str) -> Json:
        """The checkpoint stored last under this name; None when there is none.

        Args:
            run_id: the run.
            key: name of the checkpoint.
        """
        columns = STATE.c
        found = self.connection.query(
            sa.select(STATE.table).where(columns.run_id == run_id, columns.key == key)
        )
        value: Json = STATE.fields(found[0])["value"] if found else None
        return value

    def states(self, prefix: str) -> list[tuple[int, Json]]:
        """The checkpoints of all runs whose names begin alike, the latest runs first.

        Args:
            prefix: that the names begin with.

        Returns:
            The run and the content of each.
        """
        columns = STATE.c
        found = self.connection.query(
            sa.select(STATE.table)
            .where(columns.key.startswith(prefix, autoescape=True))
            .order_by(columns.run_id.desc(), columns.key)
        )
        return [(row.run_id, STATE.fields(row)["value"]) for row in found]

    # The database as a whole

    def listing(self, which: Filter = EVERYTHING) -> list[ListingRow]:
        """One row for each task, the most recently used first.

        Args:
            which: tasks to list.
        """
        return listing.listing(self.connection, which)

    def export(self, path: str | os.PathLike[str], which: Filter = EVERYTHING) -> RowCounts:
        """Write runs, tasks, trials, results and measurements as JSON lines.

        The format is that of :mod:`tilewright.store.transfer`. The file appears whole or not at
        all; UserError when it cannot be written.

        Args:
            which: tasks to export.
            path: of the file, in the format of :mod:`tilewright.store.transfer`.

        Returns:
            How many rows of each kind were written.

        Raises:
            UserError: the file cannot be written; nothing is left of it then.
        """
        return transfer.export(self.connection, Path(path), which)

    def import_(self, path: str | os.PathLike[str]) -> RowCounts:
        """Merge an exported file, all of it or nothing; importing it twice adds nothing the second
        time.

        Args:
            path: of the file.

        Returns:
            How many rows of each kind were new.

        Raises:
            UserError: it cannot be read or is not an export.
        """
        return transfer.import_(self.connection, Path(path))

    def merge(self, other: Database) -> RowCounts:
        """Add what another database has; doing it twice adds nothing the second time.

        Args:
            other: the other one, which stays as it is.

        Returns:
            How many rows of each kind were new.

        Raises:
            UserError: one of them cannot be read or written.
        """
        return transfer.merge(self.connection, other.connection)

    def prune(
        self,
        *,
        older_than_s: float | None = None,
        target: str | None = None,
        compiler: str | None = None,
        not_compiler: str | None = None,
        keep_results: bool = True,
        dry_run: bool = False,
    ) -> RowCounts:
        """Delete runs that meet every condition given, with their trials. A run that is still going
        on is kept.

        Args:
            older_than_s: begun more than so many seconds ago.
            target: for that target.
            compiler: by that compiler version.
            not_compiler: by any compiler version but that.
            keep_results: the results of tasks outlive their runs.
            dry_run: delete nothing, only count.

        Returns:
            How many rows of each kind went.

        Raises:
            UserError: there is no condition.
        """
        before = None if older_than_s is None else self._clock() - older_than_s
        condition = prune.Condition(before, target, compiler, not_compiler)
        return prune.prune(self.connection, condition, keep_results, dry_run)

    def gc(self, dry_run: bool = False) -> RowCounts:
        """Delete what serves nothing: runs that ended without a trial, a result or a measurement,
        tasks and machines that nothing names; give the space back.

        Args:
            dry_run: delete nothing, only count.

        Returns:
            How many rows of each kind went.
        """
        return prune.gc(self.connection, dry_run)

    def verify(self) -> list[str]:
        """What is wrong with what is stored: pages, references, fields that cannot be read.

        Returns:
            A sentence for each; none where all is well.
        """
        return verify.verify(self.connection)
