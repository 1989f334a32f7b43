"""Progress on a terminal: a picture that is kept up to date, and lines that stay.

The picture is made anew at most once in `REFRESH_S`, and the table in it only when something in it
has changed: showing the run must not cost the run anything.
"""

from __future__ import annotations

import threading
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tilewright import words
from tilewright.cli import output
from tilewright.cli.view import SEARCH, RunProgress, RunView
from tilewright.tuning import events

REFRESH_S = 1.0
_ROWS = 12
_COLUMNS = ("dispatch", "runs", "share", "default ms", "best ms", "speed-up", "trials", "failed")


class LiveView(RunView):
    """Shows a run on a terminal."""

    def __init__(self, progress: RunProgress, console: Console) -> None:
        super().__init__(progress)
        self._console = console
        self._lock = threading.Lock()
        self._table: Table | None = None
        self._live = Live(
            console=console,
            get_renderable=self._picture,
            refresh_per_second=1 / REFRESH_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def listen(self, event: events.Event) -> None:
        """As there; the picture follows.

        Args:
            event: what happened.
        """
        with self._lock:
            self.progress.add(event)
            if isinstance(event, events.TrialDone | events.DispatchesRanked):
                self._table = None
        super().listen(event)

    def tell(self, text: str, style: str = "") -> None:
        """Print a line above the picture.

        Args:
            text: the line.
            style: its colour.
        """
        self._console.print(Text(text, style=style))

    def _picture(self) -> RenderableType:
        with self._lock:
            parts: list[RenderableType] = [Text(status_line(self.progress), style="bold")]
            if self.progress.rankings:
                if self._table is None:
                    self._table = dispatch_table(self.progress)
                parts.append(self._table)
            return Group(*parts)


def status_line(progress: RunProgress) -> str:
    """Phase, time, trials and time left, in one line.

    Args:
        progress: of the run.
    """
    parts = [progress.phase + (f" ({progress.detail})" if progress.detail else "")]
    if progress.stopping:
        parts[0] += ", stopping: Ctrl-C again to abort"
    parts.append(words.duration(progress.elapsed_s))
    if progress.limit:
        parts.append(f"{progress.done} of {progress.limit} trials, {progress.failed} failed")
    rate = progress.trials_per_s
    if progress.phase == SEARCH and rate:
        parts.append(f"{rate:.1f} trials/s")
    if progress.left_s is not None:
        parts.append(f"{words.duration(progress.left_s)} left")
    return "  ".join(parts)


def dispatch_table(progress: RunProgress) -> Table:
    """The hottest dispatches with what was found for them so far.

    Args:
        progress: of the run.
    """
    table = output.table(_COLUMNS, right=_COLUMNS[1:])
    rows = [(variant, row) for variant, ranked in progress.rankings.items() for row in ranked]
    measured = [(v, row, row.default_s) for v, row in rows if row.default_s is not None]
    measured.sort(key=lambda one: -one[1].share)
    for variant, row, default_s in measured[:_ROWS]:
        task = progress.tasks.get((variant, row.name))
        table.add_row(
            progress.label(variant, row.name),
            str(row.count),
            words.share(row.share),
            words.milliseconds(default_s),
            words.milliseconds(task.best_s) if task else "-",
            words.times(task.speedup) if task else "-",
            str(task.trials) if task else "-",
            str(task.failed) if task else "-",
        )
    rest = len(rows) - len(measured[:_ROWS])
    if rest:
        table.add_row(f"and {words.plural(rest, 'other')}", *[""] * (len(_COLUMNS) - 1))
    return table
