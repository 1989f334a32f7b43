"""Whole programs: how many of them a run has time for."""

from tilewright.tuning.company import affordable


def test_the_time_left_says_how_many_programs_are_tried_in_company():
    assert affordable(None, 7.0) is None
    assert affordable(30.0, 7.0) == 4
    assert affordable(0.0, 7.0) == 1
    assert affordable(10.0, 0.0) > 1000
