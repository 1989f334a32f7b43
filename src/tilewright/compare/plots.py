"""Pictures of a comparison: bars, speed-ups, roofline, time to quality; each as PNG and SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.compare.charts import BarChart, Roofline, SearchCurve, charts, short_name
from tilewright.compare.results import ComparisonRun, geometric_mean
from tilewright.errors import UserError
from tilewright.pictures import COLOURS, HATCHES, MARKERS, check_picture, figure, save_picture

FORMATS = (".png", ".svg")

# Groups of bars in one row of a picture; more go below.
_PER_ROW = 10
_ROW_HEIGHT, _WIDTH = 3.4, 13.0
_LEGEND_COLUMNS = 6
_DPI = 130


def check_plots(folder: Path) -> None:
    """Ask whether pictures can be drawn there.

    Args:
        folder: where.

    Raises:
        UserError: it is a file, or matplotlib is not installed.
    """
    for suffix in FORMATS:
        check_picture(Path(f"x{suffix}"))
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--plot: {folder} is a file; name a folder")


def write_plots(folder: Path, run: ComparisonRun, base: str) -> list[Path]:
    """Draw everything that the run has numbers for.

    Args:
        folder: where; it is made.
        run: the comparison.
        base: what speed-ups are over.

    Returns:
        The files written.

    Raises:
        UserError: the folder or a file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--plot: cannot make {folder} ({error.strerror})") from error
    files = []
    for name, chart in charts(run, base).items():
        made = _DRAWN[name](chart, run)
        made.set_dpi(_DPI)
        for suffix in FORMATS:
            path = folder / f"{name}{suffix}"
            save_picture(made, path)
            files.append(path)
    return files


def _finish(made: Any, run: ComparisonRun, title: str) -> Any:
    handles: dict[str, Any] = {}
    for axes in made.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        made.legend(
            handles.values(),
            list(handles),
            loc="outside lower center",
            ncols=min(_LEGEND_COLUMNS, len(handles)),
            fontsize="small",
        )
    cpu = run.state.machine.get("cpu", "")
    made.suptitle(f"{title}\n{cpu}, {run.threads_text}, {run.date[:10]}", fontsize="medium")
    return made


def _bars(chart: BarChart, run: ComparisonRun) -> Any:
    """Groups of bars in as many rows as they need."""
    rows = math.ceil(len(chart.groups) / _PER_ROW)
    each = math.ceil(len(chart.groups) / rows)
    made = figure(figsize=(_WIDTH, _ROW_HEIGHT * rows + 0.8))
    for panel in range(rows):
        axes = made.add_subplot(rows, 1, panel + 1)
        part = chart.groups[panel * each : (panel + 1) * each]
        for provider in chart.series:
            _provider_bars(axes, chart, part, provider, run.providers.index(provider))
        if chart.limit is not None:
            name, height = chart.limit
            axes.axhline(height, color="0.2", linestyle="--", label=name)
        if chart.base:
            axes.set_yscale("log", base=2)
            axes.yaxis.set_major_formatter("{x:g}")
            axes.axhline(chart.base, color="0.2", linewidth=0.8)
        axes.set_ylabel(chart.axis)
        axes.set_xticks(range(len(part)), [short_name(w) for w in part])
        axes.tick_params(axis="x", labelsize="x-small", rotation=30)
        for label in axes.get_xticklabels():
            label.set_horizontalalignment("right")
        axes.set_xlim(-0.6, each - 0.4)
        axes.grid(axis="y", linewidth=0.3)
        axes.set_axisbelow(True)
    return _finish(made, run, chart.title)


def _provider_bars(
    axes: Any, chart: BarChart, part: Sequence[str], provider: str, number: int
) -> None:
    """The bars of a provider in each group, in the style of this number."""
    values = chart.series[provider]
    width = 0.8 / len(chart.series)
    shift = (list(chart.series).index(provider) - (len(chart.series) - 1) / 2) * width
    there = [(group + shift, values[name]) for group, name in enumerate(part) if name in values]
    places = [place for place, _ in there]
    heights = np.array([v.value for _, v in there])
    axes.bar(
        places,
        heights - chart.base,
        width,
        chart.base,
        label=provider,
        color=COLOURS[number % len(COLOURS)],
        hatch=HATCHES[number % len(HATCHES)],
        edgecolor="white",
        linewidth=0.4,
    )
    around = [[v.value - v.low for _, v in there], [v.high - v.value for _, v in there]]
    axes.errorbar(places, heights, around, fmt="none", ecolor="0.25", elinewidth=0.8)


def _roofline(chart: Roofline, run: ComparisonRun) -> Any:
    made = figure(figsize=(8.5, 5.5))
    axes = made.add_subplot(1, 1, 1)
    for provider, points in chart.series.items():
        number = run.providers.index(provider)
        axes.scatter(
            [x for _, x, _ in points],
            [y for _, _, y in points],
            marker=MARKERS[number % len(MARKERS)],
            color=COLOURS[number % len(COLOURS)],
            label=provider,
            alpha=0.85,
        )
    line = np.geomspace(*chart.ends, 200)
    roofs = np.minimum(chart.peak, line * chart.bandwidth)
    axes.plot(line, roofs, color="0.2", label="machine (f32)")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.set_xlabel("operations for each byte of arguments and results")
    axes.set_ylabel("GFLOP/s")
    axes.grid(linewidth=0.3, which="both")
    return _finish(made, run, f"Roofline: {chart.peak:.0f} GFLOP/s, {chart.bandwidth:.1f} GB/s")


def _quality(curves: Sequence[SearchCurve], run: ComparisonRun) -> Any:
    """Against wall time and against trials: thin lines for workloads, a thick one for the geometric
    mean of each provider."""
    made = figure(figsize=(_WIDTH, 4.6))
    for position, what in enumerate(("seconds of search", "trials")):
        axes = made.add_subplot(1, 2, position + 1)
        for number, provider in enumerate(run.providers):
            own = [c for c in curves if c.provider == provider]
            if own:
                steps = [c.trials if position else c.seconds for c in own]
                _quality_lines(axes, own, steps, COLOURS[number % len(COLOURS)])
        axes.set_xlabel(what)
        axes.set_ylabel("part of the best speed found")
        axes.set_ylim(0, 1.05)
        axes.grid(linewidth=0.3)
    return _finish(made, run, "Time to quality")


def _quality_lines(
    axes: Any, curves: Sequence[SearchCurve], steps: Sequence[NDArray[np.float64]], colour: str
) -> None:
    grid = np.linspace(0, max(s[-1] for s in steps), 200)
    lines = []
    for curve, own in zip(curves, steps, strict=True):
        at = np.searchsorted(own, grid, side="right") - 1
        lines.append(np.where(at >= 0, curve.quality[np.maximum(at, 0)], np.nan))
        axes.plot(grid, lines[-1], color=colour, linewidth=0.6, alpha=0.4)
    stacked = np.array(lines)
    there = ~np.isnan(stacked).any(axis=0)
    means = [geometric_mean(column) for column in stacked[:, there].T]
    axes.plot(grid[there], means, color=colour, linewidth=2.2, label=curves[0].provider)


_DRAWN: Mapping[str, Callable[[Any, ComparisonRun], Any]] = {
    "bars": _bars,
    "speedup": _bars,
    "roofline": _roofline,
    "quality": _quality,
}
