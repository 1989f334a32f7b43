"""The plainest rule: whatever an expression is, all configurations compute it."""

from __future__ import annotations

from random import Random

import pytest
from random_schedules import expression
from sketch_cases import check, site

from tilewright import te
from tilewright.sketch.loops import LoopsSketch
from tilewright.target import parse_target


@pytest.mark.parametrize("seed", range(40))
def test_random_expressions_are_right(seed: int) -> None:
    case = expression(Random(seed))
    last = case.outputs[-1]
    # Of an operation with two results a site has one.
    output = te.compute(last.shape, lambda *i: last[i] + 1, name="Y")
    made = site(output, *case.inputs)
    check(LoopsSketch(made, parse_target("cpu")), made, 3, seed)
