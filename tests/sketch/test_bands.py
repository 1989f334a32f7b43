"""Bands: a 1x1 convolution computed for the windows that read it, whatever the configuration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sketch_cases import AVX512, arrays, check, packed_inputs, unscheduled
from window_cases import padded

from tilewright import te
from tilewright.sketch.bands import BandsSketch
from tilewright.sketch.generators import sketches
from tilewright.sketch.interface import SiteExpression
from tilewright.space.pipeline import Unfit
from tilewright.target import parse_target
from tilewright.trial import Configuration


def six(value: Any) -> Any:
    return te.minimum(te.maximum(value, 0.0), 6.0)


def band(
    size: int,
    inputs: int,
    channels: int,
    *,
    stride: int = 1,
    pad: int = 1,
    kernel: int = 3,
    constant: bool = True,
    outputs: int = 0,
    pooled: bool = False,
    residual: bool = False,
) -> SiteExpression:
    """Of a MobileNet, channels last: 1x1, bias, ReLU6, padding, depthwise windows, bias, ReLU6;
    with `outputs` a plain convolution of as many channels, `pooled` the largest of each window,
    `residual` what the windows read added to their sums."""
    x = te.placeholder((1, size, size, inputs), "f32", name="x")
    w = te.placeholder((inputs, channels), "f32", name="w")
    b = te.placeholder((channels,), "f32", name="b")
    k = te.reduce_axis(inputs, "k")
    made = te.compute(
        (1, size, size, channels),
        lambda n, i, j, c: te.sum(x[n, i, j, k] * w[k, c], axis=k),
        name="made",
    )
    act = te.compute(made.shape, lambda n, i, j, c: six(made[n, i, j, c] + b[c]), name="act")
    image = padded(act, 1, 2, pad, 0.0)
    out = (size + 2 * pad - kernel) // stride + 1
    di, dj = te.reduce_axis(kernel, "di"), te.reduce_axis(kernel, "dj")
    if outputs:
        f = te.placeholder((kernel, kernel, channels, outputs), "f32", name="f")
        q = te.reduce_axis(channels, "q")
        y = te.compute(
            (1, out, out, outputs),
            lambda n, i, j, c: te.sum(
                image[n, i * stride + di, j * stride + dj, q] * f[di, dj, q, c], axis=[di, dj, q]
            ),
        )
        return SiteExpression((x, w, b, f), (False, True, True, True), y)
    f = te.placeholder((kernel, kernel, channels), "f32", name="f")
    g = te.placeholder((channels,), "f32", name="g")

    def window(n: Any, i: Any, j: Any, c: Any) -> Any:
        value = image[n, i * stride + di, j * stride + dj, c]
        if pooled:
            return te.max(value, axis=[di, dj])
        return te.sum(value * f[di, dj, c], axis=[di, dj])

    y = te.compute((1, out, out, channels), window, name="y")

    def last(*at: Any) -> Any:
        value = six(y[at] + g[at[-1]])
        return value + act[at] if residual else value

    z = te.compute(y.shape, last, name="z")
    given = (x, w, b, g) if pooled else (x, w, b, f, g)
    return SiteExpression(given, (False, *(constant,) * (len(given) - 1)), z)


CASES = {
    "one vector and a half": lambda: band(5, 6, 24),
    "stride 2": lambda: band(6, 4, 32, stride=2),
    "not padded": lambda: band(6, 3, 16, pad=0),
    "windows of 5": lambda: band(6, 4, 16, pad=2, kernel=5),
    "weights that are not known": lambda: band(4, 4, 16, constant=False),
    "less than a vector": lambda: band(5, 4, 6),
    "the largest of each window": lambda: band(5, 4, 16, pooled=True),
}


def sketch_of(expression: SiteExpression, cores: int = 2) -> BandsSketch:
    return BandsSketch(expression, parse_target("cpu", cores))


@pytest.mark.parametrize("name", CASES)
def test_configurations_are_right(name: str) -> None:
    expression = CASES[name]()
    check(sketch_of(expression), expression, 2)


@pytest.mark.parametrize("name", ["one vector and a half", "stride 2"])
def test_what_the_compiler_makes_of_the_default_is_right(name: str) -> None:
    expression = CASES[name]()
    inputs = arrays(expression)
    sketch = sketch_of(expression)
    kernel = sketch.schedule(sketch.space.default)
    found = te.build(kernel.schedule, kernel.arguments)(*packed_inputs(kernel, inputs))
    np.testing.assert_allclose(found, unscheduled(expression, inputs), rtol=1e-4, atol=1e-4)


def test_it_is_the_only_rule_for_such_a_chain() -> None:
    found = sketches(band(6, 4, 32), parse_target("cpu", 2))
    assert [one.name for one in found] == ["bands"]


def test_constant_weights_of_both_are_packed_ahead() -> None:
    sketch = sketch_of(band(28, 32, 192))
    kernel = sketch.schedule(sketch.space.default)
    width = int(str(sketch.space.default["made_width"]))
    assert set(kernel.packings) == {1, 3}
    assert kernel.arguments[1].shape == (-(-192 // width), 32, width)
    loose = sketch_of(CASES["weights that are not known"]())
    assert loose.schedule(loose.space.default).packings == {}


def test_pieces_of_the_default_have_their_part_of_the_image_in_the_cache() -> None:
    target = AVX512
    for size, inputs, channels in ((112, 16, 96), (28, 32, 192), (14, 96, 576)):
        sketch = BandsSketch(band(size, inputs, channels, stride=2), target)
        values = dict(sketch.space.default.items)
        rows, tiles, panels, width = (
            int(str(values[n])) for n in ("piece_rows", "rows", "piece_panels", "width")
        )
        together = min(panels * width, channels)
        assert (2 * rows * tiles + 1) * (size + 2) * together * 4 <= target.l2_bytes
        # Each element that weights are multiplied with is read for several vectors of these.
        assert together >= 2 * target.lanes(32)


def test_a_copy_in_tiles_of_its_own_is_computed_tile_by_tile() -> None:
    sketch = BandsSketch(band(28, 32, 192), AVX512)
    usual = dict(sketch.space.default.items)
    for order in ("panels rows", "rows panels"):
        chosen = Configuration.of({**usual, "made_columns": 5, "made_order": order})
        assert sketch.space.contains(chosen)
        text = sketch.schedule(chosen).lower().text
        assert "piece = allocate" in text
        assert "band = allocate(f32[1, 1, 5," in text


def test_tiles_that_do_not_fit_the_registers_are_invalid() -> None:
    sketch = sketch_of(band(28, 32, 192))
    lanes, registers = parse_target("cpu").lanes(32), parse_target("cpu").vector_registers
    for configuration in sketch.space.sample(np.random.default_rng(0), 20):
        columns, width = (int(str(configuration[n])) for n in ("made_columns", "made_width"))
        assert (columns + 1) * (width // lanes) < registers


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (lambda: band(6, 4, 16, outputs=8), "channels are added up"),
        (lambda: _read_twice(), "read elsewhere"),
        (lambda: band(6, 4, 16, residual=True), "read elsewhere"),
        (lambda: _windows_alone(), "1 reductions instead of two"),
        (lambda: _product_behind(), "no operand is read through sliding windows"),
    ],
)
def test_what_it_is_not_for(expression: Any, reason: str) -> None:
    with pytest.raises(Unfit, match=reason):
        sketch_of(expression())


def _read_twice() -> SiteExpression:
    x, w = te.placeholder((1, 6, 6, 4), name="x"), te.placeholder((4, 16), name="w")
    f = te.placeholder((3, 3, 16), name="f")
    k, di, dj = te.reduce_axis(4, "k"), te.reduce_axis(3, "di"), te.reduce_axis(3, "dj")
    e = te.compute((1, 6, 6, 16), lambda n, i, j, c: te.sum(x[n, i, j, k] * w[k, c], axis=k))
    y = te.compute(
        (1, 4, 4, 16),
        lambda n, i, j, c: te.sum(e[n, i + di, j + dj, c] * f[di, dj, c], axis=[di, dj]),
    )
    z = te.compute(y.shape, lambda n, i, j, c: y[n, i, j, c] + e[n, i + 1, j + 1, c])
    return SiteExpression((x, w, f), (False, True, True), z)


def _windows_alone() -> SiteExpression:
    x, f = te.placeholder((1, 6, 6, 16), name="x"), te.placeholder((3, 3, 16), name="f")
    di, dj = te.reduce_axis(3, "di"), te.reduce_axis(3, "dj")
    y = te.compute(
        (1, 4, 4, 16),
        lambda n, i, j, c: te.sum(x[n, i + di, j + dj, c] * f[di, dj, c], axis=[di, dj]),
    )
    return SiteExpression((x, f), (False, True), y)


def _product_behind() -> SiteExpression:
    a, b, c = (te.placeholder((16, 16), name=name) for name in "abc")
    k, q = te.reduce_axis(16, "k"), te.reduce_axis(16, "q")
    first = te.compute((16, 16), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k))
    last = te.compute((16, 16), lambda i, j: te.sum(first[i, q] * c[q, j], axis=q))
    return SiteExpression((a, b, c), (False, True, True), last)
