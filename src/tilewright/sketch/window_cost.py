"""An analytic guess of how long a tile of sliding windows takes: it orders, never forbids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.schedule.tensor import IterVar
from tilewright.schedule.types import bits
from tilewright.sketch.sliding import SlidingReduction
from tilewright.sketch.structure import extent
from tilewright.space.arrays import FloatArray
from tilewright.target import Target
from tilewright.trial import Configuration

_HERTZ = 3e9
_FMA_PER_CYCLE = 2.0
_LOADS_PER_CYCLE = 1.5
_FMA_LATENCY = 4.5
# For each further row of a tile, whose elements are far from those of the first.
_ROW = 0.03
# Loads that a vector costs whose elements begin anywhere in a line, or lie apart.
_UNALIGNED = 1.3
_GATHERED = 8.0
# For each vector that the registers have no room for.
_SPILL_CYCLES = 4.0
# Bytes a cycle that come from each cache; stores of copies go to the second one.
_L2_BYTES_PER_CYCLE = 32.0
_L3_BYTES_PER_CYCLE = 12.0
_COPY_BYTES_PER_CYCLE = 12.0
# Cycles for what is done once: for a step of the innermost loop, a tile, a piece of parallel work.
_LOOP_CYCLES = 1.0
_TILE_CYCLES = 10.0
_PIECE_CYCLES = 1500.0
# By what a tile whose columns are checked one by one is slower.
_CHECKED = 4.0


@dataclass(frozen=True)
class WindowNest:
    """What the loops of a sliding reduction are, for a guess of their time.

    found: the reduction. target: the processor. lanes: of a vector. vector, block, column, row: the
        axes that tiles are made of, as of a sketch; None where there is no such one.
    """

    found: SlidingReduction
    target: Target
    lanes: int
    vector: IterVar
    block: IterVar | None
    column: IterVar | None
    row: IterVar | None
    panel: IterVar | None

    def prior(self, configurations: Sequence[Configuration]) -> FloatArray:
        """Minus the logarithm of the guessed seconds: higher is better.

        Args:
            configurations: of the sketch.
        """
        if not configurations:
            return np.zeros(0)
        rows = [dict(one.items) for one in configurations]
        return -np.log(self.seconds({n: np.array([row[n] for row in rows]) for n in rows[0]}))

    def seconds(self, values: Mapping[str, NDArray[Any]]) -> FloatArray:
        """The guessed seconds of one execution.

        Args:
            values: for each knob its values, one for each configuration.
        """
        vectors = np.ceil(values["width"] / self.lanes)
        rows, row = values["rows"], _size(self.row)
        across, below = row // rows, row % rows
        along, columns, more = self._along(values)
        steps = prod(map(extent, self.found.op.reduce_axis))
        cycles = np.zeros(len(rows))
        # Tiles that are whole, and what is left behind the last of them.
        for count, width in ((along, columns), (np.minimum(more, 1), more)):
            for times, height in ((across, rows), (np.minimum(below, 1), below)):
                one = self._step(vectors, width, height, values)
                sums = vectors * values["blocks"] * width * height
                cycles += count * times * (steps * one + _TILE_CYCLES + 3.0 * sums)
        cycles *= self._panels(values) * self._others()
        cycles += self._weights(values, along + (more > 0), across + (below > 0))
        pieces = self._pieces(values)
        cycles += self._image(values, pieces, cycles)
        waves = np.ceil(pieces / self.target.cores) * self.target.cores / pieces
        cycles = cycles * waves / self.target.cores + pieces * _PIECE_CYCLES / self.target.cores
        return np.asarray(cycles / _HERTZ)

    @property
    def _by_columns(self) -> bool:
        """Whether vectors are columns."""
        return self.vector in self.found.slides

    def _along(
        self, values: Mapping[str, NDArray[Any]]
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Whole tiles along the columns, columns of one (1 where they are the vectors), and what
        is left behind the last."""
        if self._by_columns:
            tiles = np.ceil(extent(self.vector) / values["width"])
            return tiles, np.ones(len(tiles)), np.zeros(len(tiles))
        columns, column = values["columns"], _size(self.column)
        return column // columns, columns, column % columns

    def _step(
        self,
        vectors: NDArray[Any],
        columns: NDArray[Any],
        rows: NDArray[Any],
        values: Mapping[str, NDArray[Any]],
    ) -> FloatArray:
        """Cycles of one step of the reduction in a tile of some columns and rows."""
        blocks = values["blocks"]
        sums = vectors * blocks * columns * rows
        weights = float(self.found.filter is not None)
        if self._by_columns:
            dim = self.found.dim_of(self.vector)
            apart = dim is not None and dim.stride > 1
            # Vectors begin anywhere; they are gathered where a stride is between their elements.
            gathered = np.where(apart & (values["image"] != "copied"), _GATHERED, _UNALIGNED)
            loads = gathered * vectors * rows + weights * blocks
            live = sums + np.minimum(vectors * rows, blocks) + 1
        elif self.vector in self.found.outputs:
            loads = vectors * blocks + columns * rows
            live = sums + vectors * blocks + 1
        else:
            dim = None if self.column is None else self.found.dim_of(self.column)
            window = extent(dim.reduced) if dim is not None and dim.reduced is not None else 1
            stride = dim.stride if dim is not None else 1
            # Neighbouring columns share what their windows have in common.
            read = np.minimum(((columns - 1) * stride + window) / window, columns)
            shared = np.where(values["unroll_windows"] > 0, read, columns)
            loads = vectors * (shared * rows + weights)
            live = sums + vectors + 1
        work = np.maximum(sums / _FMA_PER_CYCLE, loads / _LOADS_PER_CYCLE)
        # Sums that go on from what the step before left wait for it; where the reduction is short,
        # the next tile is computed meanwhile.
        latency = _FMA_LATENCY if self.found.channels else 0.0
        work = np.where(sums > 0, np.maximum(work, latency), 0.0)
        work = work * (1.0 + _ROW * (rows - 1))
        spilled = np.maximum(0, live - self.target.vector_registers)
        written = values["unroll"] * np.where(values["unroll_windows"] > 0, 3, 1)
        return np.asarray(work + _SPILL_CYCLES * spilled + _LOOP_CYCLES / written)

    def _panels(self, values: Mapping[str, NDArray[Any]]) -> FloatArray:
        """Tiles of channels."""
        blocks = np.ceil(_size(self.block) / values["blocks"])
        if self._by_columns:
            return np.asarray(blocks)
        return np.asarray(np.ceil(extent(self.vector) / values["width"]) * blocks)

    def _others(self) -> int:
        """Values of the axes that tiles are not made of."""
        tiled = {self.vector, self.block, self.column, self.row}
        return prod(extent(axis) for axis in self.found.op.axis if axis not in tiled)

    def _pieces(self, values: Mapping[str, NDArray[Any]]) -> FloatArray:
        """Pieces of parallel work."""
        if self.row is not None:
            tiles = np.ceil(_size(self.row) / values["rows"])
        elif self.column is not None:
            tiles = np.ceil(_size(self.column) / values["columns"])
        else:
            tiles = np.ceil(extent(self.vector) / values["width"])
        across = np.ceil(tiles / values["piece_rows"])
        others = self._others()
        if self.panel is self.block:
            panels = np.ceil(_size(self.block) / values["blocks"])
        elif self.panel is self.vector:
            panels = np.ceil(extent(self.vector) / values["width"])
        else:
            panels = np.full(len(across), float(_size(self.panel)))
            others //= _size(self.panel)
        return np.asarray(others * across * np.ceil(panels / values["piece_panels"]))

    def _weights(
        self, values: Mapping[str, NDArray[Any]], along: NDArray[Any], across: NDArray[Any]
    ) -> FloatArray:
        """Cycles in which the filter comes from beyond the first cache."""
        read = self.found.filter
        if read is None or not self.found.channels:
            return np.zeros(len(along))
        element = bits(read.tensor.dtype) // 8
        steps = prod(map(extent, self.found.op.reduce_axis))
        panel = steps * element * values["width"] * values["blocks"]
        whole = prod(read.tensor.shape) * element
        # Panels outside: one of them is read again for every tile of columns and rows.
        footprint = np.where(
            values["order"] == "panels rows columns", panel, np.minimum(whole, panel * 64)
        )
        # A part of the channels at a time: what that part needs.
        parts = values["depth"] / extent(self.found.channels[-1])
        footprint = np.where(values["order"] == "panels rows columns", parts, 1.0) * footprint
        rate = np.where(footprint <= self.target.l2_bytes, _L2_BYTES_PER_CYCLE, _L3_BYTES_PER_CYCLE)
        beyond = np.where(footprint <= self.target.l1_bytes // 2, 0.0, panel / rate)
        tiles = along * across * self._panels(values) * self._others()
        # Most of it passes while the tile is computed with what is there.
        return np.asarray(0.3 * tiles * beyond)

    def _image(
        self, values: Mapping[str, NDArray[Any]], pieces: FloatArray, cycles: FloatArray
    ) -> FloatArray:
        """Cycles of the copies, or of the edges that are checked element by element."""
        found = self.found
        element = bits(found.image.tensor.dtype) // 8
        read = np.full(len(pieces), float(element))
        for dim, size in zip(found.dims, found.image.tensor.shape, strict=True):
            part: Any = float(size)
            if dim.data is not None and dim.data is self.row:
                overlap = (extent(dim.reduced) - 1) * dim.dilation if dim.reduced is not None else 0
                made = values["piece_rows"] * values["rows"]
                part = np.minimum(size, made * dim.stride + overlap)
            elif dim.data is not None and dim.data is self.panel and not self._by_columns:
                part = np.minimum(size, values["piece_panels"] * values["width"])
            elif dim.data is not None and dim.data is self.panel:
                part = np.minimum(size, values["piece_panels"])
            elif dim.data is not None and dim.data not in {self.vector, self.column}:
                part = 1.0
            read = read * part
        # Where a copy outgrows the first cache, it is written to the second and read from there.
        far = np.where(read > self.target.l1_bytes // 2, 2.0, 1.0)
        copied = far * pieces * read / _COPY_BYTES_PER_CYCLE
        edges: FloatArray = np.zeros(len(pieces))
        if found.is_padded:
            whole, _, more = self._along(values)
            tiles = whole + (more > 0)
            edges = np.minimum(1.0, 2.0 / tiles) * (_CHECKED - 1) * cycles
        return np.where(values["image"] == "copied", copied, edges)


def _size(axis: IterVar | None) -> int:
    return extent(axis) if axis is not None else 1
