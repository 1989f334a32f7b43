"""Winograd's convolutions: right in every configuration, and only where they are asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from nest_evaluator import evaluate
from sketch_cases import arrays, packed_inputs, unscheduled
from window_cases import convolution

from tilewright import te
from tilewright.schedule.codegen.machine import machine_for
from tilewright.schedule.codegen.size import check_size
from tilewright.sketch.cook_toom import SIZES, short_convolution
from tilewright.sketch.generators import sketches
from tilewright.sketch.winograd import WinogradSketch
from tilewright.space.pipeline import Unfit
from tilewright.target import parse_target

LANES = parse_target("cpu").lanes(32)


@pytest.mark.parametrize("size", SIZES)
def test_short_convolutions_are_convolutions(size: int) -> None:
    matrices = short_convolution(size)
    rng = np.random.default_rng(0)
    values, window = rng.standard_normal(size + 2), rng.standard_normal(3)
    a, g, d = (np.array(m) for m in (matrices.result, matrices.filter, matrices.image))
    found = a @ ((g @ window) * (d @ values))
    np.testing.assert_allclose(found, [values[i : i + 3] @ window for i in range(size)])


@pytest.mark.parametrize(
    "sizes",
    [
        {"size": (5, 6), "channels": LANES, "outputs": 2 * LANES, "pad": 1},
        {"size": (6, 7), "channels": 2 * LANES, "outputs": LANES},
    ],
    ids=["padded, tiles cut off", "not padded, whole tiles"],
)
def test_configurations_are_right(sizes: dict[str, Any]) -> None:
    expression = convolution(**sizes)
    sketch = WinogradSketch(expression, parse_target("cpu"))
    inputs = arrays(expression)
    wanted = unscheduled(expression, inputs)
    by_size = {c["size"]: c for c in sketch.space.sample(np.random.default_rng(0), 24)}
    assert set(by_size) == set(SIZES)
    for configuration in [sketch.space.default, *by_size.values()]:
        kernel = sketch.schedule(configuration)
        found = evaluate(kernel.lower().program, packed_inputs(kernel, inputs), "random", 0)[0]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-4)


def test_the_next_filters_are_fetched_while_products_are_added_up() -> None:
    sketch = WinogradSketch(convolution((28, 28), 64, 64, pad=1), parse_target("cpu", 2))
    assert "cache=2" in str(sketch.schedule(sketch.space.default).lower())


def test_filters_that_come_from_far_count() -> None:
    """Tiles of four have half of the multiplications, and more than twice the filter to read."""
    target = replace(parse_target("cpu", 2), vector_bytes=64, vector_registers=32, l2_bytes=2 << 20)
    for size, channels, best in ((7, 512, 2), (56, 64, 4)):
        sketch = WinogradSketch(convolution((size, size), channels, channels, pad=1), target)
        assert dict(sketch.space.default.items)["size"] == best


def test_what_the_compiler_makes_of_the_default_is_right() -> None:
    expression = convolution((8, 8), 16, 16, pad=1)
    inputs = arrays(expression)
    sketch = WinogradSketch(expression, parse_target("cpu"))
    kernel = sketch.schedule(sketch.space.default)
    found = te.build(kernel.schedule, kernel.arguments)(*packed_inputs(kernel, inputs))
    np.testing.assert_allclose(found, unscheduled(expression, inputs), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"stride": 2}, "not 3x3 side by side"),
        ({"dilation": 2}, "not 3x3 side by side"),
        ({"kernel": 5}, "not 3x3 side by side"),
        ({"last": False}, "not the image's innermost dimension"),
        ({"constant": False}, "not known ahead"),
        ({"outputs": 5}, "no whole vectors"),
        ({"dtype": "i8"}, "no sum of products|not in f32"),
    ],
)
def test_what_it_is_not_for(changed: dict[str, Any], why: str) -> None:
    expression = convolution(**{"size": (12, 12), "channels": 16, "outputs": 16, **changed})
    with pytest.raises(Unfit, match=why):
        WinogradSketch(expression, parse_target("cpu"))


def test_it_is_there_only_where_sums_may_be_other_ones() -> None:
    expression, target = convolution((12, 12), 16, 16), parse_target("cpu")
    names = {one.name for one in sketches(expression, target)}
    relaxed = {one.name for one in sketches(expression, target, exact=False)}
    assert relaxed - names == {"winograd"}


def test_the_code_of_the_default_is_within_its_budget() -> None:
    """Of the rows of a matrix one is written out for each element, not all of them."""
    target = parse_target("cpu")
    widths = machine_for(target).widths
    for size, channels in (((56, 56), 64), ((14, 14), 128)):
        sketch = WinogradSketch(convolution(size, channels, channels, pad=1), target)
        kernel = sketch.schedule(sketch.space.default)
        check_size(kernel.lower().program, widths)


def test_a_result_without_the_axis_of_one_image() -> None:
    """What reads the sums has them in fewer dimensions than they are summed in."""
    image = convolution((6, 6), LANES, LANES, pad=1)
    (sums,) = image.output.op.input_tensors[:1]
    flat = te.compute((6, 6, LANES), lambda *at: te.maximum(sums(0, *at), 0.0), name="flat")
    inputs = image.inputs[:2]
    expression = type(image)(inputs, image.constant[:2], flat)
    sketch = WinogradSketch(expression, parse_target("cpu"))
    kernel, values = sketch.schedule(sketch.space.default), arrays(expression)
    found = evaluate(kernel.lower().program, packed_inputs(kernel, values), "random", 0)[0]
    np.testing.assert_allclose(found, unscheduled(expression, values), rtol=1e-4, atol=2e-4)
