"""Finalists: only what is right, really applied and faster beyond the noise wins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from played_programs import PlayedRun

from tilewright.measure.comparison import ComparisonPolicy, Finalist
from tilewright.measure.statistics import Interval, Measurement, Verdict
from tilewright.trial import Status
from tilewright.tuning.confirm import Confirmed, confirm, entry_name
from tilewright.tuning.deadlines import Deadlines
from tilewright.tuning.events import Event, WinnerFound


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedRun:
    played = PlayedRun(tmp_path)
    # What the database keeps of a task is none of the played tasks' business.
    monkeypatch.setattr("tilewright.tuning.confirm._record", lambda *_: None)
    events: list[Event] = []
    played.context.listener = events.append
    played.events = events
    return played


def task_with(run: PlayedRun, **seconds: float) -> SimpleNamespace:
    """A task whose default took a second, and a trial for each of the others."""
    trials = [
        SimpleNamespace(
            configuration=name, time_s=time_s, ok=True, status=Status.OK, samples=(), digest=name
        )
        for name, time_s in seconds.items()
    ]
    return run.task("a", trials=trials)


def confirmed(run: PlayedRun) -> Confirmed:
    selector = SimpleNamespace(select=lambda trials, count: trials)
    (found,) = confirm(run.context, run.prepared.tasks, selector)
    return found


def test_the_fastest_wins_and_the_others_are_kept_in_order(run: PlayedRun) -> None:
    task_with(run, x=0.9, y=0.8)
    run.seconds |= {"finalist_0": 0.7, "finalist_1": 0.6}
    found = confirmed(run)
    assert [c.configuration for c in found.faster] == ["y", "x"]
    assert found.winner is found.faster[0]
    (event,) = [e for e in run.events if isinstance(e, WinnerFound)]
    assert event.speedup == pytest.approx(1 / 0.6)


def test_of_what_takes_seconds_few_calls_are_enough(
    run: PlayedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies: list[ComparisonPolicy] = []

    def noted(*given: Any, policy: ComparisonPolicy, **how: Any) -> object:
        policies.append(policy)
        return type(run).compare_interleaved(run, *given, policy=policy, **how)

    monkeypatch.setattr(run, "compare_interleaved", noted)
    task_with(run, x=0.5).default_s = 5.0
    run.seconds["finalist_0"] = 0.5
    confirmed(run)
    (policy,) = policies
    # A turn of either is one call, and no round begins after half a minute but for a verdict.
    assert policy.min_sample_s <= 0.5
    assert policy.max_s == 30.0


def test_what_looked_fast_and_is_not_does_not_win(run: PlayedRun) -> None:
    task_with(run, x=0.5, y=0.5)
    run.seconds |= {"finalist_0": 1.2, "finalist_1": 1.0}
    found = confirmed(run)
    assert found.winner is None
    assert found.reason == "no candidate beat the default beyond the noise"


def test_slower_trials_and_the_default_itself_are_not_tried(run: PlayedRun) -> None:
    task_with(run, own=0.5, slow=1.5)
    found = confirmed(run)
    assert (found.winner, found.reason) == (None, "no candidate beat the default")
    assert run.compiled == ["default.vmfb"]


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("wrong", {"finalist_0"}, "wrong result: all of it is wrong"),
        ("fails", {"finalist_0": "it hangs"}, "it hangs"),
        ("specs_fail", {"finalist_0": "no op to configure"}, "no op to configure"),
        ("reading_fails", "the worker died", "the worker died"),
        ("missed", {"a_1_a"}, "the spec did not apply to the dispatch"),
    ],
)
def test_what_fails_on_the_way_is_dropped_and_told_once(
    run: PlayedRun, field: str, value: object, told: str
) -> None:
    task_with(run, x=0.5)
    assert entry_name(run.prepared.tasks[0]) == "a_1_a"
    run.seconds["finalist_0"] = 0.5
    setattr(run, field, value)
    found = confirmed(run)
    assert (found.winner, found.reason) == (None, "no candidate beat the default")
    assert run.notes.count("a finalist was dropped") == 1
    assert told in run.notes


def test_one_that_fails_leaves_the_others(run: PlayedRun) -> None:
    task_with(run, x=0.5, y=0.6, z=0.7)
    run.fails["finalist_0"] = "it hangs"
    run.wrong.add("finalist_1")
    run.seconds |= {"finalist_0": 0.1, "finalist_1": 0.1, "finalist_2": 0.9}
    assert [c.configuration for c in confirmed(run).faster] == ["z"]


def test_a_comparison_that_fails_leaves_the_default(run: PlayedRun) -> None:
    task_with(run, x=0.5)
    run.comparing_fails = "the device is gone"
    found = confirmed(run)
    assert found.winner is None
    assert found.reason == "the comparison with the default failed: the device is gone"


def test_without_time_for_all_the_best_of_the_tasks_that_matter_are_confirmed(
    run: PlayedRun,
) -> None:
    like = task_with(run, x=0.5, y=0.6)
    run.prepared.tasks.clear()
    for name, share in (("cold", 0.1), ("hot", 0.8)):
        run.task(name, trials=like.trials, share=share, workload=like.workload)
    run.seconds |= {"finalist_0": 0.5, "finalist_1": 0.4}

    def winners(now: float) -> list[str | None]:
        limits = run.context.deadlines = Deadlines(100.0, 0.0, lambda: now)
        limits.took("compiling a finalist", 10.0)
        limits.took("comparing finalists", 5.0)
        selector = SimpleNamespace(select=lambda trials, count: trials)
        found = confirm(run.context, run.prepared.tasks, selector)
        return [one.winner.configuration if one.winner else None for one in found]

    assert winners(0.0) == ["y", "y"]
    assert winners(55.0) == ["x", "x"], "no time for more than one of each"
    assert not run.notes
    assert winners(80.0) == [None, "x"]
    assert "1 of 2 dispatches of default are left as they are" in run.notes


@pytest.mark.parametrize(
    ("ratios", "again", "compared", "won"),
    [
        # Not certain among three; alone it is, or is not.
        ({"finalist_0": 0.97, "finalist_1": 0.99}, Verdict.FASTER, [3, 2], True),
        ({"finalist_0": 0.97, "finalist_1": 0.99}, Verdict.SAME, [3, 2], False),
        # Too little to be worth it.
        ({"finalist_0": 0.985, "finalist_1": 0.99}, Verdict.FASTER, [3], False),
    ],
)
def test_the_best_of_those_that_are_not_certain_is_looked_at_once_more(
    run: PlayedRun,
    monkeypatch: pytest.MonkeyPatch,
    ratios: dict[str, float],
    again: Verdict,
    compared: list[int],
    won: bool,
) -> None:
    task_with(run, x=0.9, y=0.9)
    asked: list[int] = []

    def compare(vmfbs: Sequence[str], inputs: object, **how: object) -> list[Finalist]:
        asked.append(len(vmfbs))
        verdict = again if len(asked) > 1 else Verdict.SAME
        found = [ratios.get(Path(vmfb).stem, 1.0) for vmfb in vmfbs]
        return [
            Finalist(Measurement((one,) * 15), Interval(one, one - 0.04, one + 0.04, 0.95), verdict)
            for one in found
        ]

    monkeypatch.setattr(run.context.benchmark, "compare_interleaved", compare)
    found = confirmed(run)
    assert asked == compared
    assert [c.configuration for c in found.faster] == (["x"] if won else [])
    told = found.reason.partition(" (")[0]
    assert told == ("" if won else "no candidate beat the default beyond the noise")
