"""The worker process: runs tasks one after another for a `pool.WorkerPool`.

Started as `python -m tilewright.measure.worker` in a session of its own. A task is a function
`task(state, request) -> reply` (`jobs.WorkerTask`); the state lives as long as the worker. The
first frame has the setup task, which fills the state.

The worker ends when the pool does, whatever way that happens: a thread watches a pipe that only
the pool holds open, and where the system has it the kernel kills the worker with its parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import pickle
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import traceback
from typing import Any

from tilewright.measure.jobs import WorkerState
from tilewright.measure.protocol import NUMBER_BYTES, FrameKind, FrameReader, frame

LOG_FD = 2
_PR_SET_PDEATHSIG = 1
_LOG_CHECK_MS = 1000
_LEAST_FILE = 1 << 30


def main() -> None:
    """Serve the pool that started this process, until it is gone."""
    channel_fd, lifeline_fd, parent, bound_to_thread, memory_limit, log_limit = map(
        int, sys.argv[1:]
    )
    # Tools that a task starts (the linker) must not hold the pool's connections open.
    for fd in (channel_fd, lifeline_fd):
        os.set_inheritable(fd, False)
    threading.Thread(
        target=_watch, args=(lifeline_fd, log_limit), name="watch", daemon=True
    ).start()
    if not bound_to_thread:
        _die_with_parent(parent)
    _limit_resources(memory_limit)
    faulthandler.enable()
    with socket.socket(fileno=channel_fd) as channel:
        _serve(channel)


def _watch(lifeline_fd: int, log_limit: int) -> None:
    """End this process and all it started when the pool is gone; keep the log within its limit."""
    poller = select.poll()
    poller.register(lifeline_fd, select.POLLIN | select.POLLHUP)
    while not poller.poll(_LOG_CHECK_MS):
        if os.fstat(LOG_FD).st_size > log_limit:
            os.ftruncate(LOG_FD, 0)
            os.write(LOG_FD, b"[earlier output was cut: too long]\n")
    os.killpg(os.getpid(), signal.SIGKILL)


def _die_with_parent(parent: int) -> None:
    """Linux: have the kernel kill this process when the thread that started it ends.

    Covers a task that hangs while it holds Python's lock, where the watching thread cannot run.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _limit_resources(memory_limit: int) -> None:
    # A core file of a crashed candidate is of no use and takes seconds to write.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_limit:
        # On Linux RLIMIT_DATA counts private writable memory, so mapped weights and libraries and
        # the address space that GPU drivers reserve do not count; elsewhere only RLIMIT_AS works.
        kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (memory_limit, memory_limit))
    # One file does not fill the disk; who writes on gets an error.
    with contextlib.suppress(ValueError, OSError):
        free = shutil.disk_usage(tempfile.gettempdir()).free
        most = max(_LEAST_FILE, free // 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    # Should the machine run out of memory all the same, the kernel picks the worker.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _serve(channel: socket.socket) -> None:
    reader = FrameReader()
    state = WorkerState()
    me = os.getpid()
    while data := channel.recv(1 << 20):
        for kind, body in reader.feed(data):
            # The log is the log of one job, so a failure shows its own output only.
            os.ftruncate(LOG_FD, 0)
            answer, restart = _answer(state, kind, body)
            if os.getpid() != me:
                # A candidate has forked, and this is the child: the parent answers.
                os._exit(0)
            channel.sendall(answer)
            if restart:
                # What is left of the state cannot be trusted.
                os._exit(0)


def _answer(state: WorkerState, kind: FrameKind, body: bytes) -> tuple[bytes, bool]:
    """The frame to send back, and whether this worker must be replaced after it.

    SystemExit passes: a task that exits ends the worker, as one that crashes does.
    """
    number = -1
    try:
        if kind is FrameKind.INIT:
            if setup := pickle.loads(body):
                task, request = setup
                task(state, request)
            return frame(FrameKind.READY, b""), False
        number = int.from_bytes(body[:NUMBER_BYTES], "little")
        task, request = pickle.loads(body[NUMBER_BYTES:])
        value = _pickled(task(state, request))
        return frame(FrameKind.RESULT, body[:NUMBER_BYTES] + value), False
    except Exception as error:
        exhausted = isinstance(error, MemoryError)
        restart = exhausted or state.fragile
        name, trace = type(error).__name__, traceback.format_exc()
        report = (number, name, str(error), trace, restart, exhausted)
        return frame(FrameKind.ERROR, pickle.dumps(report)), restart


def _pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except MemoryError:
        raise
    except Exception as error:
        raise TypeError(f"the result of the task cannot be sent back: {error}") from error


if __name__ == "__main__":
    main()
