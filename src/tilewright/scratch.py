"""Temporary folders that a killed process does not leave behind for good.

Each is locked by the process that made it, for as long as that lives; whoever makes one later
removes those whose lock is free. (A process number would not do: another may have it by then, and
containers that share a folder do not see each other's.)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "tilewright-"
_LOCK = ".lock"
# A folder is locked right after it is made; until then it looks abandoned.
_YOUNG_S = 60.0

_held: dict[Path, int] = {}


def create() -> Path:
    """A new folder under the system's own for temporary files; `remove` it in the end."""
    path = Path(tempfile.mkdtemp(prefix=PREFIX))
    lock = os.open(path / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    _held[path] = lock
    _sweep(path.parent)
    return path


def remove(path: Path) -> None:
    """Remove a folder made by `create`, with all that is in it; what cannot be removed stays.

    Args:
        path: of the folder.
    """
    shutil.rmtree(path, ignore_errors=True)
    lock = _held.pop(path, None)
    if lock is not None:
        os.close(lock)


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder for the length of a `with`."""
    path = create()
    try:
        yield path
    finally:
        remove(path)


def _sweep(parent: Path) -> None:
    """Remove the folders of processes that are gone."""
    now = time.time()
    for lock in parent.glob(f"{PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError):
            if now - lock.stat().st_mtime < _YOUNG_S:
                continue
            handle = os.open(lock, os.O_RDWR)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(handle)
