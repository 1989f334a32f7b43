"""Traces of runs: what the runtime records, as spans, as a picture, as trace events."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tilewright.errors import UserError
from tilewright.modules.module_source import ModuleOptions
from tilewright.modules.ready_module import open_module
from tilewright.modules.timeline import to_svg, to_trace_events
from tilewright.modules.tracing import (
    DISPATCHES,
    QUEUE,
    RunTrace,
    TraceSpan,
    read_trace,
    trace_module,
)

CALLS = 2


@pytest.fixture(scope="module", params=[1, 2], ids=["local-sync", "local-task"])
def trace(request: pytest.FixtureRequest, modules: Path) -> RunTrace:
    with open_module(modules / "many.vmfb", ModuleOptions(threads=request.param)) as module:
        return trace_module(module, "add", calls=CALLS)


def test_every_dispatch_of_every_call_is_there(trace: RunTrace) -> None:
    assert (trace.function, trace.calls) == ("add", CALLS)
    ((name, spans),) = trace.dispatches().items()
    assert "add_dispatch_0" in name
    assert len(spans) == CALLS
    assert all(0 <= span.start_ns < span.end_ns <= trace.duration_ns for span in spans)
    queue = [span for span in trace.spans if span.lane == QUEUE]
    assert {"alloca", "execute"} <= {span.name for span in queue}
    executions = [span for span in queue if span.name == "execute"]
    for span, execution in zip(spans, executions, strict=True):
        assert execution.start_ns <= span.start_ns < span.end_ns <= execution.end_ns
    # The pool of local-sync tells nothing.
    assert not trace.memory or max(held for _, held in trace.memory) >= 16


def test_the_picture_has_every_span(trace: RunTrace) -> None:
    svg = ElementTree.fromstring(to_svg(trace))
    titles = [title.text or "" for title in svg.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == len(trace.spans)
    assert sum(title.startswith("add_dispatch_0") for title in titles) == CALLS


def test_the_trace_events_have_every_span(trace: RunTrace) -> None:
    events = json.loads(to_trace_events(trace))["traceEvents"]
    whole = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in whole] == [span.name for span in trace.spans]
    assert [event["dur"] * 1e3 for event in whole] == pytest.approx(
        [span.duration_ns for span in trace.spans]
    )


def test_spans_at_one_time_are_in_rows_of_their_own() -> None:
    spans = tuple(
        TraceSpan(DISPATCHES, name, start, end)
        for name, start, end in (("a", 0, 1000), ("b", 500, 1500), ("c", 1000, 2000))
    )
    svg = ElementTree.fromstring(to_svg(RunTrace("main", 1, spans, ())))
    groups = list(svg.iter("{http://www.w3.org/2000/svg}g"))
    rows = {group[0].text.split("\n")[0]: group[1].get("y") for group in groups}  # type: ignore[union-attr]
    assert rows["a"] == rows["c"] != rows["b"]


def test_what_cannot_be_traced(modules: Path) -> None:
    with (
        open_module(modules / "many.vmfb", ModuleOptions(threads=1)) as module,
        pytest.raises(UserError, match=r"--function: name the one to trace"),
    ):
        trace_module(module, None)
    with pytest.raises(UserError, match="'main' ran nothing on the device"):
        read_trace("main", 1, [{"record_type": "schema"}])
    with (
        open_module(modules / "crash.vmfb", ModuleOptions(threads=1)) as module,
        pytest.raises(UserError, match=r"crash\.vmfb: 'divide' failed: .*ended by -"),
    ):
        trace_module(module, "divide", ["0"])
