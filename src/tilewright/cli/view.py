"""Progress of a run: what is known of it while it goes on, added up from its events; and the views
of it, as plain lines here and on a terminal in `tilewright.cli.live`.
"""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from tilewright import words
from tilewright.trial import Status
from tilewright.tuning import events

SEARCH = "search"
# A best that is nearer to the one before is not told: a page of such lines says nothing.
_TELLING = 0.99


@dataclass
class TaskProgress:
    """One dispatch in the search: seconds of the default, of the best so far, and of the best that
    was worth telling; trials."""

    name: str
    default_s: float
    best_s: float
    told_s: float
    trials: int = 0
    failed: int = 0

    @property
    def speedup(self) -> float:
        return self.default_s / self.best_s


@dataclass
class RunProgress:
    """Feed it every event; read it at any time.

    `time_limit_s` is the run's, `clock` gives seconds (monotonic). `rankings` has the dispatches of
    each variant that is searched, `tasks` what is known of each by variant and name.
    """

    time_limit_s: float | None = None
    clock: Callable[[], float] = time.monotonic
    phase: str = "start"
    detail: str = ""
    done: int = 0
    limit: int = 0
    failed: int = 0
    stopping: bool = False
    rankings: dict[str, tuple[events.DispatchRow, ...]] = field(default_factory=dict)
    tasks: dict[tuple[str, str], TaskProgress] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.started = self.clock()
        self._search_started = self.started
        self._done_before = 0

    def add(self, event: events.Event) -> bool:
        """Take an event in.

        Args:
            event: what happened.

        Returns:
            Whether it is a trial that is the best of its dispatch so far, and by enough to be told.
        """
        match event:
            case events.PhaseStarted(name, detail):
                self.phase, self.detail = name, detail
                if name == SEARCH:
                    self._search_started, self._done_before = self.clock(), self.done
            case events.DispatchesRanked(variant, rows):
                self.rankings[variant] = rows
            case events.TrialDone():
                return self._trial(event)
        return False

    def _trial(self, event: events.TrialDone) -> bool:
        if self.limit == 0:
            # The first trial of a resumed run comes with the number of those before it.
            self._done_before = event.done - 1
        self.done, self.limit = event.done, event.limit
        key = event.variant, event.task
        if key not in self.tasks:
            self.tasks[key] = TaskProgress(
                event.task, event.default_s, event.default_s, event.default_s
            )
        task = self.tasks[key]
        task.trials += 1
        if event.trial.status is not Status.OK:
            task.failed += 1
            self.failed += 1
        if event.best_s is None or event.best_s >= task.best_s:
            return False
        task.best_s = event.best_s
        if event.best_s > _TELLING * task.told_s:
            return False
        task.told_s = event.best_s
        return event.trial.ok

    def label(self, variant: str, task: str) -> str:
        """A dispatch's name, with its variant where dispatches of several are searched.

        Args:
            variant: that the dispatch belongs to.
            task: its name.
        """
        return f"{task} ({variant})" if variant and len(self.rankings) > 1 else task

    @property
    def elapsed_s(self) -> float:
        return self.clock() - self.started

    @property
    def trials_per_s(self) -> float | None:
        """Trials finished a second in this search; None before there are a few."""
        seconds = self.clock() - self._search_started
        finished = self.done - self._done_before
        return finished / seconds if finished >= 4 and seconds > 0 else None

    @property
    def left_s(self) -> float | None:
        """Seconds until the search ends by its trials, or the run by its limit, whichever is first.

        None where neither is known.
        """
        guesses = []
        rate = self.trials_per_s
        if self.phase == SEARCH and rate:
            guesses.append((self.limit - self.done) / rate)
        if self.time_limit_s is not None:
            guesses.append(self.time_limit_s - self.elapsed_s)
        return max(0.0, min(guesses)) if guesses else None


class RunView(ABC):
    """Shows a run while it goes on. A context manager; `listen` takes the events."""

    def __init__(self, progress: RunProgress) -> None:
        self.progress = progress

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def stopping(self) -> None:
        """The user has asked the run to stop. Called from a signal handler."""
        # No lock: the signal may have come while this very thread holds one.
        self.progress.stopping = True

    @abstractmethod
    def tell(self, text: str, style: str = "") -> None:
        """Show a line that stays.

        Args:
            text: the line.
            style: a colour, where there are colours.
        """

    def show(self, lines: list[str]) -> None:
        """Show lines that belong together.

        Args:
            lines: without ends.
        """
        for line in lines:
            self.tell(line)

    def listen(self, event: events.Event) -> None:
        """Take an event in, and tell what is to stay of it.

        Args:
            event: what happened.
        """
        match event:
            case events.TrialDone() if event.detail is not None:
                self.show(trial_block(event, event.detail))
            case events.Note(text, warning):
                self.tell(f"warning: {text}" if warning else text, "yellow" if warning else "")
            case events.ProgramMeasured():
                self.tell(program_line(event))
            case events.WinnerFound():
                name = self.progress.label(event.variant, event.task)
                self.tell(winner_line(event, name), "green" if event.kept else "")


def trial_block(event: events.TrialDone, detail: events.TrialDetail) -> list[str]:
    """A trial in full, in the form of IREE's first dispatch profiler.

    Args:
        event: of the trial.
        detail: what it was of.
    """
    trial = event.trial
    entries = [
        ("Trial", f"{event.done} of {event.limit}"),
        ("Dispatch", event.task + (f" ({event.variant})" if event.variant else "")),
        ("Operation", detail.workload),
        ("Configuration", detail.configuration),
        ("Compile", detail.command),
        ("Result", f"{trial.status}{': ' + trial.message if trial.message else ''}"),
        ("Runtime(ms)", words.milliseconds(trial.time_s)),
        ("GFLOPs", _gflops(detail.flops, trial.time_s)),
        ("Best so far", f"{words.milliseconds(event.best_s)} ms, "
         f"{_gflops(detail.flops, event.best_s)} GFLOPs"),
    ]  # fmt: skip
    return ["-" * 64, *(f"{name:<14}: {text}" for name, text in entries)]


def _gflops(flops: int, seconds: float | None) -> str:
    return f"{flops / seconds / 1e9:.2f}" if flops and seconds else "-"


def program_line(event: events.ProgramMeasured) -> str:
    """What was measured of a whole program, in words.

    Args:
        event: of a program that was measured.
    """
    if event.time_s is None:
        return f"variant {event.variant}: does not count: {event.error}"
    return f"variant {event.variant}: {words.milliseconds(event.time_s)} ms"


def winner_line(event: events.WinnerFound, name: str) -> str:
    """The outcome of a dispatch in one line, which begins with what it is called.

    Args:
        event: of a dispatch whose winner is known.
        name: what it is called.
    """
    if not event.kept:
        return f"{name}: the compiler's choice stays: {event.reason}"
    return (
        f"{name}: {words.times(event.speedup)} the default's speed "
        f"({words.interval(event.low, event.high)}): {event.configuration}"
    )


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
        if isinstance(event, events.TrialDone) and event.detail is not None:
            super().listen(event)
        match event:
            case events.PhaseStarted(name, detail):
                self.tell(f"{name}: {detail}" if detail else name)
            case events.DispatchesRanked(variant, rows):
                self.tell(f"dispatches of the variant {variant}:")
                for line in ranking_lines(rows):
                    self._write(f"           {line}")
            case events.TrialDone():
                if new_best:
                    self.tell(self._best_line(event))
            case _:
                super().listen(event)

    def show(self, lines: list[str]) -> None:
        """Write the lines as they are.

        Args:
            lines: without ends.
        """
        for line in lines:
            self._write(line)

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


def ranking_lines(rows: Sequence[events.DispatchRow]) -> list[str]:
    """The dispatches of a ranking, a line each; those that are skipped, a line for each reason.

    Args:
        rows: of the ranking.
    """
    measured = [row for row in rows if row.default_s is not None]
    skipped = ((row.name, f"skipped: {row.note}") for row in rows if row.default_s is None)
    return [*map(_row_line, measured), *words.by_reason(skipped)]


def _row_line(row: events.DispatchRow) -> str:
    parts = [
        f"{words.share(row.share):>6} of the time",
        f"{row.count} x {words.milliseconds(row.default_s)} ms",
        f"{words.significant(row.gflops)} GFLOP/s" if row.gflops else "",
        f"{words.count(row.space)} configurations",
        row.note,
    ]
    return f"{row.name} ({row.workload}): {', '.join(p.strip() for p in parts if p)}"
