"""What is known of a run while it goes on, added up from its events."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

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
