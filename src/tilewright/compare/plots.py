"""Pictures of a comparison: bars, speed-ups, roofline, time to quality; each as PNG and SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.compare.results import (
    ComparisonRow,
    ComparisonRun,
    geometric_mean,
    mean_speedup,
    speedup,
)
from tilewright.errors import UserError
from tilewright.pictures import COLOURS, HATCHES, MARKERS, check_picture, figure, save_picture

FORMATS = (".png", ".svg")

# Groups of bars in one row of a picture; more go below.
_PER_ROW = 10
_ROW_HEIGHT, _WIDTH = 3.4, 13.0
_LEGEND_COLUMNS = 6
_DPI = 130


def check_plots(folder: Path) -> None:
    """UserError unless pictures can be drawn there."""
    for suffix in FORMATS:
        check_picture(Path(f"x{suffix}"))
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--plot: {folder} is a file; name a folder")


def write_plots(folder: Path, run: ComparisonRun, base: str) -> list[Path]:
    """Draw everything that the run has numbers for; the files written. Raises UserError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--plot: cannot make {folder} ({error.strerror})") from error
    drawn = {
        "bars": bars(run),
        "speedup": speedups(run, base),
        "roofline": roofline(run),
        "quality": quality(run),
    }
    files = []
    for name, made in drawn.items():
        if made is None:
            continue
        made.set_dpi(_DPI)
        for suffix in FORMATS:
            path = folder / f"{name}{suffix}"
            save_picture(made, path)
            files.append(path)
    return files


def short_name(workload: str) -> str:
    """A workload's name for an axis: without the layouts where all are row-major."""
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


def _style(number: int) -> dict[str, Any]:
    return {
        "color": COLOURS[number % len(COLOURS)],
        "hatch": HATCHES[number % len(HATCHES)],
        "edgecolor": "white",
        "linewidth": 0.4,
    }


def _shown(run: ComparisonRun) -> list[str]:
    """The providers with a result."""
    return [p for p in run.providers if any(r.ok for r in run.rows if r.provider == p)]


def _rows(count: int) -> tuple[int, int]:
    """Rows of panels, and groups in each, for so many groups of bars."""
    rows = max(1, math.ceil(count / _PER_ROW))
    return rows, max(1, math.ceil(count / rows))


def _labelled(axes: Any, workloads: Sequence[str], width: int) -> None:
    axes.set_xticks(range(len(workloads)), [short_name(w) for w in workloads])
    axes.tick_params(axis="x", labelsize="x-small", rotation=30)
    for label in axes.get_xticklabels():
        label.set_horizontalalignment("right")
    axes.set_xlim(-0.6, max(width, 1) - 0.4)
    axes.grid(axis="y", linewidth=0.3)
    axes.set_axisbelow(True)


def _finish(made: Any, run: ComparisonRun, title: str) -> Any:
    handles: dict[str, Any] = {}
    for axes in made.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    labels = list(handles)
    if labels:
        made.legend(
            handles.values(),
            labels,
            loc="outside lower center",
            ncols=min(_LEGEND_COLUMNS, len(labels)),
            fontsize="small",
        )
    cpu = run.state.machine.get("cpu", "")
    made.suptitle(f"{title}\n{cpu}, {run.threads_text}, {run.date[:10]}", fontsize="medium")
    return made


def bars(run: ComparisonRun) -> Any:
    """Bars of GFLOP/s by workload and provider, with 95% intervals and the machine's peak as a
    line. None where no workload has a known number of operations."""
    rated = [w for w in run.workloads if any(r.ok and r.flops for r in _of(run, w))]
    providers = _shown(run)
    if not rated:
        return None
    rows, each = _rows(len(rated))
    made = figure(figsize=(_WIDTH, _ROW_HEIGHT * rows + 0.8))
    width = 0.8 / len(providers)
    for panel in range(rows):
        axes = made.add_subplot(rows, 1, panel + 1)
        part = rated[panel * each : (panel + 1) * each]
        for number, provider in enumerate(providers):
            places, heights, below, above = [], [], [], []
            for group, workload in enumerate(part):
                row = run.row(workload, provider)
                rate = row.gflops if row is not None and row.ok else None
                if rate is None:
                    continue
                places.append(group + (number - (len(providers) - 1) / 2) * width)
                heights.append(rate.value)
                below.append(rate.value - rate.low)
                above.append(rate.high - rate.value)
            axes.bar(places, heights, width, label=provider, **_style(number))
            axes.errorbar(
                places, heights, [below, above], fmt="none", ecolor="0.25", elinewidth=0.8
            )
        if run.state.gflops:
            axes.axhline(run.state.gflops, color="0.2", linestyle="--", label="peak (f32)")
        axes.set_ylabel("GFLOP/s")
        _labelled(axes, part, each)
    return _finish(made, run, "GFLOP/s, higher is better")


def speedups(run: ComparisonRun, base: str) -> Any:
    """Bars of the speed-up over a base by workload and provider, with intervals, and the geometric
    mean as a group of its own. None where nothing can be compared."""
    others = [p for p in _shown(run) if p != base]
    workloads = [w for w in run.workloads if any(speedup(run, w, p, base) for p in others)]
    if not workloads:
        return None
    mean = "geometric mean"
    groups = [*workloads, mean] if len(workloads) > 1 else workloads
    rows, each = _rows(len(groups))
    made = figure(figsize=(_WIDTH, _ROW_HEIGHT * rows + 0.8))
    width = 0.8 / len(others)
    for panel in range(rows):
        axes = made.add_subplot(rows, 1, panel + 1)
        part = groups[panel * each : (panel + 1) * each]
        for number, provider in enumerate(others):
            places, heights, low, high = [], [], [], []
            for group, workload in enumerate(part):
                if workload == mean:
                    value = mean_speedup(run, provider, base)[0]
                    bounds = (value, value)
                else:
                    found = speedup(run, workload, provider, base)
                    value = found.value if found else None
                    bounds = (found.low, found.high) if found else (None, None)
                if value is None or bounds[0] is None or bounds[1] is None:
                    continue
                places.append(group + (number - (len(others) - 1) / 2) * width)
                heights.append(value)
                low.append(value - bounds[0])
                high.append(min(bounds[1], 10 * value) - value)
            style = _style(run.providers.index(provider))
            base_line = np.ones(len(heights))
            axes.bar(
                places, np.array(heights) - base_line, width, base_line, label=provider, **style
            )
            axes.errorbar(places, heights, [low, high], fmt="none", ecolor="0.25", elinewidth=0.8)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.axhline(1.0, color="0.2", linewidth=0.8)
        axes.set_ylabel(f"speed-up over {base}")
        _labelled(axes, part, each)
    return _finish(made, run, f"Speed-up over {base}, higher is better")


def roofline(run: ComparisonRun) -> Any:
    """GFLOP/s against arithmetic intensity under the machine's roofs: S. Williams, A. Waterman,
    D. Patterson, "Roofline", CACM 52(4), 2009. None without rates or without a measured peak."""
    rows = [r for r in run.rows if r.ok and r.flops and r.bytes]
    peak, bandwidth = run.state.gflops, run.state.gbytes_per_s
    if not rows or not peak or not bandwidth:
        return None
    made = figure(figsize=(8.5, 5.5))
    axes = made.add_subplot(1, 1, 1)
    for number, provider in enumerate(_shown(run)):
        own = [r for r in rows if r.provider == provider]
        axes.scatter(
            [r.flops / r.bytes for r in own],
            [rate.value for r in own if (rate := r.gflops) is not None],
            marker=MARKERS[number % len(MARKERS)],
            color=COLOURS[number % len(COLOURS)],
            label=provider,
            alpha=0.85,
        )
    intensities = [r.flops / r.bytes for r in rows]
    ends = [min(intensities) / 2, max(max(intensities) * 2, peak / bandwidth)]
    line = np.geomspace(ends[0], ends[1], 200)
    axes.plot(line, np.minimum(peak, line * bandwidth), color="0.2", label="machine (f32)")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.set_xlabel("operations for each byte of arguments and results")
    axes.set_ylabel("GFLOP/s")
    axes.grid(linewidth=0.3, which="both")
    return _finish(made, run, f"Roofline: {peak:.0f} GFLOP/s, {bandwidth:.1f} GB/s")


def quality(run: ComparisonRun) -> Any:
    """How good the best so far of each tuner was, against wall time and against trials: as part of
    the best that any found for the workload; thin lines for workloads, a thick one for their
    geometric mean. None where nothing was searched."""
    searched = [r for r in run.rows if r.progress]
    if not searched:
        return None
    best: dict[str, float] = {}
    for row in searched:
        found = min(p[2] for p in row.progress)
        best[row.workload] = min(found, best.get(row.workload, math.inf))
    made = figure(figsize=(_WIDTH, 4.6))
    for position, (axis, what) in enumerate(((0, "seconds of search"), (1, "trials"))):
        axes = made.add_subplot(1, 2, position + 1)
        for number, provider in enumerate(run.providers):
            own = [r for r in searched if r.provider == provider]
            if own:
                _quality_lines(axes, own, best, axis, COLOURS[number % len(COLOURS)])
        axes.set_xlabel(what)
        axes.set_ylabel("part of the best speed found")
        axes.set_ylim(0, 1.05)
        axes.grid(linewidth=0.3)
    return _finish(made, run, "Time to quality")


def _quality_lines(
    axes: Any, rows: Sequence[ComparisonRow], best: dict[str, float], axis: int, colour: str
) -> None:
    ends = max(r.progress[-1][axis] for r in rows)
    grid = np.linspace(0, ends, 200)
    curves = []
    for row in rows:
        steps = np.array([p[axis] for p in row.progress], np.float64)
        running = np.minimum.accumulate([p[2] for p in row.progress])
        at = np.searchsorted(steps, grid, side="right") - 1
        curve = np.where(at >= 0, best[row.workload] / running[np.maximum(at, 0)], np.nan)
        curves.append(curve)
        axes.plot(grid, curve, color=colour, linewidth=0.6, alpha=0.4)
    stacked = np.array(curves)
    there = ~np.isnan(stacked).any(axis=0)
    means = [geometric_mean(column) for column in stacked[:, there].T]
    axes.plot(grid[there], means, color=colour, linewidth=2.2, label=rows[0].provider)


def _of(run: ComparisonRun, workload: str) -> list[ComparisonRow]:
    return [r for r in run.rows if r.workload == workload]
