"""The figures of the page on a tuning run, drawn with plotly; each function adds its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.compare.charts import Roofline
from tilewright.measure.peak import Peak
from tilewright.report.importance import LEAST_TRIALS, importance
from tilewright.report.page import (
    COLOURS,
    PATTERNS,
    Figures,
    figure_layout,
    log_axis,
    roofline_figure,
)
from tilewright.report.result_folder import Trials
from tilewright.words import significant

# A bar with more parts shows no more; the rest is one part.
_MOST_PARTS = 40
# Narrower parts of a picture are one with others of their kind.
_LEAST_SHARE = 0.004
# As many letters fit beside each other on a page.
_PAGE_LETTERS = 170
# More axes than this cannot be told apart.
_MOST_AXES = 16
# Beyond this a picture of all knobs has no more lines, but those of the fastest are all there.
_MOST_LINES = 20_000


def _without_prefix(names: list[str]) -> dict[str, str]:
    """Names without the words that all of them begin with."""
    words = [name.split("_") for name in names]
    same = 0
    while len(words) > 1 and all(len(w) > same + 1 and w[same] == words[0][same] for w in words):
        same += 1
    return {name: "_".join(w[same:]) for name, w in zip(names, words, strict=True)}


@dataclass(frozen=True)
class _Part:
    """What takes time in a run of the program. before: the dispatch whose place it has."""

    kind: str
    name: str
    ms: float
    before: str = ""


def _parts(rows: list[dict[str, Any]]) -> tuple[list[_Part], list[_Part]]:
    """What takes time as the compiler makes the program, and tuned; each a run of the program.

    What a kernel for several dispatches took the place of takes no time of its own any more; the
    kernel is of the kind of the longest of them.
    """
    timed = [row for row in rows if row["default_ms"] is not None]
    single = [row for row in timed if not row.get("dispatches")]
    named = {name: row for row in single for name in (row["name"], *row.get("names", ()))}

    def part(row: dict[str, Any], each_ms: float) -> _Part:
        replaced = [named[name] for name in row.get("dispatches") or () if name in named]
        longest = max(replaced, key=lambda one: one["count"] * one["default_ms"], default=row)
        kind = str(longest["kind"]).replace("_", " ")
        return _Part(kind, row["name"], row["count"] * each_ms, longest["name"])

    before = [part(row, row["default_ms"]) for row in single]
    after = [
        part(row, row["tuned_ms"])
        for row in timed
        if not str(row.get("status", "")).startswith("part of")
        and (row.get("kernel") or not row.get("dispatches"))
    ]
    return before, after


def before_after(figures: Figures, rows: list[dict[str, Any]]) -> None:
    """Two stacked bars: the dispatches as the compiler makes them, and tuned.

    Args:
        figures: gets the figure.
        rows: of the summary's dispatches, with their `kind`.
    """
    import plotly.graph_objects as go

    times: dict[str, list[float]] = {}
    for place, found in enumerate(_parts(rows)):
        for one in found:
            times.setdefault(one.before, [0.0, 0.0])[place] += one.ms
    parts = [(name, one[0], one[1]) for name, one in times.items()]
    parts.sort(key=lambda part: -max(part[1:]))
    short = _without_prefix([name for name, _, _ in parts])
    if len(parts) > _MOST_PARTS:
        rest = parts[_MOST_PARTS:]
        others = (f"{len(rest)} others", sum(p[1] for p in rest), sum(p[2] for p in rest))
        parts = [*parts[:_MOST_PARTS], others]
    bars = [
        go.Bar(
            y=["tuned", "default"],
            x=[after, before],
            name=name,
            orientation="h",
            marker={
                "color": COLOURS[number % len(COLOURS)],
                "pattern": {
                    "shape": PATTERNS[(number // len(COLOURS)) % len(PATTERNS)],
                    "fillmode": "overlay",
                    "size": 6,
                },
                "line": {"color": "#ffffff", "width": 1},
            },
            # What does not fit into its part is not shown; hovering tells it.
            text=[short.get(name, name)] * 2,
            textposition="inside",
            insidetextanchor="middle",
            insidetextfont={"color": _ink(COLOURS[number % len(COLOURS)])},
            textangle=0,
            hovertemplate="%{x:.4g} ms<extra>" + name + "</extra>",
        )
        for number, (name, before, after) in enumerate(parts)
    ]
    layout = figure_layout(
        barmode="stack",
        showlegend=False,
        uniformtext={"minsize": 11, "mode": "hide"},
        height=230,
        xaxis={"title": {"text": "milliseconds in one run"}, "automargin": True},
        yaxis={"automargin": True},
    )
    figures["before-after"] = go.Figure(bars, layout)


def flame(figures: Figures, rows: list[dict[str, Any]]) -> None:
    """Where the program's time goes, as flames: the program, kinds of work, dispatches, each as
    wide as its share of the time; as the compiler makes it above, tuned below.

    Both are as wide as the page, so that what is left of a program made many times as fast can be
    read; `before_after` has them on one scale.

    Args:
        figures: gets the figure.
        rows: of the summary's dispatches, with their `kind`.
    """
    import plotly.graph_objects as go

    both = _parts(rows)
    kinds = list(dict.fromkeys(one.kind for parts in both for one in parts))
    colours = {kind: COLOURS[i % len(COLOURS)] for i, kind in enumerate(kinds)}
    short = _without_prefix(list(dict.fromkeys(one.name for parts in both for one in parts)))
    traces = []
    for what, parts, rows_of in (
        ("default", both[0], (0.53, 1.0)),
        ("tuned", both[1], (0.0, 0.47)),
    ):
        total = sum(one.ms for one in parts)
        by_kind: dict[str, float] = {}
        for one in parts:
            by_kind[one.kind] = by_kind.get(one.kind, 0.0) + one.ms
        leaves = _leaves(parts, short, total)
        texts = [f"{kind}<br>{significant(ms)} ms" for kind, ms in by_kind.items()]
        fills = [
            "#dddddd",
            *(colours[kind] for kind in by_kind),
            *(_tint(colours[one.kind]) for one in leaves),
        ]
        traces.append(
            go.Icicle(
                ids=[what, *by_kind, *(f"{number}" for number in range(len(leaves)))],
                labels=[what, *by_kind, *(one.name for one in leaves)],
                parents=["", *[what] * len(by_kind), *(one.kind for one in leaves)],
                values=[total, *by_kind.values(), *(one.ms for one in leaves)],
                branchvalues="total",
                texttemplate=[
                    f"{what} {significant(total)} ms",
                    *texts,
                    *(_text(one, total) for one in leaves),
                ],
                textfont={"size": 12, "color": [_ink(fill) for fill in fills]},
                marker={"colors": fills, "line": {"color": "#ffffff", "width": 1}},
                leaf={"opacity": 1},
                tiling={"orientation": "v"},
                pathbar={"visible": False},
                domain={"x": [0.0, 1.0], "y": list(rows_of)},
                textposition="middle center",
                hovertemplate="%{label}: %{value:.4g} ms, %{percentRoot:.1%}<extra></extra>",
            )
        )
    layout = figure_layout(
        height=420,
        uniformtext={"minsize": 11, "mode": "hide"},
        margin={"l": 5, "r": 5, "t": 5, "b": 5},
    )
    figures["flame"] = go.Figure(traces, layout)


def _leaves(parts: list[_Part], short: Mapping[str, str], total: float) -> list[_Part]:
    """The parts with short names; those of a kind that are too narrow to be seen are one."""
    leaves = [replace(p, name=short[p.name]) for p in parts if p.ms >= _LEAST_SHARE * total]
    for kind in dict.fromkeys(one.kind for one in parts):
        narrow = [p for p in parts if p.kind == kind and p.ms < _LEAST_SHARE * total]
        if len(narrow) == 1:
            leaves.append(replace(narrow[0], name=short[narrow[0].name]))
        elif narrow:
            leaves.append(_Part(kind, f"{len(narrow)} others", sum(p.ms for p in narrow)))
    return leaves


def _text(part: _Part, total: float) -> str:
    """What stands in a part: its name where a page has room for that, else its time alone."""
    time = significant(part.ms)
    room = part.ms / max(total, 1e-9) * _PAGE_LETTERS
    return f"{part.name}<br>{time} ms" if len(part.name) <= room else time


def _channels(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def _tint(colour: str) -> str:
    """A colour halfway to white."""
    return "#" + "".join(f"{(one + 255) // 2:02x}" for one in _channels(colour))


def _ink(colour: str) -> str:
    """Black or white, whichever contrasts more (WCAG 2.1, relative luminance)."""
    linear = [
        x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4
        for x in (one / 255 for one in _channels(colour))
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#ffffff" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "#000000"


def progress(figures: Figures, curves: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """How far dispatches have come by the time that has passed.

    Args:
        figures: gets the figure.
        curves: by name, pairs of seconds and of the best so far over the default's speed.
    """
    import plotly.graph_objects as go

    short = _without_prefix(list(curves))
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
