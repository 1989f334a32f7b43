"""An analytic guess of how long a tiling takes: the prior that steers a search, never forbids.

It counts what decides the speed of dense loop nests on a CPU: vector instructions with their
padding, accumulators against registers and the latency of fused multiply-adds, loads per
multiply-add, bytes moved between cache levels for each operand (a roofline over the memory
hierarchy, after Williams et al., 2009, and Low et al., "Analytical modeling is enough for
high-performance BLIS", 2016), and how evenly the work is shared out. The numbers are ratios of a
common processor; only the order of the guesses matters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.space.arrays import BoolArray, FloatArray
from tilewright.space.geometry import TileGeometry

_FMA_PER_CYCLE = 2.0
_FMA_LATENCY = 4
_L2_BYTES_PER_CYCLE = 48.0
_L3_BYTES_PER_CYCLE = 16.0
_MEMORY_BYTES_PER_CYCLE = 6.0
_WORKGROUP_CYCLES = 1500.0
_DISPATCH_CYCLES = 8000.0
_LOOP_CYCLES = 6.0
_SPILL = 2.0
_PAGE_BYTES = 4096


@dataclass(frozen=True)
class Costs:
    """What decides most, and no data sheet says.

    loads_per_cycle: vector loads; a processor that can do two does one where lines are crossed.
    unrolled: vector instructions beyond which an unrolled body is slower than its instructions are,
        by the square root: it misses the caches of decoded instructions, and registers are spilled.
    masked: by what factor vectors with unused lanes are slower.
    """

    loads_per_cycle: float = 1.0
    unrolled: float = 48.0
    masked: float = 2.5


COSTS = Costs()
"""Chosen on recorded spaces, leaving each out in turn, by `benchmarks/choose_prior.py`."""


def prior(geometry: TileGeometry) -> FloatArray:
    """Minus the logarithm of the guessed cycles of each tiling: higher is better."""
    return -np.log(cycles(geometry))


def cycles(geometry: TileGeometry) -> FloatArray:
    """The guessed cycles of one execution of the dispatch, for each tiling."""
    work, traffic = _compute(geometry), _traffic(geometry)
    per_group = np.maximum(work, traffic) + 0.25 * np.minimum(work, traffic) + _WORKGROUP_CYCLES
    total = geometry.waves * per_group * _irregular(geometry)
    return np.asarray(total + np.where(geometry.groups > 1, _DISPATCH_CYCLES, 0.0))


def _irregular(g: TileGeometry) -> FloatArray:
    """A factor for what was seen to cost time in measurements, though no count shows it.

    Tiles that do not divide give masked vectors and tails; blocking for caches and inner parallel
    tiles copy operands without packing them.
    """
    reduction, extents = g.nest.reduction, g.nest.extents
    uneven = extents % g.outer != 0
    masked = ~reduction & (g.outer % np.minimum(g.vector, g.outer) != 0)
    tail = reduction & (extents % g.vector != 0)
    factor = (
        np.where(uneven, 1.15, 1.0) * np.where(masked, COSTS.masked, 1.0) * np.where(tail, 1.2, 1.0)
    ).prod(axis=1)
    for level, cost in (
        ("cache_parallel", 1.3),
        ("cache_reduction", 1.3),
        ("vector_inner_parallel", 2.0),
    ):
        factor = factor * np.where(g.tiles(level), cost, 1.0)
    return np.asarray(factor)


def _compute(g: TileGeometry) -> FloatArray:
    """Cycles of arithmetic and loads in one workgroup."""
    # Long unrolled bodies also take seconds to compile.
    unrolled = np.sqrt(np.maximum(1.0, g.instructions / COSTS.unrolled))
    if not g.nest.product:
        return np.asarray(g.steps * (g.instructions * unrolled + _LOOP_CYCLES))
    reduction_steps = np.maximum(1, g.instructions // np.maximum(1, g.accumulators))
    fma = g.instructions / _FMA_PER_CYCLE
    load = g.loads.sum(axis=1) * reduction_steps / COSTS.loads_per_cycle
    latency = np.where(g.accumulators < 8, reduction_steps * _FMA_LATENCY, 0.0)
    spent = np.maximum(np.maximum(fma, load), latency)
    spilled = g.registers - g.nest.target.vector_registers
    spent = np.where(spilled > 0, 1.2 * spent + _SPILL * spilled * reduction_steps, spent)
    spent = spent * unrolled
    # A vector gathered across the operand's memory is transposed in registers first, which is
    # cheap only where whole vectors are there to transpose.
    inner = np.array(g.nest.inner[:-1], dtype=np.int64)
    whole = (inner >= 0) & (g.vector[:, inner] >= g.nest.lanes)
    transposed = np.where((whole | ~g.strided).all(axis=1), 1.5, 4.0)
    spent = spent * np.where(g.strided.any(axis=1), transposed, 1.0)
    return np.asarray(g.steps * (spent + _LOOP_CYCLES))


def _traffic(g: TileGeometry) -> FloatArray:
    """Cycles of moving the operands of one workgroup through the caches.

    An operand that lacks a loop is used again in each of its steps; it stays in the cache that
    holds what all operands touch between two uses.
    """
    nest, l1 = g.nest, g.nest.target.l1_bytes
    size = nest.element_bytes * g.elements(g.block)
    repeats = np.where(nest.reduction, 1.0, np.ceil(g.block / g.vector))
    again = np.where(nest.operands[None], 1.0, repeats[:, None]).prod(axis=2)
    first = size / _rate(g, g.outer_bytes)[:, None]
    rate = _rate(g, np.where(g.panel > l1, g.panel, g.block_bytes))[:, None]
    # Rows a power of two apart fall into the same cache sets.
    rate = np.where(_collides(g) & (again > 1), rate / 4.0, rate)
    later = np.where((g.block_bytes > l1 // 2)[:, None], size * (again - 1) / rate, 0.0)
    return np.asarray(g.blocks * (first + later).sum(axis=1))


def _collides(g: TileGeometry) -> BoolArray:
    """Whether a block of each operand has many rows that are whole pages apart."""
    nest, loops = g.nest, np.arange(g.block.shape[1])
    strides = [nest.element_bytes * (nest.extents[i] if i >= 0 else 1.0) for i in nest.inner]
    across = nest.operands & (loops != np.array(nest.inner)[:, None])
    rows = np.where(across[None], g.block[:, None], 1.0).prod(axis=2)
    return np.asarray((np.array(strides) % _PAGE_BYTES == 0) & (rows > 64))


def _rate(g: TileGeometry, footprint: FloatArray) -> FloatArray:
    """Bytes per cycle from the innermost cache that holds so much."""
    return np.where(
        footprint <= g.nest.target.l2_bytes,
        _L2_BYTES_PER_CYCLE,
        np.where(footprint <= g.nest.target.l3_bytes, _L3_BYTES_PER_CYCLE, _MEMORY_BYTES_PER_CYCLE),
    )
