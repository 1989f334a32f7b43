"""What tilings of a loop nest mean on a machine: tiles, footprints, registers, workgroups.

Everything is computed for many tilings at once. Arrays have one row for each tiling; those of tiles
have a column for each loop, outermost first, those of operands one for each operand, inputs first.
The prior (:mod:`tilewright.space.cost_model`) and the descriptors that learned models read
(:mod:`tilewright.space.cpu_descriptors`) are made from these numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilewright.space.arrays import BoolArray, FloatArray, IntArray
from tilewright.space.turns import turns
from tilewright.target import Target
from tilewright.tiling import LEVELS, OpTemplate
from tilewright.workload import Workload

_PRODUCTS = (
    "contraction",
    "convolution",
    "depthwise_convolution",
    "grouped_convolution",
    "mmt4d",
    "attention",
)


@dataclass(frozen=True)
class LoopNest:
    """The loops of a root op on a target: all that does not depend on the tiling.

    `operands` tells which loops index which operand, `inner` the loop that steps through each
    operand's memory one element at a time (-1: none). `product`: the op multiplies and adds.
    """

    extents: FloatArray
    reduction: BoolArray
    operands: BoolArray
    inner: tuple[int, ...]
    element_bytes: int
    lanes: int
    product: bool
    target: Target

    @staticmethod
    def of(root: OpTemplate, workload: Workload, target: Target) -> LoopNest:
        """The loops of a root op; without operands one that all loops index."""
        count = len(root.extents)
        loops = root.operand_loops or (tuple(range(count)),)
        operands = np.zeros((len(loops), count), dtype=np.bool_)
        for row, operand in zip(operands, loops, strict=True):
            row[list(operand)] = True
        return LoopNest(
            np.maximum(1.0, np.array(root.extents, dtype=np.float64)),
            np.array(root.reduction, dtype=np.bool_),
            operands,
            root.operand_inner or (count - 1,),
            max(1, root.element_bits // 8),
            target.lanes(root.element_bits),
            workload.kind in _PRODUCTS,
            target,
        )


class TileGeometry:
    """The numbers of many tilings of one loop nest.

    `sizes` has the shape (tilings, levels, loops), the levels in the order of
    :data:`tilewright.tiling.LEVELS`; 0 is not tiled. There is at least one loop.
    """

    def __init__(self, nest: LoopNest, sizes: IntArray) -> None:
        self.nest = nest
        self.sizes = sizes
        self.rows = np.arange(len(sizes))
        inner = self.level("vector_inner_parallel")
        self.outer = np.minimum(_or(self.level("distribution"), nest.extents), nest.extents)
        """What one workgroup works on."""
        blocked = np.where(
            nest.reduction, self.level("cache_reduction"), self.level("cache_parallel")
        )
        self.block = np.minimum(_or(blocked, self.outer), self.outer)
        """What is worked on between two visits of a cache."""
        step = np.where(
            nest.reduction, self.level("vector_reduction"), self.level("vector_common_parallel")
        )
        self.vector = np.minimum(_or(step, _or(inner, self.outer)), 2 * self.outer)
        """What becomes vectors, unrolled."""

    def level(self, name: str) -> FloatArray:
        """The tile sizes at a level, as given."""
        return self.sizes[:, LEVELS.index(name)].astype(np.float64)

    def tiles(self, name: str) -> BoolArray:
        """Whether a level tiles any loop."""
        return np.asarray(self.sizes[:, LEVELS.index(name)].any(axis=1))

    # -- sharing out ---------------------------------------------------------------------------

    @cached_property
    def groups(self) -> FloatArray:
        """Workgroups."""
        counts = np.ceil(self.nest.extents / self.outer)
        return np.asarray(np.where(self.nest.reduction, 1.0, counts).prod(axis=1))

    @cached_property
    def waves(self) -> FloatArray:
        """Rounds in which the cores work off the workgroups."""
        return turns(self.groups, self.nest.target.cores)

    @cached_property
    def steps(self) -> FloatArray:
        """Vector tiles in one workgroup."""
        return np.asarray(np.ceil(self.outer / self.vector).prod(axis=1))

    @cached_property
    def blocks(self) -> FloatArray:
        """Cache blocks in one workgroup."""
        return np.asarray(np.ceil(self.outer / self.block).prod(axis=1))

    @cached_property
    def has_remainder(self) -> BoolArray:
        """Whether a tile does not divide what it tiles."""
        whole = (
            (self.nest.extents % self.outer == 0)
            & (self.outer % self.block == 0)
            & (self.block % np.minimum(self.vector, self.block) == 0)
        )
        return np.asarray(~whole.all(axis=1))

    # -- registers -----------------------------------------------------------------------------

    @cached_property
    def lane_loop(self) -> IntArray:
        """The loop whose elements lie side by side in a vector register.

        That of the result's memory; where it is reduced over or not vectorised, the widest of
        those that walk the memory of any operand.
        """
        first = self.nest.inner[-1] if self.nest.inner[-1] >= 0 else self.vector.shape[1] - 1
        walks = np.zeros(self.vector.shape[1], dtype=np.bool_)
        walks[[i for i in self.nest.inner if i >= 0]] = True
        widest = np.where(walks, self.vector, 0.0).argmax(axis=1)
        weak = self.nest.reduction[first] | (self.vector[:, first] == 1)
        return np.where(weak & (self.vector[self.rows, widest] > 1), widest, first)

    @cached_property
    def is_lane(self) -> BoolArray:
        """Whether each loop is the lane loop."""
        return np.asarray(np.arange(self.vector.shape[1]) == self.lane_loop[:, None])

    @cached_property
    def lane_width(self) -> FloatArray:
        """The vector tile along the lane loop, in elements."""
        return np.asarray(self.vector[self.rows, self.lane_loop])

    @cached_property
    def packed(self) -> FloatArray:
        """Vector registers along the lane loop."""
        return np.asarray(np.ceil(self.lane_width / self.nest.lanes))

    @cached_property
    def instructions(self) -> FloatArray:
        """Vector instructions in the unrolled body."""
        return np.asarray(self.packed * np.where(self.is_lane, 1.0, self.vector).prod(axis=1))

    @cached_property
    def accumulators(self) -> FloatArray:
        """Vector registers that hold results."""
        counted = np.where(self.is_lane | self.nest.reduction, 1.0, self.vector)
        return np.asarray(self.packed * counted.prod(axis=1))

    @cached_property
    def registers(self) -> FloatArray:
        """Vector registers wanted: accumulators, a row of one factor, and the other factor."""
        return self.accumulators + self.packed + 2

    @cached_property
    def loads(self) -> FloatArray:
        """Vector loads for each step of the reduction, shape (tilings, inputs)."""
        counted = (self.nest.operands[:-1] & ~self.nest.reduction)[None] & ~self.is_lane[:, None]
        tile = np.where(counted, self.vector[:, None], 1.0).prod(axis=2)
        return np.asarray(tile * np.where(self.lane_in_inputs, self.packed[:, None], 1.0))

    @cached_property
    def lane_in_inputs(self) -> BoolArray:
        """Whether the lane loop indexes each input."""
        return np.asarray(self.nest.operands[:-1, self.lane_loop].T)

    @cached_property
    def strided(self) -> BoolArray:
        """Whether a vector of each input is gathered across its memory."""
        inner = np.array(self.nest.inner[:-1], dtype=np.int64)
        return np.asarray(self.lane_in_inputs & (inner != self.lane_loop[:, None]))

    # -- footprints ----------------------------------------------------------------------------

    def elements(self, tile: FloatArray) -> FloatArray:
        """Elements of each operand that a tile touches, shape (tilings, operands)."""
        return np.asarray(np.where(self.nest.operands[None], tile[:, None], 1.0).prod(axis=2))

    def footprint(self, tile: FloatArray) -> FloatArray:
        """Bytes of all operands that a tile touches."""
        return np.asarray(self.nest.element_bytes * self.elements(tile).sum(axis=1))

    @cached_property
    def panel(self) -> FloatArray:
        """Bytes touched while a vector tile runs through the reduction of a block."""
        return self.footprint(np.where(self.nest.reduction, self.block, self.vector))

    @cached_property
    def block_bytes(self) -> FloatArray:
        """Bytes of all operands that a cache block touches."""
        return self.footprint(self.block)

    @cached_property
    def outer_bytes(self) -> FloatArray:
        """Bytes of all operands that a workgroup touches."""
        return self.footprint(self.outer)


def _or(sizes: FloatArray, otherwise: FloatArray) -> FloatArray:
    """The sizes, and something else where they are 0 (not tiled)."""
    return np.asarray(np.where(sizes > 0, sizes, otherwise))
