"""Sliding windows: every configuration of the sketches computes the same, in every layout."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from sketch_cases import AVX2, AVX512, arrays, check, packed_inputs, unscheduled
from window_cases import CASES, convolution, depthwise

from tilewright import te
from tilewright.schedule.nest import VECTORIZED, For, statements
from tilewright.sketch.generators import sketches
from tilewright.sketch.windows import SKETCHES, ChannelWindowsSketch, ColumnWindowsSketch
from tilewright.space.pipeline import Unfit
from tilewright.target import parse_target
from tilewright.trial import Configuration


def test_windows_of_which_most_is_beyond_the_edges_come_first() -> None:
    """They are left out, and a product of what is read has all of it."""
    names = {}
    for dilation, pad in ((1, 1), (2, 2), (12, 12), (36, 36)):
        site = convolution((14, 14), 32, 32, dilation=dilation, pad=pad)
        names[dilation] = [one.name for one in sketches(site, AVX2)]
        assert sorted(names[dilation]) == sorted(names[1])
    assert names[1][0] == names[2][0] == "tiles"
    assert names[12][0] == names[36][0] == ChannelWindowsSketch.name
    far = ChannelWindowsSketch(convolution((14, 14), 32, 32, dilation=36, pad=36), AVX2)
    assert far.work == pytest.approx(1 / 9)


# So many loops take seconds in the interpreter: the default, and one configuration drawn.
LARGE = (
    "blocked",
    "channels first",
    "channels in parts",
    "channels in parts, first",
    "transposed, 4 wide",
    "transposed, dilated, stride 3",
)


@pytest.mark.parametrize("name", CASES)
def test_configurations_are_right(name: str) -> None:
    expression = CASES[name]()
    fitting = 0
    for rule in SKETCHES:
        try:
            sketch = rule(expression, parse_target("cpu"))
        except Unfit:
            continue
        fitting += 1
        check(sketch, expression, 1 if name in LARGE else 2)
    assert fitting


@pytest.mark.parametrize(
    "name",
    [
        "channels last",
        "depthwise",
        "blocked",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("channels first, stride 2", "few outputs")
        ),
    ],
)
def test_what_the_compiler_makes_of_the_default_is_right(name: str) -> None:
    expression = CASES[name]()
    inputs = arrays(expression)
    wanted = unscheduled(expression, inputs)
    for rule in SKETCHES:
        try:
            sketch = rule(expression, parse_target("cpu"))
        except Unfit:
            continue
        kernel = sketch.schedule(sketch.space.default)
        packed = packed_inputs(kernel, inputs)
        found = te.build(kernel.schedule, kernel.arguments)(*packed)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_vectors_are_channels_where_only_the_result_is_transposed() -> None:
    expression = CASES["depthwise, result transposed"]()
    sketch = ChannelWindowsSketch(expression, parse_target("cpu"))
    width = int(str(sketch.space.default["width"]))
    assert width % parse_target("cpu").lanes(32) == 0


@pytest.mark.parametrize(
    ("outputs", "rules"),
    [(3, ["channel-windows", "column-windows"]), (16, ["channel-windows"])],
    ids=["few", "a vector of them"],
)
def test_vectors_are_columns_where_channels_of_the_result_are_few(
    outputs: int, rules: list[str]
) -> None:
    fitting = []
    for rule in SKETCHES:
        with contextlib.suppress(Unfit):
            fitting.append(rule(convolution((12, 32), 16, outputs, pad=1), AVX512).name)
    assert fitting == rules


@pytest.mark.parametrize(
    ("size", "kernel", "more", "is_turned"),
    [
        ((12, 32), 3, {"pad": 1}, True),
        ((12, 32), 3, {}, True),
        ((13, 32), 3, {"stride": 2}, True),
        ((12, 33), 3, {"pad": 1}, False),
        # Pieces of columns, and columns that no window reads.
        ((64,), 3, {"pad": 1}, False),
        ((12, 32), 1, {"stride": 2}, False),
        ((13, 32), 3, {"stride": 2, "dilation": 2}, False),
    ],
)
def test_images_are_transposed_in_registers_where_squares_fill_what_is_read(
    size: tuple[int, ...], kernel: int, more: dict[str, Any], is_turned: bool
) -> None:
    sketch = ColumnWindowsSketch(convolution(size, 16, 3, kernel, **more), AVX512)
    some = sketch.space.sample(np.random.default_rng(0), 3)
    for configuration in (sketch.space.default, *some):
        made = sketch.schedule(configuration)
        assert ("transpose_16" in str(te.lower(made.schedule, made.arguments))) == is_turned


def test_a_matrix_product_has_no_windows() -> None:
    a, b = te.placeholder((4, 8), name="a"), te.placeholder((8, 6), name="b")
    k = te.reduce_axis(8, "k")
    c = te.compute((4, 6), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    expression = convolution((4, 4), 2, 8)
    with pytest.raises(Unfit, match="no operand is read through sliding windows"):
        ChannelWindowsSketch(type(expression)((a, b), (False, True), c), parse_target("cpu"))


def test_tiles_that_do_not_fit_the_registers_are_invalid() -> None:
    sketch = ChannelWindowsSketch(convolution((16, 16), 8, 64), parse_target("cpu"))
    registers = parse_target("cpu").vector_registers
    for configuration in sketch.space.sample(np.random.default_rng(0), 20):
        values = dict(configuration.items)
        lanes = parse_target("cpu").lanes(32)
        tile = [int(str(values[n])) for n in ("columns", "rows", "width", "blocks")]
        assert tile[0] * tile[1] * -(-tile[2] // lanes) * tile[3] <= registers


@pytest.mark.parametrize("image", [(56, 64), (28, 128), (14, 256), (7, 512), (13, 192)])
@pytest.mark.parametrize("last", [True, False])
def test_pieces_of_the_default_are_alike(image: tuple[int, int], last: bool) -> None:
    # Where they are not, each step of the reduction asks what is there of a tile.
    size, channels = image
    expression = convolution((size, size), channels, channels, pad=1, last=last)
    for cores in (2, 4):
        sketch = ChannelWindowsSketch(expression, parse_target("cpu", cores))
        values = {name: int(str(v)) for name, v in sketch.space.default.items if str(v).isdigit()}
        rows, panels = -(-size // values["rows"]), -(-channels // values["width"])
        if values["piece_rows"] < rows:
            assert size % values["rows"] == 0
            assert rows % values["piece_rows"] == 0
        assert panels % values["piece_panels"] == 0 or values["piece_panels"] > panels


@pytest.mark.parametrize(("kernel", "axes"), [(3, 2), (5, 1)])
def test_of_large_windows_that_are_cut_off_only_rows_are_written_out(
    kernel: int, axes: int
) -> None:
    expression = depthwise((28, 28), 64, kernel, pad=kernel // 2)
    sketch = ChannelWindowsSketch(expression, parse_target("cpu", 2))
    assert sketch.space.default["image"] == "in place"
    assert sketch.space.default["unroll_windows"] == axes


@pytest.mark.parametrize(
    ("channels", "constant", "widths"),
    [
        *((12, True, [8, 16]), (20, True, [8, 16, 24]), (36, True, [8, 16, 24, 32])),
        *((6, True, [8]), (12, False, [8]), (16, False, [8, 16]), (20, False, [8, 16])),
        *((36, False, [8, 16, 32]), (6, False, [6])),
    ],
)
def test_no_tile_has_a_shorter_vector_beside_whole_ones(
    channels: int, constant: bool, widths: list[int]
) -> None:
    """Of a filter that is packed ahead all vectors are whole, and tiles of any number of them."""
    site = convolution((8, 8), 16, channels, pad=1, constant=constant)
    (knob,) = (k for k in ChannelWindowsSketch(site, AVX2).space.knobs if k.name == "width")
    assert [knob.value(at) for at in range(knob.cardinality)] == widths


@pytest.mark.parametrize("depth", [16, 32])
@pytest.mark.parametrize("channels", [5, 12, 21])
def test_sums_are_whole_vectors_whatever_the_channels(channels: int, depth: int) -> None:
    sketch = ChannelWindowsSketch(convolution((8, 8), 32, channels, pad=1), AVX2)
    wide = -(-channels // 8) * 8
    tile = {"width": wide, "columns": 2, "rows": 1, "depth": depth, "order": "panels rows columns"}
    chosen = Configuration.of({**dict(sketch.space.default.items), **tile})
    assert sketch.space.contains(chosen)
    (kernel,) = sketch.schedule(chosen).lower().program.kernels
    loops = [part for part in statements(kernel.body) if isinstance(part, For)]
    vectors = [loop for loop in loops if loop.kind == VECTORIZED]
    summed = [loop.extent for loop in vectors if loop.body.buffer.scope == "local"]
    assert summed
    assert set(summed) == {wide}


def test_pieces_have_no_more_panels_than_there_are() -> None:
    target = parse_target("cpu", 2)
    lanes = target.lanes(32)
    sketch = ChannelWindowsSketch(convolution((8, 8), 16, 8 * lanes), target)
    wide = dict(sketch.space.default.items) | {"width": 2 * lanes, "columns": 2, "rows": 1}
    for panels, fits in ((1, True), (4, True), (6, False), (8, False)):
        violations = sketch.space.violations(Configuration.of(wide | {"piece_panels": panels}))
        assert ("panels of a piece" not in {one.name for one in violations}) == fits
    narrow = Configuration.of(wide | {"width": lanes, "piece_panels": 8})
    assert sketch.space.contains(narrow)


@pytest.mark.parametrize("image", ["copied", "in place"])
def test_filters_are_packed_in_whole_vectors_whatever_the_channels(image: str) -> None:
    # 72 channels are no multiple of a tile's 32: its last vectors would be gathered.
    sketch = ChannelWindowsSketch(depthwise((14, 14), 72, 3, pad=1), parse_target("cpu", 2))
    usual = dict(sketch.space.default.items)
    kernel = sketch.schedule(Configuration.of({**usual, "image": image, "width": 32, "columns": 4}))
    (position,) = kernel.packings
    assert kernel.arguments[position].shape == (3, 3, 3, 32)


def test_filters_of_one_channel_are_packed_not_gathered() -> None:
    """As ONNX has them: a dimension of one element is along no axis."""
    expression = depthwise((14, 14), 64, 3, pad=1, single=True)
    sketch = ChannelWindowsSketch(expression, parse_target("cpu", 2))
    kernel = sketch.schedule(sketch.space.default)
    assert list(kernel.packings) == [1]
    text = str(te.lower(kernel.schedule, list(kernel.arguments)).mlir())
    assert "vector.from_elements" not in text


def test_weights_that_all_rows_share_are_not_read_by_every_worker() -> None:
    expression = convolution((7, 7), 512, 512, pad=1)
    sketch = ChannelWindowsSketch(expression, parse_target("cpu", 2))
    default = dict(sketch.space.default.items)
    assert int(str(default["piece_rows"])) * int(str(default["rows"])) >= 7


def test_sums_of_a_piece_fit_the_cache_where_channels_are_added_up_in_parts() -> None:
    # Channels first and not padded, as a transposed convolution reads its image: it is copied.
    sketch = ChannelWindowsSketch(
        convolution((225, 225), 64, 32, 2, last=False), parse_target("cpu", 2)
    )
    values = dict(sketch.space.default.items)
    assert values["image"] == "copied"
    rows, width, depth = (int(str(values[n])) for n in ("piece_rows", "width", "depth"))
    assert depth == 64 or rows * 224 * width * 4 <= parse_target("cpu", 2).l2_bytes


@pytest.mark.parametrize(("size", "fetched"), [(14, True), (2, False)])
def test_the_filter_of_the_next_panel_is_fetched_while_rows_are_computed(
    size: int, fetched: bool
) -> None:
    """Not where a panel is read for few elements: the next one would come too late."""
    sketch = ChannelWindowsSketch(convolution((size, size), 64, 128, pad=1), AVX512)
    values = dict(sketch.space.default.items) | {
        **{"columns": 2, "rows": 1, "width": 4 * AVX512.lanes(32), "piece_rows": size},
        **{"depth": 64, "unroll": 1, "order": "panels rows columns", "reduction": "windows"},
    }
    text = str(sketch.schedule(Configuration.of(values)).lower())
    assert ("cache=2" in text) == fetched


@pytest.mark.parametrize("unroll", [1, 4])
def test_what_computes_longer_fetches_as_much_in_fewer_steps(unroll: int) -> None:
    target = parse_target("cpu", 2)
    sketch = ChannelWindowsSketch(convolution((7, 7), 128, 128, pad=1), target)
    values = dict(sketch.space.default.items) | {
        **{"columns": 7, "rows": 1, "width": 2 * target.lanes(32), "piece_rows": 7},
        **{"depth": 128, "unroll": unroll, "order": "panels rows columns"},
        **{"reduction": "windows"},
    }
    assert "cache=2" in str(sketch.schedule(Configuration.of(values)).lower())


@pytest.mark.parametrize("last", [True, False])
def test_one_output_channel_has_no_next_panel(last: bool) -> None:
    expression = convolution((14, 14), 64, 1, pad=1, last=last)
    for rule in SKETCHES:
        try:
            sketch = rule(expression, parse_target("cpu", 2))
        except Unfit:
            continue
        assert "cache=2" not in str(sketch.schedule(sketch.space.default).lower())
