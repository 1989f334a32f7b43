"""When a search has found enough, as `--stop-at` says it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright import words
from tilewright.errors import UserError
from tilewright.target import Target
from tilewright.tuning.parse import parse_duration

# Of the program's time: what is no gain.
_GAIN = 0.01
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"


@dataclass(frozen=True)
class Goal:
    """One of: `speedup` over the default's program, `peak` (the share of the machine's f32 peak,
    operations of the tuned dispatches over the time of the program), `no-gain` (seconds)."""

    kind: str
    value: float
    text: str

    def __str__(self) -> str:
        return self.text


def read_goals(value: Any, option: str) -> tuple[Goal, ...]:
    """Goals as the user wrote them: `90%peak`, `2x`, `no-gain:5m`, several with commas.

    Args:
        value: a text, texts, or goals.
        option: for the message.

    Raises:
        UserError: one is none of these.
    """
    given = (value,) if isinstance(value, str) else tuple(value)
    goals: list[Goal] = []
    for one in given:
        texts = one.split(",") if isinstance(one, str) else ()
        goals += [_goal(text.strip(), option) for text in texts] if texts else [one]
    return tuple(goals)


def _goal(text: str, option: str) -> Goal:
    if match := re.fullmatch(rf"({_NUMBER})% ?peak", text):
        share = float(match[1]) / 100
        if 0 < share <= 1:
            return Goal("peak", share, text)
    elif (match := re.fullmatch(rf"({_NUMBER})x", text)) and float(match[1]) > 1:
        return Goal("speedup", float(match[1]), text)
    elif text.startswith("no-gain:"):
        return Goal("no-gain", parse_duration(text.removeprefix("no-gain:"), option), text)
    raise UserError(
        f"{option}: '{text}' is no goal; write 90%peak (of the machine's), 2x (the default's "
        "speed) or no-gain:5m"
    )


def check_goals(goals: Sequence[Goal], target: Target) -> None:
    """See whether it can be told that goals are reached.

    Args:
        goals: of a run.
        target: of it.

    Raises:
        UserError: the peak of a GPU is not known.
    """
    for goal in goals:
        if goal.kind == "peak" and target.is_gpu:
            raise UserError(
                f"--stop-at: {goal}: only CPUs' peak is measured; name a speed-up (2x) or "
                "no-gain:5m"
            )


class GoalWatch:
    """Tells when one of the goals is reached.

    Args:
        goals: of the run.
        default_s: seconds of the program as the compiler makes it.
        peak_gflops: of the machine, where a goal is a part of it.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        goals: Sequence[Goal],
        default_s: float,
        peak_gflops: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._goals, self._default_s = goals, default_s
        self._peak_gflops, self._clock = peak_gflops, clock
        self._best_s = default_s
        self._gained = clock()

    def reached(self, expected_s: float, flops: int) -> str:
        """Whether the search can end.

        Args:
            expected_s: seconds of the program, as far as the search can tell.
            flops: operations of its dispatches in one run.

        Returns:
            Which goal was reached and how, in words; empty where none is.
        """
        if expected_s < (1 - _GAIN) * self._best_s:
            self._best_s, self._gained = expected_s, self._clock()
        speedup = self._default_s / expected_s
        idle_s = self._clock() - self._gained
        for goal in self._goals:
            if goal.kind == "speedup" and speedup >= goal.value:
                return f"{goal}: about {words.times(speedup)} the default's speed is expected"
            if goal.kind == "no-gain" and idle_s >= goal.value:
                return f"{goal}: nothing gained for {words.duration(idle_s)}"
            if goal.kind == "peak" and self._peak_gflops:
                share = flops / expected_s / 1e9 / self._peak_gflops
                if share >= goal.value:
                    return f"{goal}: about {words.share(share)} of the peak is expected"
        return ""
