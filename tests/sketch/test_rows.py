"""Chains of reductions over rows: every configuration of the sketch computes the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from row_cases import (
    CASES,
    global_average,
    largest_place,
    layer_norm,
    rms_norm,
    row_maximum,
    softmax,
)
from sketch_cases import check, site

from tilewright import te
from tilewright.sketch.generators import sketches
from tilewright.sketch.interface import SiteExpression
from tilewright.sketch.rows import RowsSketch
from tilewright.sketch.split_rows import SplitRowsSketch
from tilewright.space.pipeline import Unfit
from tilewright.target import parse_target

TWO_CORES = replace(parse_target("cpu"), cores=2)


@pytest.mark.parametrize("name", CASES)
def test_configurations_are_right(name: str) -> None:
    expression = CASES[name]()
    check(RowsSketch(expression, parse_target("cpu")), expression, 8)


FEW_ROWS = {
    "softmax of a row": lambda: softmax(1, 301),
    "softmax of all": lambda: softmax(230),
    "layer norm of two rows": lambda: layer_norm(2, 150),
    "RMS norm of a row": lambda: rms_norm(1, 137),
    "largest of columns": lambda: row_maximum(150, 11, 0),
    "average, channels last": lambda: global_average(1, 9, 13, last=True),
    "place of the largest": lambda: largest_place(1, 153),
    "average, channels second": lambda: global_average(1, 3, 13, last=False),
}


@pytest.mark.parametrize("name", FEW_ROWS)
def test_split_rows_are_right(name: str) -> None:
    expression = FEW_ROWS[name]()
    check(SplitRowsSketch(expression, TWO_CORES), expression, 5)


def test_many_rows_are_not_split() -> None:
    with pytest.raises(Unfit, match="64 rows are work for 2 cores"):
        SplitRowsSketch(softmax(64, 1000), TWO_CORES)


def test_one_row_is_left_to_those_who_split_it() -> None:
    with pytest.raises(Unfit, match="one row"):
        RowsSketch(softmax(230), TWO_CORES)


def test_products_of_matrices_are_refused() -> None:
    a, b = te.placeholder((5, 6), "f32", name="a"), te.placeholder((6, 7), "f32", name="b")
    k = te.reduce_axis(6, "k")
    y = te.compute((5, 7), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="y")
    with pytest.raises(Unfit, match="contraction"):
        RowsSketch(site(y, a, b), TWO_CORES)


@pytest.mark.parametrize("make", [lambda: softmax(5, 300), lambda: softmax(1, 600)])
def test_code_is_right(make: Callable[[], SiteExpression]) -> None:
    expression = make()
    for sketch in sketches(expression, TWO_CORES):
        kernel = sketch.schedule(sketch.space.default)
        built = te.build(kernel.schedule, kernel.arguments)
        x = built.random()[0]
        power = np.exp(x.astype("f8") - x.max(axis=1, keepdims=True))
        built.verify(power / power.sum(axis=1, keepdims=True), x)
