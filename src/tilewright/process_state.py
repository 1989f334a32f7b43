"""What the kernel tells of a process by proc(5): nothing on systems that have none."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessState:
    """letter: `R` runs or waits for a processor, `S` sleeps, `T` is stopped, `Z` has ended, ...
    processor_s: seconds of processor time that it and its ended children have used.
    started: when, in ticks since boot, which tells it from a later process of the same number.
    """

    letter: str
    processor_s: float
    started: str


def process_state(pid: int) -> ProcessState | None:
    """None for a process that there is not, or where there is no proc(5)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()  # the name before it may hold anything
        seconds = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        return ProcessState(fields[0], seconds, fields[19])
    except (OSError, ValueError, IndexError):
        return None


def has_children(pid: int) -> bool:
    """Whether any thread of it has a child process; True as well where nobody can tell."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return any((task / "children").read_text().strip() for task in tasks)
    except OSError:
        return True


class StandstillWatch:
    """Notices a process that has stopped for good: all its threads sleep, it has no children that
    it could be waiting for, and it has used no processor time since the last look, so many looks
    in a row. One that waits for a processor, or was stopped by a signal, is not at a standstill.
    """

    def __init__(self, pid: int, looks: int) -> None:
        self._pid = pid
        self._looks = looks
        self._quiet = 0
        self._used: float | None = None

    def look(self) -> bool:
        """Look at the process, at even intervals; whether it stands still."""
        state = process_state(self._pid)
        used = None if state is None else state.processor_s
        idle = state is not None and used == self._used and self._all_sleep()
        self._quiet = self._quiet + 1 if idle and not has_children(self._pid) else 0
        self._used = used
        return self._quiet >= self._looks

    def _all_sleep(self) -> bool:
        try:
            tasks = list(Path(f"/proc/{self._pid}/task").iterdir())
            texts = [(task / "stat").read_text(errors="replace") for task in tasks]
        except OSError:
            return False
        return all(text.rpartition(")")[2].split()[:1] == ["S"] for text in texts)
