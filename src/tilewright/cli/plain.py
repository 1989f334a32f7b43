"""Progress as plain lines, for logs and pipes: one for what a reader would want to know later."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress

from tilewright import words
from tilewright.cli.progress import RunProgress
from tilewright.tuning import events

_STOPPING = "stopping: what was found is confirmed and written out; press Ctrl-C again to abort\n"


class PlainView:
    """Writes a line for each phase, dispatch, new best, winner and note. A context manager."""

    def __init__(self, progress: RunProgress, write: Callable[[str], None]) -> None:
        self.progress = progress
        self._write = write

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def stopping(self) -> None:
        self.progress.stopping = True
        # Not through Python's buffers: the signal may have come in the middle of a write to them.
        with suppress(OSError, ValueError, AttributeError):
            os.write(sys.__stderr__.fileno(), _STOPPING.encode())  # type: ignore[union-attr]

    def listen(self, event: events.Event) -> None:
        new_best = self.progress.add(event)
        match event:
            case events.PhaseStarted(name, detail):
                self._say(f"{name}: {detail}" if detail else name)
            case events.Note(text, warning):
                self._say(f"warning: {text}" if warning else text)
            case events.ProgramMeasured():
                self._say(program_line(event))
            case events.DispatchesRanked(variant, rows):
                self._say(f"dispatches of the variant {variant}:")
                for row in rows:
                    self._write(f"           {row_line(row)}")
            case events.TrialDone() if new_best:
                self._say(self._best_line(event))
            case events.WinnerFound():
                self._say(winner_line(event, self.progress.label(event.variant, event.task)))

    def _say(self, text: str) -> None:
        self._write(f"[{self.progress.elapsed_s:7.1f} s] {text}")

    def _best_line(self, event: events.TrialDone) -> str:
        task = self.progress.tasks[event.variant, event.task]
        return (
            f"{self.progress.label(event.variant, event.task)}: "
            f"new best {words.milliseconds(task.best_s)} ms, "
            f"{words.times(task.speedup)} the default's speed (trial {event.done} of "
            f"{event.limit}, {self.progress.failed} failed)"
        )


def program_line(event: events.ProgramMeasured) -> str:
    """What was measured of a whole program, in words."""
    if event.time_s is None:
        return f"variant {event.variant}: does not count: {event.error}"
    return f"variant {event.variant}: {words.milliseconds(event.time_s)} ms"


def row_line(row: events.DispatchRow) -> str:
    """A dispatch in one line."""
    if row.default_s is None:
        return f"{row.name}: skipped: {row.note}"
    parts = [
        f"{words.share(row.share):>6} of the time",
        f"{row.count} x {words.milliseconds(row.default_s)} ms",
        f"{words.significant(row.gflops)} GFLOP/s" if row.gflops else "",
        f"{words.count(row.space)} configurations",
        row.note,
    ]
    return f"{row.name} ({row.workload}): {', '.join(p.strip() for p in parts if p)}"


def winner_line(event: events.WinnerFound, name: str) -> str:
    """The outcome of a dispatch in one line, which begins with what it is called."""
    if not event.kept:
        return f"{name}: the compiler's choice stays: {event.reason}"
    return (
        f"{name}: {words.times(event.speedup)} the default's speed "
        f"({words.interval(event.low, event.high)}): {event.configuration}"
    )
