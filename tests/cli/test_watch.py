"""`tilewright watch`: what a page is told of a run that goes on, and who may ask."""

from __future__ import annotations

import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tilewright.cli.main import commands
from tilewright.cli.watch_server import WatchServer, is_loopback
from tilewright.cli.watched_run import COLUMNS, WatchedRun
from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning import events
from tilewright.tuning.event_log import EventLog, live_place


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(path: Path, clock: Clock) -> Iterator[EventLog]:
    made = EventLog(path, pytest.fail, clock)
    made.listen(events.RunStarted("m/model.mlir", "cpu", "/out", 600.0, {}, os.getpid()))
    yield made
    made.close()


ROWS = (
    events.DispatchRow("d_matmul", "matmul", 2, 0.25, 1e-3, 10.0, 100.0),
    events.DispatchRow("d_conv", "conv", 1, 0.75, 6e-3, 20.0, 100.0),
    events.DispatchRow("d_copy", "copy", 1, 0.0, None, None, None, "not tuned"),
)


def trial(log: EventLog, task: str, time_s: float | None, best_s: float, done: int) -> None:
    status = Status.CRASHED if time_s is None else Status.OK
    default = {row.name: row.default_s for row in ROWS}[task]
    assert default is not None
    tried = Trial(Configuration.of({"n": done}), status, time_s)
    log.listen(events.TrialDone(task, tried, best_s, default, done, 64, "default"))


def searched(log: EventLog, clock: Clock) -> None:
    log.listen(events.DispatchesRanked("default", ROWS))
    log.listen(events.PhaseStarted("search"))
    clock.now = 5.0
    trial(log, "d_conv", 3e-3, 3e-3, 1)
    clock.now = 6.0
    trial(log, "d_conv", None, 3e-3, 2)
    clock.now = 8.0
    trial(log, "d_conv", 2e-3, 2e-3, 3)


def test_the_page_is_told_what_is_known(path: Path, log: EventLog, clock: Clock) -> None:
    run = WatchedRun(path, clock=clock)
    assert run.snapshot()["rows"] == []
    before = run.poll()
    assert run.poll() == before
    searched(log, clock)
    assert run.poll() != before
    told = run.snapshot()
    assert (told["headline"], told["done"], told["limit"]) == ("model.mlir", 3, 64)
    assert [dict(zip(COLUMNS, row, strict=True)) for row in told["rows"]] == [
        {"dispatch": "d_conv", "runs": "1", "share %": "75.0", "default ms": "6.00",
         "best ms": "2.00", "speed-up": "3.00x", "trials": "3", "failed": "1"},
        {"dispatch": "d_matmul", "runs": "2", "share %": "25.0", "default ms": "1.00",
         "best ms": "-", "speed-up": "-", "trials": "0", "failed": "0"},
    ]  # fmt: skip
    assert told["status"].startswith("search  8")
    assert "3 of 64 trials, 1 failed" in told["status"]
    assert any("new best 2.00 ms" in line for line in told["lines"])
    (curve,) = told["figures"]["progress"].data
    assert list(zip(curve.x, curve.y, strict=True)) == [(0, 1), (5, 2), (8, 3), (8, 3)]
    bars = {
        bar.hovertemplate.split("<extra>")[1]: bar.x for bar in told["figures"]["before-after"].data
    }
    assert {name.removesuffix("</extra>"): tuple(x) for name, x in bars.items()} == {
        "d_conv": (2.0, 6.0), "d_matmul": (2.0, 2.0),
    }  # fmt: skip


def test_time_goes_on_between_events_and_stands_after_the_last(
    path: Path, log: EventLog, clock: Clock
) -> None:
    run = WatchedRun(path, clock=clock)
    searched(log, clock)
    run.poll()
    clock.now = 20.0
    assert "20" in run.snapshot()["status"]
    log.listen(events.RunEnded("finished", "", 3.0, 1.5))
    run.poll()
    clock.now = 90.0
    told = run.snapshot()
    assert told["ended"]
    assert told["status"] == "finished  20 s"
    assert told["headline"] == "model.mlir: 3.00 to 1.50 ms, 2.00x the default's speed"


def test_half_a_line_waits_for_the_rest_and_a_broken_one_is_passed_over(
    path: Path, log: EventLog, clock: Clock
) -> None:
    run = WatchedRun(path, clock=clock)
    before = run.poll()
    with path.open("a") as file:
        file.write('{"event": "phase_started", "t": 1, "na')
        file.flush()
        assert run.poll() == before
        file.write('me": "compile"}\nnonsense\n')
    run.poll()
    assert run.snapshot()["status"].startswith("compile")


def test_a_run_that_was_killed_has_ended(path: Path, clock: Clock) -> None:
    log = EventLog(path, pytest.fail, clock)
    log.listen(events.RunStarted("m.mlir", "cpu", "/out", None, {}, 2**22 + 1))
    assert WatchedRun(path, clock=clock).ended is None, "a file may be from another machine"
    run = WatchedRun(path, here=True, clock=clock)
    assert run.snapshot()["status"].startswith("killed: its process is gone; --resume")


@pytest.fixture
def server(path: Path, log: EventLog, clock: Clock) -> Iterator[WatchServer]:
    searched(log, clock)
    made = WatchServer(WatchedRun(path, clock=clock), "127.0.0.1", 0)
    thread = threading.Thread(target=made.serve_forever, args=(0.02,))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def get(server: WatchServer, path: str, host: str | None = None) -> Any:
    headers = {} if host is None else {"Host": host}
    return urllib.request.urlopen(
        urllib.request.Request(server.url + path, headers=headers), timeout=30
    )


def messages(stream: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in stream:
        name = line.decode().removeprefix("event: ").strip()
        yield name, json.loads(next(stream).decode().removeprefix("data: "))
        next(stream)


def test_figures_come_as_events_until_the_run_ends(server: WatchServer, log: EventLog) -> None:
    page = get(server, "").read().decode()
    assert "EventSource" in page
    assert "connect-src 'self'" in page
    with get(server, "events") as stream:
        assert stream.headers["Content-Type"] == "text/event-stream"
        told = messages(stream)
        name, first = next(told)
        assert (name, first["done"], first["ended"]) == ("run", 3, False)
        assert set(first["figures"]) == {"before-after", "flame", "progress"}
        trial(log, "d_matmul", 5e-4, 5e-4, 4)
        name, second = next(told)
        assert (second["done"], second["rows"][1][5]) == (4, "2.00x")
        assert "figures" not in second, "pictures come more slowly than figures"
        log.listen(events.RunEnded("finished", "", 3.0, 1.5))
        rest = list(told)
    assert [name for name, _ in rest] == ["run", "end"]
    assert rest[0][1]["ended"]
    assert rest[0][1]["figures"]["progress"]["data"], "the last picture comes in any case"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "10.0.0.1:8080", ""])
def test_a_page_from_elsewhere_gets_nothing(server: WatchServer, host: str) -> None:
    for path in ("", "events"):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            get(server, path, host)
    assert get(server, "", f"localhost:{server.server_port}").status == 200


def test_there_is_nothing_else(server: WatchServer) -> None:
    for path in ("etc/passwd", "../events.jsonl", "events.jsonl"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(server, path)


def test_loopback() -> None:
    assert [is_loopback(h) for h in ("127.0.0.1", "127.1.2.3", "::1", "localhost")] == [True] * 4
    assert not any(is_loopback(h) for h in ("0.0.0.0", "192.168.1.2", "example.com", "", "::"))


def told(*arguments: object) -> str:
    done = CliRunner().invoke(commands, ["watch", *map(str, arguments)], standalone_mode=True)
    assert done.exit_code == 2
    return done.output


def test_mistakes_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: WatchServer, path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert "no run of this machine that writes there goes on" in told(tmp_path / "none")
    ended = tmp_path / "out"
    ended.mkdir()
    (ended / "summary.json").touch()
    assert f"this run has ended; open {ended / 'report.html'}" in told(ended)
    wrong = tmp_path / "model.mlir"
    wrong.write_text("func.func @main()\n")
    assert "not a line of a run's events" in told(wrong)
    assert "cannot listen there" in told(path, "--port", server.server_port)


def test_a_run_is_found_by_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Path, log: EventLog
) -> None:
    from tilewright.cli import watch

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = live_place(tmp_path / "out")
    place.parent.mkdir(parents=True)
    place.write_bytes(path.read_bytes())
    assert watch._events_of(tmp_path / "out") == place
    assert watch._events_of(path) == path
