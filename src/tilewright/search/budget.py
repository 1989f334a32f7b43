"""How many trials, and for which task: early stopping and sharing out by expected gain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


class Patience:
    """Stop when the best has not improved by more than `min_gain` for `trials` trials in a row.

    `min_gain` is relative; `reference` is the time to beat before there is a best.
    """

    def __init__(self, trials: int, min_gain: float = 0.01, reference: float | None = None) -> None:
        if trials < 1:
            raise ValueError(f"patience of {trials} trials: at least 1 is needed")
        self.trials = trials
        self.min_gain = min_gain
        self.reference = reference
        self.waited = 0

    def update(self, trials: int, best_s: float | None) -> None:
        """After `trials` more trials the best time so far is `best_s` (None: nothing succeeded)."""
        gained = best_s is not None and (
            self.reference is None or best_s < self.reference * (1 - self.min_gain)
        )
        if gained:
            self.reference, self.waited = best_s, 0
        else:
            self.waited += trials

    @property
    def exhausted(self) -> bool:
        """Whether it has waited for as many trials as it has patience for."""
        return self.waited >= self.trials


@dataclass(frozen=True)
class BudgetTask:
    """Something to share trials with.

    `share` is the task's part of the program's time by default (all its occurrences, 0 to 1; any
    common scale will do), `default_s` the time of one execution by default, `floor_s` a time that
    cannot be beaten (from peak speed or bandwidth; 0 if not known), `cap` the most trials it may
    get (for example the size of its space; None: no cap).
    """

    name: str
    share: float
    default_s: float
    floor_s: float = 0.0
    cap: int | None = None


@dataclass(frozen=True)
class Allocation:
    """The task whose turn it is, and for how many trials."""

    task: str
    trials: int


@dataclass
class _State:
    task: BudgetTask
    patience: Patience | None
    trials: int = 0
    done: bool = False
    weight: float = 1.0
    # Best time over default time after so many trials; starts at (0, 1).
    history: list[tuple[int, float]] = field(default_factory=lambda: [(0, 1.0)])

    @property
    def best(self) -> float:
        return self.history[-1][1]


class TrialAllocator:
    """Decides which task gets the next batch, as the task scheduler of Ansor does.

    L. Zheng et al., "Ansor: Generating High-Performance Tensor Programs for Deep Learning", OSDI
    2020, section 6 and appendix A. With g = best time / default time of a task after t trials,
    d its drop over the last `window` trials or more, and l = floor / default, the expected gain of
    one more trial for the program's time is

        share * (alpha * d / window + (1 - alpha) * min(g / t, g - l))

    The first term looks back: the slope of late. The second is optimistic: as many trials again
    may bring the time down to nothing, but a single one to no less than the floor. Without a
    floor that is g / t. `alpha` is larger than Ansor's 0.2: with g measured against the default, a
    task that fell and one that is stuck would be equal at 0.5, and below it the stuck one goes
    first. (Ansor's estimate from similar tasks is left out: equal workloads are one
    task here, and the floor bounds what is left.) The task of the largest gain is next.

    Before that every task gets `minimum` trials, in descending order of share. A task leaves when
    it reaches its cap, is closed, or (with `patience`) has not improved for so many trials.
    Deterministic: ties go to the larger share, then to the task given first.
    """

    def __init__(
        self,
        tasks: Sequence[BudgetTask],
        *,
        batch: int = 16,
        minimum: int = 16,
        alpha: float = 0.6,
        window: int = 32,
        patience: int | None = None,
        min_gain: float = 0.01,
    ) -> None:
        if len({t.name for t in tasks}) < len(tasks):
            raise ValueError("two tasks of the same name")
        if batch < 1 or window < 1 or not 0 <= alpha <= 1:
            raise ValueError("batch and window are at least 1, alpha is from 0 to 1")
        self._batch, self._minimum = batch, minimum
        self._alpha, self._window = alpha, window
        self._patience, self._min_gain = patience, min_gain
        self._states: dict[str, _State] = {}
        for t in sorted(tasks, key=lambda t: -t.share):
            self.add(t)

    def add(self, task: BudgetTask) -> None:
        """One more task, which gets its `minimum` before the others go on.

        Args:
            task: of a name that is not taken.

        Raises:
            ValueError: its name is taken, or it has no default time or share.
        """
        if task.name in self._states:
            raise ValueError("two tasks of the same name")
        if task.default_s <= 0 or task.share < 0:
            raise ValueError(f"task '{task.name}': a positive default time and a share are needed")
        patience = Patience(self._patience, self._min_gain, 1.0) if self._patience else None
        self._states[task.name] = _State(task, patience)

    def next(self, remaining: int) -> Allocation | None:
        """Whose turn it is, with at most `remaining` trials; None when nothing is left to do."""
        states = [s for s in self._states.values() if self._room(s) > 0]
        if remaining < 1 or not states:
            return None
        for s in states:
            if s.trials < self._minimum:
                wanted = self._minimum - s.trials
                return Allocation(s.task.name, min(wanted, self._batch, self._room(s), remaining))
        chosen = max(states, key=self._gain)
        return Allocation(chosen.task.name, min(self._batch, self._room(chosen), remaining))

    def record(self, task: str, trials: int, best_s: float | None) -> None:
        """Tell what came of trials.

        Args:
            task: whose they were.
            trials: how many more were done.
            best_s: the task's best time so far in seconds; None where nothing succeeded.
        """
        state = self._states[task]
        state.trials += trials
        ratio = state.best
        if best_s is not None and best_s > 0:
            ratio = min(ratio, best_s / state.task.default_s)
        state.history.append((state.trials, ratio))
        if state.patience is not None:
            state.patience.update(trials, ratio)

    def weigh(self, task: str, weight: float) -> None:
        """Count the gain of a task for more or less than it is, as for one that others may take the
        place of.

        Args:
            task: its name.
            weight: that its share is multiplied by, in place of an earlier one.
        """
        self._states[task].weight = weight

    def close(self, task: str) -> None:
        """Give a task no more trials (its strategy has nothing left to propose)."""
        self._states[task].done = True

    def trials(self, task: str) -> int:
        """Trials recorded for a task."""
        return self._states[task].trials

    def gain(self, task: str) -> float:
        """Expected gain of one more trial, in units of the shares; infinite before the first."""
        return self._gain(self._states[task])

    def _room(self, state: _State) -> int:
        stopped = (
            state.patience is not None
            and state.patience.exhausted
            and state.trials >= self._minimum
        )
        if state.done or stopped:
            return 0
        return self._batch if state.task.cap is None else state.task.cap - state.trials

    def _gain(self, state: _State) -> float:
        if state.trials == 0:
            return math.inf
        now = state.best
        past, before = 0, 1.0
        for trials, ratio in state.history:
            if state.trials - trials >= self._window:
                past, before = trials, ratio
        slope = (before - now) / max(state.trials - past, 1)
        floor = state.task.floor_s / state.task.default_s
        hope = min(now / state.trials, max(now - floor, 0.0))
        return state.weight * state.task.share * (self._alpha * slope + (1 - self._alpha) * hope)
