"""Two results of comparisons against each other, with a verdict for each row beyond the noise.

Runs of different days are not paired, so what moves all of a machine (its clock, a neighbour) would
be taken for a change of what is measured. Three things are allowed for. The statistic is a row's
fastest part: what else runs on a machine only ever adds time, and a part is short (half a
millisecond, or one call), so the fastest of all rounds says most of the program. Over 22 windows of
25 rounds on a two-core virtual machine it moved by 2 to 3% from one to the next at most, the 5%
quantile of whole samples by 5%, and their median by 16%. Where a program of one thread did not have
its processor to itself in either run, its processor time is compared instead: wall time would tell
what else ran. And the whole interval must clear a margin, below which a change is nobody's
concern. The interval is that of the precedence test: a bootstrap of a least value never goes below
it, and where 95% were claimed it held the ratio in 88% of simulated comparisons.

All intervals of a diff hold together at the confidence (Bonferroni), so that a table of a hundred
rows gives no more false alarms than one of one row.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.compare.results import ComparisonRow, ComparisonRun, ProviderOutcome
from tilewright.errors import UserError
from tilewright.measure.statistics import Interval, judge

CONFIDENCE = 0.95
MARGIN = 0.04
# Below this part of a processor a program of one thread was kept waiting by others.
_UNDISTURBED = 0.95


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
    """A verdict for each row of either.

    Args:
        old: the comparison before.
        new: the comparison after.
        margin: changes of time below this part are none.
        confidence: that all intervals hold together.

    Returns:
        The changes, in the order of the rows.

    Raises:
        UserError: the runs are of other numbers of threads, or on other processors.
    """
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
    return made(DiffVerdict(judge(ratio, margin)), ratio)


def _was_disturbed(row: ComparisonRow | None) -> bool:
    return row is not None and row.cores is not None and row.cores < _UNDISTURBED


def fastest_ratio(
    times: Sequence[float], reference: Sequence[float], confidence: float
) -> Interval:
    """The ratio of the least of two independent samples, with an interval that is exact.

    The precedence test (L. Nelson, "Tables for a precedence life test", Technometrics 5(4), 1963;
    N. Balakrishnan, H. Ng, "Precedence-type tests and applications", 2006) turned round: the
    interval holds every factor by which the reference's times can be multiplied without either
    sample beginning behind too many of the other. Nothing is assumed of how times are distributed.

    Args:
        times: seconds, [rounds].
        reference: seconds of what is compared with, [rounds].
        confidence: that the factor between the two distributions lies in the interval, at least.

    Returns:
        The ratio and the bounds; a bound is 0 or infinity where there are too few samples for it.
    """
    new, old = sorted(times), sorted(reference)
    tail = (1 - confidence) / 2
    behind = _precedence(len(new), len(old), tail)
    before = _precedence(len(old), len(new), tail)
    low = new[0] / old[behind - 1] if behind else 0.0
    high = new[before - 1] / old[0] if before else math.inf
    return Interval(new[0] / old[0], low, high, confidence)


def _precedence(own: int, others: int, chance: float) -> int:
    """The least m for which all of a sample lies behind m of another, of the same distribution,
    with at most this chance; 0 where there is none. own, others: their numbers."""
    probability = 1.0
    for m in range(1, others + 1):
        probability *= (others - m + 1) / (own + others - m + 1)
        if probability <= chance:
            return m
    return 0


def mean_ratio(changes: Sequence[TimeChange]) -> float | None:
    """Geometric mean of new time over old; None where nothing was compared.

    Args:
        changes: of two comparisons.
    """
    logs = [math.log(c.ratio.value) for c in changes if c.ratio is not None]
    return math.exp(sum(logs) / len(logs)) if logs else None
