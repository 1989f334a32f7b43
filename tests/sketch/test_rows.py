"""Chains of reductions over rows: every configuration of the sketch computes the same."""

from __future__ import annotations

import pytest
from row_cases import CASES
from sketch_cases import check

from tilewright.sketch.rows import RowsSketch
from tilewright.target import parse_target


@pytest.mark.parametrize("name", CASES)
def test_configurations_are_right(name: str) -> None:
    expression = CASES[name]()
    check(RowsSketch(expression, parse_target("cpu")), expression, 8)
