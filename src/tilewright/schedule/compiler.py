"""The worker process that compiles schedules: nothing it does ends the user's process."""

from __future__ import annotations

import functools
import threading
from typing import Any

from tilewright.measure.compile_worker import COMPILE, SETUP, CompileSetup
from tilewright.measure.pool import Job, Result, WorkerPool

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
        COMPILE, 1, setup=SETUP, init=_OPTIONS, timeout_s=TIMEOUT_S, memory_limit=_MEMORY_LIMIT
    )


def run(payload: Any, task: str) -> Result:
    """What the worker says to a job."""
    with _lock:
        (result,) = worker().run([Job(payload, task, TIMEOUT_S)])
    return result
