"""A database on a server that may go away in the middle of a run: the run goes on.

All that a run stores is stored in a file of this machine as well, and what it reads of itself it
reads there. When the server is away, the file alone has it; when it is back, it gets what it lacks,
by the same merge as of an export: what it has already, also where its answer was lost, is not added
twice. Where it is still away at the end, the file stays and the user is told; the next process here
that uses the server delivers it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa

from tilewright import scratch
from tilewright.database_address import ServerAddress, default_database, read_database
from tilewright.errors import UserError
from tilewright.files import user_folder_file
from tilewright.store import owner, rows, transfer
from tilewright.store.database import Database
from tilewright.store.records import (
    Json,
    KnownResult,
    ProgramMeasurement,
    RunRecord,
    RunStatus,
    TaskKey,
    TaskRecord,
    TaskResult,
    TrialRecord,
)
from tilewright.store.server import ServerConnection
from tilewright.store.stored_tables import MEASUREMENTS, RUNS, STATE, TASKS, TRIALS, StoredTable
from tilewright.trial import Trial
from tilewright.words import plural

T = TypeVar("T")
Tell = Callable[[str], None]
# Seconds between attempts to reach a server that is away, and at the end of a run for all of them.
_FIRST_S, _LONGEST_S, _LAST_S = 2.0, 60.0, 10.0
# Seconds that a server may take for a transaction of a run, and for all that it lacks.
_ANSWER_S, _DELIVERY_S = 30.0, 600.0
# Ids of what is stored while the server is away: no server counts as far.
_OURS = 2**40


def open_database(
    place: str | os.PathLike[str] | ServerAddress | None = None,
    tell: Tell = lambda text: None,
    folder: Path | None = None,
) -> Database:
    """The database for a run: on a server that may go away, or a file.

    Args:
        place: as :meth:`Database.open` takes it.
        tell: told when the server goes away and comes back, a sentence each time.
        folder: for what a server has not taken yet; by default in the user's data folder.

    Raises:
        UserError: as :meth:`Database.open`.
    """
    where = default_database() if place is None else read_database(place)
    if isinstance(where, ServerAddress):
        return SteadyDatabase(ServerConnection(where, create=True), tell, folder)
    return Database.open(where)


class SteadyDatabase(Database):
    """A database on a server, with a file beside it that has all of this process's runs."""

    def __init__(self, connection: ServerConnection, tell: Tell, folder: Path | None) -> None:
        """Of a server that answers. What earlier processes could not deliver is delivered now.

        Args:
            connection: to the server.
            tell: told when it goes away and comes back.
            folder: for the file; by default in the user's data folder.
        """
        super().__init__(connection)
        self._server = connection
        self._server.limit_s = _ANSWER_S
        self._tell = tell
        self._away = self._closed = False
        self._scratch = contextlib.ExitStack()
        self._next_try, self._wait_s = 0.0, _FIRST_S
        self._provisional = _OURS
        # By the ids of the file those of the server, where they differ.
        self._run_ids: dict[int, int] = {}
        self._task_ids: dict[int, int] = {}
        digest = hashlib.sha256(str(connection.place).encode()).hexdigest()[:12]
        folder = folder or user_folder_file("data", "undelivered")
        self._deliver_earlier(folder, digest)
        self._file = self._own_file(folder, f"{digest}-{uuid.uuid4().hex[:12]}.db")

    def _own_file(self, folder: Path, name: str) -> Database:
        try:
            return Database.open(folder / name)
        except UserError:  # the user's folder cannot be written to
            return Database.open(self._scratch.enter_context(scratch.folder()) / name)

    def close(self) -> None:
        """Close both; what the server has not taken stays in the file, and the user is told."""
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + _LAST_S
        while self._away and not self._back(hurry=True) and time.monotonic() < deadline:
            time.sleep(0.5)
        file = self._file.place
        assert isinstance(file, Path)
        trials = len(self._file.trial_records()) if self._away else 0
        self._file.close()
        if self._away:
            self._tell(
                f"database {self.place}: the server is still away; {plural(trials, 'trial')} and "
                f"what else this run has are in {file}: the next run here that uses the server "
                f"delivers them, or `tilewright db merge {file} --db …` does"
            )
        else:
            for ending in ("", "-wal", "-shm"):
                file.with_name(file.name + ending).unlink(missing_ok=True)
            self._scratch.close()
        super().close()

    # The server, as far as it is there

    def _ask(self, question: Callable[[], T], otherwise: T) -> T:
        """What the server answers, or something else when it is away."""
        if self._away and not self._back():
            return otherwise
        try:
            return question()
        except (UserError, sa.exc.SQLAlchemyError) as error:
            self._lost(error)
            return otherwise

    def _lost(self, error: Exception) -> None:
        self._away = True
        self._wait_s = _FIRST_S
        self._next_try = time.monotonic() + self._wait_s
        said = str(error) if isinstance(error, UserError) else f"database {self.place}: it failed"
        self._tell(f"{said}; the run goes on, and what it finds is kept until the server is back")

    def _back(self, hurry: bool = False) -> bool:
        """Whether the server is there again and has all that it lacked."""
        if not hurry and time.monotonic() < self._next_try:
            return False
        self._server.limit_s = _DELIVERY_S
        try:
            added = self._deliver(self._file, all_of_it=True)
        except (UserError, sa.exc.SQLAlchemyError):
            self._wait_s = min(2 * self._wait_s, _LONGEST_S)
            self._next_try = time.monotonic() + self._wait_s
            return False
        finally:
            self._server.limit_s = _ANSWER_S
        self._away = False
        self._tell(f"database {self.place}: the server is back; it lacked {plural(added, 'trial')}")
        return True

    def _deliver(self, file: Database, all_of_it: bool) -> int:
        """Add what a file has; how many trials were new. `all_of_it`: also what belongs to runs
        that can be resumed."""
        source = file.connection
        with source.snapshot() as local, self.connection.transaction(lasting=True) as connection:
            merge = transfer.Merge(connection)
            for line in transfer.lines(local):
                merge.add(line)
            runs = RUNS.c
            mine = {row.id: row for row in local.execute(sa.select(RUNS.table))}
            ids = {id_: merge.run_ids[row.uid] for id_, row in mine.items()}
            for row in mine.values():
                ended = {"status": row.status, "finished": row.finished, "owner": row.owner}
                connection.execute(sa.update(RUNS.table).where(runs.uid == row.uid)
                                   .values(ended))  # fmt: skip
            for table in (STATE, MEASUREMENTS):
                for row in local.execute(sa.select(table.table)):
                    fields = table.fields(row)
                    table.insert(connection, {**fields, "run_id": ids[row.run_id]}, "replace")
        if all_of_it:
            self._run_ids.update(ids)
            self._task_ids.update(merge.task_ids)
        return merge.counts().trials

    def _deliver_earlier(self, folder: Path, digest: str) -> None:
        """What processes of this machine that are gone had for this server."""
        for path in sorted(folder.glob(f"{digest}-*.db")):
            # What is damaged, or still in use, is left as it is; nothing of it may end this run.
            with contextlib.suppress(UserError, sa.exc.SQLAlchemyError, OSError):
                with Database.open(path, create=False) as file:
                    if any(owner.is_alive(run.owner) for run in file.runs()):
                        continue
                    for run in file.runs():
                        if run.status is RunStatus.RUNNING:
                            file.finish_run(run.id, RunStatus.INTERRUPTED)
                    added = self._deliver(file, all_of_it=False)
                for ending in ("", "-wal", "-shm"):
                    path.with_name(path.name + ending).unlink(missing_ok=True)
                if added:
                    self._tell(
                        f"database {self.place}: {plural(added, 'trial')} of an earlier run, which "
                        "the server had not taken, were delivered"
                    )

    def _new_id(self) -> int:
        self._provisional += 1
        return self._provisional

    def _has(self, table: StoredTable, row_id: int) -> bool:
        return bool(self._file.connection.query(sa.select(table.c.id).where(table.c.id == row_id)))

    # Runs

    def begin_run(self, run: RunRecord) -> int:
        fields = self._begun(run)

        def begin() -> int:
            with self.connection.transaction() as connection:
                return RUNS.insert(connection, fields) or 0

        run_id = self._ask(begin, 0) or self._new_id()
        with self._file.connection.transaction() as connection:
            RUNS.insert(connection, {**fields, "id": run_id})
        return run_id

    def last_run(
        self, program_digest: str, targets: Collection[str], compiler: str
    ) -> RunRecord | None:
        ask = super().last_run
        return self._ask(lambda: ask(program_digest, targets, compiler), None)

    def resume_run(self, run_id: int) -> RunRecord:
        run = super().resume_run(run_id)
        trials = super().trial_records(run_id)
        with self.connection.snapshot() as there, self._file.connection.transaction() as here:
            wanted = {
                RUNS: RUNS.c.id == run_id,
                TASKS: TASKS.c.id.in_({one.task_id for one in trials}),
                TRIALS: TRIALS.c.run_id == run_id,
                STATE: STATE.c.run_id == run_id,
                MEASUREMENTS: MEASUREMENTS.c.run_id == run_id,
            }
            for table, condition in wanted.items():
                for row in there.execute(sa.select(table.table).where(condition)):
                    own = {"id": row.id} if table in (RUNS, TASKS) else {}
                    table.insert(here, {**table.fields(row), **own}, "keep")
        return run

    def finish_run(self, run_id: int, status: RunStatus = RunStatus.FINISHED) -> None:
        self._file.finish_run(run_id, status)
        there = self._run_ids.get(run_id, run_id)
        self._ask(lambda: super(SteadyDatabase, self).finish_run(there, status), None)

    def put_machine(self, digest: str, measured_on: Mapping[str, Json]) -> None:
        self._file.put_machine(digest, measured_on)
        self._ask(lambda: super(SteadyDatabase, self).put_machine(digest, measured_on), None)

    def run(self, run_id: int) -> RunRecord:
        if self._has(RUNS, run_id):
            return self._file.run(run_id)
        return super().run(run_id)

    # Tasks and trials

    def task_id(self, key: TaskKey, default_s: float | None = None, space: Json = None) -> int:
        there = self._ask(lambda: super(SteadyDatabase, self).task_id(key, default_s, space), 0)
        with self._file.connection.transaction() as connection:
            here, _ = rows.find_or_add_task(connection, key, there or self._new_id())
            rows.tell_task(connection, here, default_s, space)
        if there and there != here:
            self._task_ids[here] = there
        return here

    def task(self, task_id: int) -> TaskRecord:
        if self._has(TASKS, task_id):
            return self._file.task(task_id)
        return super().task(task_id)

    def similar_tasks(self, key: TaskKey) -> list[TaskRecord]:
        return self._ask(lambda: super(SteadyDatabase, self).similar_tasks(key), [])

    def record_trials(self, run_id: int, task_id: int, trials: Iterable[Trial]) -> int:
        trials = list(trials)
        stored = self._file.record_trials(run_id, task_id, trials)
        there = self._run_ids.get(run_id, run_id), self._task_ids.get(task_id, task_id)
        self._ask(lambda: super(SteadyDatabase, self).record_trials(*there, trials), 0)
        return stored

    def trial_records(
        self, run_id: int | None = None, task_id: int | None = None
    ) -> list[TrialRecord]:
        if run_id is not None and self._has(RUNS, run_id):
            return self._file.trial_records(run_id, task_id)
        there = None if task_id is None else self._task_ids.get(task_id, task_id)
        return self._ask(lambda: super(SteadyDatabase, self).trial_records(run_id, there), [])

    def count_trials(self, run_id: int) -> int:
        if self._has(RUNS, run_id):
            return self._file.count_trials(run_id)
        return super().count_trials(run_id)

    # Results, measurements and checkpoints

    def record_result(self, task_id: int, result: TaskResult, run_id: int | None = None) -> None:
        self._file.record_result(task_id, result, run_id)
        task, run = self._task_ids.get(task_id, task_id), run_id
        if run_id is not None:
            run = self._run_ids.get(run_id, run_id)
        self._ask(lambda: super(SteadyDatabase, self).record_result(task, result, run), None)

    def _results(self, *conditions: sa.ColumnElement[bool]) -> list[KnownResult]:
        return self._ask(lambda: super(SteadyDatabase, self)._results(*conditions), [])

    def record_measurement(self, run_id: int, kind: str, name: str, data: Json) -> None:
        self._file.record_measurement(run_id, kind, name, data)
        there = self._run_ids.get(run_id, run_id)
        self._ask(
            lambda: super(SteadyDatabase, self).record_measurement(there, kind, name, data), None
        )

    def measurements(self, run_id: int, kind: str | None = None) -> list[ProgramMeasurement]:
        if self._has(RUNS, run_id):
            return self._file.measurements(run_id, kind)
        return self._ask(lambda: super(SteadyDatabase, self).measurements(run_id, kind), [])

    def put_state(self, run_id: int, key: str, value: Json) -> None:
        self._file.put_state(run_id, key, value)
        there = self._run_ids.get(run_id, run_id)
        self._ask(lambda: super(SteadyDatabase, self).put_state(there, key, value), None)

    def get_state(self, run_id: int, key: str) -> Json:
        if self._has(RUNS, run_id):
            return self._file.get_state(run_id, key)
        return self._ask(lambda: super(SteadyDatabase, self).get_state(run_id, key), None)

    def states(self, prefix: str) -> list[tuple[int, Json]]:
        found: list[tuple[int, Json]] = self._ask(
            lambda: super(SteadyDatabase, self).states(prefix), []
        )
        return found
