"""One measurement at a time on a device of this machine, whoever takes it.

A lock of the system's kernel (flock) for each device: it is free the moment its holder ends, in
whatever way. A processor is measured alone (exclusively), and compiled on by many (shared) for a
cluster. Who waits holds a second lock, the gate, so that those who let go and want it again at once
stand behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

#: Names another folder for the locks.
LOCKS_VARIABLE = "TILEWRIGHT_LOCKS"
# A folder that all users of the machine share, whatever their TMPDIR is.
_FOLDERS = (Path("/run/lock"), Path("/tmp"))
_POLL_S = 0.002
_PATIENCE_S = 60.0
# When its holder was waited for in vain, it is most likely stopped for good.
_LATER_S = 2.0


def device_name(uri: str) -> str:
    """What a device is locked by: all ways to use the processor are one, as are `cuda`, `cuda://0`.

    Args:
        uri: of the runtime's device.
    """
    driver, _, place = uri.partition("://")
    if driver.startswith("local-"):
        return "cpu"
    safe = "".join(c if c.isalnum() or c in "-." else "_" for c in place)
    return f"{driver}-{safe or '0'}"


class DeviceLock:
    """The lock of a device. Waits for a minute at most: a holder that was stopped must not stop
    everybody, and a measurement beside another is better than none.

    uri: of the runtime's device.
    """

    def __init__(self, uri: str, folder: Path | None = None) -> None:
        place = folder or _folder()
        name = device_name(uri)
        self._paths = place / f"tilewright-{name}.gate", place / f"tilewright-{name}.lock"
        self._patience_s = _PATIENCE_S

    @contextlib.contextmanager
    def held(self, *, shared: bool = False, patience_s: float | None = None) -> Iterator[bool]:
        """Have the device for the length of a `with`.

        Args:
            shared: with others that share it.
            patience_s: seconds to wait at most.

        Yields:
            Whether it is had alone (or shared); where locks cannot be made, or a holder does not
            let go, it is not.
        """
        end = time.monotonic() + (self._patience_s if patience_s is None else patience_s)
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        gate, lock = (_opened(path) for path in self._paths)
        try:
            had = gate is not None and lock is not None
            had = had and _locked(gate, fcntl.LOCK_EX, end) and _locked(lock, kind, end)
            if gate is not None:
                os.close(gate)
                gate = None
            self._patience_s = _PATIENCE_S if had else _LATER_S
            yield had
        finally:
            for handle in (gate, lock):
                if handle is not None:
                    os.close(handle)


def _folder() -> Path:
    given = os.environ.get(LOCKS_VARIABLE)
    if given:
        return Path(given)
    return next((f for f in _FOLDERS if os.access(f, os.W_OK)), Path(tempfile.gettempdir()))


def _opened(path: Path) -> int | None:
    """A lock's file, which may be another user's: reading is enough."""
    for flags in (os.O_RDONLY, os.O_RDONLY | os.O_CREAT):
        with contextlib.suppress(OSError):
            return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    return None


def _locked(handle: int | None, kind: int, end: float) -> bool:
    assert handle is not None
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(_POLL_S)
        except OSError:
            return False
