"""The worker process that compiles schedules: nothing it does ends the user's process."""

from __future__ import annotations

import functools
import threading
from typing import Any

from tilewright.measure.compile_worker import compile_pool
from tilewright.measure.pool import Job, Result, WorkerPool

#: Seconds that one compile may take.
TIMEOUT_S = 120.0

_lock = threading.Lock()


@functools.cache
def worker() -> WorkerPool:
    """The worker, started when it is first asked for; it lives as long as this process."""
    return compile_pool(1, timeout_s=TIMEOUT_S)


def run(payload: Any, task: str) -> Result:
    """What the worker says to a job."""
    with _lock:
        (result,) = worker().run([Job(payload, task, TIMEOUT_S)])
    return result
