"""When a search has found enough: how it is written, and when it is reached."""

from __future__ import annotations

import pytest

from tilewright.errors import UserError
from tilewright.target import parse_target
from tilewright.tuning.goals import Goal, GoalWatch, check_goals, read_goals


def goals(text: object) -> tuple[Goal, ...]:
    return read_goals(text, "--stop-at")


def test_goals_as_they_are_written() -> None:
    speedup = Goal("speedup", 2.5, "2.5x")
    assert goals("2.5x") == (speedup,)
    assert goals(("90%peak, no-gain:5m", "2.5x")) == (
        Goal("peak", 0.9, "90%peak"), Goal("no-gain", 300.0, "no-gain:5m"), speedup,
    )  # fmt: skip
    assert goals((speedup,)) == (speedup,), "values of the API are what they mean already"
    assert str(speedup) == "2.5x"


@pytest.mark.parametrize("text", ["", "fast", "1x", "0.5x", "0%peak", "120%peak", "2", "x", "2x,,"])
def test_what_is_no_goal_is_said(text: str) -> None:
    with pytest.raises(UserError, match=r"--stop-at: .* is no goal; write 90%peak"):
        goals(text)


def test_a_time_without_gain_is_a_duration() -> None:
    with pytest.raises(UserError, match="--stop-at: 'soon' is not a duration"):
        goals("no-gain:soon")


def test_the_peak_of_a_gpu_is_not_known() -> None:
    gpu = parse_target("cuda:sm_80", None)
    with pytest.raises(UserError, match="90%peak: only CPUs' peak"):
        check_goals(goals("2x,90%peak"), gpu)
    check_goals(goals("2x,no-gain:5m"), gpu)
    check_goals(goals("90%peak"), parse_target("cpu", 1))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_speedup_is_over_the_default() -> None:
    watch = GoalWatch(goals("2x"), 1.0, clock=Clock())
    assert watch.reached(0.6, 0) == ""
    assert watch.reached(0.5, 0) == "2x: about 2.00x the default's speed is expected"


def test_a_part_of_the_peak_is_of_operations_over_time() -> None:
    watch = GoalWatch(goals("90%peak"), 1.0, peak_gflops=100.0, clock=Clock())
    assert watch.reached(1.0, 80 * 10**9) == ""
    assert watch.reached(0.85, 80 * 10**9) == "90%peak: about 94.1% of the peak is expected"


def test_time_without_gain_counts_from_the_last_gain() -> None:
    clock = Clock()
    watch = GoalWatch(goals("no-gain:10s"), 1.0, clock=clock)
    clock.now = 9.0
    assert watch.reached(0.9, 0) == ""
    clock.now = 18.0
    assert watch.reached(0.899, 0) == "", "less than a hundredth is none, but 10 s have not passed"
    clock.now = 19.0
    assert watch.reached(0.899, 0).startswith("no-gain:10s: nothing gained for 10 s")


def test_without_goals_nothing_is_reached() -> None:
    assert GoalWatch((), 1.0).reached(1e-9, 1) == ""
