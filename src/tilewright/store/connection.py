"""One SQLite connection: opening it, transactions, and SQLite's errors in the user's words.

Durability: the journal is a write-ahead log (WAL) with `synchronous = NORMAL`. A commit has then
handed its pages to the operating system, which keeps them whatever becomes of the process, so
`kill -9` loses nothing that was committed. A power cut may lose the last commits but never the
database: the log is synced before its pages go into the main file (https://sqlite.org/wal.html).
That is worth not syncing the disk once for each trial.

Several processes may share the file on a local disk. WAL needs shared memory, so a file on a
network file system must not be used from several machines at once.

The schema: each migration takes the database from version i to i + 1; a new database goes through
all of them, so there is one way to make each table. A migration that has been released is never
edited: a change of the schema is a new one at the end. The version is SQLite's `user_version`; its
`application_id` tells a tilewright database from those of other programs.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tilewright.errors import UserError
from tilewright.files import user_folder_file


def default_path(environment: Mapping[str, str] | None = None, platform: str | None = None) -> Path:
    """The database file: `$TILEWRIGHT_DB`, else `tilewright.db` in the user's data folder.

    Args:
        environment: instead of this process's.
        platform: instead of this one's, as `sys.platform` names it.
    """
    named = (os.environ if environment is None else environment).get("TILEWRIGHT_DB")
    if named:
        return Path(named).expanduser()
    return user_folder_file("data", "tilewright.db", environment, platform)


APPLICATION_ID = 0x74_6C_77_72  # "tlwr"

_VERSION_1 = (
    """
    CREATE TABLE runs (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        uid TEXT NOT NULL UNIQUE,
        created REAL NOT NULL,
        program TEXT NOT NULL,
        program_digest TEXT NOT NULL,
        target TEXT NOT NULL,
        compiler TEXT NOT NULL,
        options TEXT NOT NULL,
        options_digest TEXT NOT NULL,
        seed INTEGER NOT NULL,
        status TEXT NOT NULL,
        finished REAL,
        owner TEXT NOT NULL DEFAULT ''
    )
    """,
    "CREATE INDEX runs_to_resume ON runs (program_digest, target, compiler, options_digest)",
    """
    CREATE TABLE tasks (
        id INTEGER PRIMARY KEY,
        workload_key TEXT NOT NULL,
        target TEXT NOT NULL,
        compiler TEXT NOT NULL,
        flags TEXT NOT NULL,
        workload TEXT NOT NULL,
        name TEXT NOT NULL,
        default_s REAL,
        UNIQUE (workload_key, target, compiler, flags)
    )
    """,
    """
    CREATE TABLE trials (
        id INTEGER PRIMARY KEY,
        run_id INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        task_id INTEGER NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
        ordinal INTEGER NOT NULL,
        configuration TEXT NOT NULL,
        status TEXT NOT NULL,
        time_s REAL,
        samples TEXT NOT NULL,
        message TEXT NOT NULL,
        binary_digest TEXT NOT NULL,
        origin TEXT NOT NULL,
        phase_s TEXT NOT NULL,
        created REAL NOT NULL,
        UNIQUE (run_id, task_id, configuration)
    )
    """,
    "CREATE INDEX trials_in_order ON trials (run_id, ordinal)",
    "CREATE INDEX trials_of_task ON trials (task_id)",
    """
    CREATE TABLE results (
        task_id INTEGER PRIMARY KEY REFERENCES tasks (id) ON DELETE CASCADE,
        run_id INTEGER REFERENCES runs (id) ON DELETE SET NULL,
        configuration TEXT,
        default_s REAL NOT NULL,
        tuned_s REAL NOT NULL,
        speedup_low REAL NOT NULL,
        speedup_high REAL NOT NULL,
        verification TEXT NOT NULL,
        trials INTEGER NOT NULL,
        created REAL NOT NULL
    )
    """,
    "CREATE INDEX results_of_run ON results (run_id)",
    """
    CREATE TABLE measurements (
        run_id INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        data TEXT NOT NULL,
        created REAL NOT NULL,
        PRIMARY KEY (run_id, kind, name)
    )
    """,
    """
    CREATE TABLE state (
        run_id INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        key TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (run_id, key)
    )
    """,
)

# What a task's search space is made from, so that its trials can teach the search of another.
_VERSION_2 = ("ALTER TABLE tasks ADD COLUMN space TEXT",)

MIGRATIONS: list[tuple[str, ...]] = [_VERSION_1, _VERSION_2]


def version_of(connection: sqlite3.Connection) -> int:
    """The version of a database's schema; 0 for an empty file.

    Args:
        connection: to the file.
    """
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def is_foreign(connection: sqlite3.Connection) -> bool:
    """Whether the file is an SQLite database that another program made.

    Args:
        connection: to the file.
    """
    application = int(connection.execute("PRAGMA application_id").fetchone()[0])
    if application == APPLICATION_ID:
        return False
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return application != 0 or bool(tables)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the schema to this version. Call it inside a write transaction.

    The version is read again here: another process may have migrated while this one waited.

    Args:
        connection: in a write transaction.
    """
    for statements in MIGRATIONS[version_of(connection) :]:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


BUSY_TIMEOUT_S = 30.0
"""How long a transaction waits for those of other processes; each takes milliseconds."""


class Connection:
    """An open database. May be used from several threads; not across a fork."""

    def __init__(self, path: Path, create: bool, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        """Open the file, make or migrate its tables. UserError says what is wrong with it."""
        self.path = path
        self._lock = threading.RLock()
        if create:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(
                    f"database {path}: cannot make its directory ({error.strerror}); "
                    "name another file with --db or TILEWRIGHT_DB"
                ) from error
        elif not path.exists():
            raise UserError(f"database {path}: there is no such file; name one with --db")
        with self._translated():
            self.sqlite = sqlite3.connect(
                path.absolute(),  # so that no name, such as `:memory:`, is special
                timeout=busy_timeout_s,
                isolation_level=None,  # transactions are ours to begin
                check_same_thread=False,
            )
        self.sqlite.row_factory = sqlite3.Row
        try:
            with self._translated():
                self._prepare()
        except BaseException:
            self.sqlite.close()
            raise

    def _prepare(self) -> None:
        # Nothing is written to a file before it is known to be ours and of a version we know.
        # One snapshot: another process may be making the tables just now.
        with self.snapshot() as sqlite:
            foreign, version = is_foreign(sqlite), version_of(sqlite)
        if foreign:
            raise UserError(
                f"database {self.path}: this SQLite file belongs to another program; "
                "name another file with --db or TILEWRIGHT_DB"
            )
        known = len(MIGRATIONS)
        if version > known:
            raise UserError(
                f"database {self.path}: its version is {version}, this tilewright knows versions "
                f"up to {known}; update tilewright or name another file with --db"
            )
        self._use_wal()
        self.sqlite.execute("PRAGMA synchronous = NORMAL")
        self.sqlite.execute("PRAGMA foreign_keys = ON")
        with self.transaction() as sqlite:
            if version_of(sqlite) < known:
                migrate(sqlite)
            # Changes nothing, but a file that cannot be written fails here, not at the first trial.
            sqlite.execute("DELETE FROM state WHERE 0")

    def _use_wal(self) -> None:
        # Switching the journal needs the file alone and does not wait for the busy timeout.
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        while self.sqlite.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            try:
                self.sqlite.execute("PRAGMA journal_mode = WAL")
                return  # where WAL cannot be had SQLite keeps its rollback journal: safe, slower
            except sqlite3.OperationalError as error:
                if not _is(error, sqlite3.SQLITE_BUSY) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing: committed when the block ends, rolled back when it raises.

        Takes the write lock at once (BEGIN IMMEDIATE): a transaction that reads first and writes
        later could not wait for another writer and would fail.
        """
        with self._lock, self._translated():
            # A signal's exception can come before the block below is entered and leave one open.
            self._roll_back()
            try:
                self.sqlite.execute("BEGIN IMMEDIATE")
                yield self.sqlite
                self.sqlite.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Several reads of one and the same state; other processes go on writing meanwhile."""
        with self._lock, self._translated():
            self.sqlite.execute("BEGIN DEFERRED")
            try:
                yield self.sqlite
            finally:
                self._roll_back()

    def _roll_back(self) -> None:
        if self.sqlite.in_transaction:  # SQLite itself rolls back after some errors
            with contextlib.suppress(sqlite3.Error):
                self.sqlite.execute("ROLLBACK")

    def query(self, sql: str, parameters: tuple[object, ...] = ()) -> list[sqlite3.Row]:
        """All rows of one SELECT.

        Args:
            sql: the SELECT.
            parameters: of its question marks.

        Raises:
            UserError: the file or the disk is at fault.
        """
        with self._lock, self._translated():
            return self.sqlite.execute(sql, parameters).fetchall()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self.sqlite.close()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            message = _explain(error)
            if message is None:
                raise
            raise UserError(f"database {self.path}: {message}") from error


def _is(error: sqlite3.Error, code: int) -> bool:
    """Whether the error has this primary result code (the low byte of the extended one)."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == code


_EXPLANATIONS = {
    sqlite3.SQLITE_FULL: "the disk is full; what was stored is safe: free some space, then go on "
    "with --resume",
    sqlite3.SQLITE_READONLY: "no permission to write; name another file with --db or TILEWRIGHT_DB",
    sqlite3.SQLITE_PERM: "no permission to write; name another file with --db or TILEWRIGHT_DB",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened or made; name a file in a directory that "
    "you can write to with --db or TILEWRIGHT_DB",
    sqlite3.SQLITE_NOTADB: "the file is not a database; name another with --db or TILEWRIGHT_DB",
    sqlite3.SQLITE_CORRUPT: "the file is damaged; move it away, or import an export of it into a "
    "new one (tilewright db import)",
    sqlite3.SQLITE_IOERR: "reading or writing failed; check the disk, then go on with --resume",
    sqlite3.SQLITE_BUSY: "another process keeps it locked; wait for it or end it, then try again",
    sqlite3.SQLITE_LOCKED: "another process keeps it locked; wait for it or end it, then try again",
}


def _explain(error: sqlite3.Error) -> str | None:
    """The user's words for an error that is in the file or the disk; None for a fault of ours."""
    for code, words in _EXPLANATIONS.items():
        if _is(error, code):
            return f"{words} (SQLite: {error})"
    return None
