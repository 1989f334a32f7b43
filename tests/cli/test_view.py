"""Progress is added up rightly and shown, live or in plain lines."""

from __future__ import annotations

import dataclasses
import io
import re
import sys

import pytest
from rich.console import Console

from tilewright.cli.live import LiveView, dispatch_table, status_line
from tilewright.cli.tune import make_view
from tilewright.cli.view import PlainView, RunProgress
from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning import events


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def trial(
    done: int,
    best_s: float | None,
    status: Status = Status.OK,
    task: str = "matmul",
    limit: int = 100,
    default_s: float = 4e-3,
    variant: str = "default",
) -> events.TrialDone:
    time_s = best_s if status is Status.OK else None
    made = Trial(Configuration.of({"n": done}), status, time_s)
    return events.TrialDone(task, made, best_s, default_s, done, limit, variant)


ROWS = events.DispatchesRanked(
    "default",
    (
        events.DispatchRow("matmul", "contraction 64x64x64 f32", 3, 0.75, 4e-3, 52.5, 8.6e7),
        events.DispatchRow("pad", "", 1, 0.0, None, None, None, "does not compile alone"),
    ),
)
WINNER = events.WinnerFound("matmul", 1.52, 1.48, 1.56, "DoubleTilingExpert: …", True)
LOSER = events.WinnerFound("conv", 1.0, 1.0, 1.0, "", False, "no candidate beat the default")


def test_counts_and_the_best() -> None:
    progress = RunProgress()
    progress.add(events.PhaseStarted("search"))
    assert progress.add(trial(1, 5e-3)) is False  # slower than the default
    assert progress.add(trial(2, 2e-3)) is True
    assert progress.add(trial(3, 2e-3, Status.CRASHED)) is False
    assert progress.add(trial(4, 2e-3)) is False
    assert (progress.done, progress.limit, progress.failed) == (4, 100, 1)
    task = progress.tasks["default", "matmul"]
    assert (task.trials, task.failed, task.speedup) == (4, 1, 2.0)


def test_a_search_that_has_failed_so_far_has_no_best() -> None:
    progress = RunProgress()
    progress.add(trial(1, None, Status.COMPILE_ERROR))
    assert progress.tasks["default", "matmul"].speedup == 1.0
    assert progress.failed == 1


def test_dispatches_of_the_same_name_in_two_variants_are_two() -> None:
    progress = RunProgress()
    lines: list[str] = []
    view = PlainView(progress, lines.append)
    for variant, default_s in (("default", 4e-3), ("data-tiling", 1.8e-3)):
        row = events.DispatchRow("matmul", "w", 1, 0.75, default_s, None, 1e3)
        view.listen(events.DispatchesRanked(variant, (row,)))
    for done, (best_s, default_s, variant) in enumerate(
        (
            (2e-3, 4e-3, "default"),
            (1.5e-3, 1.8e-3, "data-tiling"),
            (2e-3, 4e-3, "default"),
            (1.49e-3, 1.8e-3, "data-tiling"),
            (1.4e-3, 1.8e-3, "data-tiling"),
        ),
        start=1,
    ):
        view.listen(trial(done, best_s, default_s=default_s, variant=variant))
    view.listen(dataclasses.replace(WINNER, variant="default"))
    told = [line.partition("] ")[2] for line in lines if "] matmul" in line]
    assert [line.partition(" ms")[0].partition(" the")[0] for line in told] == [
        "matmul (default): new best 2.00",
        "matmul (data-tiling): new best 1.50",
        "matmul (data-tiling): new best 1.40",
        "matmul (default): 1.52x",
    ]
    assert progress.tasks["default", "matmul"].trials == 2
    assert progress.tasks["data-tiling", "matmul"].trials == 3
    table = Console(file=io.StringIO(), width=120)
    table.print(dispatch_table(progress))
    text = table.file.getvalue()  # type: ignore[attr-defined]
    assert "matmul (default)" in text
    assert "matmul (data-tiling)" in text


def test_time_left_follows_the_rate_and_the_limit() -> None:
    clock = Clock()
    progress = RunProgress(None, clock)
    assert progress.left_s is None
    progress.add(events.PhaseStarted("search"))
    clock.now += 2
    for done in range(1, 11):
        progress.add(trial(done, 2e-3))
    assert progress.trials_per_s == pytest.approx(5)
    assert progress.left_s == pytest.approx(18)
    limited = RunProgress(10.0, clock)
    clock.now += 4
    assert limited.left_s == pytest.approx(6)
    clock.now += 100
    assert limited.left_s == 0


def test_a_resumed_run_does_not_count_earlier_trials_as_speed() -> None:
    clock = Clock()
    progress = RunProgress(None, clock)
    progress.add(events.PhaseStarted("search"))
    clock.now += 1
    for done in range(1001, 1006):
        progress.add(trial(done, 2e-3, limit=1100))
    assert progress.trials_per_s == pytest.approx(5)


def test_a_trial_in_full() -> None:
    """The block of IREE's first profiler, with the line that compiles it and the best so far."""
    detail = events.TrialDetail(
        "contraction 8x8x8 f32", "Expert: tile 4", "iree-compile a.mlir", 2_000_000
    )
    written: list[str] = []
    view = PlainView(RunProgress(clock=Clock()), written.append)
    view.listen(dataclasses.replace(trial(5, 2e-3), detail=detail))
    assert written[:10] == [
        "-" * 64,
        "Trial         : 5 of 100",
        "Dispatch      : matmul (default)",
        "Operation     : contraction 8x8x8 f32",
        "Configuration : Expert: tile 4",
        "Compile       : iree-compile a.mlir",
        "Result        : ok",
        "Runtime(ms)   : 2.00",
        "GFLOPs        : 1.00",
        "Best so far   : 2.00 ms, 1.00 GFLOPs",
    ]
    assert "new best" in written[10]
    written.clear()
    view.listen(dataclasses.replace(trial(6, 2e-3, Status.CRASHED), detail=detail))
    assert "Result        : crashed" in written
    assert "Runtime(ms)   : -" in written
    assert len(written) == 10


def test_plain_lines() -> None:
    clock, lines = Clock(), []
    view = PlainView(RunProgress(None, clock), lines.append)
    with view:
        clock.now += 1.25
        for event in (
            events.PhaseStarted("compile", "the program"),
            events.Note("a thing to know"),
            events.Note("a thing to heed", warning=True),
            events.ProgramMeasured("default", 12.34e-3, True),
            events.ProgramMeasured("im2col", None, False, "it crashed"),
            ROWS,
            trial(1, 4e-3),
            trial(2, 2e-3),
            trial(3, 2e-3),
            WINNER,
            LOSER,
            events.PhaseEnded("compile", 1.0),
        ):
            view.listen(event)
    text = "\n".join(lines)
    assert all("\n" not in line for line in lines)
    assert "[    1.2 s] compile: the program" in text
    assert "a thing to know" in text
    assert "warning: a thing to heed" in text
    assert "variant default: 12.3 ms" in text
    assert "variant im2col: does not count: it crashed" in text
    assert "matmul (contraction 64x64x64 f32): 75.0% of the time, 3 x 4.00 ms" in text
    assert "pad: skipped: does not compile alone" in text
    assert text.count("new best") == 1
    assert "new best 2.00 ms, 2.00x the default's speed (trial 2 of 100, 0 failed)" in text
    assert "matmul: 1.52x the default's speed (1.48 to 1.56): DoubleTilingExpert: …" in text
    assert "conv: the compiler's choice stays: no candidate beat the default" in text


def shown(view: LiveView, buffer: io.StringIO) -> str:
    view._live.refresh()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", buffer.getvalue())


def test_the_live_view_shows_phase_trials_best_and_shares() -> None:
    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=True, width=110, height=30)
    with LiveView(RunProgress(60.0), console) as view:
        view._live.auto_refresh = False
        view.listen(events.PhaseStarted("search"))
        view.listen(ROWS)
        view.listen(trial(1, None, Status.CRASHED))
        view.listen(trial(2, 2e-3))
        text = shown(view, buffer)
        assert "2 of 100 trials, 1 failed" in text
        assert "left" in text
        assert re.search(r"matmul +3 +75\.0% +4\.00 +2\.00 +2\.00x +2 +1", text)
        assert "and 1 other" in text
        view.listen(WINNER)
        view.listen(events.Note("heed [this]", warning=True))
        assert "warning: heed [this]" in shown(view, buffer)


def test_the_live_view_says_that_it_is_stopping() -> None:
    progress = RunProgress()
    progress.add(events.PhaseStarted("search"))
    assert "stopping" not in status_line(progress)
    progress.stopping = True
    assert "stopping: Ctrl-C again to abort" in status_line(progress)


def test_a_program_of_many_dispatches_fits_on_the_screen() -> None:
    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=True, width=110, height=60)
    rows = tuple(events.DispatchRow(f"d{i}", "w", 1, 0.01, 1e-3, None, 1e3) for i in range(100))
    with LiveView(RunProgress(), console) as view:
        view._live.auto_refresh = False
        view.listen(events.DispatchesRanked("default", rows))
        text = shown(view, buffer)
    assert "and 88 others" in text
    assert "d50" not in text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_views_by_where_stderr_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(make_view(None, plain=False), PlainView)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert isinstance(make_view(None, plain=False), LiveView)
    assert isinstance(make_view(None, plain=True), PlainView)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_view(None, plain=False), PlainView)
