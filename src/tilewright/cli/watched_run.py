"""A run that another process goes on with, by its file of events: what is known of it, as a page
shows it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tilewright import words
from tilewright.cli.live import status_line
from tilewright.cli.view import PlainView, RunProgress
from tilewright.report.time_figures import before_after, flame
from tilewright.report.tuning_figures import progress
from tilewright.tuning import events
from tilewright.tuning.event_log import read_line

COLUMNS = ("dispatch", "runs", "share %", "default ms", "best ms", "speed-up", "trials", "failed")
_LINES = 300
_SHOWN = 40
_CURVES = 12
_CHUNK = 1 << 20


class WatchedRun:
    """Reads what has been added to a file of events, and adds it up. Safe to call from threads.

    Args:
        path: of the file.
        here: whether the run is one of this machine, so that it can be seen that it was killed.
        clock: seconds, monotonic.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is no file of events.
    """

    def __init__(
        self, path: Path, here: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        # Held open: the run removes the file when it ends.
        self._file = path.open("rb")
        self._here, self._clock, self._lock = here, clock, threading.Lock()
        self._rest = b""
        # Of the newest event: seconds of the run, and when it was read.
        self._seconds, self._read_at = 0.0, clock()
        self.begun: events.RunStarted | None = None
        self.ended: events.RunEnded | None = None
        self._progress = RunProgress(clock=self._now)
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._view = PlainView(self._progress, self._lines.append)
        self._curves: dict[tuple[str, str], list[tuple[float, float]]] = {}
        self._version = 0
        self._figures: tuple[int, dict[str, Any]] = (-1, {})
        self.poll()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def poll(self) -> int:
        """Take in what is new.

        Returns:
            A number that is another one where something was.

        Raises:
            ValueError: it does not begin as a file of events does.
        """
        with self._lock:
            while data := self._file.read(_CHUNK):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    self._add(line)
            if self._here and self.ended is None and not self._is_alive():
                self._end(events.RunEnded("killed", "its process is gone; --resume goes on"))
            return self._version

    def _is_alive(self) -> bool:
        return self.begun is None or psutil.pid_exists(self.begun.pid)

    def _now(self) -> float:
        """Seconds of the run, as far as can be known between its events."""
        since = 0.0 if self.ended is not None else self._clock() - self._read_at
        return self._seconds + since

    def _add(self, line: bytes) -> None:
        try:
            self._seconds, event = read_line(line)
        except ValueError:
            if self.begun is None:
                raise
            # One line that a full disk cut off does not hide what came after it.
            return
        self._read_at = self._clock()
        self._version += 1
        match event:
            case None:
                return
            case events.RunStarted():
                self.begun = event
                self._progress.time_limit_s = event.time_limit_s
                self._progress.started = 0.0
            case events.RunEnded():
                self._end(event)
            case _:
                self._view.listen(event)
        if isinstance(event, events.TrialDone):
            key = event.variant, event.task
            task = self._progress.tasks[key]
            curve = self._curves.setdefault(key, [(0.0, 1.0)])
            if task.speedup > curve[-1][1]:
                curve.append((self._seconds, task.speedup))

    def _end(self, event: events.RunEnded) -> None:
        self.ended = event
        self._version += 1
        self._view.tell(f"{event.status} {event.message}".strip())

    def snapshot(self) -> dict[str, Any]:
        """What the page shows now, as JSON has it.

        Returns:
            `status` (a line), `done` and `limit` (trials), `headline`, `rows` of the table, `more`
            (rows that are left out), `lines`, `figures` by name, `version`, and whether it has
            `ended`.
        """
        with self._lock:
            ranked = self._ranked()
            if self._figures[0] != self._version:
                self._figures = self._version, self._drawn(ranked)
            return {
                "version": self._version,
                "headline": self._headline(),
                "status": self._status(),
                "done": self._progress.done,
                "limit": self._progress.limit,
                "rows": [self._cells(variant, row) for variant, row in ranked[:_SHOWN]],
                "more": max(0, len(ranked) - _SHOWN),
                "lines": list(self._lines),
                "figures": self._figures[1],
                "ended": self.ended is not None,
            }

    def _headline(self) -> str:
        name = Path(self.begun.program).name if self.begun else "a run"
        ended = self.ended
        if ended is None or ended.default_ms is None or ended.tuned_ms is None:
            return name
        speedup = words.times(ended.default_ms / ended.tuned_ms)
        before, after = words.significant(ended.default_ms), words.significant(ended.tuned_ms)
        return f"{name}: {before} to {after} ms, {speedup} the default's speed"

    def _status(self) -> str:
        if self.ended is None:
            return status_line(self._progress)
        told = f"{self.ended.status}: {self.ended.message}".removesuffix(": ")
        return f"{told}  {words.duration(self._seconds)}"

    def _ranked(self) -> list[tuple[str, events.DispatchRow]]:
        rows = [(v, row) for v, ranked in self._progress.rankings.items() for row in ranked]
        measured = [one for one in rows if one[1].default_s is not None]
        return sorted(measured, key=lambda one: -one[1].share)

    def _cells(self, variant: str, row: events.DispatchRow) -> list[str]:
        task = self._progress.tasks.get((variant, row.name))
        assert row.default_s is not None
        found = [words.milliseconds(task.best_s), words.times(task.speedup)] if task else ["-", "-"]
        return [
            self._progress.label(variant, row.name),
            str(row.count),
            f"{100 * row.share:.1f}",
            words.milliseconds(row.default_s),
            *found,
            *((str(task.trials), str(task.failed)) if task else ("0", "0")),
        ]

    def _drawn(self, ranked: list[tuple[str, events.DispatchRow]]) -> dict[str, Any]:
        """The figures, as plotly's script takes them."""
        made: dict[str, Any] = {}
        if not ranked:
            return made
        rows = []
        # Dispatches of one variant are a run of the program; those of all are not.
        first = ranked[0][0]
        for variant, row in ranked:
            task = self._progress.tasks.get((variant, row.name))
            if variant == first and row.default_s is not None:
                best = min(task.best_s, row.default_s) if task else row.default_s
                rows.append(
                    {
                        "name": row.name,
                        "kind": row.workload.split(" ")[0],
                        "count": row.count,
                        "default_ms": row.default_s * 1e3,
                        "tuned_ms": best * 1e3,
                    }
                )
        before_after(made, rows)
        flame(made, rows)
        known = [key for v, row in ranked if (key := (v, row.name)) in self._curves]
        curves = {}
        for key in known[:_CURVES]:
            curve = self._curves[key]
            curves[self._progress.label(*key)] = [*curve, (self._seconds, curve[-1][1])]
        if curves:
            progress(made, curves)
        return {name: figure.update_layout(template=None) for name, figure in made.items()}
