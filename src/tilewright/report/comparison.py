"""The page on a comparison, and its tables for Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.compare.charts import BarChart, Roofline, SearchCurve, charts, short_name
from tilewright.compare.results import ComparisonRun, default_base, latest, mean_speedup, read_runs
from tilewright.compare.tables import means_table, rows_table, wide_table
from tilewright.report.page import (
    COLOURS,
    FIGURE_HEIGHT,
    PATTERNS,
    Figures,
    figure_layout,
    render,
    roofline_figure,
    write_page,
)
from tilewright.tables import Table

_TEMPLATE = "comparison.html.j2"
_GROUP_WIDTH = 110


def write_comparison_page(results: Path, output: Path, base: str | None = None) -> Path:
    """Write the page on a file of results.

    Args:
        results: the file.
        output: the page.
        base: what speed-ups are over.

    Returns:
        The page's path.

    Raises:
        UserError: a file cannot be read or written, or there is no such provider.
    """
    run = latest(read_runs(results))
    return write_page(output, comparison_page(run, default_base(run, base)), "--output")


def comparison_markdown(results: Path, base: str | None = None) -> str:
    """The tables of a file of results in GitHub's Markdown.

    Args:
        results: the file.
        base: what speed-ups are over.

    Raises:
        UserError: it cannot be read, or there is no such provider.
    """
    run = latest(read_runs(results))
    base = default_base(run, base)
    warnings = [f"> {line}" for line in run.state.warnings()]
    return "\n\n".join(
        [
            f"{run.computer}, {run.threads_text}, {run.date[:10]}. GFLOP/s, medians:",
            wide_table(run).markdown(),
            f"Speed-up over {base}:",
            means_table(run, base).markdown(),
            *(["\n".join(warnings)] if warnings else []),
            *([f"```sh\n{run.command}\n```"] if run.command else []),
        ]
    )


def comparison_page(run: ComparisonRun, base: str) -> str:
    """The page as text.

    Args:
        run: the comparison.
        base: what speed-ups are over.
    """
    figures: Figures = {}
    shown = []
    for name, chart in charts(run, base).items():
        heading, label, draw = _DRAWN[name]
        figures[name] = draw(chart, run)
        shown.append((name, heading.format(base=base), label, FIGURE_HEIGHT))
    values = {
        "title": "Comparison of " + ", ".join(run.providers),
        "headline": _headline(run, base),
        "facts": [
            f"{len(run.workloads)} workloads",
            run.threads_text,
            run.computer,
            run.date[:10],
        ],
        "warnings": run.state.warnings(),
        "means": means_table(run, base),
        "rows": rows_table(run, base),
        "charts": shown,
        "command": run.command,
        "environment": _environment(run),
    }
    return render(_TEMPLATE, values, figures)


def _headline(run: ComparisonRun, base: str) -> str:
    means = [(p, *mean_speedup(run, p, base)) for p in run.providers if p != base]
    known = [(p, mean, n) for p, mean, n in means if mean is not None]
    if not known:
        return "Nothing could be compared."
    best = max(known, key=lambda one: one[1])
    return (
        f"Against {base}, {best[0]} is {best[1]:.2f} times as fast in the geometric mean of "
        f"{best[2]} workloads."
    )


def _environment(run: ComparisonRun) -> Table:
    before, after = run.state.before, run.state.after

    def pair(a: Any, b: Any, unit: str) -> str:
        return f"{a:.4g} and {b:.4g} {unit}" if a and b else "not measured"

    rows = [
        *((name, version) for name, version in run.versions.items() if version),
        ("peak before and after", pair(before.gflops, after.gflops, "GFLOP/s")),
        ("memory before and after", pair(before.gbytes_per_s, after.gbytes_per_s, "GB/s")),
        ("load before and after", pair(before.load, after.load, "")),
        ("governor", run.state.machine.get("governor") or "not told"),
        ("system", run.state.machine.get("system", "")),
        ("date", run.date),
    ]
    return Table(("what", "value"), (), tuple((str(a), str(b)) for a, b in rows))


# -- figures ---------------------------------------------------------------------------------------


def _colour(run: ComparisonRun, provider: str) -> str:
    return COLOURS[run.providers.index(provider) % len(COLOURS)]


def _bars(chart: BarChart, run: ComparisonRun) -> Any:
    import plotly.graph_objects as go

    names = {group: short_name(group) for group in chart.groups}
    drawn: list[Any] = []
    for provider, values in chart.series.items():
        found = list(values.values())
        drawn.append(
            go.Bar(
                x=[names[group] for group in values],
                y=[v.value - chart.base for v in found],
                base=chart.base,
                customdata=[v.value for v in found],
                error_y={
                    "array": [v.high - v.value for v in found],
                    "arrayminus": [v.value - v.low for v in found],
                    "thickness": 1,
                    "width": 2,
                },
                name=provider,
                marker={
                    "color": _colour(run, provider),
                    "pattern": {"shape": PATTERNS[run.providers.index(provider) % len(PATTERNS)]},
                },
                hovertemplate="%{x}: %{customdata:.4g}<extra>" + provider + "</extra>",
            )
        )
    if chart.limit is not None:
        label, height = chart.limit
        drawn.append(
            go.Scatter(
                x=list(names.values()),
                y=[height] * len(names),
                mode="lines",
                name=label,
                line={"dash": "dash", "color": COLOURS[6]},
            )
        )
    wide = len(names) > 6
    layout = figure_layout(
        barmode="group",
        width=max(640, _GROUP_WIDTH * len(names)) if wide else None,
        margin={"l": 60, "r": 15, "t": 20, "b": 120},
        xaxis={"tickangle": -35, "automargin": True},
        yaxis={"title": {"text": chart.axis}},
    )
    return go.Figure(drawn, layout)


def _roofline(chart: Roofline, run: ComparisonRun) -> Any:
    series = {
        provider: tuple((short_name(workload), x, y) for workload, x, y in points)
        for provider, points in chart.series.items()
    }
    markers = {
        provider: {"color": _colour(run, provider), "symbol": number, "size": 9}
        for number, provider in enumerate(run.providers)
    }
    return roofline_figure(replace(chart, series=series), markers)


def _quality(curves: Sequence[SearchCurve], run: ComparisonRun) -> Any:
    import plotly.graph_objects as go

    drawn = [
        go.Scatter(
            x=curve.seconds,
            y=curve.quality.astype(np.float32),
            customdata=curve.trials,
            mode="lines",
            name=f"{curve.provider}, {short_name(curve.workload)}",
            line={"shape": "hv", "color": _colour(run, curve.provider)},
            hovertemplate="%{y:.0%} after %{x:.0f} s, %{customdata} trials",
        )
        for curve in curves
    ]
    layout = figure_layout(
        xaxis={"title": {"text": "seconds of search"}},
        yaxis={"title": {"text": "part of the best speed found"}, "rangemode": "tozero"},
        showlegend=len(drawn) <= 12,
        legend={"orientation": "h", "y": -0.2},
    )
    return go.Figure(drawn, layout)


# By chart: heading, label, and how it is drawn.
_DRAWN: Mapping[str, tuple[str, str, Callable[[Any, ComparisonRun], Any]]] = {
    "bars": ("Speed", "GFLOP/s with 95% intervals; the line is the machine's peak.", _bars),
    "speedup": ("Speed-up over {base}", "Above 1 is faster; with 95% intervals.", _bars),
    "roofline": (
        "Roofline",
        "GFLOP/s against operations for each byte, under the machine's limits.",
        _roofline,
    ),
    "quality": (
        "Time to quality",
        "The best so far of each search, against its wall time.",
        _quality,
    ),
}
