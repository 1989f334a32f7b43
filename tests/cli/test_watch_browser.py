"""The page of `tilewright watch` in a real browser, narrow and wide, while figures come."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, Answer, Browser

from tilewright.cli.watch_server import WatchServer
from tilewright.cli.watched_run import WatchedRun
from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning import events
from tilewright.tuning.event_log import EventLog
from tuned_samples import matmul

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here"),
    # It takes as long as the run that it watches.
    pytest.mark.slow,
]

DISPATCHES = 30
TRIALS = 10_000
ROWS = tuple(
    events.DispatchRow(
        f"main$async_dispatch_{n}_matmul_like_{n}x64_f32", "matmul", 2, 0.03, 1e-3, 30.0, 1e6
    )
    for n in range(DISPATCHES)
)

# Seconds between frames, and what the page shows before and after.
WATCH = """
const at = (id) => document.getElementById(id).textContent;
const state = () => ({ version: Number(document.documentElement.dataset.version || 0),
  status: at("status"), trials: document.getElementById("trials").value,
  curves: document.querySelectorAll("#progress .scatterlayer .trace").length,
  rows: document.getElementById("rows").tBodies[0].rows.length });
const before = state(), frames = [];
let last = performance.now();
while (!document.documentElement.dataset.ended) {
  await new Promise((done) => requestAnimationFrame(done));
  frames.push(performance.now() - last);
  last = performance.now();
}
await new Promise((done) => setTimeout(done, 500));
const nameless = [...document.querySelectorAll("button,input,progress,[tabindex],[role=img]")]
  .filter((e) => !(e.getAttribute("aria-label") || e.getAttribute("aria-labelledby")
    || e.textContent.trim())).map((e) => e.outerHTML.slice(0, 80));
const reached = [...document.querySelectorAll("a,button,[tabindex='0']")]
  .every((e) => { e.focus(); return document.activeElement === e; });
frames.sort((a, b) => a - b);
return { before, after: state(), frames, nameless, reached, log: at("lines").split("\\n").length,
  wide: document.documentElement.scrollWidth - document.documentElement.clientWidth };
"""


def feed(log: EventLog, first: int, last: int) -> None:
    for number in range(first, last):
        row = ROWS[number % DISPATCHES]
        best = 1e-3 / (1 + number / TRIALS)
        trial = Trial(Configuration.of({"tile": number}), Status.OK, best)
        log.listen(events.TrialDone(row.name, trial, best, 1e-3, number + 1, TRIALS, "default"))


def check(found: Answer, url: str) -> None:
    """Figures moved until the run ended, with no error, for everybody, and without a network."""
    value = found.value
    assert found.faults == []
    assert set(found.requests) == {f"{url}events"}, "nothing is fetched from elsewhere"
    assert value["after"]["version"] > value["before"]["version"]
    assert value["after"]["curves"] > 0
    assert value["after"]["status"].startswith("finished")
    assert value["wide"] <= 0
    assert value["nameless"] == []
    assert value["reached"], "all that can be worked is reached by the keyboard"
    assert value["log"] <= 300


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    made = EventLog(tmp_path / "e.jsonl", pytest.fail)
    made.listen(events.RunStarted("model.mlir", "cpu", "/out", None, {}, os.getpid()))
    made.listen(events.DispatchesRanked("default", ROWS))
    made.listen(events.PhaseStarted("search"))
    feed(made, 0, TRIALS // 2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.mark.parametrize("width", [400, 1600])
def test_figures_move_while_ten_thousand_events_come(
    browser: Browser, log: EventLog, tmp_path: Path, width: int
) -> None:
    server = WatchServer(WatchedRun(tmp_path / "e.jsonl"), "127.0.0.1", 0)
    serving = threading.Thread(target=server.serve_forever, args=(0.02,))
    serving.start()
    stop = threading.Event()

    def go_on() -> None:
        done = TRIALS // 2
        while done < TRIALS:
            # About four seconds for the second half, once the page is there.
            stop.wait(0.08)
            feed(log, done, done + 100)
            done += 100
        stop.wait(1.0)
        log.listen(events.RunEnded("finished", "", 60.0, 30.0))

    feeding = threading.Thread(target=go_on)
    try:
        with browser.opened(server.url, width=width) as page:
            feeding.start()
            found: Answer = page.ask(WATCH)
    finally:
        stop.set()
        if feeding.ident is not None:
            feeding.join()
        server.shutdown()
        serving.join()
        server.server_close()
    value = found.value
    check(found, server.url)
    assert value["after"]["trials"] == TRIALS
    assert value["after"]["rows"] == DISPATCHES
    frames = value["frames"]
    if frames:
        shown = ", ".join(
            f"{100 * part:g}% {frames[int(part * (len(frames) - 1))]:.0f} ms"
            for part in (0.5, 0.95, 0.99, 1.0)
        )
        print(f"frames at a width of {width}: {shown}")


def test_figures_move_during_a_run(browser: Browser, tmp_path: Path) -> None:
    program, out = tmp_path / "matmul.mlir", tmp_path / "out"
    program.write_text(matmul(256, 256, 256))
    here = (sys.executable, "-m", "tilewright")
    tune = [*here, "tune", program, "-o", out, "--db", tmp_path / "t.db", "--effort", "quick",
            "--max-trials", "40", "--variants", "default"]  # fmt: skip
    with subprocess.Popen(
        tune, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stderr is not None
        for line in run.stderr:
            if line.rstrip().endswith("search"):
                break
        rest = threading.Thread(target=run.stderr.read)
        rest.start()
        watch = [*here, "watch", out]
        with subprocess.Popen(watch, stdout=subprocess.PIPE, text=True) as serving:
            try:
                assert serving.stdout is not None
                url = serving.stdout.readline().partition(": ")[0]
                with browser.opened(url, width=400) as page:
                    found: Answer = page.ask(WATCH)
            finally:
                serving.terminate()
        rest.join()
    assert run.returncode == 0
    check(found, url)
    assert found.value["after"]["trials"] >= 40
