"""Loops that begin and end where their checks do: the numbers, and that nothing is asked within."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nest_evaluator import evaluate

from tilewright import te
from tilewright.ir.walk import walk
from tilewright.schedule.codegen.module import module_for


def windows(
    rows: int,
    window: int,
    pad: int,
    *,
    stride: int = 1,
    dilation: int = 1,
    channels: int = 16,
    left_out: bool = False,
) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """Sums over windows of an image's rows, zeros beyond its edges or left out; 16 results in a
    vector."""
    reach = dilation * (window - 1)
    count = (rows + 2 * pad - reach - 1) // stride + 1
    x = te.placeholder((rows, channels), "f32", name="x")
    w = te.placeholder((window, channels, 16), "f32", name="w")
    r, c = te.reduce_axis(window, "r"), te.reduce_axis(channels, "c")

    def product(i: Any, f: Any) -> Any:
        row = i * stride + r * dilation - pad
        within = te.all(row >= 0, row < rows)
        if left_out:
            return te.sum(x[row, c] * w[r, c, f], axis=[r, c], where=within)
        return te.sum(te.if_then_else(within, x[row, c], 0.0) * w[r, c, f], axis=[r, c])

    return x, w, te.compute((count, 16), product, name="y")


def tiled(
    y: te.Tensor, tile: int, piece: int, *, parallel: bool = True, rows: bool = False
) -> te.Schedule:
    """Tiles of rows within pieces of so many tiles (or `rows`), whose sums are in registers; the
    window around its channels."""
    s = te.create_schedule(y.op)
    (sums,) = s.cache_write([y], "local")
    i, f = s[y].op.axis
    if rows:
        pieces, within = s[y].split(i, piece)
        tiles, inner = s[y].split(within, tile)
    else:
        tiles, inner = s[y].split(i, tile)
        pieces, tiles = s[y].split(tiles, piece)
    s[y].reorder(pieces, tiles, inner, f)
    s[y].vectorize(f)
    s[y].unroll(inner)
    if parallel:
        s[y].parallel(pieces)
    s[sums].compute_at(s[y], tiles)
    row, lane = s[sums].op.axis
    r, c = s[sums].op.reduce_axis
    s[sums].reorder(r, c, row, lane)
    s[sums].unroll(row)
    s[sums].vectorize(lane)
    return s


def check_numbers(schedule: te.Schedule, *tensors: te.Tensor) -> None:
    """What is built computes what it would without a schedule."""
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-9, 9, t.shape).astype(np.float32) for t in tensors[:-1]]
    plain = te.lower(te.create_schedule(tensors[-1].op), tensors)
    found = te.build(schedule, tensors)(*inputs)
    np.testing.assert_array_equal(found, evaluate(plain.program, inputs)[0])


CASES = [
    # rows, window, pad, stride, dilation, tile, piece
    (12, 3, 1, 1, 1, 2, 2),
    (13, 3, 1, 1, 1, 2, 3),  # neither tiles nor pieces divide
    (13, 3, 1, 1, 1, 5, 4),  # most tiles of the last piece are beyond the data
    (9, 5, 2, 1, 1, 1, 3),  # two kinds of tile at each edge
    (9, 7, 3, 2, 1, 1, 2),
    (24, 3, 6, 1, 6, 2, 3),  # dilated: more kinds than have code of their own
    (24, 3, 4, 1, 4, 1, 5),
    (5, 5, 4, 1, 1, 2, 2),  # the window is larger than what is left of the image
    (3, 3, 1, 1, 1, 2, 1),
    (2, 5, 2, 1, 1, 2, 1),  # both edges in one tile
    (11, 4, 2, 3, 1, 2, 2),
]


@pytest.mark.parametrize("left_out", [True, False])
@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize(("rows", "window", "pad", "stride", "dilation", "tile", "piece"), CASES)
def test_numbers_at_all_edges(
    rows: int,
    window: int,
    pad: int,
    stride: int,
    dilation: int,
    tile: int,
    piece: int,
    parallel: bool,
    left_out: bool,
) -> None:
    x, w, y = windows(rows, window, pad, stride=stride, dilation=dilation, left_out=left_out)
    check_numbers(tiled(y, tile, piece, parallel=parallel), x, w, y)


@pytest.mark.parametrize(("count", "piece", "tile"), [(13, 5, 2), (24, 7, 3), (30, 8, 5)])
def test_pieces_that_tiles_do_not_fill(count: int, piece: int, tile: int) -> None:
    # The end of a piece is known where code is made, that of the data when it runs.
    x, w, y = windows(count, 3, 1)
    schedule = tiled(y, tile, piece, rows=True)
    check_numbers(schedule, x, w, y)
    asked = [bool({"scf.if", "arith.select"} & names) for names in channel_loops(schedule, x, w, y)]
    assert not all(asked)


def test_a_window_that_is_fused_asks_within_what_is_around() -> None:
    # Rows of the window by a quotient: whole tiles have code of their own, as they cannot be cut.
    x, w, y = windows(24, 3, 1)
    s = tiled(y, 2, 3)
    (sums,) = (s[stage] for stage in s.stages if stage.op.name == "y.local")
    sums.fuse(*sums.leaf_iter_vars[:2])
    assert "//16" in str(te.lower(s, [x, w, y])).replace(" ", "")
    asked = [bool({"scf.if", "arith.select"} & names) for names in channel_loops(s, x, w, y)]
    assert not all(asked)


@pytest.mark.parametrize(
    ("rows", "window", "pad", "dilation", "tile", "piece"),
    [(12, 3, 1, 1, 2, 2), (13, 3, 1, 1, 2, 3), (13, 3, 1, 1, 5, 4), (9, 5, 2, 1, 1, 3)],
)
def test_loops_over_channels_ask_nothing(
    rows: int, window: int, pad: int, dilation: int, tile: int, piece: int
) -> None:
    innermost = [names for names in code(rows, window, pad, dilation, tile, piece) if names]
    assert innermost
    assert not any({"scf.if", "arith.select", "arith.cmpi"} & names for names in innermost)


def test_what_is_whole_has_one_version() -> None:
    # Rows at the top, at the bottom, all others: before, and with the last piece, eight.
    assert len(code(24, 3, 1, 1, 2, 5)) == 3
    # The last tile has a row fewer: whole, at the image's edge, and that beyond it nothing.
    assert len(code(25, 3, 1, 1, 2, 5)) == 4


@pytest.mark.parametrize(
    # Tiles of two rows: all of a tile's are within the image or none, or one is at each edge.
    ("dilation", "parts"),
    [(6, 1), (12, 1), (5, 3), (11, 3)],
)
def test_rows_that_add_nothing_have_no_code(dilation: int, parts: int) -> None:
    assert len(code(24, 3, dilation, dilation, 2, 3, left_out=True)) == parts


def code(
    rows: int,
    window: int,
    pad: int,
    dilation: int,
    tile: int,
    piece: int,
    left_out: bool = False,
) -> list[set[str]]:
    """What the operations are called in each loop over channels."""
    x, w, y = windows(rows, window, pad, dilation=dilation, left_out=left_out)
    return channel_loops(tiled(y, tile, piece), x, w, y)


def channel_loops(schedule: te.Schedule, *tensors: te.Tensor) -> list[set[str]]:
    module = module_for(te.lower(schedule, tensors).program, "cpu:znver3")
    loops = [one for one in inside(module) if one.name == "scf.for"]
    names = [{one.name for one in inside(loop)} for loop in loops]
    return [those for those in names if "scf.for" not in those and "arith.mulf" in those]


def inside(operation: Any) -> list[Any]:
    return list(walk(operation.operation))
