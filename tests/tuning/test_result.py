"""The result of a run as a notebook shows it."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from tilewright.tuning.result import (
    DispatchSummary,
    KernelSummary,
    ProgramSummary,
    TuneResult,
)

KERNEL = KernelSummary("tiles", {"rows": 6}, "for", "s.split()")
DISPATCHES = (
    DispatchSummary("cool", "add", 2, 0.1, 0.5, 0.5, 1.0, status="default kept"),
    DispatchSummary("hot<main>", "matmul", 1, 0.9, 9.0, 3.0, 3.0, status="tuned", kernel=KERNEL),
    DispatchSummary("skipped", "copy", 1, status="skipped: too short"),
)


def result(speedup: float) -> TuneResult:
    program = ProgramSummary(10.0, 10 / speedup, speedup, (2.4, 2.6), True, "channels-last")
    return TuneResult(program, DISPATCHES, 9, 1.0, {}, Path("a&b"), ("hot<main>",))


class Reader(HTMLParser):
    """The texts of a piece of HTML by the element that they are in; every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1], data))


def test_a_notebook_shows_what_was_gained() -> None:
    read = Reader(result(2.5)._repr_html_())
    assert ("b", "10.0 ms to 4.00 ms: 2.50x") in read.texts
    assert any("channels-last, in a&b" in text for _, text in read.texts)
    cells = [text for tag, text in read.texts if tag == "td"]
    assert cells == [
        "hot<main>", "1", "90.0%", "9.00", "3.00", "3.00x", "tiles",
        "cool", "2", "10.0%", "0.500", "0.500", "1.00x", "default kept",
    ]  # fmt: skip


def test_nothing_gained_is_said() -> None:
    assert "10.0 ms to 10.0 ms: no gain" in result(1.0)._repr_html_()
