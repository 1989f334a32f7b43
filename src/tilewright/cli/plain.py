"""Progress as plain lines, for logs and pipes: one for what a reader would want to know later."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress

from tilewright import words
from tilewright.cli.progress import RunProgress
from tilewright.cli.view import RunView
from tilewright.tuning import events

_STOPPING = "stopping: what was found is confirmed and written out; press Ctrl-C again to abort\n"


class PlainView(RunView):
    """Writes a line for each phase, dispatch, new best, winner and note."""

    def __init__(self, progress: RunProgress, write: Callable[[str], None]) -> None:
        super().__init__(progress)
        self._write = write

    def stopping(self) -> None:
        """As there; says so at once."""
        super().stopping()
        # Not through Python's buffers: the signal may have come in the middle of a write to them.
        with suppress(OSError, ValueError, AttributeError):
            os.write(sys.__stderr__.fileno(), _STOPPING.encode())  # type: ignore[union-attr]

    def listen(self, event: events.Event) -> None:
        """As there; phases, dispatches and new bests are told as well.

        Args:
            event: what happened.
        """
        new_best = self.progress.add(event)
        match event:
            case events.PhaseStarted(name, detail):
                self.tell(f"{name}: {detail}" if detail else name)
            case events.DispatchesRanked(variant, rows):
                self.tell(f"dispatches of the variant {variant}:")
                for row in rows:
                    self._write(f"           {row_line(row)}")
            case events.TrialDone() if new_best:
                self.tell(self._best_line(event))
            case _:
                super().listen(event)

    def tell(self, text: str, style: str = "") -> None:
        """Write a line, with the time.

        Args:
            text: the line.
            style: is not shown.
        """
        self._write(f"[{self.progress.elapsed_s:7.1f} s] {text}")

    def _best_line(self, event: events.TrialDone) -> str:
        task = self.progress.tasks[event.variant, event.task]
        return (
            f"{self.progress.label(event.variant, event.task)}: "
            f"new best {words.milliseconds(task.best_s)} ms, "
            f"{words.times(task.speedup)} the default's speed (trial {event.done} of "
            f"{event.limit}, {self.progress.failed} failed)"
        )


def row_line(row: events.DispatchRow) -> str:
    """A dispatch in one line.

    Args:
        row: of the ranking.
    """
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
