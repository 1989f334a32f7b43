"""By when each phase of a run must end: the time limit, and what steps of the run have taken.

What is to come is estimated from what the same steps took earlier in the run, on the same machine:
compiling the program, making and proving a finalist, comparing. So the search of a program that
compiles in a second goes on almost to the limit, and that of one that compiles in half a minute
ends while there is time to compile it a few times more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

PHASES = ("variants", "search", "confirm", "company", "finish")
"""Those that end by the time limit, in the order in which they come."""

_VARIANTS_SHARE = 1 / 3
# Kept for the end while nothing of it can be estimated, and at least where it can: of the limit.
_UNKNOWN_SHARE, _UNKNOWN_MOST_S = 0.25, 120.0
_LEAST_SHARE = 0.04
# Of the limit, by when the dispatches of a variant are measured, and what that may take at least.
_MEASURED_BY, _MEASURING_SHARE = 0.5, 0.1


@dataclass
class Deadlines:
    """When phases must end (by `clock`), so that a run ends within its limit.

    limit_s: seconds for the run; None: without a limit. started: when the run began, by the clock.
    """

    limit_s: float | None
    started: float
    clock: Callable[[], float] = time.monotonic
    _took: dict[str, tuple[float, int]] = field(default_factory=dict, init=False)
    _kept: dict[str, float] = field(default_factory=dict, init=False)

    def took(self, step: str, seconds: float, count: int = 1) -> None:
        """Note what a step took.

        Args:
            step: what was done, by any name.
            seconds: by the clock, for all of them.
            count: how often it was done in that time.
        """
        before, times = self._took.get(step, (0.0, 0))
        self._took[step] = before + seconds, times + count

    def each(self, step: str, otherwise: float) -> float:
        """What a step takes on average, as far as it has been noted.

        Args:
            step: as it was noted.
            otherwise: seconds where it has not been done yet.
        """
        seconds, times = self._took.get(step, (0.0, 0))
        return seconds / times if times else otherwise

    def keep(self, phase: str, seconds: float) -> None:
        """Say what a phase is expected to take; the phases before it leave as much.

        Args:
            phase: of `PHASES`.
            seconds: in place of what was said before.
        """
        self._kept[phase] = seconds

    def end(self, phase: str) -> float | None:
        """When a phase must end, by the clock; None without a limit.

        Variants have a third of the limit. What comes after has what is left, but for what the
        phases behind it are expected to take; while that is not known, a quarter of the limit, two
        minutes at most, is kept for what comes after the search.

        Args:
            phase: of `PHASES`.
        """
        if self.limit_s is None:
            return None
        if phase == "variants":
            return self.started + _VARIANTS_SHARE * self.limit_s
        later = PHASES[PHASES.index(phase) + 1 :]
        known = [self._kept[one] for one in later if one in self._kept]
        kept = sum(known)
        if phase == "search":
            kept = (
                max(kept, _LEAST_SHARE * self.limit_s)
                if known
                else min(_UNKNOWN_MOST_S, _UNKNOWN_SHARE * self.limit_s)
            )
        return self.started + max(0.0, self.limit_s - kept)

    def measured_by(self) -> float | None:
        """When measuring a variant's dispatches, begun now, must end; None without a limit.

        In the middle of the limit, so that half of it is for trials; but a tenth is always given.
        """
        if self.limit_s is None:
            return None
        at_least = self.clock() + _MEASURING_SHARE * self.limit_s
        return max(self.started + _MEASURED_BY * self.limit_s, at_least)

    def left_s(self, phase: str) -> float | None:
        """Seconds until a phase must end, 0 when that has passed; None without a limit.

        Args:
            phase: of `PHASES`.
        """
        end = self.end(phase)
        return None if end is None else max(0.0, end - self.clock())
