"""Contractions of small elements by dot products where a processor has them: the same numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from nest_evaluator import evaluate
from sketch_cases import check
from window_cases import convolution as windows

from tilewright import te
from tilewright.schedule.dot_products import byte_value
from tilewright.sketch.dot_tiles import Bf16TilesSketch, ByteTilesSketch, WordTilesSketch
from tilewright.sketch.dot_windows import ByteWindowsSketch
from tilewright.sketch.interface import SiteExpression
from tilewright.sketch.matrix_tiles import (
    Bf16MatrixTilesSketch,
    ByteMatrixTilesSketch,
    ByteMatrixWindowsSketch,
)
from tilewright.space.pipeline import Unfit
from tilewright.target import Target, parse_target


def with_features(features: str, name: str = "cpu:znver4", vector_bytes: int = 64) -> Target:
    return parse_target(name, 2).with_vectors(name, features, vector_bytes)


VNNI = with_features("+avx512f,+avx512vnni")
AVX2 = with_features("+avx2,+fma", "cpu:haswell", 32)
BF16 = with_features("+avx512f,+avx512bf16")
UNIT = with_features(
    "+avx512f,+avx512vnni,+avx512bf16,+amx-tile,+amx-int8,+amx-bf16", "cpu:sapphirerapids"
)


def product(
    rows: int,
    columns: int,
    depth: int,
    transposed: bool = False,
    *,
    dtype: str = "i8",
    sums: str = "i32",
    **more: Any,
) -> Any:
    shape = (columns, depth) if transposed else (depth, columns)
    a, b = te.placeholder((rows, depth), dtype, name="a"), te.placeholder(shape, dtype, name="b")
    k = te.reduce_axis(depth, "k")
    c = te.compute(
        (rows, columns),
        lambda i, j: te.sum(
            a[i, k].astype(sums) * (b[j, k] if transposed else b[k, j]).astype(sums), axis=k
        ),
        name="c",
    )
    d = te.compute((rows, columns), lambda i, j: c[i, j] + 1, name="d")
    return SiteExpression((a, b), (False, more.get("constant", False)), d)


def batches() -> SiteExpression:
    a, b = te.placeholder((2, 8, 8), "i8", name="a"), te.placeholder((2, 8, 8), "i8", name="b")
    k = te.reduce_axis(8, "k")
    c = te.compute(
        (2, 8, 8),
        lambda n, i, j: te.sum(a[n, i, k].astype("i32") * b[n, k, j].astype("i32"), axis=k),
        name="c",
    )
    return SiteExpression((a, b), (False, True), c)


def convolution(
    channels: int = 4, filters: int = 20, zero: int = 7, stride: int = 1, unsigned: bool = False
) -> Any:
    """3x3 of a padded picture of 6x6 whose bytes are numbers less `zero`; the filters as the
    compiler has them, channels first."""
    side = 6 // stride
    a = te.placeholder((6, 6, channels), "i8", name="a")
    w = te.placeholder((filters, channels, 3, 3), "i8", name="w")
    padded = te.compute(
        (8, 8, channels),
        lambda y, x, c: te.if_then_else(
            te.all(y >= 1, y < 7, x >= 1, x < 7),
            byte_value(a[y - 1, x - 1, c].astype("i32"), zero, unsigned),
            0,
        ),
        name="padded",
    )
    u, v, c = te.reduce_axis(3, "u"), te.reduce_axis(3, "v"), te.reduce_axis(channels, "c")
    sums = te.compute(
        (side, side, filters),
        lambda y, x, f: te.sum(
            padded[y * stride + u, x * stride + v, c] * w[f, c, u, v].astype("i32"),
            axis=[u, v, c],
        ),
        name="sums",
    )
    return SiteExpression((a, w), (False, True), sums)


KINDS = (
    (ByteTilesSketch, VNNI, "vpdpbusd"),
    (ByteWindowsSketch, VNNI, "vpdpbusd"),
    (WordTilesSketch, AVX2, "vpmaddwd"),
    (ByteMatrixTilesSketch, UNIT, "tdpb"),
    (ByteMatrixWindowsSketch, UNIT, "tdpbusd"),
)
CONVOLUTIONS = (
    (4, 20, 7, 1, False),
    (3, 16, -128, 1, False),
    (8, 33, 0, 2, False),
    (6, 16, 127, 1, False),
    (4, 16, 0, 1, True),
    (5, 32, 200, 2, True),
)


@pytest.mark.parametrize(
    ("kind", "target", "instruction", "channels", "filters", "zero", "stride", "unsigned"),
    [
        # Each convolution by one or two kinds of kernel, each kind of two; the others are slow.
        pytest.param(*kind, *one, marks=() if (n - k) % len(CONVOLUTIONS) < 2 else pytest.mark.slow)
        for n, one in enumerate(CONVOLUTIONS)
        for k, kind in enumerate(KINDS)
    ],
)
def test_a_convolution_of_numbers_less_what_stands_for_0(
    kind: Any,
    target: Target,
    instruction: str,
    channels: int,
    filters: int,
    zero: int,
    stride: int,
    unsigned: bool,
) -> None:
    """Its padding stands for 0 too, filters are packed ahead, channels filled up to groups."""
    sketch = kind(convolution(channels, filters, zero, stride, unsigned), target)
    rng = np.random.default_rng(0)
    assert np.isfinite(sketch.space.prior_many(sketch.space.sample(rng, 8))).all()
    a = rng.integers(-128, 128, (6, 6, channels)).astype("i1")
    w = rng.integers(-128, 128, (filters, channels, 3, 3)).astype("i1")
    numbers = a.astype("i4") & 255 if unsigned else a.astype("i4")
    padded = np.pad(numbers - zero, ((1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (0, 1))[::stride, ::stride]
    wanted = np.einsum("yxcuv,fcuv->yxf", windows, w.astype("i4"))
    for configuration in (sketch.space.default, *sketch.space.sample(rng, 3)):
        kernel = sketch.schedule(configuration)
        given = kernel.packings[1].of(w)
        (found,) = evaluate(kernel.lower().program, [a, given], "random")
        assert np.array_equal(found, wanted), configuration
    name = f"cpu:{target.cpu}"
    assert instruction in te.build(kernel.schedule, kernel.arguments, target=name).assembly()


@pytest.mark.parametrize(
    ("zero", "stride", "channels"), [(0, 1, 8), (0, 2, 8), (-9, 1, 8), (3, 2, 144)]
)
def test_rows_of_a_picture(zero: int, stride: int, channels: int) -> None:
    """Points of a picture are rows, which are no dimension of it; many channels are copied in
    several vectors."""
    a = te.placeholder((6, 6, channels), "i8", name="a")
    w = te.placeholder((channels, 16), "i8", name="w")
    c, side = te.reduce_axis(channels, "c"), 6 // stride
    sums = te.compute(
        (side, side, 16),
        lambda y, x, f: te.sum(
            byte_value(a[y * stride, x * stride, c].astype("i32"), zero, False)
            * w[c, f].astype("i32"),
            axis=c,
        ),
        name="sums",
    )
    sketch = ByteTilesSketch(SiteExpression((a, w), (False, True), sums), VNNI)
    rng = np.random.default_rng(0)
    x = rng.integers(-128, 128, a.shape).astype("i1")
    weights = rng.integers(-128, 128, w.shape).astype("i1")
    wanted = (x[::stride, ::stride].astype("i4") - zero) @ weights.astype("i4")
    for configuration in (sketch.space.default, *sketch.space.sample(rng, 4)):
        kernel = sketch.schedule(configuration)
        (found,) = evaluate(kernel.lower().program, [x, kernel.packings[1].of(weights)], "random")
        assert np.array_equal(found, wanted), configuration


def test_rows_are_read_where_they_are_whatever_stands_for_0() -> None:
    a, b = te.placeholder((14, 16), "i8", name="a"), te.placeholder((16, 32), "i8", name="b")
    k = te.reduce_axis(16, "k")
    c = te.compute(
        (14, 32),
        lambda i, j: te.sum((a[i, k].astype("i32") - 5) * b[k, j].astype("i32"), axis=k),
        name="c",
    )
    sketch = ByteTilesSketch(SiteExpression((a, b), (False, True), c), VNNI)
    assert "copy" not in dict(sketch.space.default.items)
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-128, 128, t.shape).astype("i1") for t in (a, b))
    kernel = sketch.schedule(sketch.space.default)
    (found,) = evaluate(kernel.lower().program, [x, kernel.packings[1].of(y)], "random")
    assert np.array_equal(found, (x.astype("i4") - 5) @ y.astype("i4"))


def test_windows_that_bytes_are_not_read_through() -> None:
    with pytest.raises(Unfit, match="no operand is read through"):
        ByteWindowsSketch(product(14, 40, 16, constant=True), VNNI)
    with pytest.raises(Unfit, match="fewer channels than a vector"):
        ByteWindowsSketch(convolution(filters=15), VNNI)
    with pytest.raises(Unfit, match="products of bytes in i32"):
        ByteWindowsSketch(convolution(zero=-300), VNNI)
    site = replace(convolution(), constant=(False, False))
    with pytest.raises(Unfit, match="not known ahead"):
        ByteWindowsSketch(site, VNNI)
    with pytest.raises(Unfit, match="without a sign"):
        ByteWindowsSketch(convolution(), with_features("+dotprod"))


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("size", [(14, 40, 16), (1, 33, 8), (7, 16, 4), (6, 20, 15)])
@pytest.mark.parametrize(
    ("kind", "target"),
    [(ByteTilesSketch, VNNI), (WordTilesSketch, AVX2), (ByteMatrixTilesSketch, UNIT)],
)
def test_every_configuration_computes_the_same(
    kind: Any, target: Target, size: tuple[int, int, int], transposed: bool, constant: bool
) -> None:
    if kind is ByteMatrixTilesSketch and size[0] == 1:
        with pytest.raises(Unfit, match="tiles of equal size"):
            kind(product(*size), target)
        return
    sketch = kind(product(*size, transposed, constant=constant), target)
    rng = np.random.default_rng(0)
    a = rng.integers(-128, 128, (size[0], size[2])).astype("i1")
    b = rng.integers(-128, 128, (size[2], size[1])).astype("i1")
    wanted = a.astype("i4") @ b.astype("i4") + 1
    for configuration in (sketch.space.default, *sketch.space.sample(rng, 3)):
        kernel = sketch.schedule(configuration)
        given = np.ascontiguousarray(b.T) if transposed else b
        assert bool(kernel.packings) == constant
        given = kernel.packings[1].of(given) if constant else given
        (found,) = evaluate(kernel.lower().program, [a, given], "random")
        assert np.array_equal(found, wanted), configuration


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(
    ("kind", "target"), [(Bf16TilesSketch, BF16), (Bf16MatrixTilesSketch, UNIT)]
)
def test_bf16_adds_up_in_f32(kind: Any, target: Target, constant: bool) -> None:
    site = product(14, 40, 16, True, dtype="bf16", sums="f32", constant=constant)
    sketch = kind(site, target)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((14, 16), (40, 16)))
    wanted = a.astype("f8") @ b.astype("f8").T + 1
    for configuration in (sketch.space.default, *sketch.space.sample(rng, 3)):
        kernel = sketch.schedule(configuration)
        given = kernel.packings[1].of(b) if constant else b
        (found,) = evaluate(kernel.lower().program, [a, given], "random")
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [Bf16TilesSketch, Bf16MatrixTilesSketch])
def test_sums_of_bf16_are_added_up_in_f32(kind: Any) -> None:
    site = product(14, 32, 64, dtype="bf16", sums="bf16")
    sketch = kind(site, UNIT)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((14, 64), (64, 32)))
    (found,) = evaluate(sketch.schedule(sketch.space.default).lower().program, [a, b], "random")
    wanted = (a.astype("f8") @ b.astype("f8")).astype(ml_dtypes.bfloat16) + ml_dtypes.bfloat16(1)
    assert np.mean(found == wanted) > 0.99


@pytest.mark.parametrize("kind", [Bf16TilesSketch, Bf16MatrixTilesSketch])
def test_padding_of_bf16_before_it_is_converted(kind: Any) -> None:
    """As importers write it: the image is padded, then what is read of it is converted."""
    site = windows((4, 4), 8, 16, pad=1, dtype="bf16")
    check(kind(site, UNIT), site)


def test_the_instruction_of_bf16_is_in_the_code() -> None:
    sketch = Bf16TilesSketch(product(24, 32, 64, dtype="bf16", sums="f32"), BF16)
    kernel = sketch.schedule(sketch.space.default)
    code = te.build(kernel.schedule, kernel.arguments, target="cpu:znver4").assembly()
    assert code.count("vdpbf16ps") >= dict(sketch.space.default.items)["rows"]


def test_the_instruction_is_in_the_code() -> None:
    sketch = ByteTilesSketch(product(24, 32, 64), VNNI)
    kernel = sketch.schedule(sketch.space.default)
    code = te.build(kernel.schedule, kernel.arguments, target="cpu:znver4").assembly()
    assert code.count("vpdpbusd") > dict(sketch.space.default.items)["rows"]


@pytest.mark.parametrize(
    ("sketch", "features", "lanes"),
    [
        (ByteTilesSketch, "+avx2,+fma", 0),
        (ByteTilesSketch, "+avx2,+avxvnni", 8),
        (ByteTilesSketch, "+avx512vnni,+avxvnni", 16),
        (ByteTilesSketch, "+dotprod", 4),
        (WordTilesSketch, "+avx2,+fma", 8),
        (WordTilesSketch, "+avx2,+avx512bw", 16),
        (WordTilesSketch, "+sse4.1", 0),
        (WordTilesSketch, "+avx2,+avxvnni", 0),
        (WordTilesSketch, "+avx2,+avx512bw,+avx512vnni", 0),
        (Bf16TilesSketch, "+avx512f,+avx512vnni", 0),
        (Bf16TilesSketch, "+avx512bf16", 16),
        (Bf16TilesSketch, "+neon,+bf16", 4),
        (ByteMatrixTilesSketch, "+avx512vnni,-amx-int8", 0),
        (ByteMatrixTilesSketch, "+avx512vnni,+amx-int8", 16),
        (Bf16MatrixTilesSketch, "+amx-bf16", 16),
    ],
)
def test_lanes_are_the_processors(sketch: Any, features: str, lanes: int) -> None:
    assert sketch.dots.lanes(with_features(features)) == lanes


def test_tiles_of_words_begin_with_what_registers_and_caches_hold() -> None:
    """3136 rows of 576 words: each core has pieces, whose copies fit half of 512 KB; one row is cut
    into columns."""
    target = replace(AVX2, l2_bytes=512 << 10)
    image = te.placeholder((56, 56, 64), "i8", name="a")
    filters = te.placeholder((64, 64, 3, 3), "i8", name="w")
    u, v, c = te.reduce_axis(3, "u"), te.reduce_axis(3, "v"), te.reduce_axis(64, "c")
    sums = te.compute(
        (54, 54, 64),
        lambda y, x, f: te.sum(
            image[y + u, x + v, c].astype("i32") * filters[f, c, u, v].astype("i32"),
            axis=[u, v, c],
        ),
        name="sums",
    )
    space = WordTilesSketch(SiteExpression((image, filters), (False, True), sums), target).space
    start = dict(space.default.items)
    assert start["column_pieces"] == 1
    assert start["row_pieces"] % 2 == 0
    assert 54 * 54 / start["row_pieces"] * 576 * 2 <= 256 << 10
    for one in space.sample(np.random.default_rng(0), 64):
        vectors = one["columns"] // 8
        assert (one["rows"] + 1) * vectors < 16, "sums, a vector of columns each, what is spread"
    row = WordTilesSketch(product(1, 1000, 512, True, constant=True), target).space.default
    assert row["column_pieces"] > 1


@pytest.mark.parametrize(("rows", "columns", "depth"), [(3136, 64, 256), (784, 512, 128)])
def test_tiles_of_bytes_begin_with_two_vectors_in_pieces_that_are_shared_out(
    rows: int, columns: int, depth: int
) -> None:
    sketch = ByteTilesSketch(product(rows, columns, depth, constant=True), VNNI)
    begin = {name: int(str(value)) for name, value in sketch.space.default.items}
    assert begin["columns"] == 32
    assert (begin["rows"] + 1) * 2 < VNNI.vector_registers
    assert begin["row_pieces"] * begin["column_pieces"] % VNNI.cores == 0


@pytest.mark.parametrize(
    ("points", "channels", "zero", "lanes", "heights"),
    [
        # Two tiles of 14 rows and what they are multiplied by leave room for two of columns.
        (28, 128, 0, 32, [2, 4, 7, 14, 28]),
        # One tile has room for four.
        (14, 128, 0, 64, [2, 7, 14]),
        (14, 48, 0, 32, [2, 7, 14]),
        # What stands for 0 takes some.
        (28, 128, 3, 16, [2, 4, 7, 14, 28]),
        # A prime number of points is two tiles, which overlap.
        (17, 64, 0, 32, [17]),
    ],
)
def test_tiles_of_windows_fill_the_matrix_units_registers(
    points: int, channels: int, zero: int, lanes: int, heights: list[int]
) -> None:
    a = te.placeholder((8, points + 2, 64), "i8", name="a")
    w = te.placeholder((channels, 64, 3, 3), "i8", name="w")
    u, v, c = te.reduce_axis(3, "u"), te.reduce_axis(3, "v"), te.reduce_axis(64, "c")
    sums = te.compute(
        (6, points, channels),
        lambda y, x, f: te.sum(
            byte_value(a[y + u, x + v, c].astype("i32"), zero, True) * w[f, c, u, v].astype("i32"),
            axis=[u, v, c],
        ),
        name="sums",
    )
    sketch = ByteMatrixWindowsSketch(SiteExpression((a, w), (False, True), sums), UNIT)
    assert sketch._lanes == lanes
    assert list(sketch.space.knobs[0].values) == heights
    for configuration in sketch.space.sample(np.random.default_rng(0), 8):
        sketch.schedule(configuration)


def test_what_is_not_for_the_instruction() -> None:
    with pytest.raises(Unfit, match="no dot products of words of 16 bits"):
        WordTilesSketch(product(8, 16, 16), VNNI)
    with pytest.raises(Unfit, match="no dot products of bytes"):
        ByteTilesSketch(product(8, 16, 16), with_features("+avx2"))
    with pytest.raises(Unfit, match="it has batches"):
        ByteTilesSketch(batches(), VNNI)
    with pytest.raises(Unfit, match="products of bytes in i32"):
        ByteTilesSketch(convolution(zero=-300), VNNI)  # no byte stands for 0
    a, b = te.placeholder((8, 8), "f32", name="a"), te.placeholder((8, 8), "f32", name="b")
    k = te.reduce_axis(8, "k")
    c = te.compute((8, 8), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    with pytest.raises(Unfit, match="products of bytes in i32"):
        ByteTilesSketch(SiteExpression((a, b), (False, False), c), VNNI)
