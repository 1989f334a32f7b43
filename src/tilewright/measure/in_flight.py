"""Calls in a row on a device, timed as its own clock would."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.measure.runtime import Device, LoadedProgram

#: Functions of a program take fences, and return before their results are there.
IN_FLIGHT_FLAG = "--iree-execution-model=async-external"

# More calls than this are not begun ahead of the device: their results take memory.
_AHEAD = 32


class InFlight:
    """Calls of a function of a program that was compiled with IN_FLIGHT_FLAG, in a row: timed on a
    GPU as its own clock would.

    IREE's Python bindings give no device timestamps. Functions with IN_FLIGHT_FLAG take a fence to
    wait for and one to signal, so that calls are put in a row on the device before the first of
    them is done, as on a stream. The host's clock from the first to the last, over their number, is
    then the device's time of one, as long as putting one in the row takes less than running it;
    launches and waking up the host are in it once for all. What is timed by events on a CUDA stream
    is the same.

    arguments: on the device. Raises ValueError if there is no such function.
    """

    def __init__(
        self,
        device: Device,
        program: LoadedProgram,
        function: str,
        arguments: Sequence[Any],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._fence: Callable[..., Any] = device.fence
        self._begin = program.bind_fenced(function, arguments)
        self._semaphore = device.semaphore()
        self._clock = clock
        self._last = 0

    def call(self) -> Any:
        """One call, complete: its results."""
        results, done = self._next()
        done.wait()
        return results

    def timed(self, count: int) -> float:
        """Seconds from the beginning of the first of `count` calls to the end of the last.

        Args:
            count: how many calls, at least 1.
        """
        ahead: list[Any] = []
        begin = self._clock()
        for _ in range(count):
            if len(ahead) == _AHEAD:
                ahead.pop(0).wait()
            ahead.append(self._next()[1])
        ahead[-1].wait()
        return self._clock() - begin

    def _next(self) -> tuple[Any, Any]:
        after = self._fence(self._semaphore, self._last)
        self._last += 1
        done = self._fence(self._semaphore, self._last)
        return self._begin(after, done), done
