"""The worker process that compiles schedules: nothing it does ends the user's process."""

from __future__ import annotations

import functools
import threading

from tilewright.measure.compile_worker import CompileSetup, setup
from tilewright.measure.jobs import Job, Reply, Request, WorkerFailure, WorkerTask
from tilewright.measure.pool import WorkerPool

#: Seconds that one compile may take.
TIMEOUT_S = 120.0

# Executables are linked into one, unlike where candidates are exchanged one by one: six kernels
# compile in 0.30 s instead of 0.77.
_OPTIONS = CompileSetup(global_options=("--mlir-disable-threading",))
_MEMORY_LIMIT = 4 << 30

_lock = threading.Lock()


@functools.cache
def worker() -> WorkerPool:
    """The worker, started when it is first asked for; it lives as long as this process."""
    return WorkerPool(
        1, setup=Job(setup, _OPTIONS), timeout_s=TIMEOUT_S, memory_limit=_MEMORY_LIMIT
    )


def ask(task: WorkerTask[Request, Reply], request: Request) -> Reply | WorkerFailure:
    """A task's reply, or why there is none.

    Args:
        task: what the worker does.
        request: what it is asked.
    """
    with _lock:
        return worker().ask(task, request, TIMEOUT_S)
