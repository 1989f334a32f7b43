"""The pages in a real browser, narrow and wide: nothing fetched, nothing broken, nothing over the
edge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, Answer, Browser, OpenPage
from comparisons import M32, M64, row, run
from result_folders import make_result_folder

from tilewright.compare import ProviderOutcome, write_run
from tilewright.measure.peak import Peak
from tilewright.report import write_comparison_page, write_tuning_page

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")

PEAK = Peak(2, "a processor", {"f32": 200.0}, {"read": 20.0}, {"f32": "fma"}, "made up", 0.0)

# What sticks out to the right of the window, and texts of a table or list that lie on each other.
LAYOUT = """
const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
const boxes = [...document.querySelectorAll("h1,h2,p,dt,dd,td,th,summary,figcaption,pre,button")]
  .filter((e) => e.checkVisibility() && !e.closest(".chart"));
const over = [], places = boxes.map((e) => e.getBoundingClientRect());
for (let i = 0; i < boxes.length; i++) {
  const a = places[i];
  for (let j = i + 1; j < Math.min(boxes.length, i + 40); j++) {
    const b = places[j];
    const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (x <= 1 || y <= 1 || boxes[i].contains(boxes[j]) || boxes[j].contains(boxes[i])) continue;
    over.push([boxes[i].textContent.slice(0, 40), boxes[j].textContent.slice(0, 40)]);
  }
}
return { wide, over: over.slice(0, 5), viewport: innerWidth };
"""

SORT_AND_FILTER = """
const table = document.getElementById(ID);
const column = [...table.tHead.rows[0].cells].findIndex((c) => c.textContent.trim() === COLUMN);
const read = () => [...table.tBodies[0].rows].filter((r) => !r.hidden)
  .map((r) => r.cells[column].textContent.trim());
const heading = table.tHead.rows[0].cells[column];
heading.querySelector("button").click();
const up = read(), first = heading.getAttribute("aria-sort");
heading.querySelector("button").click();
const down = read(), second = heading.getAttribute("aria-sort");
const box = document.getElementById(ID + "-filter");
box.value = FILTER;
box.dispatchEvent(new Event("input"));
const shown = [...table.tBodies[0].rows].filter((r) => !r.hidden).length;
document.getElementById("theme").click();
await new Promise((done) => setTimeout(done, 500));
return { up, down, first, second, shown, theme: document.documentElement.dataset.theme,
  count: document.getElementById(ID + "-count").textContent };
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenPage]:
    """Opened once: its charts take seconds."""
    folder = make_result_folder(tmp_path_factory.mktemp("browser") / "out")
    with browser.opened(write_tuning_page(folder, peak=PEAK), width=400, every=True) as found:
        yield found


@pytest.fixture(scope="module")
def comparison(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenPage]:
    folder = tmp_path_factory.mktemp("browser")
    searched = row(M64, "tvm", 5e-4, progress=((1.0, 1, 1e-3), (2.0, 5, 5e-4)))
    result = run(
        row(M64, "iree"), row(M64, "numpy", 2e-3), searched,
        row(M32, "iree"), row(M32, "numpy", outcome=ProviderOutcome.FAILED, reason="wrong numbers"),
        row(M32, "tvm", outcome=ProviderOutcome.SKIPPED, reason="not installed: pip install it"),
    )  # fmt: skip
    write_run(folder / "results.json", result)
    made = write_comparison_page(folder / "results.json", folder / "page.html")
    with browser.opened(made, width=400) as found:
        yield found


def clean(found: Answer) -> None:
    assert found.faults == []
    assert found.requests == []
    assert found.undrawn == []


@pytest.mark.parametrize("width", [400, 1600])
def test_a_tuning_page_fits(page: OpenPage, width: int) -> None:
    found = page.ask(LAYOUT, width=width)
    clean(found)
    assert found.value["wide"] <= 0, found
    assert found.value["over"] == []
    assert found.value["viewport"] == width


def test_a_tuning_page_sorts_and_filters(page: OpenPage) -> None:
    question = SORT_AND_FILTER.replace("ID", '"overview"').replace("COLUMN", '"share %"')
    found = page.ask(question.replace("FILTER", '"kept"'), width=1280)
    clean(found)
    answer = found.value
    values = [float(v) for v in answer["up"]]
    assert values == sorted(values)
    assert answer["down"] == answer["up"][::-1]
    assert (answer["first"], answer["second"]) == ("ascending", "descending")
    assert answer["shown"] == 1
    assert answer["count"] == "1 of 3"
    assert answer["theme"] in ("dark", "light")


@pytest.mark.parametrize("width", [400, 1600])
def test_a_comparison_page_fits(comparison: OpenPage, width: int) -> None:
    found = comparison.ask(LAYOUT, width=width)
    clean(found)
    assert found.value["wide"] <= 0, found
    assert found.value["over"] == []
    assert found.value["viewport"] == width


def test_a_comparison_page_sorts_and_filters(comparison: OpenPage) -> None:
    question = SORT_AND_FILTER.replace("ID", '"rows"').replace("COLUMN", '"ms"')
    found = comparison.ask(question.replace("FILTER", '"failed wrong"'), width=1280)
    clean(found)
    answer = found.value
    # What has no number comes last either way.
    assert answer["up"][-2:] == ["-", "-"]
    assert answer["down"][-2:] == ["-", "-"]
    assert answer["shown"] == 1


@pytest.mark.slow
def test_the_largest_page(browser: Browser, tmp_path: Path) -> None:
    folder = make_result_folder(tmp_path / "out", dispatches=100, trials=500, knobs=10)
    page = write_tuning_page(folder, peak=PEAK)
    assert page.stat().st_size < 15e6
    paint = """
const entry = performance.getEntriesByName("first-contentful-paint")[0];
return { paint: entry ? entry.startTime : null };
"""
    found = browser.ask(page, paint)
    clean(found)
    assert found.value["paint"] is not None
    assert found.value["paint"] < 2000
