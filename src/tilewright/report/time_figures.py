"""Figures of where a program's time goes, before and after: bars on one scale, and flames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilewright.report.page import COLOURS, PATTERNS, Figures, figure_layout
from tilewright.words import significant

# A bar with more parts shows no more; the rest is one part.
_MOST_PARTS = 40
# Narrower parts of a picture are one with others of their kind.
_LEAST_SHARE = 0.004
# As many letters fit beside each other on a page.
_PAGE_LETTERS = 170


def without_prefix(names: list[str]) -> dict[str, str]:
    """Names without the words that all of them begin with.

    Args:
        names: of dispatches.

    Returns:
        The short names by the whole ones.
    """
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
        if row["tuned_ms"] is not None
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
    short = without_prefix([name for name, _, _ in parts])
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
    short = without_prefix(list(dict.fromkeys(one.name for parts in both for one in parts)))
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
