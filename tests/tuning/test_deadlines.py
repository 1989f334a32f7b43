"""By when phases must end: by the time limit, and by what steps took."""

from __future__ import annotations

import pytest

from tilewright.tuning.deadlines import Deadlines


def played(limit_s: float | None) -> tuple[Deadlines, list[float]]:
    now = [100.0]
    return Deadlines(limit_s, now[0], lambda: now[0]), now


def test_without_a_limit_nothing_has_to_end() -> None:
    deadlines, _ = played(None)
    assert deadlines.end("search") is None
    assert deadlines.left_s("variants") is None


def test_variants_have_a_third() -> None:
    deadlines, now = played(300.0)
    now[0] += 40.0
    assert deadlines.left_s("variants") == pytest.approx(60.0)
    now[0] += 100.0
    assert deadlines.left_s("variants") == 0.0


def test_while_nothing_is_known_the_search_leaves_a_quarter_or_two_minutes() -> None:
    assert played(100.0)[0].left_s("search") == pytest.approx(75.0)
    assert played(1000.0)[0].left_s("search") == pytest.approx(880.0)


def test_each_phase_leaves_what_those_behind_it_are_expected_to_take() -> None:
    deadlines, _ = played(400.0)
    deadlines.keep("confirm", 30.0)
    deadlines.keep("company", 50.0)
    deadlines.keep("finish", 20.0)
    left = [deadlines.left_s(one) for one in ("search", "confirm", "company", "finish")]
    assert left == [300.0, 330.0, 380.0, 400.0]
    deadlines.keep("company", 500.0)
    assert deadlines.left_s("search") == 0.0


def test_the_search_leaves_a_little_however_fast_the_rest_is_expected_to_be() -> None:
    deadlines, _ = played(100.0)
    deadlines.keep("finish", 0.1)
    assert deadlines.left_s("search") == pytest.approx(96.0)


def test_a_step_takes_what_it_took_on_average() -> None:
    deadlines, _ = played(100.0)
    assert deadlines.each("compiling", 7.0) == 7.0
    deadlines.took("compiling", 10.0)
    deadlines.took("compiling", 2.0, 3)
    assert deadlines.each("compiling", 7.0) == pytest.approx(3.0)
