"""Events as lines: what is written is what is read; faults of the file are no faults of the run."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from tilewright.errors import UserError
from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning import event_log, events
from tilewright.tuning.event_log import EventLog, event_line, live_place, read_line, recorded
from tilewright.tuning.options import TuneOptions

TRIAL = Trial(
    Configuration.of({"tile_m": 8, "order": (1, 0), "sketch": "tiles", "left": True}),
    Status.OK,
    1.5e-3,
    samples=(1.5e-3, 1.6e-3),
    origin="first",
)
ALL = [
    events.RunStarted("m.mlir", "cpu", "/out", 60.0, {"tilewright": "1"}, 7),
    events.PhaseStarted("search", "two tasks"),
    events.PhaseEnded("search", 1.25),
    events.Note("careful", warning=True),
    events.ProgramMeasured("default", 0.25, True),
    events.ProgramMeasured("other", None, error="crashed"),
    events.DispatchesRanked(
        "default", (events.DispatchRow("d0", "matmul", 2, 0.5, 1e-3, None, 1e9, "a note"),)
    ),
    events.TrialDone(
        "d0",
        TRIAL,
        1.5e-3,
        2e-3,
        3,
        64,
        "default",
        events.TrialDetail("contraction 8x8x8 f32", "tile 4", "iree-compile a.mlir", 1024),
    ),
    events.WinnerFound("d0", 1.3, 1.2, 1.4, "tile_m 8", True),
    events.RunEnded("finished", "", 3.0, 1.0),
]


def test_every_kind_of_event_is_tried() -> None:
    assert {type(one) for one in ALL} == set(events.Event.__subclasses__())


@pytest.mark.parametrize("event", ALL, ids=lambda one: type(one).__name__)
def test_what_is_read_is_what_was_written(event: events.Event) -> None:
    seconds, found = read_line(event_line(event, 2.5))
    assert seconds == 2.5
    if isinstance(event, events.TrialDone):
        # All but the samples.
        assert isinstance(found, events.TrialDone)
        assert found.trial.configuration == TRIAL.configuration
        assert (found.trial.status, found.trial.time_s) == (Status.OK, 1.5e-3)
        assert (found.task, found.best_s, found.done) == ("d0", 1.5e-3, 3)
        assert found.detail == event.detail
    else:
        assert found == event


def test_a_line_is_json_that_any_reader_takes() -> None:
    event = events.TrialDone("d0", TRIAL, math.inf, math.nan, 1, 2)
    told = json.loads(event_line(event, 0.0), parse_constant=lambda name: pytest.fail(name))
    assert (told["event"], told["best_s"], told["default_s"]) == ("trial_done", None, None)
    assert json.loads(event_line(ALL[0], 0.0))["format"] == event_log.FORMAT


def test_later_versions_are_read_as_far_as_they_are_known() -> None:
    assert read_line('{"event": "moon_rose", "t": 3}') == (3.0, None)
    line = {**json.loads(event_line(ALL[2], 1.0)), "joules": 5}
    assert read_line(json.dumps(line)) == (1.0, ALL[2])
    later = {**json.loads(event_line(ALL[0], 1.0)), "format": event_log.FORMAT + 1}
    assert read_line(json.dumps(later)) == (1.0, None)


@pytest.mark.parametrize(
    "line",
    ["", "x", "[]", "3", "{}", '{"event": "note"}', '{"event": "note", "t": "x"}',
     '{"event": "note", "t": 1}', '{"event": "trial_done", "t": 1, "trial": 3}', b"\xff\xfe"],
)  # fmt: skip
def test_what_is_no_line_of_events_is_said(line: str | bytes) -> None:
    with pytest.raises(ValueError, match="not a line of a run's events"):
        read_line(line)


def test_lines_are_there_at_once_with_the_seconds_of_the_run(tmp_path: Path) -> None:
    times = iter([100.0, 100.5, 103.0])
    log = EventLog(tmp_path / "new" / "e.jsonl", pytest.fail, clock=lambda: next(times))
    for count, event in enumerate(ALL[:2], start=1):
        log.listen(event)
        lines = (tmp_path / "new" / "e.jsonl").read_text().splitlines()
        assert [read_line(line)[1] for line in lines] == ALL[:count]
    assert [read_line(line)[0] for line in lines] == [0.5, 3.0]
    log.close()
    log.listen(ALL[2])
    assert len((tmp_path / "new" / "e.jsonl").read_text().splitlines()) == 2


def test_a_pipe_that_the_user_names_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        log = EventLog(pipe, pytest.fail)
        log.listen(ALL[1])
        assert read_line(os.read(reader, 1 << 16))[1] == ALL[1]
        log.close()
        assert pipe.is_fifo()
    finally:
        os.close(reader)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_told_once_and_ends_nothing() -> None:
    told: list[str] = []
    log = EventLog(Path("/dev/full"), told.append)
    log.listen(ALL[1])
    log.listen(ALL[1])
    assert told == ["no more events are written (No space left on device)"]


def record(options: TuneOptions, error: BaseException | None = None) -> list[events.Event]:
    heard: list[events.Event] = []
    with recorded(Path("m.mlir"), "cpu", options, heard.append) as tell:
        tell(ALL[1])
        if error is not None:
            raise error
    return heard


def test_a_named_file_stays_and_ends_with_why(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    options = TuneOptions(events=path, output=tmp_path / "out")
    heard = record(options)
    assert isinstance(heard[0], events.RunStarted)
    lines = path.read_text().splitlines()
    assert [read_line(line)[1] for line in lines] == heard
    for error, status in ((UserError("bad input"), "failed"), (KeyboardInterrupt(), "interrupted")):
        with pytest.raises(type(error)):
            record(options, error)
        last = read_line(path.read_text().splitlines()[-1])[1]
        assert isinstance(last, events.RunEnded)
        assert last.status == status
    assert "bad input" in path.read_text() or last.message == "KeyboardInterrupt"


def test_without_a_name_events_are_where_watch_looks_while_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    options = TuneOptions(output=Path("out"))
    place = live_place(tmp_path / "out")
    assert place.is_relative_to(tmp_path / "cache")
    with recorded(Path("m.mlir"), "cpu", options, lambda event: None):
        assert isinstance(read_line(place.read_text())[1], events.RunStarted)
    assert not place.exists()


def test_a_file_that_cannot_be_written_is_the_users_to_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"--events: .*file/e.jsonl: cannot write it"):
        record(TuneOptions(events=tmp_path / "file" / "e.jsonl"))
    # A cache that cannot be written is not.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert record(TuneOptions(output=tmp_path / "out"))[1] == ALL[1]
