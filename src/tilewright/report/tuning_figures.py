"""The figures of the page on a tuning run, drawn with plotly; each function adds its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.compare.charts import Roofline
from tilewright.measure.peak import Peak
from tilewright.report.importance import LEAST_TRIALS, importance
from tilewright.report.page import (
    COLOURS,
    Figures,
    figure_layout,
    log_axis,
    roofline_figure,
)
from tilewright.report.result_folder import Trials
from tilewright.report.time_figures import without_prefix
from tilewright.words import significant

# More axes than this cannot be told apart.
_MOST_AXES = 16
# Beyond this a picture of all knobs has no more lines, but those of the fastest are all there.
_MOST_LINES = 20_000


def progress(figures: Figures, curves: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """How far dispatches have come by the time that has passed.

    Args:
        figures: gets the figure.
        curves: by name, pairs of seconds and of the best so far over the default's speed.
    """
    import plotly.graph_objects as go

    short = without_prefix(list(curves))
    lines = [
        go.Scatter(
            x=[seconds for seconds, _ in points],
            y=[speedup for _, speedup in points],
            mode="lines",
            name=short[name],
            line={
                "shape": "hv",
                "color": COLOURS[number % len(COLOURS)],
                "dash": ("solid", "dash", "dot")[(number // len(COLOURS)) % 3],
            },
            hovertemplate="%{y:.3g}x after %{x:.0f} s<extra>" + name + "</extra>",
        )
        for number, (name, points) in enumerate(curves.items())
    ]
    speedups = [speedup for points in curves.values() for _, speedup in points]
    layout = figure_layout(
        xaxis={"title": {"text": "seconds"}},
        yaxis=log_axis("the default's speed", speedups),
        # Below: on a phone the names take as many lines as there are curves.
        legend={"orientation": "h", "yanchor": "top", "y": -0.2},
        height=560,
    )
    figures["progress"] = go.Figure(lines, layout)


def roofline(figures: Figures, rows: list[dict[str, Any]], peak: Peak) -> bool:
    """The dispatches under the machine's roofs.

    Args:
        figures: gets the figure.
        rows: of the summary's dispatches.
        peak: what the machine reaches.

    Returns:
        Whether there was anything to draw.
    """
    known = [r for r in rows if r.get("bytes") and r.get("flops") and r.get("gflops_default")]
    if not known:
        return False
    shown = (("default", "gflops_default", "circle-open"), ("tuned", "gflops_tuned", "circle"))
    series = {
        label: tuple((r["name"], r["flops"] / r["bytes"], r[key]) for r in known)
        for label, key, _ in shown
    }
    markers = {
        label: {"symbol": symbol, "size": 10, "color": COLOURS[0]} for label, _, symbol in shown
    }
    chart = Roofline(peak.gflops, peak.gbytes_per_s, series)
    figures["roofline"] = roofline_figure(chart, markers)
    return True


def convergence(figures: Figures, name: str, trials: Trials, row: Mapping[str, Any]) -> str:
    """The best so far by trial, over all trials as points.

    Args:
        figures: gets the figure.
        name: of the figure.
        trials: of a dispatch; some must have worked.
        row: the dispatch's in the summary.

    Returns:
        What it shows, in words.
    """
    import plotly.graph_objects as go

    number = np.arange(1, trials.count + 1, dtype=np.int32)
    times = trials.times_ms.astype(np.float32)
    ok = trials.ok
    running = np.minimum.accumulate(np.where(ok, trials.times_ms, np.inf))
    better = np.flatnonzero(np.diff(running, prepend=np.inf) < 0)
    # Points beyond this are drawn by the graphics card.
    points = go.Scattergl if ok.sum() > 2000 else go.Scatter
    default = row["default_ms"]
    steps = [*better.tolist(), trials.count - 1]
    drawn = [
        points(
            x=number[ok],
            y=times[ok],
            mode="markers",
            name="trials",
            marker={"size": 4, "color": COLOURS[4]},
        ),
        go.Scatter(
            x=[i + 1 for i in steps],
            y=[float(running[i]) for i in steps],
            customdata=[float(trials.spent_s[i]) for i in steps],
            mode="lines",
            name="best so far",
            line={"shape": "hv", "color": COLOURS[3], "width": 2},
            hovertemplate="%{y:.4g} ms after %{x} trials, %{customdata:.1f} s<extra></extra>",
        ),
    ]
    if default:
        drawn.append(
            go.Scatter(
                x=[1, trials.count],
                y=[default, default],
                mode="lines",
                name="default",
                line={"dash": "dash", "color": COLOURS[6]},
            )
        )
    layout = figure_layout(
        height=300,
        xaxis={"title": {"text": "trials"}},
        yaxis=log_axis("ms", [*times[ok].tolist(), default or 1.0]),
        legend={"orientation": "h", "y": 1.15},
    )
    figures[name] = go.Figure(drawn, layout)
    best = significant(float(running[-1]))
    return (
        f"Convergence: the best of {trials.count:,} trials took {best} ms and was found at trial "
        f"{int(better[-1]) + 1:,}."
    )


def knobs(figures: Figures, name: str, trials: Trials) -> tuple[str, str]:
    """Importance and parallel coordinates of the knobs that varied.

    Args:
        figures: gets the figures.
        name: what their names begin with.
        trials: of a dispatch; some must have worked.

    Returns:
        What both show, in words; '' for what is not drawn.
    """
    ok = trials.ok
    varied = {
        knob: (values, codes)
        for knob, (values, codes) in trials.knobs.items()
        if np.unique(codes[ok]).size > 1
    }
    if not varied:
        return "", ""
    shares = importance([codes[ok] for _, codes in varied.values()], trials.times_ms[ok])
    ranked = sorted(zip(varied, shares, strict=True), key=lambda pair: -pair[1])
    shown = ""
    if ok.sum() >= LEAST_TRIALS:
        shown = _importance(figures, f"{name}-importance", ranked)
    axes = [knob for knob, _ in ranked[:_MOST_AXES]]
    return shown, _coordinates(figures, f"{name}-coordinates", trials, axes)


def _importance(figures: Figures, name: str, ranked: list[tuple[str, float]]) -> str:
    import plotly.graph_objects as go

    shown = ranked[:_MOST_AXES][::-1]
    bar = go.Bar(
        x=[100 * share for _, share in shown],
        y=[knob for knob, _ in shown],
        orientation="h",
        marker={"color": COLOURS[0]},
        hovertemplate="%{y}: %{x:.1f}%<extra></extra>",
    )
    layout = figure_layout(
        height=max(300, 22 * len(shown) + 90),
        xaxis={"title": {"text": "% of the differences that it explains alone"}},
        yaxis={"automargin": True, "tickfont": {"size": 10}},
    )
    figures[name] = go.Figure([bar], layout)
    knob, share = ranked[0]
    return f"Which knobs mattered: {knob} alone explains {100 * share:.0f}% of the differences."


def _coordinates(figures: Figures, name: str, trials: Trials, knobs: list[str]) -> str:
    import plotly.graph_objects as go

    chosen = np.flatnonzero(trials.ok)
    note = ""
    if chosen.size > _MOST_LINES:
        fastest = chosen[np.argsort(trials.times_ms[chosen])]
        # All of the faster half of the lines, and every so many of the rest.
        half = _MOST_LINES // 2
        rest = fastest[half:]
        chosen = np.concatenate([fastest[:half], rest[:: math.ceil(rest.size / half)]])
        note = f" Shown are {chosen.size:,} of {int(trials.ok.sum()):,}, all the fastest with them."
    times = trials.times_ms[chosen]
    logs = np.log10(times).astype(np.float32)
    low, high = float(logs.min()), float(logs.max())
    ticks = np.linspace(low, high, 5)
    dimensions = [
        {
            "label": "ms",
            "values": logs,
            "tickvals": ticks.tolist(),
            "ticktext": [f"{10**t:.3g}" for t in ticks],
        }
    ]
    for knob in knobs:
        values, codes = trials.knobs[knob]
        step = max(1, math.ceil(len(values) / 12))
        dimensions.append(
            {
                "label": knob.replace("_", " "),
                "values": codes[chosen].astype(np.int16),
                "tickvals": list(range(0, len(values), step)),
                "ticktext": [values[i] for i in range(0, len(values), step)],
            }
        )
    lines = go.Parcoords(
        line={
            "color": logs,
            "colorscale": "Viridis",
            "reversescale": True,
            "cmin": low,
            "cmax": high,
        },
        dimensions=dimensions,
        labelangle=-25,
        labelside="bottom",
        labelfont={"size": 10},
        tickfont={"size": 9},
    )
    layout = figure_layout(
        width=max(700, 85 * len(dimensions)),
        margin={"l": 60, "r": 60, "t": 30, "b": 110},
    )
    figures[name] = go.Figure([lines], layout)
    return (
        "All trials that worked: a line for each, through its time and its knobs, those that "
        f"mattered most first; bright is fast. Drag along an axis to pick out lines.{note}"
    )
