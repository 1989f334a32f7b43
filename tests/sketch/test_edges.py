"""What windows read beyond an image's edge is left out, where it is nothing to their sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sketch_cases import arrays, packed_inputs, unscheduled
from window_cases import convolution, depthwise, padded

from tilewright import te
from tilewright.schedule.codegen.module import module_for
from tilewright.sketch.edges import edges_of
from tilewright.sketch.interface import SiteExpression
from tilewright.sketch.sliding import sliding_reduction
from tilewright.sketch.windows import ChannelWindowsSketch
from tilewright.target import parse_target
from tilewright.trial import Configuration


def pooling(reducer: str, beyond: float) -> SiteExpression:
    """3x3 windows of a picture of 6x6, padded with some value."""
    x = te.placeholder((1, 6, 6, 16), "f32", name="x")
    source = padded(x, 1, 2, 1, beyond)
    i, j = te.reduce_axis(3, "i"), te.reduce_axis(3, "j")
    y = te.compute(
        (1, 6, 6, 16),
        lambda n, h, w, c: getattr(te, reducer)(source[n, h + i, w + j, c], axis=[i, j]),
        name="y",
    )
    return SiteExpression((x,), (False,), y)


@pytest.mark.parametrize(
    ("size", "stride", "rows"),
    [(7, 1, 19 / 21), (14, 1, 40 / 42), (14, 2, 20 / 21)],
)
def test_the_part_of_a_picture_that_is_computed_with(size: int, stride: int, rows: float) -> None:
    found = sliding_reduction(convolution((size, size), 8, 16, stride=stride, pad=1))
    edges = edges_of(found)
    assert edges is not None
    np.testing.assert_allclose(edges.shares_within(found.dims), [1, rows, rows, 1])


@pytest.mark.parametrize(
    ("expression", "leaves_out"),
    [
        (lambda: pooling("max", float(np.finfo(np.float32).min)), False),
        (lambda: pooling("max", -np.inf), True),
        (lambda: pooling("max", 0.0), False),
        (lambda: pooling("sum", 0.0), True),
        (lambda: pooling("sum", 1.0), False),
        (lambda: depthwise((6, 6), 16), True),
        (lambda: convolution((6, 6), 8, 16), False),
        (lambda: convolution((6, 6), 8, 16, pad=1, dtype="i8"), True),
    ],
)
def test_only_what_is_nothing_is_left_out(expression: Any, leaves_out: bool) -> None:
    assert (edges_of(sliding_reduction(expression())) is not None) == leaves_out


def configured(expression: SiteExpression, **knobs: Any) -> Any:
    # What is known of another processor's vectors is the host's.
    target = replace(parse_target("cpu:znver4", 2), vector_bytes=64)
    sketch = ChannelWindowsSketch(expression, target)
    usual = dict(sketch.space.default.items)
    return sketch.schedule(Configuration.of({**usual, **knobs}))


def test_rows_beyond_an_edge_are_asked_for_once_for_all_channels() -> None:
    for image in ("in place", "copied"):
        kernel = configured(convolution((8, 8), 32, 32, pad=1), image=image, columns=8, rows=1)
        text = str(te.lower(kernel.schedule, list(kernel.arguments)))
        lines = [line.strip() for line in text.splitlines()]
        asked = next(at for at, line in enumerate(lines) if line.startswith("if "))
        # The loop over rows of the window is just outside, those over channels are within.
        assert lines[asked - 1].startswith("for r0")
        assert any(line.startswith("for c") for line in lines[asked:])
        sums = [line for line in lines if line.startswith("sums[") and " + " in line]
        assert sums
        assert not any("if_then_else" in line for line in sums)


@pytest.mark.parametrize("columns", [3, 5, 8, 14])
@pytest.mark.parametrize(
    ("image", "size"), [("in place", 3), ("copied", 3), ("in place", 5), ("in place", 7)]
)
def test_tiles_at_all_edges_are_right(columns: int, image: str, size: int) -> None:
    # One, two and more tiles, whole ones and others, in a row of pixels.
    expression = convolution((9, 14), 4, 16, size, pad=size // 2)
    kernel = configured(expression, image=image, columns=columns, rows=1, width=16)
    inputs = arrays(expression)
    built = te.build(kernel.schedule, kernel.arguments)
    np.testing.assert_allclose(
        built(*packed_inputs(kernel, inputs)), unscheduled(expression, inputs), atol=1e-4
    )


@pytest.mark.parametrize(
    ("size", "columns"), [(3, 3), (3, 5), (3, 8), (3, 14), (5, 3), (5, 8), (5, 14), (7, 5), (7, 8)]
)
def test_nothing_is_asked_in_the_loops_over_channels(size: int, columns: int) -> None:
    # Also where the last tile of a row has fewer columns, and windows beyond the edge behind them.
    expression = convolution((9, 14), 32, 16, size, pad=size // 2)
    kernel = configured(expression, image="in place", columns=columns, rows=1, width=16)
    module = module_for(kernel.lower().program, "cpu:znver4")
    loops = [one for one in within(module.operation) if one.name == "scf.for"]
    names = [[one.name for one in within(loop)] for loop in loops]
    innermost = [those for those in names if "scf.for" not in those and "arith.mulf" in those]
    assert innermost
    assert not any("scf.if" in those for those in innermost)


@pytest.mark.parametrize(
    ("channels", "knobs", "vectors"),
    [
        (48, {"width": 32, "piece_panels": 2}, {32, 16}),
        (48, {"width": 32, "piece_panels": 1}, {32, 16}),
        (72, {"width": 32, "piece_panels": 2}, {32, 16}),
        (80, {"width": 48, "piece_panels": 2}, {32, 16}),
        (96, {"width": 32, "piece_panels": 2}, {32}),
        (32, {"width": 32, "piece_rows": 4}, {32}),
        (72, {"width": 32, "piece_panels": 2, "piece_rows": 4}, {32, 16}),
    ],
)
@pytest.mark.parametrize("image", ["in place", "copied"])
def test_the_last_pieces_and_panels_have_code_of_their_own(
    channels: int, knobs: dict[str, int], vectors: set[int], image: str
) -> None:
    # Nine rows in pieces of four; channels in whole vectors, not in whole panels.
    expression = convolution((9, 7), 32, channels, pad=1)
    kernel = configured(expression, image=image, columns=7, rows=1, **knobs)
    module = module_for(kernel.lower().program, "cpu:znver4")
    loops = [one for one in within(module.operation) if one.name == "scf.for"]
    sums: list[tuple[int, ...]] = []
    for loop in loops:
        inside = list(within(loop))
        names = {one.name for one in inside}
        if "scf.for" in names or "arith.mulf" not in names:
            continue
        assert not names & {"scf.if", "arith.select", "vector.maskedload", "vector.maskedstore"}
        types = {one.results[0].type for one in inside if one.name == "arith.mulf"}
        sums.append(tuple(sorted(one.shape[0] for one in types)))
    assert {lanes for one in sums for lanes in one} == vectors
    # Of 80 channels the last 32, not 48, of which vectors of 32 and 16 would be.
    assert (16, 32) not in sums or (32,) in sums


@pytest.mark.parametrize("image", ["in place", "copied"])
@pytest.mark.parametrize(
    ("channels", "width", "piece_rows"), [(80, 48, 9), (72, 32, 4), (40, 16, 4)]
)
def test_the_last_pieces_and_panels_are_right(
    channels: int, width: int, piece_rows: int, image: str
) -> None:
    expression = convolution((9, 7), 8, channels, pad=1)
    kernel = configured(
        expression, image=image, columns=7, width=width, piece_panels=2, piece_rows=piece_rows
    )
    inputs = arrays(expression)
    built = te.build(kernel.schedule, kernel.arguments)
    np.testing.assert_allclose(
        built(*packed_inputs(kernel, inputs)), unscheduled(expression, inputs), atol=1e-4
    )


def within(operation: Any) -> Iterator[Any]:
    for region in operation.regions:
        for block in region.blocks:
            for one in block.operations:
                yield one.operation
                yield from within(one.operation)


def test_a_picture_that_is_turned_is_read_in_place_where_its_channels_lie_side_by_side() -> None:
    x = te.placeholder((1, 14, 14, 32), "f32", name="x")
    w = te.placeholder((3, 3, 32, 32), "f32", name="w")
    first = te.compute(
        (1, 32, 16, 16),
        lambda n, c, i, j: te.if_then_else(
            te.all(i >= 1, i < 15, j >= 1, j < 15), x[n, i - 1, j - 1, c], 0.0
        ),
        name="first",
    )
    di, dj, c = te.reduce_axis(3, "di"), te.reduce_axis(3, "dj"), te.reduce_axis(32, "c")
    y = te.compute(
        (1, 14, 14, 32),
        lambda n, i, j, f: te.sum(first[n, c, i + di, j + dj] * w[di, dj, c, f], axis=[di, dj, c]),
        name="y",
    )
    sketch = ChannelWindowsSketch(SiteExpression((x, w), (False, True), y), parse_target("cpu", 2))
    assert sketch.space.default["image"] == "in place"


@pytest.mark.parametrize(
    ("knobs", "rule"),
    [
        ({"reduction": "channels", "unroll": 4, "unroll_windows": 1}, "unrolled channels"),
        ({"reduction": "channels", "unroll": 4, "unroll_windows": 2}, "edges"),
        ({"image": "copied", "columns": 5, "unroll": 16, "width": 48}, "code of remainders"),
    ],
)
def test_what_is_only_more_code_is_no_configuration(knobs: dict[str, Any], rule: str) -> None:
    expression = convolution((14, 14), 40, 80, pad=1)
    target = replace(parse_target("cpu:znver4", 2), vector_bytes=64)
    space = ChannelWindowsSketch(expression, target).space
    usual = {**dict(space.default.items), "columns": 2, "rows": 1, "blocks": 1, "depth": 40}
    wrong = space.violations(Configuration.of({**usual, **knobs}))
    assert rule in {one.name for one in wrong}
