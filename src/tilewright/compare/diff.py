"""Two results of comparisons against each other, with a verdict for each row beyond the noise.

Runs of different days are not paired, so what moves all of a machine (its clock, a neighbour) would
be taken for a change of what is measured. Three things are allowed for. The statistic is a row's
fastest part: what else runs on a machine only ever adds time, and a part is short (half a
millisecond, or one call), so the fastest of all rounds says most of the program. Over 22 windows of
25 rounds on a two-core virtual machine it moved by 2 to 3% from one to the next at most, the 5%
quantile of whole samples by 5%, and their median by 16%. Where a program of one thread did not have
its processor to itself in either run, its processor time is compared instead: wall time would tell
what else ran. And the whole bootstrap interval must clear a margin, below which a change is
nobody's concern.

All intervals of a diff hold together at the confidence (Bonferroni), so that a table of a hundred
rows gives no more false alarms than one of one row.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.compare.results import ComparisonRow, ComparisonRun, ProviderOutcome
from tilewright.errors import UserError
from tilewright.measure.statistics import Interval

CONFIDENCE = 0.95
MARGIN = 0.04
# Below this part of a processor a program of one thread was kept waiting by others.
_UNDISTURBED = 0.95
_RESAMPLES = 4000


class DiffVerdict(enum.StrEnum):
    """How a row stands to the one before."""

    SLOWER = "slower"
    BROKEN = "broken"
    """It was ok and is not any more."""
    FASTER = "faster"
    FIXED = "fixed"
    SAME = "same"
    NEW = "new"
    GONE = "gone"
    NONE = "-"
    """Ok in neither."""

    @property
    def is_regression(self) -> bool:
        return self in (DiffVerdict.SLOWER, DiffVerdict.BROKEN)


@dataclass(frozen=True)
class TimeChange:
    """A workload with a provider, before and after; `ratio` is new time over old time, None unless
    both are ok; `by_processor`: of processor time, since the machine was busy."""

    workload: str
    provider: str
    verdict: DiffVerdict
    ratio: Interval | None = None
    old: ComparisonRow | None = None
    new: ComparisonRow | None = None
    by_processor: bool = False


def diff(
    old: ComparisonRun,
    new: ComparisonRun,
    *,
    margin: float = MARGIN,
    confidence: float = CONFIDENCE,
) -> list[TimeChange]:
    """A verdict for each row of either. Raises UserError for runs with other numbers of threads,
    or on other processors."""
    _check(old, new)
    keys = dict.fromkeys((r.workload, r.provider) for run in (old, new) for r in run.rows)
    pairs = [(key, old.row(*key), new.row(*key)) for key in keys]
    compared = sum(_both(a, b) for _, a, b in pairs)
    each = 1 - (1 - confidence) / max(1, compared)
    return [
        _change(workload, provider, a, b, margin, each, old.threads)
        for (workload, provider), a, b in pairs
    ]


def _check(old: ComparisonRun, new: ComparisonRun) -> None:
    if not (old.gpu or new.gpu) and old.threads != new.threads:
        raise UserError(
            f"the results are of {old.threads} and of {new.threads} threads: nothing to compare"
        )
    before, after = old.computer, new.computer
    if before != after:
        raise UserError(f"the results are of other machines: {before} and {after}")


def _both(old: ComparisonRow | None, new: ComparisonRow | None) -> bool:
    return old is not None and new is not None and old.ok and new.ok


def _change(
    workload: str,
    provider: str,
    old: ComparisonRow | None,
    new: ComparisonRow | None,
    margin: float,
    confidence: float,
    threads: int,
) -> TimeChange:
    busy = threads == 1 and any(_was_disturbed(row) for row in (old, new))

    def made(verdict: DiffVerdict, ratio: Interval | None = None) -> TimeChange:
        return TimeChange(workload, provider, verdict, ratio, old, new, busy and ratio is not None)

    if old is None or new is None:
        return made(DiffVerdict.NEW if old is None else DiffVerdict.GONE)
    if not (old.ok and new.ok):
        if old.ok:
            # What is not installed any more has not become worse.
            return made(
                DiffVerdict.GONE if new.outcome is ProviderOutcome.SKIPPED else DiffVerdict.BROKEN
            )
        return made(DiffVerdict.FIXED if new.ok else DiffVerdict.NONE)
    times = (new.processor, old.processor) if busy else (new.times, old.times)
    ratio = fastest_ratio(*times, confidence)
    if ratio.low > 1 + margin:
        return made(DiffVerdict.SLOWER, ratio)
    if ratio.high < 1 / (1 + margin):
        return made(DiffVerdict.FASTER, ratio)
    return made(DiffVerdict.SAME, ratio)


def _was_disturbed(row: ComparisonRow | None) -> bool:
    return row is not None and row.cores is not None and row.cores < _UNDISTURBED


def fastest_ratio(
    times: Sequence[float], reference: Sequence[float], confidence: float, seed: int = 0
) -> Interval:
    """Bootstrap interval of the ratio of the least of two independent samples."""
    rng = np.random.default_rng(seed)

    def replicates(samples: Sequence[float]) -> tuple[float, np.ndarray]:
        data = np.asarray(samples, np.float64)
        picks = rng.integers(0, data.size, size=(_RESAMPLES, data.size))
        return float(data.min()), data[picks].min(axis=-1)

    (new, news), (old, olds) = replicates(times), replicates(reference)
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(news / olds, [tail, 100 - tail])
    value = new / old
    return Interval(value, min(float(low), value), max(float(high), value), confidence)


def mean_ratio(changes: Sequence[TimeChange]) -> float | None:
    """Geometric mean of new time over old; None where nothing was compared."""
    logs = [math.log(c.ratio.value) for c in changes if c.ratio is not None]
    return math.exp(sum(logs) / len(logs)) if logs else None
