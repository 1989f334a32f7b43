"""A database in a file of SQLite.

Durability: the journal is a write-ahead log (WAL) with `synchronous = NORMAL`. A commit has then
handed its pages to the operating system, which keeps them whatever becomes of the process, so
`kill -9` loses nothing that was committed. A power cut may lose the last commits but never the
database: the log is synced before its pages go into the main file (https://sqlite.org/wal.html).
That is worth not syncing the disk once for each trial.

Several processes may share the file on a local disk. WAL needs shared memory, so a file on a
network file system must not be used from several machines at once: that is what a server is for.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa

from tilewright.errors import UserError
from tilewright.store.connection import BUSY_TIMEOUT_S, LOOSE_ROWS, Connection


class FileConnection(Connection):
    """One connection to a file, which the threads of a process take in turns."""

    def __init__(self, path: Path, create: bool, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        """Open the file, make or migrate its tables.

        Args:
            path: the file.
            create: make it where there is none.
            busy_timeout_s: seconds to wait for other processes.

        Raises:
            UserError: what is wrong with the file.
        """
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

        def connect() -> sqlite3.Connection:
            return sqlite3.connect(
                path.absolute(),  # so that no name, such as `:memory:`, is special
                timeout=busy_timeout_s,
                isolation_level=None,  # transactions are ours to begin
                check_same_thread=False,
            )

        engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.StaticPool)
        super().__init__(path, engine)
        self._lock = threading.RLock()
        self._begin = ""
        sa.event.listen(engine, "begin", self._begun)
        with self.translated():
            self._connection = engine.connect()
        driver = self._connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        self.driver = driver
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _begun(self, connection: sa.Connection) -> None:
        if self._begin:
            connection.exec_driver_sql(self._begin)

    def _prepare(self) -> None:
        # Nothing is written to a file before it is known to be ours and of a version we know.
        # One snapshot: another process may be making the tables just now.
        with self.snapshot() as connection:
            self.check_version(connection)
        with self._lock, self._explained():
            self._use_wal()
            self.driver.execute("PRAGMA synchronous = NORMAL")
            self.driver.execute("PRAGMA foreign_keys = ON")
        self.bring_up_to_date()

    def _use_wal(self) -> None:
        # Switching the journal needs the file alone and does not wait for the busy timeout.
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        while self.driver.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            try:
                self.driver.execute("PRAGMA journal_mode = WAL")
                return  # where WAL cannot be had SQLite keeps its rollback journal: safe, slower
            except sqlite3.OperationalError as error:
                if not _is(error, sqlite3.SQLITE_BUSY) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    @contextlib.contextmanager
    def transaction(self, lasting: bool = False) -> Iterator[sa.Connection]:
        """All or nothing: committed when the block ends, rolled back when it raises.

        Takes the write lock at once (BEGIN IMMEDIATE): a transaction that reads first and writes
        later could not wait for another writer and would fail.
        """
        with self._begun_as("BEGIN IMMEDIATE") as connection:
            yield connection
            connection.commit()

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sa.Connection]:
        with self._begun_as("BEGIN DEFERRED") as connection:
            yield connection

    @contextlib.contextmanager
    def _begun_as(self, begin: str) -> Iterator[sa.Connection]:
        with self._lock, self.translated():
            # A signal's exception can come before the block below is entered and leave one open.
            self._roll_back()
            self._begin = begin
            try:
                self._connection.begin()
                yield self._connection
            finally:
                self._roll_back()

    def _roll_back(self) -> None:
        with contextlib.suppress(sa.exc.DBAPIError):
            self._connection.rollback()
        if self.driver.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self.driver.execute("ROLLBACK")

    def explain(self, error: sa.exc.DBAPIError) -> UserError | None:
        assert error.orig is not None
        return self._words(error.orig)

    def _words(self, error: BaseException) -> UserError | None:
        for code, words in _EXPLANATIONS.items():
            if _is(error, code):
                return UserError(f"database {self.place}: {words} (SQLite: {error})")
        # Without a code: Python's own, and names in the file's schema that are not what we wrote.
        told = str(error)
        return self.damaged(error) if any(part in told for part in _DAMAGE) else None

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """As :meth:`translated`, of the driver's own errors."""
        try:
            yield
        except UnicodeDecodeError as error:
            raise self.damaged(error) from error
        except sqlite3.Error as error:
            found = self._words(error)
            if found is None:
                raise
            raise found from error

    def compact(self) -> None:
        with self._lock, self._explained():
            self.driver.execute("VACUUM")
            self.driver.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def damage(self) -> list[str]:
        with self._lock, self._explained():
            pages = self.driver.execute("PRAGMA integrity_check").fetchall()
            strays = self.driver.execute("PRAGMA foreign_key_check").fetchall()
        found = [str(row[0]) for row in pages if row[0] != "ok"]
        return found + [f"{row[0]}: row {row[1]} refers to no row of {row[2]}" for row in strays]

    def close(self) -> None:
        with self._lock:
            with contextlib.suppress(sa.exc.DBAPIError):
                self._connection.close()
            super().close()
            self.driver.close()


_DAMAGE = ("decode to UTF-8", "no such column", "no such table", "has no column named")


def _is(error: BaseException, code: int) -> bool:
    """Whether the error has this result code: the whole one, or the primary one in its low byte."""
    found: int = getattr(error, "sqlite_errorcode", 0)
    return code in (found, found & 0xFF)


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
    sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY: LOOSE_ROWS,
    sqlite3.SQLITE_BUSY: "another process keeps it locked; wait for it or end it, then try again",
    sqlite3.SQLITE_LOCKED: "another process keeps it locked; wait for it or end it, then try again",
}
