"""A database on a PostgreSQL server, which many machines can use at once.

Transactions read what others have committed (READ COMMITTED). Two that write the same row take
turns: what must not be done by both at once locks the row of its run first.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from tilewright.database_address import ServerAddress
from tilewright.errors import UserError
from tilewright.store.connection import BUSY_TIMEOUT_S, LOOSE_ROWS, Connection

_EXTRA = "pip install 'tilewright[postgresql]'"
# Seconds that a server may take to answer to a new connection.
_CONNECT_S = 5
# What a driver says can be long, and in several lines.
_LONGEST = 240


class ServerGoneError(UserError):
    """The server does not answer (any more); what is asked of it later may be answered again."""


class ServerConnection(Connection):
    """Connections to a server, as many as there are threads that need one at once."""

    def __init__(
        self, place: ServerAddress, create: bool, busy_timeout_s: float = BUSY_TIMEOUT_S
    ) -> None:
        """Connect, make or migrate the tables.

        Args:
            place: the server's address with the name of the database, which has to be there.
            create: make the tables where there are none.
            busy_timeout_s: seconds to wait for the transactions of others.

        Raises:
            UserError: what is wrong with the address, the server or the tables.
        """
        self._busy_timeout_s = busy_timeout_s
        # Seconds that a transaction may take; None: as long as it takes.
        self.limit_s: float | None = None
        try:
            engine = sa.create_engine(
                place.url,
                connect_args={
                    "connect_timeout": _CONNECT_S,
                    "application_name": "tilewright",
                    # A machine that is gone without a word is noticed within a minute.
                    "keepalives_idle": 15,
                    "keepalives_interval": 5,
                    "keepalives_count": 3,
                    "tcp_user_timeout": 30_000,
                },
                hide_parameters=True,
                pool_use_lifo=True,
            )
        except ImportError as error:
            raise UserError(
                f"database {place}: the driver for PostgreSQL is not installed; {_EXTRA}"
            ) from error
        except sa.exc.ArgumentError as error:
            raise UserError(f"database {place}: the server's URL cannot be read") from error
        super().__init__(place, engine)
        sa.event.listen(engine, "connect", self._set_up)
        try:
            self._prepare(create)
        except BaseException:
            self.close()
            raise

    def _set_up(self, driver: Any, _record: object) -> None:
        milliseconds = max(1, round(1000 * self._busy_timeout_s))
        with driver.cursor() as cursor:
            cursor.execute(f"SET lock_timeout = {milliseconds}")
            # As in a file: what is committed outlives this process at once, the server's machine a
            # moment later. A run's last transaction waits for the server's disk, and so for all
            # that were before it.
            cursor.execute("SET synchronous_commit = off")
            # A tuner that hangs between two statements must not hold up all others for ever.
            cursor.execute("SET idle_in_transaction_session_timeout = 300000")
        driver.commit()

    def _prepare(self, create: bool) -> None:
        # Nothing is written before the tables are known to be ours and of a version we know.
        with self.snapshot() as connection:
            version = self.check_version(connection)
        if version == 0 and not create:
            raise UserError(
                f"database {self.place}: there are no tilewright tables in it; name another with "
                "--db"
            )
        self.bring_up_to_date()

    @contextlib.contextmanager
    def transaction(self, lasting: bool = False) -> Iterator[sa.Connection]:
        with self.translated(), self.engine.begin() as connection, self._watched(connection):
            if lasting:
                connection.exec_driver_sql("SET LOCAL synchronous_commit = on")
            yield connection

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sa.Connection]:
        level = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        with self.translated(), self.engine.connect() as connection, self._watched(connection):
            yield connection.execution_options(**level)

    @contextlib.contextmanager
    def _watched(self, connection: sa.Connection) -> Iterator[None]:
        """The way to a server that has stopped answering is cut off: libpq would wait for ever."""
        if self.limit_s is None:
            yield
            return
        number = os.dup(connection.connection.driver_connection.fileno())  # type: ignore[union-attr]
        way = socket.socket(fileno=number)
        timer = threading.Timer(self.limit_s, way.shutdown, [socket.SHUT_RDWR])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            way.close()

    def explain(self, error: sa.exc.DBAPIError) -> UserError | None:
        state = getattr(error.orig, "sqlstate", None)
        said = self._hidden(error.orig)
        for codes, words in _EXPLANATIONS:
            if state is not None and state.startswith(codes):
                return UserError(f"database {self.place}: {words} (PostgreSQL: {said})")
        lost = error.connection_invalidated or isinstance(error, sa.exc.OperationalError)
        if lost and (state is None or state.startswith(_GONE)):
            return ServerGoneError(
                f"database {self.place}: no connection to the server; see that it runs, can be "
                "reached from here and takes this user, or name another with --db "
                f"(PostgreSQL: {said})"
            )
        return None

    def _hidden(self, error: BaseException | None) -> str:
        """What the driver says, in one line, without the password."""
        text = " ".join(str(error).split())
        assert isinstance(self.place, ServerAddress)
        for secret in self.place.secrets:
            text = text.replace(secret, "***")
        return text if len(text) <= _LONGEST else text[:_LONGEST] + " …"

    def compact(self) -> None:
        with self.translated(), self.engine.connect() as connection:
            alone = connection.execution_options(isolation_level="AUTOCOMMIT")
            alone.exec_driver_sql("VACUUM")

    def damage(self) -> list[str]:
        return []  # the server checks its pages itself, and its constraints always hold


# Beginnings of SQLSTATE (https://www.postgresql.org/docs/current/errcodes-appendix.html).
_GONE = ("08", "57P", "25P03")
_EXPLANATIONS = (
    (("28",), "the server refuses the user or the password; see the URL, ~/.pgpass or PGPASSWORD"),
    (("3D000",), "there is no such database on the server; make it (createdb), or name another"),
    (("42501", "25006"), "no permission to write; ask for it, or name another with --db"),
    (("53100", "53200"), "the server's disk or memory is full; what was stored is safe: make room, "
     "then go on with --resume"),
    (("53300", "53400"), "the server has no connection left; end others, or raise max_connections"),
    (("55P03", "40P01", "40001"), "another process keeps it locked; wait for it or end it, then "
     "try again"),
    (("42P01", "3F000"), "tables of it are gone; import an export (tilewright db import)"),
    (("23503",), LOOSE_ROWS),
    (("XX001", "XX002"), "the server's data are damaged; restore a backup, or import an export"),
)  # fmt: skip
