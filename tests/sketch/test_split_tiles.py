"""Contractions of f32 from parts of bf16: the same numbers, in all kinds of tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nest_evaluator import evaluate
from test_dot_tiles import UNIT, VNNI, convolution, product

from tilewright import te
from tilewright.sketch.generators import sketches
from tilewright.sketch.interface import SiteExpression
from tilewright.sketch.split_tiles import Bf16x3TilesSketch, Bf16x6TilesSketch
from tilewright.space.pipeline import Unfit


def given(sketch: Any, kernel: Any, arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [
        kernel.packings[i].of(one) if i in kernel.packings else one for i, one in enumerate(arrays)
    ]


@pytest.mark.parametrize(
    ("size", "constant"),
    [
        ((18, 32, 32), False),
        ((17, 20, 40), True),
    ],
)
@pytest.mark.parametrize(("kind", "bound"), [(Bf16x6TilesSketch, 1e-6), (Bf16x3TilesSketch, 1e-4)])
def test_products(kind: Any, bound: float, size: Any, constant: bool) -> None:
    """Rows, columns and steps of the depth that fill no tiles; columns that are packed ahead."""
    sketch = kind(product(*size, dtype="f32", sums="f32", constant=constant), UNIT)
    rng = np.random.default_rng(0)
    assert np.isfinite(sketch.space.prior_many(sketch.space.sample(rng, 8))).all()
    rows, columns, depth = size
    a, b = (rng.standard_normal(n).astype("f4") for n in ((rows, depth), (depth, columns)))
    wanted = a.astype("f8") @ b + 1
    for configuration in (sketch.space.default, *sketch.space.sample(rng, 1)):
        kernel = sketch.schedule(configuration)
        assert bool(kernel.packings) == constant
        (found,) = evaluate(kernel.lower().program, given(sketch, kernel, [a, b]), "random")
        assert np.max(np.abs(found - wanted)) < bound * depth, configuration
    if "amx-bf16" in UNIT.features:
        text = te.build(kernel.schedule, kernel.arguments, target=f"cpu:{UNIT.cpu}").assembly()
        assert "tdpbf16ps" in text


def test_convolutions_read_their_image_with_padding() -> None:
    x, w = te.placeholder((4, 4, 32), name="x"), te.placeholder((1, 3, 32, 16), name="w")
    padded = te.compute(
        (6, 6, 32),
        lambda y, i, c: te.if_then_else(
            te.all(y >= 1, y < 5, i >= 1, i < 5), x[y - 1, i - 1, c], 0.0
        ),
        name="padded",
    )
    u, v, c = (te.reduce_axis(n, name) for n, name in ((1, "u"), (3, "v"), (32, "c")))
    sums = te.compute(
        (4, 4, 16),
        lambda y, i, f: te.sum(padded[y + u + 1, i + v, c] * w[u, v, c, f], axis=[u, v, c]),
        name="sums",
    )
    sketch = Bf16x6TilesSketch(SiteExpression((x, w), (False, True), sums), UNIT)
    rng = np.random.default_rng(0)
    image, filters = (rng.standard_normal(t.shape).astype("f4") for t in (x, w))
    around = np.pad(image, ((1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(around[1:5], (1, 3), (0, 1))
    wanted = np.einsum("yxcuv,uvcf->yxf", windows.astype("f8"), filters)
    kernel = sketch.schedule(sketch.space.default)
    program = kernel.lower().program
    (found,) = evaluate(program, given(sketch, kernel, [image, filters]), "random")
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("site", "target", "why"),
    [
        (product(32, 32, 32, dtype="f32", sums="f32"), VNNI, "no matrix unit"),
        (product(32, 32, 32), UNIT, "products of f32"),
        (product(8, 32, 32, dtype="f32", sums="f32"), UNIT, "fewer than 16"),
        (product(32, 20, 32, dtype="f32", sums="f32"), UNIT, "neither constant nor whole"),
        (product(32, 32, 32, True, dtype="f32", sums="f32"), UNIT, "neither constant nor whole"),
        (convolution(), UNIT, "products of f32"),
        (
            product(32, 1024, 1024, dtype="f32", sums="f32", constant=True),
            UNIT,
            "grow by more than 1048576 bytes",
        ),
    ],
)
def test_what_it_is_not_for(site: Any, target: Any, why: str) -> None:
    with pytest.raises(Unfit, match=why):
        Bf16x6TilesSketch(site, target)


def test_two_parts_are_for_relaxed_accuracy() -> None:
    site = product(64, 64, 64, dtype="f32", sums="f32", constant=True)
    names = {one.name for one in sketches(site, UNIT)}
    assert "bf16x3-tiles" not in names
    if Bf16x6TilesSketch in map(type, sketches(site, UNIT)):
        assert "bf16x3-tiles" in {one.name for one in sketches(site, UNIT, exact=False)}
