"""Two contractions around a softmax: every configuration of the sketch computes the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from attention_cases import CASES
from row_cases import layer_norm, softmax
from sketch_cases import check

from tilewright.sketch.attention import AttentionSketch
from tilewright.sketch.interface import SiteExpression
from tilewright.space.pipeline import Unfit
from tilewright.target import parse_target

# Few lanes, since the cases have few queries.
TARGET = replace(parse_target("cpu"), vector_bytes=32)


@pytest.mark.parametrize("name", CASES)
def test_configurations_are_right(name: str) -> None:
    expression = CASES[name]()
    check(AttentionSketch(expression, TARGET), expression, 5)


@pytest.mark.parametrize("expression", [softmax(9, 8), layer_norm(9, 8)])
def test_what_has_no_contractions_is_refused(expression: SiteExpression) -> None:
    with pytest.raises(Unfit, match="two contractions"):
        AttentionSketch(expression, TARGET)
