"""A guess of how long a contraction in tiles takes: the prior of the sketch that writes them.

After Low et al., "Analytical modeling is enough for high-performance BLIS" (ACM TOMS 2016), and a
roofline over the caches: instructions of a step of the innermost loop, bytes that come from each
cache, copies into panels, workgroups over the cores. Numbers are ratios of a common processor; only
the order of the guesses matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.space.arrays import FloatArray
from tilewright.target import Target

_FREQUENCY = 3e9
_FMA_PER_CYCLE = 2.0
_LOADS_PER_CYCLE = 2.0
_UOPS_PER_CYCLE = 5.0
_FMA_LATENCY = 4.0
_L2_BYTES_PER_CYCLE = 24.0
_L3_BYTES_PER_CYCLE = 10.0
_MEMORY_BYTES_PER_CYCLE = 5.0
# Of a page that is not among the last ones that were used.
_PAGE_CYCLES = 8.0
_PAGE_BYTES = 4096
_PAGES = 48
_TILE_CYCLES = 20.0
_WORKGROUP_CYCLES = 1500.0
_DISPATCH_CYCLES = 12000.0
# Copies into panels: bytes of whole vectors a cycle, cycles of an element alone.
_COPY_BYTES_PER_CYCLE = 16.0
_COPY_CYCLES = 1.5


@dataclass(frozen=True)
class OperandFacts:
    """What the guess needs of an operand.

    memory_bytes, panel_bytes: of an element where it lies, and in panels. stride: bytes between
        neighbours along the outer of tile and depth. contiguous: along the tile.
    """

    memory_bytes: int
    panel_bytes: int
    stride: int
    contiguous: bool


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
            `depth_pieces`, `unroll`, `rows_inside`; `left_packed`, `left_first`, `right_packed`,
            `right_first` (bools: read from panels; those made by a dispatch of its own) and
            `left_block`, `right_block` (made block by block).

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
    right_bytes = np.where(
        choice["right_packed"], facts.right.panel_bytes, facts.right.memory_bytes
    ) * (columns * depth)
    tiles = block_rows * block_columns
    inside = choice["rows_inside"]
    near = np.where(inside, right_bytes, left_bytes)
    far = np.where(inside, left_bytes, right_bytes)
    count = np.where(inside, block_rows, block_columns)
    block_far = far * count
    # The panel that stays is read from the first level again, the other passes by.
    stays = near + 2 * far <= 0.9 * target.l1_bytes
    near_rate = np.where(stays, 1e9, _rate(target, near + block_far))
    far_rate = np.where(
        block_far + near <= 0.7 * target.l1_bytes, 1e9, _rate(target, block_far + near)
    )
    moved = near / near_rate + far / far_rate
    work = step * depth + _TILE_CYCLES + rows * vectors
    work = work + np.where(chunks > 1, 3.0 * rows * vectors, 0.0)
    tile = np.maximum(work, moved) + 0.2 * np.minimum(work, moved)
    # Each block's operands come from further out once.
    block_near = near * np.where(inside, block_columns, block_rows)
    fetched = (block_far + block_near) / _rate(target, _all_bytes(facts))
    packed = _packing(facts, choice, block_rows * rows, block_columns * columns, depth)
    block = chunks * (
        tiles * tile + np.maximum(fetched - 0.5 * tiles * tile, 0.2 * fetched) + packed
    )
    waves = np.ceil(blocks / target.cores)
    total = waves * (block + _WORKGROUP_CYCLES) + _DISPATCH_CYCLES
    total = total + _first(facts, choice)
    return np.asarray(total / _FREQUENCY)


def _rate(target: Target, footprint: Any) -> Any:
    return np.where(
        footprint <= 0.6 * target.l2_bytes,
        _L2_BYTES_PER_CYCLE,
        np.where(footprint <= 0.8 * target.l3_bytes, _L3_BYTES_PER_CYCLE, _MEMORY_BYTES_PER_CYCLE),
    )


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
    spent = np.maximum(np.maximum(spent, uops / _UOPS_PER_CYCLE), _FMA_LATENCY)
    spent = spent + 0.2 / choice["unroll"] + 0.02 * choice["unroll"]
    # Rows in place are as many streams, and rows a power of two apart share sets of the cache.
    far = facts.left.stride >= _PAGE_BYTES
    collide = far and facts.left.stride % _PAGE_BYTES == 0
    spent = spent * np.where(
        ~choice["left_packed"] & (rows > 1), 1.15 if collide else 1.03 if far else 1.01, 1.0
    )
    many = facts.depth / choice["depth_pieces"] > _PAGES
    pages = (facts.right.stride >= _PAGE_BYTES) & ~choice["right_packed"] & many
    spent = np.where(pages, spent + _PAGE_CYCLES, spent)
    gathered = ~choice["right_packed"] & (not facts.right.contiguous)
    return np.where(gathered, spent * 8, spent)


def _copy(operand: OperandFacts, elements: Any) -> Any:
    """Cycles of copying elements into panels."""
    if operand.contiguous:
        return elements * (operand.memory_bytes + operand.panel_bytes) / _COPY_BYTES_PER_CYCLE
    return elements * _COPY_CYCLES


def _packing(
    facts: ContractionFacts, choice: Mapping[str, Any], rows: Any, columns: Any, depth: Any
) -> Any:
    """Cycles of packing a block's operands in the workgroup."""
    left = np.where(choice["left_block"], _copy(facts.left, rows * depth), 0.0)
    right = np.where(choice["right_block"], _copy(facts.right, columns * depth), 0.0)
    return left + right


def _first(facts: ContractionFacts, choice: Mapping[str, Any]) -> Any:
    """Cycles of packing whole operands by dispatches of their own."""
    total: Any = 0.0
    for name, operand, size in (
        ("left_first", facts.left, facts.rows),
        ("right_first", facts.right, facts.columns),
    ):
        spent = _copy(operand, facts.batches * size * facts.depth) / facts.target.cores
        total = total + np.where(choice[name], spent + _DISPATCH_CYCLES, 0.0)
    return total
