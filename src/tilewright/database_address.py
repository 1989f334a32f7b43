"""Where a database is: a file of SQLite, or a PostgreSQL server by its URL.

A URL can hold a password. It is never shown: what is printed, logged, stored or written into a
result is `str()` of the address, which has no password in it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from tilewright.errors import UserError
from tilewright.files import user_folder_file

VARIABLE = "TILEWRIGHT_DB"
_DIALECTS = ("postgresql+psycopg", "postgresql", "postgres")
_FORMS = "a FILE, or postgresql+psycopg://USER@HOST/DATABASE"


@dataclass(frozen=True)
class ServerAddress:
    """A PostgreSQL database by its URL, as SQLAlchemy reads it. Its text has no password.

    Args:
        url: with the password, if it has one.
    """

    url: str = field(repr=False)
    shown: str = ""

    def __str__(self) -> str:
        return self.shown

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be shown, as it stands in the URL and as it is meant."""
        parts = urlsplit(self.url)
        given = [parts.password or ""]
        given += [one for name in ("password", "sslpassword") for one in _query(self.url, name)]
        both = {text for one in given for text in (one, unquote(one))}
        return tuple(sorted((one for one in both if one), key=len, reverse=True))


def _query(url: str, name: str) -> list[str]:
    return parse_qs(urlsplit(url).query, keep_blank_values=True).get(name, [])


def read_database(
    value: str | os.PathLike[str] | ServerAddress, option: str = "--db"
) -> Path | ServerAddress:
    """The address of a database as users give it.

    Args:
        value: a file (`~` is the home directory), `sqlite:///FILE`, or the URL of a server.
        option: where it was given, for the message.

    Raises:
        UserError: it is a URL of another kind, or lacks the name of a database. The message does
            not repeat it: it may hold a password.
    """
    if isinstance(value, ServerAddress):
        return value
    text = os.fspath(value)
    if "\0" in text:
        raise UserError(f"{option}: the name has a NUL character in it; give {_FORMS}")
    # A path, made of a URL by those that read options as paths, has one slash less.
    kind, colon, rest = text.partition(":/")
    if not colon or isinstance(value, Path) or not rest.startswith("/"):
        return Path(os.path.expanduser(text))
    if kind == "sqlite":
        name = rest.removeprefix("/").removeprefix("/")
        if not name:
            raise UserError(f"{option}: 'sqlite:///' lacks the name of a file; give {_FORMS}")
        return Path(os.path.expanduser(name))
    if kind not in _DIALECTS:
        raise UserError(f"{option}: '{kind}://' is no kind of database; give {_FORMS}")
    url = f"{_DIALECTS[0]}:/{rest}"
    try:
        parts = urlsplit(url)
        where = parts.hostname or (_query(url, "host") or [""])[0] or "localhost"
        port = parts.port
    except ValueError as error:
        raise UserError(
            f"{option}: the server's URL has an impossible host or port; give {_FORMS}"
        ) from error
    database = unquote(parts.path.removeprefix("/"))
    if parts.netloc.count("@") > 1 or "/" in database or parts.fragment:
        raise UserError(
            f"{option}: the server's URL has '@', '/' or '#' within a name or a password; write "
            "them as %40, %2F and %23"
        )
    if not database:
        raise UserError(f"{option}: the server's URL lacks the name of a database; give {_FORMS}")
    user = f"{unquote(parts.username)}@" if parts.username else ""
    where = f"[{where}]" if ":" in where else "" if where.startswith("/") else where
    at = f"{where}:{port}" if port else where
    return ServerAddress(url, f"{_DIALECTS[0]}://{user}{at}/{database}")


def without_password(text: str) -> str:
    """An argument of a command line as it may be shown: a server's URL has no password in it.

    Args:
        text: any argument, such as a URL or `--db=URL`.
    """
    for kind in _DIALECTS:
        at = text.find(f"{kind}://")
        if at >= 0:
            try:
                return f"{text[:at]}{read_database(text[at:])}"
            except UserError:
                return f"{text[:at]}{kind}://…"
    return text


def default_database(
    environment: Mapping[str, str] | None = None, platform: str | None = None
) -> Path | ServerAddress:
    """The database: `$TILEWRIGHT_DB`, else `tilewright.db` in the user's data folder.

    Args:
        environment: instead of this process's.
        platform: instead of this one's, as `sys.platform` names it.

    Raises:
        UserError: the variable has a URL that is none of a database.
    """
    named = (os.environ if environment is None else environment).get(VARIABLE)
    if named:
        return read_database(named, VARIABLE)
    return user_folder_file("data", "tilewright.db", environment, platform)
