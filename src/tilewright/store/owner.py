"""Which process a run belongs to, so that a run that is still going is not resumed by another."""

from __future__ import annotations

import functools
import os
import socket

import psutil

# A process's start is told by the clock, which may be set a little in between.
_CLOCK_S = 2.0


def this_process() -> str:
    """A token for the calling process.

    Returns:
        `HOST/PID/START`, with the start in seconds since 1970.
    """
    return _token(os.getpid())


@functools.cache
def _token(pid: int) -> str:
    return f"{socket.gethostname()}/{pid}/{psutil.Process(pid).create_time():.2f}"


def pid_of(token: str) -> str:
    """The process id within a token, for messages.

    Args:
        token: what `this_process` gave.
    """
    return token.split("/")[1] if token.count("/") == 2 else "?"


def host_of(token: str) -> str:
    """The machine of a token, for messages.

    Args:
        token: what `this_process` gave.
    """
    return token.split("/")[0]


def is_elsewhere(token: str) -> bool:
    """Whether the process of a token is one of another machine, of which nothing can be known.

    Args:
        token: what `this_process` gave; anything else is no process.
    """
    return token.count("/") == 2 and token.split("/")[0] != socket.gethostname()


def is_alive(token: str) -> bool:
    """Whether the process of a token still runs on this machine.

    The start time tells a process from a later one that got the same id. A zombie is dead: a killed
    process whose parent has not yet asked for its status. Of a process on another machine nothing
    can be known, so it counts as dead (the user who says `--resume` knows better).

    Args:
        token: what `this_process` gave; anything else is no process.
    """
    try:
        host, pid, start = token.split("/")
        if host != socket.gethostname():
            return False
        process = psutil.Process(int(pid))
        same = abs(process.create_time() - float(start)) < _CLOCK_S
        return same and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except (ValueError, psutil.Error):
        return False
