"""Correcting for a machine whose speed changes while candidates are measured.

Clock frequency, neighbours on the same host and thread placement move run times by far more than
two good candidates differ, for seconds or minutes at a time. The compiler's default is therefore
timed again every few candidates in the same process, and each candidate's time is divided by

    drift = baseline now / baseline at the reference

so that all times of a dispatch are as if taken at the reference moment. Small changes of the
baseline are its own noise and are not applied; nor are large ones applied in full, since what makes
the default two or three times as slow for a moment seldom slows a candidate as much, and one that
is divided by it would seem a record. A candidate that would be the new best is worth a second look:
the baseline is timed right after it too and the mean of both is used, so a sudden change of mode
between a candidate and its baseline does not make a record. The numbers that are reported at the
end do not rest on this but on `comparison.compare`, which pairs every sample with one of the
default.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.measure.statistics import Measurement


@dataclass
class InterleavedBaseline:
    """The state of the correction for one dispatch.

    vmfb: path of the compiled default.
    every: candidates between two timings of it (0: before each).
    tolerance: changes of the baseline up to this part are taken for noise.
    limit: the drift that is corrected at most, as a factor either way.
    reference_s: seconds at the reference; the first timing of the baseline unless given (a resumed
        run gives that of the earlier part, so that its times can be compared).
    """

    vmfb: str
    every: int = 8
    tolerance: float = 0.03
    limit: float = 1.25
    reference_s: float | None = None
    now_s: float | None = None
    since: int = 0

    @property
    def due(self) -> bool:
        """Whether the baseline is to be timed before the next candidate."""
        return self.now_s is None or self.since >= self.every

    @property
    def drift(self) -> float:
        """How much slower the machine is now than at the reference (1 within the tolerance)."""
        if self.reference_s is None or self.now_s is None:
            return 1.0
        return self._ratio(self.now_s)

    def _ratio(self, now_s: float) -> float:
        assert self.reference_s is not None
        ratio = now_s / self.reference_s
        if abs(ratio - 1) <= self.tolerance:
            return 1.0
        return min(max(ratio, 1 / self.limit), self.limit)

    def observe(self, baseline_s: float) -> None:
        """The baseline was timed just now.

        Args:
            baseline_s: seconds that it took.

        Raises:
            ValueError: they are not positive.
        """
        if not baseline_s > 0:
            raise ValueError(f"a baseline of {baseline_s} seconds")
        if self.reference_s is None:
            self.reference_s = baseline_s
        self.now_s = baseline_s
        self.since = 0

    def correct(self, candidate: Measurement, baseline_after_s: float | None = None) -> Measurement:
        """The candidate with its drift filled in; counts it.

        Args:
            candidate: as measured.
            baseline_after_s: the baseline timed right after the candidate, if it was; the drift is
                then the mean of before and after.
        """
        drift = self.drift
        self.since += 1
        if baseline_after_s is not None and self.reference_s is not None and self.now_s is not None:
            drift = self._ratio((self.now_s + baseline_after_s) / 2)
            self.observe(baseline_after_s)
        return replace(candidate, drift=drift)
