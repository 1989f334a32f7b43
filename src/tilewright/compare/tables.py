"""Results of comparisons as rows of text: for the terminal, for Markdown, for pages."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compare.diff import TimeChange
from tilewright.compare.results import (
    ComparisonRow,
    ComparisonRun,
    ProviderOutcome,
    mean_speedup,
    speedup,
)
from tilewright.tables import Table
from tilewright.words import milliseconds, significant


def time_text(row: ComparisonRow) -> str:
    """`1.23 ms (1.20 to 1.26), 220 GFLOP/s`.

    Args:
        row: one that is ok.
    """
    time, rate = row.time, row.gflops
    text = f"{milliseconds(time.value)} ms ({milliseconds(time.low)} to {milliseconds(time.high)})"
    return f"{text}, {significant(rate.value)} GFLOP/s" if rate else text


ROW_COLUMNS = (
    "workload",
    "provider",
    "ms",
    "95% interval",
    "GFLOP/s",
    "of peak",
    "speed-up",
    "95% interval of it",
    "cores",
    "remarks",
)


_NUMBERS = ("ms", "GFLOP/s", "of peak", "speed-up", "cores")


def rows_table(run: ComparisonRun, base: str) -> Table:
    """A row for each workload with each provider; speed-ups are over `base`. Of a GPU there is no
    column of what it has none of: a measured peak, cores of the processor.

    Args:
        run: the comparison.
        base: what speed-ups are over.
    """
    columns = [c for c in ROW_COLUMNS if not (run.gpu and c in ("of peak", "cores"))]
    rows = []
    for row in run.rows:
        cells = dict(zip(ROW_COLUMNS, _cells(run, row, base), strict=True))
        rows.append(tuple(cells[c] for c in columns))
    where = f"{run.gpu}, {run.threads_text}" if run.gpu else run.threads_text
    right = tuple(c for c in columns if c in _NUMBERS)
    return Table(tuple(columns), right, tuple(rows), f"{where}, speed-ups over {base}")


def _cells(run: ComparisonRun, row: ComparisonRow, base: str) -> tuple[str, ...]:
    if not row.ok:
        return (
            row.workload,
            row.provider,
            *("-",) * 7,
            f"{row.outcome}: {row.reason}" if row.reason else str(row.outcome),
        )
    time, rate, peak = row.time, row.gflops, run.state.gflops
    faster = speedup(run, row.workload, row.provider, base)
    of_peak = rate and peak and row.element_type == "f32" and f"{100 * rate.value / peak:.0f}%"
    return (
        row.workload,
        row.provider,
        milliseconds(time.value),
        f"{milliseconds(time.low)} to {milliseconds(time.high)}",
        significant(rate.value) if rate else "-",
        of_peak or "-",
        f"{faster.value:.2f}" if faster else "-",
        f"{faster.low:.2f} to {faster.high:.2f}" if faster else "-",
        "-" if row.cores is None else f"{row.cores:.2f}",
        row.note,
    )


def means_table(run: ComparisonRun, base: str) -> Table:
    """For each provider the geometric mean of its speed-ups, and what became of its rows.

    Args:
        run: the comparison.
        base: what speed-ups are over.
    """
    rows = []
    for provider in run.providers:
        own = [r for r in run.rows if r.provider == provider]
        mean, count = mean_speedup(run, provider, base)
        others = [o for o in ProviderOutcome if o is not ProviderOutcome.OK]
        counts = [(sum(r.outcome is o for r in own), str(o)) for o in others]
        rows.append(
            (
                provider,
                f"{mean:.2f}" if mean is not None else "-",
                str(count),
                ", ".join(f"{n} {name}" for n, name in counts if n),
                next((r.version for r in own if r.version), ""),
            )
        )
    columns = ("provider", "geometric mean", "over", "not in it", "version")
    return Table(columns, columns[1:3], tuple(rows), f"Speed-up over {base}")


def wide_table(run: ComparisonRun) -> Table:
    """Workloads by providers: GFLOP/s, or milliseconds of what has no known operations.

    Args:
        run: the comparison.
    """
    rows = []
    for workload in run.workloads:
        cells = [workload]
        for provider in run.providers:
            row = run.row(workload, provider)
            if row is None or not row.ok:
                cells.append(str(row.outcome) if row else "-")
                continue
            rate = row.gflops
            cells.append(significant(rate.value) if rate else f"{milliseconds(row.time.value)} ms")
        rows.append(tuple(cells))
    return Table(("workload", *run.providers), tuple(run.providers), tuple(rows), "GFLOP/s")


def _remark(change: TimeChange) -> str:
    if change.new is not None and not change.new.ok:
        return change.new.reason
    return "by processor time: the machine was busy" if change.by_processor else ""


def changes_table(changes: Sequence[TimeChange]) -> Table:
    """A row for each change, the worst first.

    Args:
        changes: of two comparisons.
    """
    order = list(type(changes[0].verdict)) if changes else []
    rows = []
    for one in sorted(changes, key=lambda c: order.index(c.verdict)):
        old, new, ratio = one.old, one.new, one.ratio
        rows.append(
            (
                str(one.verdict),
                one.workload,
                one.provider,
                milliseconds(old.time.value) if old and old.ok else "-",
                milliseconds(new.time.value) if new and new.ok else "-",
                f"{ratio.value:.3f}" if ratio else "-",
                f"{ratio.low:.3f} to {ratio.high:.3f}" if ratio else "-",
                _remark(one),
            )
        )
    columns = (
        "verdict",
        "workload",
        "provider",
        "old ms",
        "new ms",
        "ratio",
        "interval",
        "remarks",
    )
    return Table(columns, columns[3:6], tuple(rows))
