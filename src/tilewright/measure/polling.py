"""Waiting for the end of a call awake.

A thread that sleeps until a call has ended is woken by a worker: that takes tens of microseconds on
a virtual machine, and may take the worker's core, where the woken one then spins for the worker's
last word (docs/upstream/wait_preempts_worker.py). One that stays awake, and gives its core to
whoever can use it each time that it has looked, sees the end sooner and is in nobody's way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from tilewright.measure.device_options import as_batch

# Seconds after which a caller falls asleep after all: for who runs so long the rest is little.
_AWAKE_S = 5e-3


def polled(
    prepare: Callable[[Any, Any], tuple[Callable[[], object], Any]],
    semaphore: Callable[[], Any],
    fence: Callable[[Any, int], Any],
    batch: bool,
) -> Callable[[], Any]:
    """A call that has ended when it returns its results, and was waited for awake.

    Args:
        prepare: with a fence to wait for and one to signal: what begins the call, one of C's, and
            the list that its results will be in.
        semaphore: makes a timeline, at 0.
        fence: what is passed when a timeline has come to a value.
        batch: whether to sleep, after some time, as one of Linux's batch processes.
    """
    passed = fence(semaphore(), 0)
    now, give_core = time.perf_counter, os.sched_yield

    def call() -> Any:
        timeline = semaphore()
        begin, results = prepare(passed, fence(timeline, 1))
        until = now() + _AWAKE_S
        try:
            begin()
            while timeline.query() < 1 and now() < until:
                give_core()
            if timeline.query() < 1:
                as_batch(batch, lambda: timeline.wait(1))
        except (ValueError, RuntimeError):
            raise
        except BaseException:
            # Ctrl-C, once the call has begun: until it has ended it uses the arguments' memory.
            timeline.wait(1)
            raise
        return results

    return call
