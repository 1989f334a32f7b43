"""Results in the dimensions of their reductions."""

from __future__ import annotations

import pytest
from window_cases import convolution, grouped_channels

from tilewright.sketch.dimensions import splits
from tilewright.sketch.sliding import sliding_reduction


def test_groups_and_their_channels_are_loops_of_their_own() -> None:
    expression = grouped_channels((5, 9), 3, 2, 4)
    found = sliding_reduction(expression)
    assert expression.output.shape == (1, 12, 5, 9)
    assert found.site.output.shape == (1, 3, 4, 5, 9)
    assert [axis.name for axis in found.channels] == ["c"]
    assert [axis.name for axis in found.windows] == ["di", "dj"]
    assert len(found.slides) == 2


def test_windows_side_by_side_are_windows() -> None:
    found = sliding_reduction(convolution((8, 8), 4, 8, 2, stride=2))
    assert len(found.slides) == len(found.windows) == 2


def test_what_has_no_groups_stays_as_it_is() -> None:
    expression = convolution((6, 6), 4, 8)
    assert sliding_reduction(expression).site.output is expression.output


@pytest.mark.parametrize(
    ("whole", "parts", "does"),
    [
        ((1, 128, 56), (1, 32, 4, 56), True),
        ((4, 6), (2, 2, 3, 2, 1), True),
        ((24, 32), (24, 32), True),
        ((24, 32), (32, 24), False),
        ((4,), (4, 2), False),
        ((6,), (5,), False),
    ],
)
def test_dimensions_are_taken_apart_in_order(
    whole: tuple[int, ...], parts: tuple[int, ...], does: bool
) -> None:
    assert splits(whole, parts) is does
