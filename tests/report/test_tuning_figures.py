"""The flame-like picture: program, kinds of work, dispatches, before and after on one scale."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.report.tuning_figures import flame


def row(name: str, kind: str, default: float | None, tuned: float, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "count": 2,
        "default_ms": default,
        "tuned_ms": tuned,
        **more,
    }


def test_a_flame_is_as_wide_as_the_time_it_stands_for() -> None:
    figures: dict[str, Any] = {}
    rows = [
        row("main_1_matmul", "contraction", 3.0, 1.0),
        row("main_2_matmul", "contraction", 1.0, 1.0),
        row("main_3_softmax", "softmax", 1.0, 0.5, status="part of all"),
        row("all", "chain", 2.0, 0.5, dispatches=("a", "b"), kernel={"sketch": "tiles"}),
        row("lost", "chain", 2.0, 2.0, dispatches=("a", "c"), kernel=None),
        row("skipped", "other", None, 0.0),
    ]
    flame(figures, rows)
    before, after = figures["flame"].data
    assert before.labels[0] == "default 10.0 ms"
    assert after.labels[0] == "tuned 5.00 ms"
    sizes = dict(zip(before.ids, before.values, strict=True))
    assert sizes["contraction"] == 8.0
    assert sizes["softmax"] == 2.0
    assert "chain" not in sizes
    # What a kernel for several took the place of is gone, and the kernel is there.
    now = dict(zip(after.ids, after.values, strict=True))
    assert "softmax" not in now
    assert now["chain"] == 1.0
    assert after.domain.x[1] == pytest.approx(before.domain.x[1] / 2)
    for trace in (before, after):
        children: dict[str, float] = {}
        for parent, value in zip(trace.parents, trace.values, strict=True):
            children[parent] = children.get(parent, 0.0) + value
        named = dict(zip(trace.ids, trace.values, strict=True))
        assert all(named[name] == pytest.approx(sum_) for name, sum_ in children.items() if name)
        assert len(trace.labels) == len(trace.marker.colors)
