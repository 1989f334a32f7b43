"""The page on a tuning run: `report.html` in the result folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.compare.tables import Table, digits
from tilewright.measure.peak import Peak
from tilewright.report.importance import LEAST_TRIALS, importance
from tilewright.report.page import COLOURS, PATTERNS, Figures, render, write_page
from tilewright.report.result_folder import ResultFolder, Trials, read_result_folder

REPORT = "report.html"

_TEMPLATE = "tuning.html.j2"
# A bar with more parts shows no more; the rest is one part.
_MOST_PARTS = 40
# More axes than this cannot be told apart.
_MOST_AXES = 16
# Beyond this a picture of all knobs has no more lines, but those of the fastest are all there.
_MOST_LINES = 20_000
_TONES = {"tuned": "good", "reused": "good", "default kept": "calm"}


@dataclass
class _Dispatch:
    """What the template shows of a dispatch; texts all."""

    id: str
    name: str
    status: str
    tone: str
    short: str
    terms: list[tuple[str, str]]
    entry: str
    trials: int
    convergence: str = ""
    importance: str = ""
    coordinates: str = ""
    failures: tuple[tuple[str, str, int], ...] = ()


def write_tuning_page(folder: Path, output: Path | None = None, peak: Peak | None = None) -> Path:
    """Write the page on a result folder, by default into it. Raises UserError.

    peak: what the machine reaches, for the roofline; without it there is none.
    """
    return write_page(
        output or folder / REPORT, tuning_page(read_result_folder(folder), peak), "--output"
    )


def tuning_page(result: ResultFolder, peak: Peak | None = None) -> str:
    """The page as text."""
    summary = result.summary
    program = summary["program"]
    rows = summary["dispatches"]
    figures = Figures()
    figures.add("before-after", _before_after(rows))
    drawn = peak is not None and _roofline(figures, rows, peak)
    dispatches = [
        _dispatch(result, row, f"dispatch-{number}", figures, peak)
        for number, row in enumerate(rows)
    ]
    name = Path(result.manifest["program"]["source"]).name
    values = {
        "title": f"Tuning {name}",
        "headline": _headline(summary),
        "facts": _facts(result),
        "before_after": _before_after_words(program),
        "overview": _overview(rows),
        "roofline": _limits(peak) if peak is not None and drawn else "",
        "dispatches": dispatches,
        "notes": summary.get("notes", []),
        "tune_command": _tune_command(result.manifest),
        "command": result.command,
        "environment": _environment(result.manifest),
        "spec": result.spec,
    }
    return render(_TEMPLATE, values, figures)


# -- words -----------------------------------------------------------------------------------------


def _headline(summary: Mapping[str, Any]) -> str:
    program = summary["program"]
    before, after = digits(program["default_ms"]), digits(program["tuned_ms"])
    low, high = program["speedup_ci"]
    if program["speedup"] <= 1.0:
        return f"{before} ms: nothing beat the compiler's own choices beyond the noise."
    return (
        f"{program['speedup']:.2f} times as fast: from {before} ms to {after} ms "
        f"(95% interval {low:.2f} to {high:.2f})"
    )


def _facts(result: ResultFolder) -> list[str]:
    summary, machine = result.summary, result.manifest["machine"]
    threads = result.manifest["options"].get("threads")
    verified = "outputs equal" if summary["program"]["verified"] else "outputs not compared"
    return [
        f"{summary['trials_total']:,} trials in {summary['wall_s']:.0f} s",
        f"variant {summary['program']['variant']}",
        verified,
        f"{machine['cpu']}, {threads or machine['threads']} threads",
        result.manifest["date"][:10],
    ]


def _before_after_words(program: Mapping[str, Any]) -> str:
    variants = [
        f"{name} {digits(v)} ms" if isinstance(v, int | float) else f"{name}: {v}"
        for name, v in program.get("variants", {}).items()
    ]
    text = (
        f"One run of the program takes {digits(program['default_ms'])} ms as the compiler makes it "
        f"by default, and {digits(program['tuned_ms'])} ms tuned. Below are its dispatches, each "
        "measured alone."
    )
    return f"{text} Variants before tuning: {'; '.join(variants)}." if variants else text


def _status_words(row: Mapping[str, Any]) -> str:
    return str(row["status"])


def _overview(rows: list[dict[str, Any]]) -> Table:
    columns = (
        "dispatch", "status", "runs", "share %", "default ms", "tuned ms", "speed-up",
        "95% interval", "GFLOP/s", "trials", "failed",
    )  # fmt: skip
    right = (*columns[2:7], *columns[8:])
    return Table(
        columns,
        right,
        tuple(
            (
                row["name"],
                _status_words(row),
                str(row["count"]),
                f"{100 * row['share']:.1f}",
                _ms(row["default_ms"]),
                _ms(row["tuned_ms"]),
                f"{row['speedup']:.2f}",
                _interval(row.get("speedup_ci")),
                _ms(row.get("gflops_tuned")),
                str(row["trials"]),
                str(row["failed_trials"]),
            )
            for row in rows
        ),
    )


def _ms(value: float | None) -> str:
    return "-" if value is None else digits(value)


def _interval(bounds: Any) -> str:
    return f"{bounds[0]:.2f} to {bounds[1]:.2f}" if bounds else "-"


def _tune_command(manifest: Mapping[str, Any]) -> str:
    """The command line, as far as options tell it."""
    import shlex

    from tilewright.tuning.options import TuneOptions, option_table

    plain = TuneOptions().to_json()
    words = ["tilewright", "tune", manifest["program"]["source"]]
    given = manifest["options"]
    for option in option_table():
        value = given.get(option.field)
        if value in (None, [], False) or value == plain.get(option.field):
            continue
        if not option.metavar:
            words.append(option.flag)
        elif option.field == "variants":
            words += [option.flag, ",".join(value)]
        else:
            for one in value if isinstance(value, list) else [value]:
                words += [option.flag, str(one)]
    return shlex.join(words)


def _environment(manifest: Mapping[str, Any]) -> Table:
    machine = manifest["machine"]
    caches = ", ".join(
        f"L{c['level']} {c['kind'].lower()} {c['bytes'] >> 10:,} KiB" for c in machine["caches"]
    )
    rows = [
        *((name, version) for name, version in manifest["versions"].items() if version),
        ("target", manifest["target"]),
        ("flags of iree-compile", " ".join(manifest["flags"])),
        ("processor", machine["cpu"]),
        ("cores, threads", f"{machine['cores']}, {machine['threads']}"),
        ("caches", caches),
        ("system", machine["system"]),
        ("governor", machine["governor"] or "not told"),
        ("load when it ended", machine["load"]),
        ("seed", manifest["seed"]),
        ("date", manifest["date"]),
    ]
    return Table(("what", "value"), (), tuple((str(a), str(b)) for a, b in rows))


def _limits(peak: Peak) -> str:
    return (
        f"Measured with {peak.threads} threads: {digits(peak.gflops)} GFLOP/s in f32, "
        f"{digits(peak.gbytes_per_s)} GB/s."
    )


# -- dispatches ------------------------------------------------------------------------------------


def _dispatch(
    result: ResultFolder, row: Mapping[str, Any], name: str, figures: Figures, peak: Peak | None
) -> _Dispatch:
    trials = result.trials.get((row["name"], row["variant"]))
    status = _status_words(row)
    entry = result.entries.get(row.get("entry") or "")
    made = _Dispatch(
        name,
        row["name"],
        status,
        _TONES.get(status, "bad"),
        _short(row),
        _terms(row, peak),
        f"{entry.pipeline}\n{entry.configuration}" if entry else "",
        trials.count if trials else 0,
    )
    if trials is None:
        return made
    made.failures = trials.failures
    if trials.ok.any():
        made.convergence = _convergence(figures, f"{name}-convergence", trials, row)
        _knobs(figures, made, trials)
    return made


def _short(row: Mapping[str, Any]) -> str:
    if row["default_ms"] is None:
        return ""
    if row["speedup"] <= 1.0:
        return f"{digits(row['default_ms'])} ms"
    before, after = digits(row["default_ms"]), digits(row["tuned_ms"])
    return f"{before} ms to {after} ms, {row['speedup']:.2f} times"


def _terms(row: Mapping[str, Any], peak: Peak | None) -> list[tuple[str, str]]:
    terms = [("What it computes", row["workload"])]
    if row.get("names") and len(row["names"]) > 1:
        terms.append(("The same in", ", ".join(row["names"])))
    terms += [
        ("Configuration now", row["configuration"] or "-"),
        ("The compiler's own", row.get("default_configuration") or "-"),
    ]
    if row.get("speedup_ci"):
        terms.append(
            ("Speed-up", f"{row['speedup']:.3f} (95% interval {_interval(row['speedup_ci'])})")
        )
    if row.get("gflops_tuned"):
        share = ""
        if peak is not None:
            share = f", {100 * row['gflops_tuned'] / peak.gflops:.0f}% of the machine's peak"
        before = row.get("gflops_default") or 0.0
        terms.append(
            ("Speed", f"{digits(row['gflops_tuned'])} GFLOP/s (before: {digits(before)}){share}")
        )
    if row.get("verification"):
        terms.append(("Results compared with", row["verification"]))
    points, part = row.get("space_points") or 0.0, row.get("tried_share") or 0.0
    if points:
        terms.append(
            ("Search space", f"about {points:,.0f} configurations, {100 * part:.2g}% tried")
        )
    return terms


# -- figures ---------------------------------------------------------------------------------------


def _layout(**more: Any) -> dict[str, Any]:
    base = {"margin": {"l": 60, "r": 15, "t": 20, "b": 50}, "font": {"size": 12}}
    return {**base, **more}


def _before_after(rows: list[dict[str, Any]]) -> Any:
    """Two stacked bars: the dispatches as the compiler makes them, and tuned."""
    import plotly.graph_objects as go

    timed = [r for r in rows if r["default_ms"] is not None]
    parts = [
        (r["name"], r["count"] * r["default_ms"], r["count"] * r["tuned_ms"])
        for r in sorted(timed, key=lambda r: -r["count"] * r["default_ms"])
    ]
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
                "pattern": {"shape": PATTERNS[(number // len(COLOURS)) % len(PATTERNS)]},
                "line": {"color": "#ffffff", "width": 1},
            },
            # What does not fit into its part is not shown; hovering tells it.
            text=[name, name],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            hovertemplate="%{x:.4g} ms<extra>" + name + "</extra>",
        )
        for number, (name, before, after) in enumerate(parts)
    ]
    layout = _layout(
        barmode="stack",
        showlegend=False,
        uniformtext={"minsize": 10, "mode": "hide"},
        height=230,
        xaxis={"title": {"text": "milliseconds in one run"}, "automargin": True},
        yaxis={"automargin": True},
    )
    return go.Figure(bars, layout)


def _roofline(figures: Figures, rows: list[dict[str, Any]], peak: Peak) -> bool:
    """Whether there was anything to draw."""
    import plotly.graph_objects as go

    known = [r for r in rows if r.get("bytes") and r.get("flops") and r.get("gflops_default")]
    if not known:
        return False
    intensity = [r["flops"] / r["bytes"] for r in known]
    ridge = peak.gflops / peak.gbytes_per_s
    ends = (min(*intensity, ridge) / 2, max(*intensity, ridge) * 2)
    line = [ends[0], ridge, ends[1]]
    drawn = [
        go.Scatter(
            x=line,
            y=[min(peak.gflops, x * peak.gbytes_per_s) for x in line],
            mode="lines",
            name="machine (f32)",
            line={"color": COLOURS[6], "width": 2},
        )
    ]
    for label, key, symbol in (("default", "gflops_default", "circle-open"),
                               ("tuned", "gflops_tuned", "circle")):  # fmt: skip
        drawn.append(
            go.Scatter(
                x=intensity,
                y=[r[key] for r in known],
                text=[r["name"] for r in known],
                mode="markers",
                name=label,
                marker={"symbol": symbol, "size": 10, "color": COLOURS[0]},
                hovertemplate="%{text}<br>%{y:.4g} GFLOP/s<extra>" + label + "</extra>",
            )
        )
    layout = _layout(
        height=420,
        xaxis={"type": "log", "dtick": "D2", "title": {"text": "operations for each byte"}},
        yaxis={"type": "log", "dtick": "D2", "title": {"text": "GFLOP/s"}},
        legend={"orientation": "h", "y": 1.08},
    )
    figures.add("roofline", go.Figure(drawn, layout))
    return True


def _convergence(figures: Figures, name: str, trials: Trials, row: Mapping[str, Any]) -> str:
    """The best so far by trial, over all trials as points. Returns what it shows, in words."""
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
    layout = _layout(
        height=300,
        xaxis={"title": {"text": "trials"}},
        yaxis={"type": "log", "dtick": "D2", "title": {"text": "ms"}},
        legend={"orientation": "h", "y": 1.15},
    )
    figures.add(name, go.Figure(drawn, layout))
    best = float(running[-1])
    return (
        f"Convergence: the best of {trials.count:,} trials took {digits(best)} ms and was found at "
        f"trial {int(better[-1]) + 1:,}."
    )


def _knobs(figures: Figures, made: _Dispatch, trials: Trials) -> None:
    """Importance and parallel coordinates, of the knobs that varied."""
    ok = trials.ok
    varied = {
        name: (values, codes)
        for name, (values, codes) in trials.knobs.items()
        if np.unique(codes[ok]).size > 1
    }
    if not varied:
        return
    shares = importance([codes[ok] for _, codes in varied.values()], trials.times_ms[ok])
    ranked = sorted(zip(varied, shares, strict=True), key=lambda pair: -pair[1])
    if ok.sum() >= LEAST_TRIALS:
        made.importance = _importance(figures, f"{made.id}-importance", ranked)
    made.coordinates = _coordinates(
        figures, f"{made.id}-coordinates", trials, [name for name, _ in ranked[:_MOST_AXES]]
    )


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
    layout = _layout(
        height=max(300, 22 * len(shown) + 90),
        xaxis={"title": {"text": "% of the differences that it explains alone"}},
        yaxis={"automargin": True, "tickfont": {"size": 10}},
    )
    figures.add(name, go.Figure([bar], layout))
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
    layout = _layout(
        height=420,
        width=max(700, 85 * len(dimensions)),
        margin={"l": 60, "r": 60, "t": 30, "b": 110},
    )
    figures.add(name, go.Figure([lines], layout))
    return (
        "All trials that worked: a line for each, through its time and its knobs, those that "
        f"mattered most first; bright is fast. Drag along an axis to pick out lines.{note}"
    )
