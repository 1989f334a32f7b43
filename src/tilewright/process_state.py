"""Whether a process has stopped for good."""

from __future__ import annotations

import psutil


class StandstillWatch:
    """Notices a process that has stopped for good: all its threads sleep, it has no children that
    it could be waiting for, and it has used no processor time since the last look, so many looks
    in a row. One that waits for a processor, or was stopped by a signal, is not at a standstill;
    nor is any where the system does not tell the state of threads.

    Args:
        pid: the process.
        looks: how many looks in a row must have found it so.
    """

    def __init__(self, pid: int, looks: int) -> None:
        self._pid = pid
        self._looks = looks
        self._quiet = 0
        self._used: tuple[float, ...] = ()

    def look(self) -> bool:
        """Look at the process, at even intervals.

        Returns:
            Whether it stands still.
        """
        before = self._used
        try:
            process = psutil.Process(self._pid)
            self._used = tuple(process.cpu_times())
            idle = self._used == before and not process.children() and _all_sleep(process)
        except psutil.Error:
            idle, self._used = False, ()
        self._quiet = self._quiet + 1 if idle else 0
        return self._quiet >= self._looks


def _all_sleep(process: psutil.Process) -> bool:
    """Whether every thread sleeps. On Linux a thread can be asked as a process can."""
    return all(
        psutil.Process(thread.id).status() == psutil.STATUS_SLEEPING for thread in process.threads()
    )
