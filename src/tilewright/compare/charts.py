"""What pictures and pages show of a comparison, as plain data: bars, a roofline, searches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.compare.results import ComparisonRow, ComparisonRun, mean_speedup, speedup
from tilewright.measure.statistics import Interval

MEAN = "geometric mean"
# No bar's interval goes further than this many times its value.
_LONGEST = 10


@dataclass(frozen=True)
class BarChart:
    """Bars with intervals, in groups.

    title: what is shown. axis: of the values. groups: names in order. series: by provider the
    values of the groups that it has. base: where bars begin. limit: a line across, with its name.
    """

    title: str
    axis: str
    groups: tuple[str, ...]
    series: Mapping[str, Mapping[str, Interval]]
    base: float = 0.0
    limit: tuple[str, float] | None = None


@dataclass(frozen=True)
class Roofline:
    """Rates against arithmetic intensity under the machine's roofs: S. Williams, A. Waterman,
    D. Patterson, "Roofline", CACM 52(4), 2009.

    peak: GFLOP/s. bandwidth: GB/s. series: by provider (workload, operations for each byte,
    GFLOP/s). ends: of the first axis.
    """

    peak: float
    bandwidth: float
    series: Mapping[str, tuple[tuple[str, float, float], ...]]

    @property
    def ends(self) -> tuple[float, float]:
        """Of the first axis; the ridge of the roof lies between them."""
        found = [x for points in self.series.values() for _, x, _ in points]
        ridge = self.peak / self.bandwidth
        return min(*found, ridge) / 2, max(*found, ridge) * 2


@dataclass(frozen=True)
class SearchCurve:
    """The best so far of a search, as part of the best that any found for the workload.

    seconds, trials: since it began, [points]. quality: from 0 to 1, [points].
    """

    provider: str
    workload: str
    seconds: NDArray[np.float64]
    trials: NDArray[np.float64]
    quality: NDArray[np.float64]


def charts(run: ComparisonRun, base: str) -> dict[str, Any]:
    """All that the run has numbers for.

    Args:
        run: the comparison.
        base: what speed-ups are over.

    Returns:
        By name: two bar charts (`bars`, `speedup`), a `roofline`, the curves of `quality`.
    """
    found = {
        "bars": speeds(run),
        "speedup": speedups(run, base),
        "roofline": roofline(run),
        "quality": searches(run),
    }
    return {name: chart for name, chart in found.items() if chart}


def speeds(run: ComparisonRun) -> BarChart | None:
    """GFLOP/s by workload and provider; None where no workload has a known number of operations.

    Args:
        run: the comparison.
    """
    series = {
        provider: {
            row.workload: rate
            for row in run.rows
            if row.provider == provider and row.ok and (rate := row.gflops) is not None
        }
        for provider in run.providers
    }
    peak = run.state.gflops
    limit = ("peak (f32)", peak) if peak else None
    return _chart("GFLOP/s, higher is better", "GFLOP/s", run.workloads, series, limit=limit)


def speedups(run: ComparisonRun, base: str) -> BarChart | None:
    """Speed-ups over a base by workload and provider, and their geometric mean as a group of its
    own; None where nothing can be compared.

    Args:
        run: the comparison.
        base: the provider that the others are compared with.
    """
    series: dict[str, dict[str, Interval]] = {}
    for provider in run.providers:
        if provider == base:
            continue
        own = {
            workload: Interval(s.value, s.low, min(s.high, _LONGEST * s.value), s.confidence)
            for workload in run.workloads
            if (s := speedup(run, workload, provider, base)) is not None
        }
        mean, count = mean_speedup(run, provider, base)
        if mean is not None and count > 1:
            own[MEAN] = Interval(mean, mean, mean, 0.0)
        series[provider] = own
    title = f"Speed-up over {base}, higher is better"
    return _chart(title, f"speed-up over {base}", [*run.workloads, MEAN], series, 1.0)


def _chart(
    title: str,
    axis: str,
    groups: list[str],
    series: Mapping[str, Mapping[str, Interval]],
    base: float = 0.0,
    limit: tuple[str, float] | None = None,
) -> BarChart | None:
    shown = {provider: own for provider, own in series.items() if own}
    there = tuple(g for g in groups if any(g in own for own in shown.values()))
    return BarChart(title, axis, there, shown, base, limit) if there else None


def roofline(run: ComparisonRun) -> Roofline | None:
    """None without rates, or without a measured peak.

    Args:
        run: the comparison.
    """
    peak, bandwidth = run.state.gflops, run.state.gbytes_per_s
    series: dict[str, tuple[tuple[str, float, float], ...]] = {}
    for row in run.rows:
        rate = row.gflops if row.ok and row.bytes else None
        if rate is not None:
            point = (row.workload, row.flops / row.bytes, rate.value)
            series[row.provider] = (*series.get(row.provider, ()), point)
    return Roofline(peak, bandwidth, series) if peak and bandwidth and series else None


def searches(run: ComparisonRun) -> list[SearchCurve]:
    """A curve for each row that was searched.

    Args:
        run: the comparison.
    """
    rows = [row for row in run.rows if row.progress]
    return [_curve(row, min(_best(r) for r in rows if r.workload == row.workload)) for row in rows]


def _best(row: ComparisonRow) -> float:
    return min(best_s for _, _, best_s in row.progress)


def _curve(row: ComparisonRow, best_s: float) -> SearchCurve:
    seconds, trials, found = np.array(row.progress, np.float64).T
    quality = best_s / np.minimum.accumulate(found)
    return SearchCurve(row.provider, row.workload, seconds, trials, quality)


def short_name(workload: str) -> str:
    """A workload's name for an axis: without the layouts where all are row-major.

    Args:
        workload: its name.

    Returns:
        Words with spaces, in two lines where they are many.
    """
    words = workload.split("_")
    types = [w for w in words if w[:1] in "fib" and w[-1:] in "tn" and any(c.isdigit() for c in w)]
    if types and all(w.endswith("t") for w in types) and len({*types}) == 1:
        words = [*(w for w in words if w not in types), types[0][:-1]]
    text = " ".join(words)
    return text if text.count(" ") < 4 else "\n".join(_halves(text))


def _halves(text: str) -> tuple[str, str]:
    spaces = [i for i, c in enumerate(text) if c == " "]
    middle = min(spaces, key=lambda i: abs(i - len(text) // 2))
    return text[:middle], text[middle + 1 :]
