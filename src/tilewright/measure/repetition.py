"""A fixed number of calls, timed as a whole: what `tilewright bench` repeats and reports.

The number of iterations grows until one repetition lasts long enough, as in Google Benchmark, and
is the same for all repetitions. Processor time is that of the whole process, the device's worker
threads included.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

# How a trial run that was too short is extended: to what the time so far asks for and a bit more,
# but not blindly far beyond what has been seen.
_MARGIN = 1.4
_MAX_GROWTH = 10.0
_MAX_ITERATIONS = 1_000_000_000


@dataclass(frozen=True)
class Repetition:
    """Seconds of one iteration: wall time, and processor time of all threads together."""

    iterations: int
    real_s: float
    cpu_s: float


def repeat(
    call: Callable[[], object],
    *,
    iterations: int | None,
    min_time_s: float,
    batch: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    cpu_clock: Callable[[], float] = time.process_time,
) -> Repetition:
    """One repetition of a benchmark.

    Args:
        call: what is timed.
        iterations: of `batch` calls each; None finds the number with which a repetition lasts
            `min_time_s`, after one call so that what happens only once (page faults, lazy loading)
            is not in it.
        min_time_s: seconds.
        batch: calls in a row that are one iteration.
        clock: seconds.
        cpu_clock: seconds of processor time of all threads.
    """
    if iterations is not None:
        return _timed(call, iterations, batch, clock, cpu_clock)
    call()
    number = 1
    while True:
        done = _timed(call, number, batch, clock, cpu_clock)
        total = done.real_s * number
        if total >= min_time_s or number >= _MAX_ITERATIONS:
            return done
        growth = _MARGIN * min_time_s / max(total, 1e-9)
        number = min(max(math.ceil(number * min(growth, _MAX_GROWTH)), number + 1), _MAX_ITERATIONS)


def _timed(
    call: Callable[[], object],
    iterations: int,
    batch: int,
    clock: Callable[[], float],
    cpu_clock: Callable[[], float],
) -> Repetition:
    calls = range(iterations * batch)
    cpu, real = cpu_clock(), clock()
    for _ in calls:
        call()
    real, cpu = clock() - real, cpu_clock() - cpu
    return Repetition(iterations, real / iterations, cpu / iterations)
