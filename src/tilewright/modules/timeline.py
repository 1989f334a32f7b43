"""Traces as pictures (SVG) and as files for trace viewers (Chrome's trace events)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from xml.etree import ElementTree

from tilewright.modules.tracing import DISPATCHES, QUEUE, RunTrace, TraceSpan

_WIDTH, _LEFT, _TOP, _ROW, _MEMORY = 1200, 110, 46, 26, 60
# Pixels that a letter takes, and that a span has at least.
_LETTER, _LEAST = 6.2, 0.6
_COLOURS = (
    *("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1", "#ff9da7"),
    *("#9c755f", "#bab0ac"),
)
_QUEUE_COLOUR, _MEMORY_COLOUR, _RULE = "#a0a8b0", "#c9b3d9", "#dddddd"


def to_svg(trace: RunTrace) -> str:
    """A trace as a picture: the operations of the queue, the dispatches below, then the memory that
    the device holds; each span tells more when it is pointed at.

    Args:
        trace: with at least one span.

    Returns:
        An SVG document.
    """
    total = max(1, trace.duration_ns)
    scale = (_WIDTH - _LEFT - 40) / total
    dispatches = trace.dispatches()
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(dispatches)}
    rows = [(lane, row) for lane in (QUEUE, DISPATCHES) for row in _rows(trace, lane)]
    bottom = _TOP + _ROW * len(rows)
    height = bottom + 20 + _MEMORY + 24 + 18 * len(dispatches)
    svg = ElementTree.Element(
        "svg",
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH} {height}",
        width=str(_WIDTH),
        height=str(height),
        style="background:white; font-family:sans-serif; font-size:11px",
    )
    calls = f"{trace.calls} call{'s' if trace.calls > 1 else ''}"
    _text(svg, 10, 16, f"{trace.function}, {calls}, {total / 1e6:.4g} ms", 13)
    for i in range(11):
        x = _LEFT + i * total / 10 * scale
        ElementTree.SubElement(
            svg, "line", x1=f"{x:.1f}", x2=f"{x:.1f}", y1="34", y2=str(bottom), stroke=_RULE
        )
        _text(svg, x - 12, 30, f"{i * total / 10 / 1e6:.3g} ms")
    seen = set()
    for index, (lane, spans) in enumerate(rows):
        y = _TOP + index * _ROW
        if lane not in seen:
            _text(svg, 10, y + 15, lane)
            seen.add(lane)
        for span in spans:
            _draw(svg, span, y, scale, colours.get(span.name, _QUEUE_COLOUR))
    _draw_memory(svg, trace, bottom + 14, scale)
    for index, (name, spans) in enumerate(dispatches.items()):
        y = bottom + 20 + _MEMORY + 24 + 18 * index
        ElementTree.SubElement(
            svg, "rect", x="10", y=str(y - 9), width="10", height="10", fill=colours[name]
        )
        _text(svg, 26, y, f"{name}: {_share(spans, total)}")
    return ElementTree.tostring(svg, encoding="unicode") + "\n"


def _share(spans: Sequence[TraceSpan], total: int) -> str:
    took = sum(span.duration_ns for span in spans)
    return f"{len(spans)} times, {took / 1e6:.4g} ms, {100 * took / total:.1f}% of the time"


def _rows(trace: RunTrace, lane: str) -> list[list[TraceSpan]]:
    """Spans of a lane in as few rows as have no two of them at a time."""
    rows: list[list[TraceSpan]] = []
    for span in trace.spans:
        if span.lane != lane:
            continue
        free = next((row for row in rows if row[-1].end_ns <= span.start_ns), None)
        if free is None:
            rows.append([span])
        else:
            free.append(span)
    return rows


def _draw(svg: ElementTree.Element, span: TraceSpan, y: int, scale: float, colour: str) -> None:
    x, width = _LEFT + span.start_ns * scale, max(_LEAST, span.duration_ns * scale)
    group = ElementTree.SubElement(svg, "g")
    more = "".join(f"\n{name}: {value}" for name, value in span.details.items())
    title = ElementTree.SubElement(group, "title")
    title.text = (
        f"{span.name}\n{span.duration_ns / 1e6:.4g} ms, from {span.start_ns / 1e6:.4g} ms{more}"
    )
    ElementTree.SubElement(
        group, "rect", x=f"{x:.2f}", y=str(y), width=f"{width:.2f}", height="20", fill=colour
    )
    fits = int((width - 6) / _LETTER)
    if fits >= 4:
        cut = span.name if len(span.name) <= fits else f"{span.name[: fits - 1]}…"
        _text(group, x + 3, y + 14, cut)


def _draw_memory(svg: ElementTree.Element, trace: RunTrace, y: int, scale: float) -> None:
    """Bytes over time as steps; nothing where the device's pool does not tell."""
    most = max((held for _, held in trace.memory), default=0)
    if not most:
        return
    points, last = [f"{_LEFT},{y + _MEMORY}"], 0
    for when, held in trace.memory:
        x = _LEFT + min(when, trace.duration_ns) * scale
        points += [f"{x:.1f},{y + _MEMORY * (1 - h / most):.1f}" for h in (last, held)]
        last = held
    end = _LEFT + trace.duration_ns * scale
    points += [f"{end:.1f},{y + _MEMORY * (1 - last / most):.1f}", f"{end:.1f},{y + _MEMORY}"]
    ElementTree.SubElement(svg, "polygon", points=" ".join(points), fill=_MEMORY_COLOUR)
    _text(svg, 10, y + 14, "memory")
    _text(svg, 10, y + 28, f"{most / (1 << 20):.3g} MiB")


def _text(parent: ElementTree.Element, x: float, y: float, text: str, size: int = 11) -> None:
    element = ElementTree.SubElement(parent, "text", x=f"{x:.1f}", y=str(y))
    element.set("font-size", str(size))
    element.text = text


def to_trace_events(trace: RunTrace) -> str:
    """A trace in Chrome's trace event format, which Perfetto and chrome://tracing show.

    Args:
        trace: any.

    Returns:
        JSON; times in microseconds.
    """
    threads = {QUEUE: 1, DISPATCHES: 2}
    common = {"pid": 1, "ph": "X"}
    events: list[dict[str, object]] = [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": tid, "args": {"name": lane}}
        for lane, tid in threads.items()
    ]
    events += [
        {
            **common,
            "name": span.name,
            "tid": threads[span.lane],
            "ts": span.start_ns / 1e3,
            "dur": span.duration_ns / 1e3,
            "args": dict(span.details),
        }
        for span in trace.spans
    ]
    events += [
        {"name": "memory", "ph": "C", "pid": 1, "ts": when / 1e3, "args": {"bytes": held}}
        for when, held in trace.memory
    ]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, indent=1) + "\n"
