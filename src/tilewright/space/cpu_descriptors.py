"""Descriptors of CPU tilings: what tiles amount to against loops, caches, registers and cores.

Their names are made from the names of loops (`m`, `n`, `k`), so they are equal in all shapes of one
kind of workload.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.space import cost_model
from tilewright.space.arrays import FloatArray
from tilewright.space.descriptors import PRIOR
from tilewright.space.geometry import TileGeometry

_PER_LOOP = (
    "extent",
    "distribution",
    "cache",
    "vector",
    "distribution_trips",
    "cache_trips",
    "vector_trips",
    "distribution_waste",
    "vector_waste",
    "inner_parallel",
)
_WHOLE = (
    "vector_bytes_registers",
    "panel_bytes_l1",
    "panel_bytes_l2",
    "block_bytes_l1",
    "block_bytes_l2",
    "block_bytes_l3",
    "distribution_bytes_l2",
    "distribution_bytes_l3",
    "registers",
    "spilled",
    "instructions",
    "steps",
    "loads",
    "lanes_used",
    "lane_contiguous",
    "vector_intensity",
    "block_intensity",
    "distribution_intensity",
    "workgroups",
    "idle_cores",
    "cache_parallel",
    "cache_reduction",
    "peeling",
    PRIOR,
)


def tiling_names(loops: Sequence[str]) -> tuple[str, ...]:
    """The names of :func:`describe_tilings` for loops of these names."""
    return (*(f"{what}_{loop}" for what in _PER_LOOP for loop in loops), *_WHOLE)


def describe_tilings(g: TileGeometry, peeling: FloatArray) -> FloatArray:
    """The descriptors of tilings, shape (tilings, names).

    Sizes, ratios and intensities (loop iterations per byte) are log2. `..._trips` count the steps
    of a level within the one before it; `..._waste` is the share of its work that lies beyond the
    end of the loop. A working set is given over the memory that it should fit into: registers, L1,
    L2, L3. `idle_cores` is the share of the cores' time without a workgroup, `lane_contiguous` the
    share of operands that a vector walks without a stride. `peeling` is 0 or 1 for each tiling;
    among the descriptors it is 0 where every tile divides what it tiles: nothing is peeled there.
    """
    nest, target = g.nest, g.nest.target
    extents = np.broadcast_to(nest.extents, g.outer.shape)
    groups, blocks = np.ceil(extents / g.outer), np.ceil(g.outer / g.block)
    steps = np.ceil(g.block / g.vector)
    per_loop = (
        np.log2(extents),
        np.log2(g.outer),
        np.log2(g.block),
        np.log2(g.vector),
        np.log2(groups),
        np.log2(blocks),
        np.log2(steps),
        1 - extents / (groups * g.outer),
        1 - g.outer / (np.ceil(g.outer / g.vector) * g.vector),
        (g.level("vector_inner_parallel") > 0).astype(np.float64),
    )
    vector_bytes = g.footprint(g.vector)
    file_bytes = target.vector_registers * target.vector_bytes
    walked = nest.operands[:, g.lane_loop].T
    inner = np.array(nest.inner)
    contiguous = (walked & (inner == g.lane_loop[:, None])).sum(axis=1)
    whole = (
        np.log2(vector_bytes / file_bytes),
        np.log2(g.panel / target.l1_bytes),
        np.log2(g.panel / target.l2_bytes),
        np.log2(g.block_bytes / target.l1_bytes),
        np.log2(g.block_bytes / target.l2_bytes),
        np.log2(g.block_bytes / target.l3_bytes),
        np.log2(g.outer_bytes / target.l2_bytes),
        np.log2(g.outer_bytes / target.l3_bytes),
        np.log2(g.registers / target.vector_registers),
        np.maximum(0.0, g.registers / target.vector_registers - 1),
        np.log2(g.instructions),
        np.log2(g.steps),
        np.log2(g.loads.sum(axis=1) / g.accumulators + 1),
        g.lane_width / (g.packed * nest.lanes),
        contiguous / np.maximum(1, walked.sum(axis=1)),
        np.log2(g.vector.prod(axis=1) / vector_bytes),
        np.log2(g.block.prod(axis=1) / g.block_bytes),
        np.log2(g.outer.prod(axis=1) / g.outer_bytes),
        np.log2(g.groups / target.cores),
        1 - g.groups / (g.waves * target.cores),
        g.tiles("cache_parallel").astype(np.float64),
        g.tiles("cache_reduction").astype(np.float64),
        peeling * g.has_remainder,
        cost_model.prior(g),
    )
    return np.column_stack([*per_loop, *whole])
