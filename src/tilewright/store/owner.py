"""Which process a run belongs to, so that a run that is still going is not resumed by another."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from tilewright.process_state import process_state


def this_process() -> str:
    """A token for the calling process: `HOST/PID/START`."""
    return f"{socket.gethostname()}/{os.getpid()}/{_start_time(os.getpid()) or ''}"


def pid_of(token: str) -> str:
    """The process id within a token, for messages."""
    return token.split("/")[1] if token.count("/") == 2 else "?"


def is_alive(token: str) -> bool:
    """Whether the process of the token still runs on this machine.

    The start time tells a process from a later one that got the same id; it is known on Linux
    only. A zombie is dead: a killed process whose parent has not yet asked for its status. Of a
    process on another machine nothing can be known, so it counts as dead (the user who says
    `--resume` knows better).
    """
    if token.count("/") != 2 or os.name != "posix":
        return False
    host, pid, start = token.split("/")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it exists and is someone else's
    now = _start_time(int(pid))
    if now is None:  # a zombie, gone since, or no /proc here
        return not Path("/proc/self/stat").exists()
    return now == start


def _start_time(pid: int) -> str | None:
    """When the process started, in ticks since boot; None for a zombie or without proc(5)."""
    state = process_state(pid)
    return None if state is None or state.letter in "ZX" else state.started
