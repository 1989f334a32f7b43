"""What the guess of a contraction's time knows: ratios that were measured, on any processor."""

from __future__ import annotations

from typing import Any

from sketch_cases import AVX2, AVX512
from test_tiles import product

from tilewright.sketch.tile_operand import BY_BLOCK, FIRST, IN_PLACE
from tilewright.sketch.tiles import TilesSketch
from tilewright.target import Target
from tilewright.trial import Configuration


def guess(sizes: tuple[int, int, int], target: Target, **wanted: Any) -> float:
    """The logarithm of the guessed time of the default with some other values."""
    rows, columns, depth = sizes
    site = product((rows, depth), (depth, columns), "mk,kn->mn")
    space = TilesSketch(site, target).space
    configuration = Configuration.of(dict(space.default.items) | wanted)
    return -float(space.prior_many([configuration])[0])


def test_sums_of_single_vectors_move_where_registers_are_few() -> None:
    """Steps that are written out of a tile of one vector put sums in memory."""
    for target, slower in ((AVX2, True), (AVX512, False)):
        tile = {"rows": 12, "columns": target.lanes(32)}
        once, twice = (guess((240, 192, 256), target, unroll=n, **tile) for n in (1, 2))
        assert (twice > once + 0.3) == slower


def test_large_operands_in_pages_far_apart_are_copied_once() -> None:
    def places(size: int) -> tuple[Any, Any]:
        site = product((size, size), (size, size), "mk,kn->mn")
        default = dict(TilesSketch(site, AVX2).space.default.items)
        return default["left"], default["right"]

    assert places(512)[0] == IN_PLACE
    assert places(4096) == (FIRST, FIRST)


def test_tiles_that_load_less_for_their_sums_are_faster() -> None:
    """24 sums by ten loads in a step (0.93 of the peak where this was measured), by 14 (0.87)."""
    blocks = {"row_pieces": 1, "column_pieces": 4, "left": IN_PLACE, "right": BY_BLOCK}
    wide, narrow = (
        guess((480, 512, 512), AVX512, rows=rows, columns=columns, unroll=2, **blocks)
        for rows, columns in ((6, 64), (12, 32))
    )
    assert wide < narrow


def test_a_tile_that_leaves_one_register_is_not_written_out() -> None:
    """Nine rows of three vectors: LLVM loads the next step's vectors early, and sums move."""
    tile = {"rows": 9, "columns": 48, "row_pieces": 1, "column_pieces": 4}
    once, twice = (guess((450, 384, 512), AVX512, unroll=n, **tile) for n in (1, 2))
    assert twice > once + 0.2


def test_columns_that_no_vector_divides_are_read_in_whole_lines() -> None:
    """A tile of half a line reads as much as one of a line."""
    sizes = (256, 196, 1024)
    blocks = {"row_pieces": 2, "column_pieces": 3, "left": IN_PLACE, "rows_inside": False}
    depth = {"depth_pieces": 1, "right": IN_PLACE, "unroll": 1, **blocks}
    lanes = AVX2.lanes(32)
    narrow = guess(sizes, AVX2, rows=10, columns=lanes, **depth)
    wide = guess(sizes, AVX2, rows=6, columns=2 * lanes, **depth)
    parts = guess(sizes, AVX2, rows=6, columns=2 * lanes, **(depth | {"depth_pieces": 4}))
    assert parts < min(narrow, wide)
