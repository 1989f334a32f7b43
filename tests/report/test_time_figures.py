"""The flame-like picture: program, kinds of work, dispatches, before and after."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.report.time_figures import before_after, flame


def row(name: str, kind: str, default: float | None, tuned: float, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "count": 2,
        "default_ms": default,
        "tuned_ms": tuned,
        **more,
    }


ROWS = [
    row("main_1_matmul", "contraction", 3.0, 1.0),
    row("main_2_matmul", "contraction", 1.0, 1.0),
    row("main_3_soft", "softmax", 1.0, 0.5, status="part of all", names=("main_3_soft", "main_4")),
    row("all", "chain", 2.0, 0.5, dispatches=("main_4", "b"), kernel={"sketch": "tiles"}),
    row("lost", "chain", 2.0, 2.0, dispatches=("main_1_matmul", "c"), kernel=None),
    row("skipped", "other", None, 0.0),
]


def test_a_flame_is_as_wide_as_the_share_it_stands_for() -> None:
    figures: dict[str, Any] = {}
    flame(figures, ROWS)
    before, after = figures["flame"].data
    assert before.texttemplate[0] == "default 10.0 ms"
    assert after.texttemplate[0] == "tuned 5.00 ms"
    sizes = dict(zip(before.ids, before.values, strict=True))
    assert sizes["contraction"] == 8.0
    assert sizes["softmax"] == 2.0
    # What a kernel for several took the place of is gone; the kernel is there, as the same kind.
    now = dict(zip(after.ids, after.values, strict=True))
    assert now["softmax"] == 1.0
    assert "all" in after.labels
    assert "chain" not in {*now, *sizes}
    for trace in (before, after):
        children: dict[str, float] = {}
        for parent, value in zip(trace.parents, trace.values, strict=True):
            children[parent] = children.get(parent, 0.0) + value
        named = dict(zip(trace.ids, trace.values, strict=True))
        assert all(named[name] == pytest.approx(sum_) for name, sum_ in children.items() if name)
        assert len(trace.labels) == len(trace.marker.colors) == len(trace.textfont.color)


def test_what_is_too_narrow_to_be_seen_is_one_part() -> None:
    figures: dict[str, Any] = {}
    rows = [row("main_1_matmul", "contraction", 100.0, 100.0)]
    rows += [row(f"main_{n}_copy", "elementwise", 0.01, 0.01) for n in range(2, 9)]
    flame(figures, rows)
    assert figures["flame"].data[0].labels[-1] == "7 others"
    assert figures["flame"].data[0].values[-1] == pytest.approx(0.14)
    # Its name where there is room, black on light.
    assert figures["flame"].data[0].texttemplate[3] == "1_matmul<br>200 ms"
    assert figures["flame"].data[0].textfont.color[3] == "#000000"


def test_bars_before_and_after_count_nothing_twice() -> None:
    figures: dict[str, Any] = {}
    before_after(figures, ROWS)
    times = {bar.name: bar.x for bar in figures["before-after"].data}
    assert sum(before for _, before in times.values()) == 10.0
    assert sum(after for after, _ in times.values()) == 5.0
    # A kernel has the colour of what it took the place of.
    assert times["main_3_soft"] == (1.0, 2.0)
