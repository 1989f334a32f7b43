"""A guess of how long a contraction in tiles takes: the prior of the sketch that writes them.

After Low et al., "Analytical modeling is enough for high-performance BLIS" (ACM TOMS 2016), and a
roofline over the caches: instructions of a step of the innermost loop, bytes that come from each
cache, copies into panels, workgroups over the cores. Numbers are ratios of a common processor; only
the order of the guesses matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np

from tilewright.space.arrays import FloatArray
from tilewright.space.turns import turns
from tilewright.target import Target

_FREQUENCY = 3e9
_FMA_PER_CYCLE = 2.0
_LOADS_PER_CYCLE = 2.0
_UOPS_PER_CYCLE = 5.0
# What each load costs, though other units do it than those that add up products. On an AVX-512
# processor tiles of 6x64 and 8x48, with ten and eleven loads in a step, reach 0.93 and 0.95 of the
# peak, of 12x32 and 14x32, with 14 and 16, 0.87 and 0.88.
_LOAD_CYCLES = 0.12
_FMA_LATENCY = 4.0
_L2_BYTES_PER_CYCLE = 32.0
# Of the second level, and of the third, which others use too, what is still there when it is read
# again.
_L2_SHARE, _L3_SHARE = 0.4, 0.1
# How much more of the second level it takes until nothing is.
_L2_RAMP = 0.5
_L3_BYTES_PER_CYCLE = 8.0
# Of memory, for all cores together.
_MEMORY_BYTES_PER_CYCLE = 6.0
# Lines of a cache for one place in memory.
_WAYS = 8
# Of a page that is not among the last ones that were used.
_PAGE_CYCLES = 8.0
_PAGE_BYTES = 4096
# Of writing a line of the result, or a part of it.
_LINE_CYCLES = 3.0
# Operations that an element of a row takes that is made of several before it is multiplied.
_COMPUTED = 1.6
# Of a step whose sums move between registers.
_MOVED_SUMS = 1.7
_LINE_BYTES = 64
_PAGES = 48
# Pages whose places a processor knows, and cycles of a row that begins in another page.
_KNOWN_PAGES = 1536
_FAR_ROW_CYCLES = 250.0
_TILE_CYCLES = 20.0
# Of computing and of what comes from a cache, the shorter: what the longer does not hide.
_BESIDE = 0.05
# Of a whole tile's time, what one of a few rows or columns takes; how much longer it takes where
# columns in place end within a vector, whose rest is shorter ones: 3136x144 by 20, 21 and 28 took
# 0.41, 0.59 and 0.52 ms in place, 0.22, 0.26 and 0.30 with panels, which have whole vectors.
_LEAST_TILE = 0.6
_RAGGED = 1.9
# Of adding what a tile has summed up to sums in memory.
_CHUNK_CYCLES = 100.0
# Of the time that a block's operands take to come, what nothing else hides.
_WAITING = 0.4
_WORKGROUP_CYCLES = 1500.0
_DISPATCH_CYCLES = 12000.0
# Of sharing out work, as in `pieces`.
_SHARED_CYCLES = 4500.0
# Work beyond which the last piece is waited for, and the part of a piece that is expected of that.
_LONG_CYCLES = 3e5
_HELD_UP = 0.1
# Copies of whole vectors into panels: bytes a cycle where these stay in a workgroup's memory, and
# where they are a tensor of their own, small or large, whose pages are new to the process each
# time; cycles of an element that is copied alone.
_COPY_BYTES_PER_CYCLE = 10.0
_TENSOR_COPY_BYTES_PER_CYCLE = (4.0, 1.5)
_COPY_CYCLES = 2.5


@dataclass(frozen=True)
class OperandFacts:
    """What the guess needs of an operand.

    memory_bytes, panel_bytes: of an element where it lies, and in panels. stride: bytes between
        neighbours along the outer of tile and depth. contiguous: along the tile. computed: whether
        an element where it lies is made of several that are read.
    """

    memory_bytes: int
    panel_bytes: int
    stride: int
    contiguous: bool
    computed: bool = False


@dataclass(frozen=True)
class ContractionFacts:
    """What the guess needs of a contraction: sizes, bytes of a sum, operands, the processor."""

    batches: int
    rows: int
    columns: int
    depth: int
    sum_bytes: int
    left: OperandFacts
    right: OperandFacts
    target: Target


def seconds(facts: ContractionFacts, choice: Mapping[str, Any]) -> FloatArray:
    """The guessed time of each of many choices.

    Args:
        facts: of the contraction.
        choice: arrays of equal length: `rows`, `columns`, `row_pieces`, `column_pieces`,
            `depth_pieces`, `unroll`, `rows_inside`, `depth_apart` as the knobs; of `left` and
            `right`, whether they are read from panels or copied rows (`left_packed`), made by a
            dispatch of their own (`left_first`), or block by block (`left_block`).

    Returns:
        Seconds.
    """
    target = facts.target
    lanes = target.lanes(8 * facts.sum_bytes)
    rows, columns = choice["rows"], choice["columns"]
    row_tiles, column_tiles = np.ceil(facts.rows / rows), np.ceil(facts.columns / columns)
    block_rows = np.ceil(row_tiles / choice["row_pieces"])
    block_columns = np.ceil(column_tiles / choice["column_pieces"])
    blocks = facts.batches * np.ceil(row_tiles / block_rows) * np.ceil(column_tiles / block_columns)
    chunks = choice["depth_pieces"]
    depth = facts.depth / chunks
    vectors = np.ceil(columns / lanes)

    step = _step(facts, choice, vectors)
    left_bytes = np.where(
        choice["left_packed"], facts.left.panel_bytes, facts.left.memory_bytes
    ) * (rows * depth)
    right_bytes = depth * np.where(
        choice["right_packed"],
        facts.right.panel_bytes * columns,
        _LINE_BYTES * _lines(facts.right, columns),
    )
    tiles = block_rows * block_columns * _filled(facts, choice, vectors, lanes)
    inside = choice["rows_inside"]
    near = np.where(inside, right_bytes, left_bytes)
    far = np.where(inside, left_bytes, right_bytes)
    count = np.where(inside, block_rows, block_columns)
    # Tiles beside each other share the lines at their edges.
    block_far = count * np.where(
        choice["right_packed"] | inside,
        far,
        np.minimum(columns, facts.columns / count) * depth * facts.right.memory_bytes,
    )
    # Parts of rows that are a power of two apart share the sets of parts of a cache.
    collide = facts.left.stride % _PAGE_BYTES == 0
    spread = np.where(~choice["left_packed"] & collide & inside, chunks, 1)
    kept = near + block_far * spread
    # The panel that stays is read from the first level again, the other passes by.
    stays = near + 2 * far <= 0.9 * target.l1_bytes
    near_rate = np.where(stays, 1e9, _rate(target, near + far))
    near_rate = np.where(
        choice["right_packed"] | ~inside, near_rate, np.minimum(near_rate, _scattered(facts, depth))
    )
    far_rate = np.where(kept <= 0.7 * target.l1_bytes, 1e9, _rate(target, kept))
    narrow = block_columns * columns * facts.right.memory_bytes < facts.right.stride
    far_rate = np.where(
        choice["right_packed"] | inside | ~narrow,
        far_rate,
        np.minimum(far_rate, 2 * _scattered(facts, depth)),
    )
    moved = near / near_rate + far / far_rate
    outside = np.where(far_rate < _L2_BYTES_PER_CYCLE, far / far_rate, 0.0)
    lines = np.ceil(columns * facts.sum_bytes / _LINE_BYTES)
    work = step * depth + _TILE_CYCLES + rows * np.maximum(vectors, _LINE_CYCLES * lines)
    work = work + np.where(
        (chunks > 1) & ~choice["depth_apart"], _CHUNK_CYCLES + 4.0 * rows * vectors, 0.0
    )
    tile = np.maximum(work, moved) + _BESIDE * np.minimum(work, moved) + 0.1 * outside
    # Each block's operands come from further out once.
    block_near = near * np.where(inside, block_columns, block_rows)
    fetched = (block_far + block_near) / _rate(target, _all_bytes(facts))
    packed = _packing(facts, choice, block_rows * rows, block_columns * columns, depth)
    again = np.where(~choice["left_packed"] & inside & (kept > _L2_SHARE * target.l2_bytes), 1, 0)
    far_rows = block_rows * rows * np.where(again, block_columns, 1)
    from_there = choice["left_block"] | ~choice["left_packed"]
    packed = packed + _far(facts.left, facts.rows, facts) * np.where(from_there, far_rows, 0.0)
    packed = packed + _far(facts.right, facts.columns, facts) * choice["right_block"] * depth
    waiting = np.maximum(fetched - 0.5 * tiles * tile, _WAITING * fetched)
    apart = choice["depth_apart"]
    in_turn = np.where(apart, 1, chunks)
    blocks = blocks * np.where(apart, chunks, 1)
    block = in_turn * (tiles * tile + waiting + packed) + _WORKGROUP_CYCLES
    # As if eight were taken at a time from eight a core on, which holds no longer for our own
    # kernels (`turns.is_spread`): the numbers above were fitted so.
    waves = turns(blocks, target.cores)
    total = waves * block + _DISPATCH_CYCLES
    if target.cores > 1:
        total = total + np.where(blocks > 1, _SHARED_CYCLES, 0.0)
    # What holds up a core holds up all that wait for its last piece.
    total = total + _HELD_UP * np.where(waves * block > _LONG_CYCLES, block, 0.0)
    # Parts apart are written, and read when they are added up.
    result = facts.batches * facts.rows * facts.columns * facts.sum_bytes
    small, large = _TENSOR_COPY_BYTES_PER_CYCLE
    added = 2 * chunks * result / np.where(chunks * result > 0.5 * target.l2_bytes, large, small)
    added = added / target.cores
    more = _DISPATCH_CYCLES + _SHARED_CYCLES * (target.cores > 1)
    total = total + np.where(apart, added + more, 0.0)
    total = total + _first(facts, choice, more)
    return np.asarray(total / _FREQUENCY)


def _rate(target: Target, footprint: Any) -> Any:
    """Bytes a cycle that come from the cache that a footprint is in; where it takes most of the
    second level, part of it comes from the third."""
    beyond = np.clip(footprint / target.l2_bytes - _L2_SHARE, 0.0, _L2_RAMP) / _L2_RAMP
    mixed = 1.0 / ((1.0 - beyond) / _L2_BYTES_PER_CYCLE + beyond / _L3_BYTES_PER_CYCLE)
    return np.where(footprint <= _L3_SHARE * target.l3_bytes, mixed, _MEMORY_BYTES_PER_CYCLE)


def _scattered(facts: ContractionFacts, lines: Any) -> Any:
    """Bytes a cycle at which a panel in place comes again, whose lines are a stride apart: those of
    a stride with a power of two in it share few sets of a cache."""
    stride, target = facts.right.stride, facts.target
    found: Any = _MEMORY_BYTES_PER_CYCLE / 2
    for size, rate in (
        (target.l3_bytes, _L3_BYTES_PER_CYCLE / 2),
        (target.l2_bytes, _L2_BYTES_PER_CYCLE / 2),
        (target.l1_bytes, 1e9),
    ):
        span = size / _WAYS
        room = _WAYS * span / gcd(stride, int(span)) if stride else 1e9
        found = np.where(lines <= 0.8 * room, rate, found)
    return found


def _all_bytes(facts: ContractionFacts) -> float:
    return float(
        facts.batches
        * facts.depth
        * (facts.rows * facts.left.memory_bytes + facts.columns * facts.right.memory_bytes)
    )


def _step(facts: ContractionFacts, choice: Mapping[str, Any], vectors: Any) -> Any:
    """Cycles of one step of the depth in a tile."""
    rows = choice["rows"]
    sums = rows * vectors
    convert_right = facts.right.memory_bytes < facts.sum_bytes
    convert_left = ~choice["left_packed"] & (facts.left.memory_bytes < facts.sum_bytes)
    loads = vectors + rows
    extra = np.where(convert_right, vectors, 0) + np.where(convert_left, 2 * rows, 0)
    uops = sums + loads + extra + 2.0 / choice["unroll"]
    spent = np.maximum(sums / _FMA_PER_CYCLE, loads / _LOADS_PER_CYCLE)
    if facts.left.computed:
        # By the units that add up products, too.
        busy = (sums + _COMPUTED * rows) / _FMA_PER_CYCLE
        spent = np.where(choice["left_packed"], spent, np.maximum(spent, busy))
    spent = np.maximum(np.maximum(spent, uops / _UOPS_PER_CYCLE), _FMA_LATENCY)
    spent = spent + _LOAD_CYCLES * loads
    spent = spent + 0.2 / choice["unroll"] + 0.02 * choice["unroll"]
    # An element of a row that is used once is multiplied in its own register, so that sums change
    # theirs, and where registers are few, steps that are written out put them in memory.
    moved = (vectors == 1) & (choice["unroll"] > 1) & (rows > facts.target.vector_registers / 2)
    # So they do in nine rows of three vectors, for which LLVM loads the next step's early: 38 moves
    # and 18 spills in a loop. Other tiles that leave as few registers have no such moves.
    moved = moved | ((vectors == 3) & (rows == 9) & (choice["unroll"] > 1))
    spent = np.where(moved, spent * _MOVED_SUMS, spent)
    # Rows in place are as many streams; those a power of two apart share few sets of the cache,
    # and where they are more than a set has lines each element comes from the next level.
    stride = facts.left.stride
    apart = _PAGE_BYTES // gcd(stride, _PAGE_BYTES) if stride else _PAGE_BYTES
    in_place = ~choice["left_packed"] & (rows > 1)
    lost = in_place & (rows / apart > _ways(facts.target) - 2)
    spent = spent * np.where(in_place, 1.02 if stride >= _PAGE_BYTES else 1.0, 1.0)
    spent = spent * np.where(in_place & (stride > 2 * _PAGE_BYTES) & (apart == 1), 1.06, 1.0)
    spent = spent + np.where(lost, 1.5 * rows, 0.0)
    # Pages that a panel in place is spread over, by step of the depth.
    spread = min(1.0, facts.right.stride / _PAGE_BYTES)
    many = spread * facts.depth / choice["depth_pieces"] > _PAGES
    spent = np.where(many & ~choice["right_packed"], spent + spread * _PAGE_CYCLES, spent)
    gathered = ~choice["right_packed"] & (not facts.right.contiguous)
    return np.where(gathered, spent * 8, spent)


def _lines(operand: OperandFacts, columns: Any) -> Any:
    """Lines of a cache that a row of a tile lies in, on average, where it is read in place."""
    width = columns * operand.memory_bytes
    if operand.stride % _LINE_BYTES == 0 and operand.contiguous:
        return np.ceil(width / _LINE_BYTES)
    return (width - operand.memory_bytes) / _LINE_BYTES + 1


def _filled(facts: ContractionFacts, choice: Mapping[str, Any], vectors: Any, lanes: int) -> Any:
    """The part of all tiles' time that is spent, the last ones having fewer rows and columns."""
    rows, columns = choice["rows"], choice["columns"]

    def share(size: int, tile: Any, last: Any, least: float) -> Any:
        part = np.where(last > 0, np.maximum(last, least), 1.0)
        count = np.ceil(size / tile)
        return (count - 1 + part) / count

    narrow = np.ceil((facts.columns % columns) / lanes) / vectors
    if (facts.columns % lanes).bit_count() > (facts.columns < lanes):
        narrow = narrow * np.where(choice["right_packed"], 1.0, _RAGGED)
    short = (facts.rows % rows) / rows
    return share(facts.columns, columns, narrow, _LEAST_TILE) * share(
        facts.rows, rows, short, _LEAST_TILE
    )


def _far(operand: OperandFacts, size: int, facts: ContractionFacts) -> float:
    """Cycles for each row of a part of an operand whose rows are pages apart, where these are more
    than a processor knows the places of."""
    pages = facts.batches * size * facts.depth * operand.memory_bytes / _PAGE_BYTES
    return _FAR_ROW_CYCLES if operand.stride >= _PAGE_BYTES and pages > _KNOWN_PAGES else 0.0


def _ways(target: Target) -> int:
    """Lines of a set of the first-level cache, which is looked up by the place within a page."""
    return max(1, target.l1_bytes // _PAGE_BYTES)


def _copy(operand: OperandFacts, elements: Any, rate: float = _COPY_BYTES_PER_CYCLE) -> Any:
    """Cycles of copying elements into panels."""
    if operand.contiguous:
        return elements * (operand.memory_bytes + operand.panel_bytes) / rate
    return elements * _COPY_CYCLES


def _packing(
    facts: ContractionFacts, choice: Mapping[str, Any], rows: Any, columns: Any, depth: Any
) -> Any:
    """Cycles of packing a block's operands in the workgroup."""
    left = np.where(choice["left_block"], _copy(facts.left, rows * depth), 0.0)
    right = np.where(choice["right_block"], _copy(facts.right, columns * depth), 0.0)
    return left + right


def _first(facts: ContractionFacts, choice: Mapping[str, Any], dispatch: float) -> Any:
    """Cycles of packing whole operands by dispatches of their own, each of which costs some."""
    total: Any = 0.0
    for name, operand, size in (
        ("left_first", facts.left, facts.rows),
        ("right_first", facts.right, facts.columns),
    ):
        elements = facts.batches * size * facts.depth
        is_far = elements * operand.panel_bytes > 0.5 * facts.target.l2_bytes
        rate = _TENSOR_COPY_BYTES_PER_CYCLE[is_far]
        spent = _copy(operand, elements, rate) / facts.target.cores
        total = total + np.where(choice[name], spent + dispatch, 0.0)
    return total
