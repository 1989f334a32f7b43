"""Contractions of f32 from parts of bf16: the same numbers, in all kinds of tiles."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from nest_evaluator import evaluate
from test_dot_tiles import UNIT, VNNI, convolution, product

from tilewright import te
from tilewright.schedule.codegen.machine import host_features
from tilewright.sketch.generators import sketches
from tilewright.sketch.interface import SiteExpression
from tilewright.sketch.matrix_tiles import ByteMatrixTilesSketch
from tilewright.sketch.split_tiles import Bf16x3TilesSketch, Bf16x6TilesSketch, F16MatrixTilesSketch
from tilewright.sketch.split_work import read_of
from tilewright.space.pipeline import Unfit
from tilewright.trial import Configuration


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
    text = te.build(kernel.schedule, kernel.arguments, target=f"cpu:{UNIT.cpu}").assembly()
    assert "tdpbf16ps" in text


@pytest.mark.parametrize(("depth", "constant"), [(64, False), (40, True)])
def test_products_of_f16(depth: int, constant: bool) -> None:
    """Steps of the depth that fill no group; the sums of exact products."""
    site = product(32, 32, depth, dtype="f16", sums="f32", constant=constant)
    sketch = F16MatrixTilesSketch(site, UNIT)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(n).astype("f2") for n in ((32, depth), (depth, 32)))
    kernel = sketch.schedule(sketch.space.default)
    assert bool(kernel.packings) == constant
    (found,) = evaluate(kernel.lower().program, given(sketch, kernel, [a, b]), "random")
    assert np.max(np.abs(found - (a.astype("f8") @ b + 1))) < 1e-6 * depth


@pytest.mark.parametrize("constant", [False, True])
def test_sums_of_f16_are_added_up_in_f32(constant: bool) -> None:
    site = product(32, 32, 64, dtype="f16", sums="f16", constant=constant)
    sketch = F16MatrixTilesSketch(site, UNIT)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(n).astype("f2") for n in ((32, 64), (64, 32)))
    kernel = sketch.schedule(sketch.space.default)
    (found,) = evaluate(kernel.lower().program, given(sketch, kernel, [a, b]), "random")
    wanted = (a.astype("f8") @ b).astype("f2") + np.float16(1)
    assert np.mean(found == wanted) > 0.99
    np.testing.assert_allclose(found, wanted, rtol=2**-9, atol=2**-9)


def test_what_a_factor_is_read_from_has_its_numbers() -> None:
    """A conversion that rounds is none to read through: f16 has not all numbers of bf16."""
    reads = {dtype: te.placeholder((4,), dtype, name=dtype)[0] for dtype in ("f32", "f16", "bf16")}
    assert read_of(reads["f32"], "f32") is reads["f32"]
    assert read_of(reads["bf16"].astype("f32"), "f32") is reads["bf16"]
    assert read_of(reads["f16"].astype("f32"), "f16") is reads["f16"]
    assert read_of(reads["bf16"].astype("f16"), "f16") is None
    assert read_of(reads["f32"].astype("f16"), "f16") is None
    assert read_of(reads["f32"].astype("f16").astype("f32"), "f32") is None


def test_constants_of_bf16_beside_rows_of_f32() -> None:
    a, b = te.placeholder((32, 64), "f32", name="a"), te.placeholder((64, 32), "bf16", name="b")
    k = te.reduce_axis(64, "k")
    c = te.compute((32, 32), lambda i, j: te.sum(a[i, k] * b[k, j].astype("f32"), axis=k), name="c")
    sketch = Bf16x6TilesSketch(SiteExpression((a, b), (False, True), c), UNIT)
    kernel = sketch.schedule(sketch.space.default)
    rng = np.random.default_rng(0)
    rows, columns = rng.standard_normal((32, 64)).astype("f4"), rng.standard_normal((64, 32))
    columns = columns.astype(ml_dtypes.bfloat16)
    (found,) = evaluate(kernel.lower().program, given(sketch, kernel, [rows, columns]), "random")
    assert np.max(np.abs(found - rows.astype("f8") @ columns.astype("f8"))) < 1e-6 * 64


@pytest.mark.parametrize("panels", ["first", "by block"])
@pytest.mark.parametrize(("groups", "l2_bytes"), [(2, 1 << 21), (1, 1 << 21), (1, 1 << 12)])
def test_columns_of_arguments_are_split_first_or_by_each_block(
    panels: str, groups: int, l2_bytes: int
) -> None:
    """Over the whole depth, over pieces of it panel by panel, and over all sums for each piece."""
    site = product(32, 32, 64, dtype="f32", sums="f32")
    sketch = Bf16x6TilesSketch(site, replace(UNIT, l2_bytes=l2_bytes))
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(n).astype("f4") for n in ((32, 64), (64, 32)))
    values = {"groups": groups, "panels": panels, "copy": "by block", "rows": 16, "columns": 16}
    pieces = {"row_pieces": 2, "column_pieces": 2}
    kernel = sketch.schedule(Configuration.of(values | pieces))
    program = kernel.lower().program
    assert bool(program.temporaries) == (panels == "first")
    (found,) = evaluate(program, [a, b], "random")
    assert np.max(np.abs(found - (a.astype("f8") @ b + 1))) < 1e-6 * 64


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
        (product(32, 32, 32, dtype="f16", sums="f32"), UNIT, "converted from f16"),
        (
            product(32, 8448, 8192, dtype="f32", sums="f32", constant=True),
            UNIT,
            "grow by 138412032 bytes where split, of 134217728",
        ),
    ],
)
def test_what_it_is_not_for(site: Any, target: Any, why: str) -> None:
    with pytest.raises(Unfit, match=why):
        Bf16x6TilesSketch(site, target)


@pytest.mark.skipif(sys.platform != "linux", reason="kernels ask Linux for the unit")
def test_two_parts_are_for_relaxed_accuracy() -> None:
    site = product(64, 64, 64, dtype="f32", sums="f32", constant=True)
    strict, relaxed = (
        {one.name for one in sketches(site, UNIT, exact=exact)} for exact in (True, False)
    )
    assert "bf16x6-tiles" in strict
    assert relaxed - strict >= {"bf16x3-tiles"}


@pytest.mark.skipif("amx-bf16" not in host_features(), reason="no matrix unit")
@pytest.mark.parametrize(
    ("kind", "dtype", "sums"),
    [(Bf16x6TilesSketch, "f32", "f32"), (ByteMatrixTilesSketch, "i8", "i32")],
)
def test_tiles_that_columns_do_not_fill_are_computed_before_the_unit_is_given_back(
    kind: Any, dtype: str, sums: str
) -> None:
    """A kernel of one workgroup, whose last tiles of columns are in a loop of their own."""
    sketch = kind(product(96, 200, 96, dtype=dtype, sums=sums, constant=True), UNIT)
    values = dict(sketch.space.default.items) | {"row_pieces": 1, "column_pieces": 1}
    values |= {"rows": 16, "columns": 32}
    kernel = sketch.schedule(Configuration.of(values))
    rng = np.random.default_rng(0)
    a, b = (
        rng.integers(-9, 9, n).astype("f4" if dtype == "f32" else "i1")
        for n in ((96, 96), (96, 200))
    )
    built = te.build(kernel.schedule, kernel.arguments, threads=1)
    found = built(*given(sketch, kernel, [a, b]))
    np.testing.assert_array_equal(found, a.astype("i4") @ b.astype("i4") + 1)
