"""A PostgreSQL server of its own in a temporary folder, from the system's packages.

It listens on a Unix socket in that folder and nowhere else, and is gone at the end. Root may not
run the server, so where root starts it, it runs as the user `postgres` or `nobody`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

_USERS = ("postgres", "nobody")
_START_S = 60.0
NAME = "tilewright"


def find_programs() -> Path | str:
    """The folder with `initdb` and `postgres`, or why there is none to be used."""
    named = shutil.which("initdb")
    places = [Path(named).resolve().parent] if named else []
    # Debian keeps the programs of each version in a folder of its own.
    versions = Path("/usr/lib/postgresql").glob("*/bin")
    places += sorted(versions, key=lambda one: _number(one.parent.name), reverse=True)
    found = [one for one in places if (one / "initdb").is_file() and (one / "postgres").is_file()]
    if not found:
        return "PostgreSQL is not installed (Debian: apt-get install postgresql)"
    if os.name != "posix":
        return "the server is started on a Unix socket"
    if os.geteuid() == 0 and not _identity():
        return f"root may not run PostgreSQL, and there is no user {' or '.join(_USERS)}"
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        return f"the driver for PostgreSQL is not installed ({error})"
    return found[0]


def _number(version: str) -> float:
    try:
        return float(version)
    except ValueError:
        return 0.0


def _identity() -> dict[str, Any]:
    """Whom the server runs as, for `subprocess`; nothing where that is whoever asks."""
    if os.geteuid() != 0:
        return {}
    import pwd

    for name in _USERS:
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    return {}


class LocalServer:
    """A server in a folder; started and stopped, also in the middle of a run."""

    def __init__(self, programs: Path, folder: Path) -> None:
        """Make the server's files.

        Args:
            programs: folder with `initdb` and `postgres`.
            folder: empty, with a short path; a socket's name has at most 107 bytes.
        """
        self._programs = programs
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._identity = _identity()
        if self._identity:
            os.chown(folder, self._identity["user"], self._identity["group"])
        self._run("initdb", "-D", folder / "data", "-U", NAME, "-A", "trust", "-E", "UTF8",
                  "--locale=C", "--no-sync")  # fmt: skip

    def url(self, schema: str = "public", password: str = "") -> str:
        """The address of a schema on it: tables of its own, as a database has them.

        Args:
            schema: its name.
            password: any; the server takes everybody who reaches the socket.
        """
        secret = f":{quote(password, safe='')}" if password else ""
        where = f"host={self._folder}&options=-csearch_path%3D{schema}"
        return f"postgresql+psycopg://{NAME}{secret}@/postgres?{where}"

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            RuntimeError: it does not.
        """
        log = (self._folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self._folder / "data", "-k", self._folder,
                 "-c", "listen_addresses="],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                preexec_fn=_end_with_parent,
                **self._identity,
            )  # fmt: skip
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            if self._answers():
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        self.stop()
        raise RuntimeError(f"PostgreSQL: {(self._folder / 'log').read_text()[-500:]}")

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it.

        Args:
            how: SIGINT has it end its connections first; SIGQUIT is a crash.
        """
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def freeze(self, frozen: bool) -> None:
        """Stop all of its processes where they are, or let them go on.

        Args:
            frozen: which of both.
        """
        import psutil

        assert self._process is not None
        parent = psutil.Process(self._process.pid)
        for one in (parent, *parent.children(recursive=True)):
            one.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def make(self, schema: str) -> str:
        """Make an empty schema, which takes far less than a database.

        Args:
            schema: its name, of small letters.

        Returns:
            Its URL.
        """
        import psycopg

        with psycopg.connect(host=str(self._folder), user=NAME, dbname="postgres") as server:
            server.execute(f"CREATE SCHEMA {schema}".encode())
        return self.url(schema)

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(host=str(self._folder), user=NAME, dbname="postgres").close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, program: str, *arguments: object) -> None:
        done = subprocess.run(
            [self._programs / program, *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=self._folder,
            **self._identity,
        )
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stderr.strip()[-500:]}")


def _end_with_parent() -> None:
    """In the server's process: it ends when the one that started it is killed (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGINT)  # PR_SET_PDEATHSIG


@contextlib.contextmanager
def local_server(programs: Path) -> Iterator[LocalServer]:
    """A server that runs, and is gone at the end.

    Args:
        programs: what `find_programs` found.
    """
    folder = Path(tempfile.mkdtemp(prefix="tw-pg-", dir="/tmp"))
    try:
        server = LocalServer(programs, folder)
        server.start()
        try:
            yield server
        finally:
            # Nothing of it is kept: no need to have it write all of it out first.
            server.stop(signal.SIGQUIT)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
