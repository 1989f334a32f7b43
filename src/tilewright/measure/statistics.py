"""Statistics of run times: medians, intervals that hold for any distribution, paired comparisons.

Run times are skewed, have heavy tails and on some machines two modes, so nothing here assumes a
normal distribution and no sample is ever thrown away: the median already ignores the tail.

Sources:
* confidence interval of a median from order statistics: J.-Y. Le Boudec, "Performance Evaluation of
  Computer and Communication Systems", 2010, theorem 2.1; T. Hoefler and R. Belli, "Scientific
  Benchmarking of Parallel Computing Systems", SC 2015, section 3.1.3;
* percentile bootstrap: B. Efron and R. Tibshirani, "An Introduction to the Bootstrap", 1993,
  chapter 13; comparing two systems by the ratio of their times with an interval: T. Kalibera and
  R. Jones, "Rigorous Benchmarking in Reasonable Time", ISMM 2013.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Interval:
    """An estimate with the bounds of its confidence interval (`low <= value <= high`)."""

    value: float
    low: float
    high: float
    confidence: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    @property
    def relative_half_width(self) -> float:
        return self.half_width / self.value if self.value else math.inf


class Verdict(enum.StrEnum):
    """How a candidate stands to the default beyond the noise."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"


@dataclass(frozen=True)
class Measurement:
    """Samples of one program on one device.

    samples: seconds for one execution, in the order taken, nothing removed.
    executions_per_sample: executions that each sample is the mean of.
    warmup: seconds for one execution of the calls before; never part of the statistics.
    dropped: given up early because it was far slower than the best so far.
    converged: the interval of the median reached the policy's target.
    drift: how much slower the machine was than at the reference (see `drift.InterleavedBaseline`).
    """

    samples: tuple[float, ...]
    executions_per_sample: int = 1
    warmup: tuple[float, ...] = ()
    dropped: bool = False
    converged: bool = False
    drift: float = 1.0

    @property
    def median_s(self) -> float:
        """Median of the samples as measured."""
        return median(self.samples)

    @property
    def quartile_s(self) -> float:
        """Lower quartile of the samples as measured.

        What else runs on a machine only ever adds time, so the lower samples say more of the
        program, and the lower quartile, unlike the minimum, is not one lucky sample.
        """
        return float(np.quantile(self.samples, 0.25))

    @property
    def time_s(self) -> float:
        """Lower quartile of the samples, corrected for drift: the number that candidates are
        ranked by while searching. What is reported at the end are paired ratios of medians."""
        return self.quartile_s / self.drift

    def interval(self, confidence: float = 0.95) -> Interval:
        """Interval of the median as measured.

        Args:
            confidence: between 0 and 1.
        """
        return median_interval(self.samples, confidence)


@functools.lru_cache(maxsize=1024)
def _median_rank(count: int, confidence: float) -> int:
    """The largest r such that the r-th smallest and r-th largest of `count` samples enclose the
    median with at least this confidence; 0 when even the extremes do not."""
    allowed = (1 - confidence) / 2
    rank, below, term = 0, 0.0, 0.5**count
    while rank < count // 2:
        # below = P(Binomial(count, 1/2) <= rank): the chance that the interval of rank + 1 misses
        # the median on one side.
        below += term
        if below > allowed:
            break
        rank += 1
        term *= (count - rank + 1) / rank
    return rank


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> Interval:
    """Confidence interval of the median for any continuous distribution, from order statistics.

    95% takes at least 6 samples; with fewer the interval is (0, infinity): nothing is claimed.

    Args:
        samples: independent, of any continuous distribution.
        confidence: between 0 and 1.

    Raises:
        ValueError: there are no samples.
    """
    centre = median(samples)
    # 0.5 ** n leaves the range of a double near n = 1000; the last 1000 samples say enough.
    ordered = sorted(samples[-1000:])
    rank = _median_rank(len(ordered), confidence)
    if rank == 0:
        return Interval(centre, 0.0, math.inf, confidence)
    low, high = ordered[rank - 1], ordered[-rank]
    return Interval(centre, min(float(low), centre), max(float(high), centre), confidence)


def bootstrap_interval(
    samples: Sequence[float],
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap interval of a statistic, the median by default. Equal arguments give
    equal intervals.

    Args:
        samples: [n].
        statistic: maps an array [..., n] to [...].
        confidence: between 0 and 1.
        resamples: that the interval is made from.
        seed: of the resamples.

    Raises:
        ValueError: there are no samples.
    """
    data = np.asarray(samples, dtype=np.float64)
    if data.size == 0:
        raise ValueError("an interval of no samples")
    of = statistic or _median_of_rows
    picks = np.random.default_rng(seed).integers(0, data.size, size=(resamples, data.size))
    return _percentiles(float(of(data)), of(data[picks]), confidence)


def paired_ratio_interval(
    times: Sequence[float],
    reference: Sequence[float],
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Bootstrap interval of the median over rounds of times[i] / reference[i].

    Both samples of a round are taken close together, so what slows the machine for longer than a
    round cancels in the ratio: two speeds of a bimodal machine do not widen the interval. With too
    few rounds for the confidence (`minimum_rounds`) the interval is (0, infinity).

    Args:
        times: [n], one sample for each round.
        reference: [n], of the same rounds.
        confidence: between 0 and 1.
        resamples: that the interval is made from.
        seed: of the resamples.

    Raises:
        ValueError: there are not as many of both.
    """
    if len(times) != len(reference):
        raise ValueError(f"{len(times)} samples paired with {len(reference)}")
    ratios = np.asarray(times, dtype=np.float64) / np.asarray(reference, dtype=np.float64)
    if len(ratios) < minimum_rounds(confidence):
        return Interval(float(np.median(ratios)), 0.0, math.inf, confidence)
    return bootstrap_interval(
        ratios.tolist(), confidence=confidence, resamples=resamples, seed=seed
    )


def minimum_rounds(confidence: float) -> int:
    """Fewest samples whose extremes enclose the median with this confidence (6 for 95%).

    Args:
        confidence: between 0 and 1.
    """
    return max(2, math.ceil(1 - math.log2(1 - confidence)))


def judge(ratio: Interval, margin: float = 0.0) -> Verdict:
    """`faster` or `slower` where the whole interval of time / reference time lies beyond
    1 - margin or 1 + margin, else `same`.

    Args:
        ratio: time over the reference's time.
        margin: differences below this part are `same` even when they are certain.
    """
    if ratio.high < 1 - margin:
        return Verdict.FASTER
    if ratio.low > 1 + margin:
        return Verdict.SLOWER
    return Verdict.SAME


def _median_of_rows(data: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.median(data, axis=-1))


def _percentiles(value: float, replicates: NDArray[np.float64], confidence: float) -> Interval:
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(replicates, [tail, 100 - tail])
    return Interval(value, min(float(low), value), max(float(high), value), confidence)
