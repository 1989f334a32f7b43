"""The page on a comparison, and its tables for Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tilewright.compare.plots import short_name
from tilewright.compare.results import (
    ComparisonRun,
    default_base,
    latest,
    mean_speedup,
    read_runs,
    speedup,
)
from tilewright.compare.tables import means_table, rows_table, wide_table
from tilewright.report.page import COLOURS, PATTERNS, Figures, log_axis, render, write_page
from tilewright.tables import Table

_TEMPLATE = "comparison.html.j2"
_GROUP_WIDTH = 110


def write_comparison_page(results: Path, output: Path, base: str | None = None) -> Path:
    """Write the page on a file of results. base: what speed-ups are over. Raises UserError."""
    run = latest(read_runs(results))
    return write_page(output, comparison_page(run, default_base(run, base)), "--output")


def comparison_markdown(results: Path, base: str | None = None) -> str:
    """The tables of a file of results in GitHub's Markdown. Raises UserError."""
    run = latest(read_runs(results))
    base = default_base(run, base)
    versions = means_table(run, base)
    warnings = [f"> {line}" for line in run.state.warnings()]
    return "\n\n".join(
        [
            f"{run.computer}, {run.threads_text}, {run.date[:10]}. GFLOP/s, medians:",
            wide_table(run).markdown(),
            f"Speed-up over {base}:",
            versions.markdown(),
            *(["\n".join(warnings)] if warnings else []),
            *([f"```sh\n{run.command}\n```"] if run.command else []),
        ]
    )


def comparison_page(run: ComparisonRun, base: str) -> str:
    """The page as text."""
    figures = Figures()
    charts = []
    for name, heading, label, made, height in (
        ("bars", "Speed", "GFLOP/s with 95% intervals; the line is the machine's peak.",
         _bars(run), 420),
        ("speedup", f"Speed-up over {base}", "Above 1 is faster; with 95% intervals.",
         _speedups(run, base), 420),
        ("roofline", "Roofline", "GFLOP/s against operations for each byte, under the machine's "
         "limits.", _roofline(run), 420),
        ("quality", "Time to quality", "The best so far of each search, against its wall time.",
         _quality(run), 420),
    ):  # fmt: skip
        if made is not None:
            figures.add(name, made)
            charts.append((name, heading, label, height))
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
        "charts": charts,
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


def _marker(number: int) -> dict[str, Any]:
    return {
        "color": COLOURS[number % len(COLOURS)],
        "pattern": {"shape": PATTERNS[number % len(PATTERNS)]},
    }


def _grouped(groups: int, title: str, **more: Any) -> dict[str, Any]:
    return {
        "barmode": "group",
        "height": 420,
        "width": max(640, _GROUP_WIDTH * groups) if groups > 6 else None,
        "margin": {"l": 60, "r": 15, "t": 20, "b": 120},
        "xaxis": {"tickangle": -35, "automargin": True},
        "yaxis": {"title": {"text": title}, **more},
        "legend": {"orientation": "h", "y": 1.12},
    }


def _bars(run: ComparisonRun) -> Any:
    import plotly.graph_objects as go

    rated = [w for w in run.workloads if any(r.ok and r.flops for r in run.rows if r.workload == w)]
    if not rated:
        return None
    drawn: list[Any] = []
    for number, provider in enumerate(run.providers):
        rates = [
            (short_name(w), rate)
            for w in rated
            if (row := run.row(w, provider)) is not None and row.ok and (rate := row.gflops)
        ]
        if rates:
            drawn.append(
                go.Bar(
                    x=[name for name, _ in rates],
                    y=[rate.value for _, rate in rates],
                    error_y={
                        "array": [rate.high - rate.value for _, rate in rates],
                        "arrayminus": [rate.value - rate.low for _, rate in rates],
                        "thickness": 1,
                        "width": 2,
                    },
                    name=provider,
                    marker=_marker(number),
                )
            )
    if run.state.gflops:
        names = [short_name(w) for w in rated]
        drawn.append(
            go.Scatter(
                x=names,
                y=[run.state.gflops] * len(names),
                mode="lines",
                name="peak (f32)",
                line={"dash": "dash", "color": COLOURS[6]},
            )
        )
    return go.Figure(drawn, _grouped(len(rated), "GFLOP/s"))


def _speedups(run: ComparisonRun, base: str) -> Any:
    import plotly.graph_objects as go

    drawn = []
    for number, provider in enumerate(run.providers):
        found = [(short_name(w), speedup(run, w, provider, base)) for w in run.workloads]
        there = [(name, s) for name, s in found if s is not None]
        mean, count = mean_speedup(run, provider, base)
        if provider == base or not there or mean is None:
            continue
        names = [name for name, _ in there]
        values = [s.value for _, s in there]
        high = [min(s.high, 10 * s.value) - s.value for _, s in there]
        low = [s.value - s.low for _, s in there]
        if count > 1:
            names, values = [*names, "geometric mean"], [*values, mean]
            high, low = [*high, 0.0], [*low, 0.0]
        drawn.append(
            go.Bar(
                x=names,
                y=[v - 1 for v in values],
                base=1,
                customdata=values,
                error_y={"array": high, "arrayminus": low, "thickness": 1, "width": 2},
                name=provider,
                marker=_marker(number),
                hovertemplate="%{customdata:.3f}<extra>" + provider + "</extra>",
            )
        )
    if not drawn:
        return None
    return go.Figure(drawn, _grouped(len(run.workloads) + 1, f"speed-up over {base}"))


def _roofline(run: ComparisonRun) -> Any:
    import plotly.graph_objects as go

    rows = [r for r in run.rows if r.ok and r.flops and r.bytes]
    peak, bandwidth = run.state.gflops, run.state.gbytes_per_s
    if not rows or not peak or not bandwidth:
        return None
    intensity = [r.flops / r.bytes for r in rows]
    ridge = peak / bandwidth
    line = [min(*intensity, ridge) / 2, ridge, max(*intensity, ridge) * 2]
    drawn = [
        go.Scatter(
            x=line,
            y=[min(peak, x * bandwidth) for x in line],
            mode="lines",
            name="machine (f32)",
            line={"color": COLOURS[6]},
        )
    ]
    for number, provider in enumerate(run.providers):
        own = [r for r in rows if r.provider == provider]
        if own:
            drawn.append(
                go.Scatter(
                    x=[r.flops / r.bytes for r in own],
                    y=[rate.value for r in own if (rate := r.gflops)],
                    text=[short_name(r.workload) for r in own],
                    mode="markers",
                    name=provider,
                    marker={"color": COLOURS[number % len(COLOURS)], "symbol": number, "size": 9},
                )
            )
    layout = {
        "height": 420,
        "margin": {"l": 60, "r": 15, "t": 20, "b": 50},
        "xaxis": log_axis("operations for each byte", line),
        "yaxis": log_axis("GFLOP/s", [peak, *(r.gflops.value for r in rows if r.gflops)]),
        "legend": {"orientation": "h", "y": 1.12},
    }
    return go.Figure(drawn, layout)


def _quality(run: ComparisonRun) -> Any:
    import plotly.graph_objects as go

    searched = [r for r in run.rows if r.progress]
    if not searched:
        return None
    best: dict[str, float] = {}
    for row in searched:
        found = min(p[2] for p in row.progress)
        best[row.workload] = min(found, best.get(row.workload, found))
    drawn = []
    for row in searched:
        running = np.minimum.accumulate([p[2] for p in row.progress])
        drawn.append(
            go.Scatter(
                x=[p[0] for p in row.progress],
                y=(best[row.workload] / running).astype(np.float32),
                customdata=[p[1] for p in row.progress],
                mode="lines",
                name=f"{row.provider}, {short_name(row.workload)}",
                line={
                    "shape": "hv",
                    "color": COLOURS[run.providers.index(row.provider) % len(COLOURS)],
                },
                hovertemplate="%{y:.0%} after %{x:.0f} s, %{customdata} trials",
            )
        )
    layout = {
        "height": 420,
        "margin": {"l": 60, "r": 15, "t": 20, "b": 50},
        "xaxis": {"title": {"text": "seconds of search"}},
        "yaxis": {"title": {"text": "part of the best speed found"}, "rangemode": "tozero"},
        "showlegend": len(drawn) <= 12,
        "legend": {"orientation": "h", "y": -0.2},
    }
    return go.Figure(drawn, layout)
