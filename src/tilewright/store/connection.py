"""A connection to a database, whichever it is: transactions, and its errors in the user's words."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tilewright.database_address import ServerAddress
from tilewright.errors import UserError
from tilewright.store import schema

BUSY_TIMEOUT_S = 30.0
"""How long a transaction waits for those of other processes; each takes milliseconds."""

# Of what is stored for a run or a task that is not there.
LOOSE_ROWS = (
    "what is stored belongs to a run or a task that is not there: another process deleted it "
    "(tilewright db prune, gc), or the database is damaged (tilewright db verify); run it again"
)


class Connection(abc.ABC):
    """An open database. May be used from several threads; not across a fork."""

    def __init__(self, place: Path | ServerAddress, engine: sa.Engine) -> None:
        """Of :meth:`open`.

        Args:
            place: of the database, for messages.
            engine: that connects to it.
        """
        self.place = place
        self.engine = engine

    @abc.abstractmethod
    def transaction(
        self, lasting: bool = False
    ) -> contextlib.AbstractContextManager[sa.Connection]:
        """All or nothing: committed when the block ends, rolled back when it raises.

        Args:
            lasting: on a server, wait until it is on the disk, with all that was stored before.
        """

    @abc.abstractmethod
    def snapshot(self) -> contextlib.AbstractContextManager[sa.Connection]:
        """Several reads of one and the same state; other processes go on writing meanwhile."""

    @abc.abstractmethod
    def explain(self, error: sa.exc.DBAPIError) -> UserError | None:
        """The user's words for an error that is in the database or the way to it.

        Args:
            error: of SQLAlchemy, with the driver's behind it.

        Returns:
            None for a fault of ours.
        """

    @abc.abstractmethod
    def compact(self) -> None:
        """Give back space that deleted rows left. Raises UserError while others use the file."""

    @abc.abstractmethod
    def damage(self) -> list[str]:
        """What the database itself says is wrong with it; nothing where it is whole."""

    def query(self, statement: sa.Executable) -> Sequence[sa.Row[Any]]:
        """All rows of one SELECT.

        Args:
            statement: the SELECT.

        Raises:
            UserError: the database or the way to it is at fault.
        """
        with self.snapshot() as connection:
            return connection.execute(statement).all()

    def close(self) -> None:
        """Close the database."""
        self.engine.dispose()

    def check_version(self, connection: sa.Connection) -> int:
        """The version of the schema, where it is one of ours that is known.

        Args:
            connection: to the database.

        Raises:
            UserError: another program made the database, or a newer version of this one.
        """
        known = len(schema.MIGRATIONS)
        if schema.is_foreign(connection):
            kind = "SQLite file" if isinstance(self.place, Path) else "database"
            raise UserError(
                f"database {self.place}: this {kind} belongs to another program; "
                "name another with --db or TILEWRIGHT_DB"
            )
        version = schema.version_of(connection)
        if version > known:
            raise UserError(
                f"database {self.place}: its version is {version}, this tilewright knows versions "
                f"up to {known}; update tilewright or name another with --db"
            )
        return version

    def bring_up_to_date(self) -> None:
        """Make or migrate the tables, and see that they can be written to.

        Raises:
            UserError: they cannot be.
        """
        try:
            with self.transaction() as connection:
                if schema.version_of(connection) < len(schema.MIGRATIONS):
                    schema.migrate(connection)
                # Changes nothing, but what cannot be written to fails here, not at the first trial.
                connection.exec_driver_sql("DELETE FROM state WHERE 1 = 0")
        except sa.exc.IntegrityError as error:
            raise self.damaged(error.orig) from error.orig

    def damaged(self, why: BaseException | None) -> UserError:
        """What to say of a database with what nobody wrote.

        Args:
            why: what came of it.
        """
        return UserError(
            f"database {self.place}: it is damaged ({str(why)[:200]}); move it away, or import an "
            "export of it into a new one (tilewright db import)"
        )

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Errors of the database within are UserErrors."""
        try:
            yield
        except UnicodeDecodeError as error:
            raise self.damaged(error) from error
        except sa.exc.DBAPIError as error:
            found = self.explain(error)
            if found is None:
                raise
            # Not its cause: statements come with their parameters, and addresses with passwords.
            raise found from error.orig
