"""What is said in words."""

from __future__ import annotations

from tilewright import words


def test_what_was_left_out_is_told_by_its_reason() -> None:
    many = [(f"d{number}", "skipped: no time") for number in range(5)]
    assert words.by_reason([("pad", "skipped: dynamic shape"), *many]) == [
        "pad: skipped: dynamic shape",
        "d0, d1, d2 and 2 more: skipped: no time",
    ]
    assert words.by_reason(many[:2]) == ["d0, d1: skipped: no time"]
    assert words.by_reason([]) == []
