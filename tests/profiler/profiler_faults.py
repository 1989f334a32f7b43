"""Tasks of a benchmark worker that go wrong."""

from __future__ import annotations

import os
import signal
from typing import Any

from tilewright.measure.jobs import WorkerState


def die_on_matmul(state: WorkerState, request: Any) -> list[Any]:
    """As the worker's own check, for all programs but matrix products."""
    from tilewright.measure.benchmark_worker import verify

    if "matmul" in str(request.vmfb):
        os.kill(os.getpid(), signal.SIGSEGV)
    return verify(state, request)
