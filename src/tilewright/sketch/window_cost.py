"""An analytic guess of how long a tile of sliding windows takes: it orders, never forbids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.schedule.tensor import IterVar
from tilewright.schedule.types import bits
from tilewright.sketch.edges import Edges, edges_of
from tilewright.sketch.sliding import SlidingReduction
from tilewright.sketch.structure import extent
from tilewright.sketch.window_tiles import WindowTiles
from tilewright.space.arrays import FloatArray
from tilewright.space.turns import makespan
from tilewright.target import Target
from tilewright.trial import Configuration

_HERTZ = 3e9
_FMA_PER_CYCLE = 2.0
_LOADS_PER_CYCLE = 1.5
_FMA_LATENCY = 4.5
# For each further row of a tile, whose elements are far from those of the first.
_ROW = 0.03
_ROW_ASKED = 0.2
# Loads that a vector costs whose elements begin anywhere in a line, or lie apart.
_UNALIGNED = 1.3
_GATHERED = 8.0
# The stride up to which whole vectors are read, and loads for each vector of these.
NEAR = 4
_NEAR_LOADS = 1.5
# For each vector that the registers have no room for.
_SPILL_CYCLES = 4.0
# Bytes a cycle that come from each cache; stores of copies go to the second one.
_L2_BYTES_PER_CYCLE = 28.0
_L3_BYTES_PER_CYCLE = 12.0
_COPY_BYTES_PER_CYCLE = 12.0
# The same where each element comes from another line than its neighbour.
_TURNED_BYTES_PER_CYCLE = 4.0
# By what that is slower where the second cache does not hold the copy.
_TURNED_FAR = 4.0
# Of what comes from memory once, and of what comes from the last cache again, the share that is
# waited for; the rate of the one.
_WAITED = 0.5
_WAITED_AGAIN = 0.2
_MEMORY_BYTES_PER_CYCLE = 8.0
# Cycles for a line of the image that the first cache has lost.
_LINE_CYCLES = 2.0
_LINE_BYTES = 64
# The share of a step in which the weights of the next one arrive.
_HIDDEN = 0.6
# Cycles for each further part of the channels that a tile's sums are made of.
_PART_CYCLES = 20.0
# Cycles for what is done once: for a step of the innermost loop, a tile, a piece of parallel work.
_LOOP_CYCLES = 1.0
_TILE_CYCLES = 10.0
_PIECE_CYCLES = 600.0
# What holds up a core holds up all that wait for its last piece: the part of one that is expected.
_HELD_UP = 0.03
# Of pieces that are not all alike: hardly slower, but their code is twice as long to build.
_UNEVEN = 1.15
# Cycles of a store of one element of a vector.
_SCATTERED_STORE = 1.5
_MASKED_STORE = 4.0
# Vectors of products a cycle where the image is computed, and by what this is slower in tiles of
# so many vectors: each element that they are multiplied with is read once for all of them.
_MADE_PER_CYCLE = 1.5
_MADE_SLOWER = {1: 1.35, 2: 1.05, 3: 1.0}
# Bytes a cycle of what an image is computed from, which each piece of the channels reads again.
_MADE_FROM_BYTES_PER_CYCLE = 6.0
# By what a tile whose columns are checked one by one is slower.
_CHECKED = 4.0


@dataclass(frozen=True)
class WindowNest:
    """What the loops of a sliding reduction are, for a guess of their time.

    tiles: what they are made of. target: the processor. lanes: of a vector. made_of: how many
        products an element of the image is the sum of, where a copy of it is computed.
    """

    tiles: WindowTiles
    target: Target
    lanes: int
    made_of: int = 0

    @property
    def found(self) -> SlidingReduction:
        """The reduction."""
        return self.tiles.found

    @cached_property
    def edges(self) -> Edges | None:
        """The image's edges, where what is beyond them is nothing to the reduction."""
        return edges_of(self.found)

    @property
    def leaves_out(self) -> bool:
        """Whether windows that are read in place leave out what is beyond the image's edges."""
        return self.edges is not None and not self._by_columns

    @cached_property
    def _shares(self) -> list[float]:
        """The parts of what windows read that is within the edges, by dimensions of the image."""
        dims = self.found.dims
        return [1.0] * len(dims) if self.edges is None else self.edges.shares_within(dims)

    def _computed_with(self, values: Mapping[str, NDArray[Any]]) -> FloatArray:
        """The part of what windows read that is computed with: of a copy all but rows beyond the
        edges, where a tile has one row."""
        row, rows = self.tiles.row, 1.0
        if row is not None and self.found.channels:
            shares = zip(self.found.dims, self._shares, strict=True)
            rows = prod(share for dim, share in shares if dim.data is row)
        copied = np.where(values["rows"] == 1, rows, 1.0)
        return np.where(values["image"] == "copied", copied, self.in_place)

    @cached_property
    def in_place(self) -> float:
        """The part of what windows read that is computed with, where they read it in place."""
        return prod(self._shares) if self.leaves_out else 1.0

    def prior(self, configurations: Sequence[Configuration]) -> FloatArray:
        """Minus the logarithm of the guessed seconds: higher is better.

        Args:
            configurations: of the sketch.
        """
        if not configurations:
            return np.zeros(0)
        rows = [dict(one.items) for one in configurations]
        return -np.log(self.seconds({n: np.array([row[n] for row in rows]) for n in rows[0]}))

    def seconds(self, values: Mapping[str, NDArray[Any]], *, whole: bool = False) -> FloatArray:
        """The guessed seconds of one execution.

        Args:
            values: for each knob its values, one for each configuration.
            whole: leaves out what pieces of parallel work add.
        """
        rows, row = values["rows"], _size(self.tiles.row)
        across, below = row // rows, row % rows
        along, columns, more = self._along(values)
        steps = prod(map(extent, self.found.op.reduce_axis))
        cycles = np.zeros(len(rows))
        parts, weights = self._channels / values["depth"], self._weights(values)
        # Tiles that are whole, and what is left behind the last of them.
        for (panels, vectors), (count, width), (times, height) in product(
            self._panels(values),
            ((along, columns), (np.minimum(more, 1), more)),
            ((across, rows), (np.minimum(below, 1), below)),
        ):
            one = self._step(vectors, width, height, values)
            # Lines of the last panel come as those of whole ones, whatever is used of them.
            one += np.maximum(0.0, weights - _HIDDEN * one)
            sums = vectors * values["blocks"] * width * height
            tile = _TILE_CYCLES + 3.0 * sums + (parts - 1) * (_PART_CYCLES + 4.0 * sums)
            tile += self._lines(height, width, values)
            cycles += panels * count * times * (steps * one + tile)
        cycles *= np.ceil(_size(self.tiles.block) / values["blocks"]) * self._others()
        cycles *= self._computed_with(values)
        cycles += self._filter_cycles(values)
        if whole:
            return np.asarray(cycles / self.target.cores / _HERTZ)
        cycles += self._sums(values)
        pieces, largest, even = self._pieces(values)
        cycles = np.where(even, cycles, _UNEVEN * cycles)
        if self.found.order[-1] is not self.tiles.vector or self.tiles.vector in self.found.phases:
            cycles += self._scattered(values)
        cycles += self._image(values, pieces, cycles)
        each = (cycles / pieces + _PIECE_CYCLES) / _HERTZ
        held_up = np.where(pieces > 1, _HELD_UP * each, 0.0)
        # Who has a piece more than others has a whole one.
        held_up += cycles * np.maximum(0.0, largest - 1 / pieces) / _HERTZ
        return makespan(pieces, self.target.cores, each) + held_up

    @property
    def _channels(self) -> int:
        """Of the innermost ones that the reduction adds up."""
        return extent(self.found.channels[-1]) if self.found.channels else 1

    @property
    def _by_columns(self) -> bool:
        """Whether vectors are columns."""
        return self.tiles.vector in self.found.slides

    def _along(
        self, values: Mapping[str, NDArray[Any]]
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Whole tiles along the columns that are not the vectors, columns of one, and what is left
        behind the last."""
        if self._by_columns:
            one = np.ones(len(values["width"]))
            return one, one, np.zeros(len(one))
        columns, column = values["columns"], _size(self.tiles.column)
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
            dim = self.found.dim_of(self.tiles.vector)
            apart = dim is not None and dim.stride > 1
            # Vectors begin anywhere; they are gathered where a stride is between their elements.
            far = _GATHERED
            if dim is not None and dim.stride <= NEAR:
                far = _NEAR_LOADS * dim.stride
            gathered = np.where(apart & (values["image"] != "copied"), far, _UNALIGNED)
            loads = gathered * vectors * rows + weights * blocks
            live = sums + np.minimum(vectors * rows, blocks) + 1
        elif self.tiles.vector in self.found.outputs:
            loads = vectors * blocks + columns * rows
            live = sums + vectors * blocks + 1
        else:
            dim = None if self.tiles.column is None else self.found.dim_of(self.tiles.column)
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
        # A loop over the rows of a window asks at the image's edge for each row of the tile.
        asked = (values["unroll_windows"] < len(self.found.windows)) & (values["image"] != "copied")
        asked &= bool(self.found.is_padded and not self.found.channels)
        work = work * (1.0 + np.where(asked, _ROW_ASKED, _ROW) * (rows - 1))
        spilled = np.maximum(0, live - self.target.vector_registers)
        written = values["unroll"] * np.where(values["unroll_windows"] > 0, 3, 1)
        return np.asarray(work + _SPILL_CYCLES * spilled + _LOOP_CYCLES / written)

    def _lines(
        self, rows: NDArray[Any], columns: NDArray[Any], values: Mapping[str, NDArray[Any]]
    ) -> FloatArray:
        """Cycles of one tile that wait for lines of the image beyond the first cache.

        Another element of the window finds the lines of the one before if one pass over the
        channels fits that cache, another tile those of its neighbour if all passes do.
        """
        found, none = self.found, np.zeros(len(values["depth"]))
        if not found.channels:
            return none
        element, depth = bits(found.image.tensor.dtype) // 8, values["depth"]
        wide = values["width"] if self._by_columns else columns
        across, reach = self._window(self.tiles.row), self._window(self.tiles.across)
        span = (wide - 1) * reach[0] + reach[1]
        channels = found.dims[-1].data is None and not self.tiles.turns
        if channels:
            # Channels side by side, for each column.
            lines = span * np.ceil(depth * element / _LINE_BYTES)
        else:
            lines = depth * (1 + span * element / _LINE_BYTES)
        filters = element * depth * values["width"] * values["blocks"] * (not self._by_columns)
        cache = 0.75 * self.target.l1_bytes
        high = (rows - 1) * across[0] + across[1]
        one = lines * rows * _LINE_BYTES + filters
        whole = lines * high * _LINE_BYTES + filters * across[1] * reach[1]
        again = np.where(one > cache, rows * across[1] * reach[1], high)
        again = np.where(whole > cache, again, 0.3 * high)
        # What lies side by side is fetched ahead.
        cycles = _LINE_CYCLES * (0.5 if channels else 1.0)
        parts = prod(map(extent, found.channels)) / depth
        return np.asarray(np.where(rows * columns > 0, cycles * parts * lines * again, none))

    def _window(self, axis: IterVar | None) -> tuple[int, int]:
        """The stride and the reach of windows along an axis of the result."""
        dim = self.found.dim_of(axis) if axis is not None else None
        if dim is None:
            return 1, 1
        return dim.stride, 1 if dim.reduced is None else extent(dim.reduced) * dim.dilation

    def _panels(
        self, values: Mapping[str, NDArray[Any]]
    ) -> tuple[tuple[NDArray[Any], NDArray[Any]], ...]:
        """Tiles along the vectors and the vectors of one: whole ones, and what is left."""
        size, width = extent(self.tiles.vector), values["width"]
        rest = np.ceil(size % width / self.lanes)
        return (size // width, np.ceil(width / self.lanes)), (np.minimum(rest, 1), rest)

    def _others(self) -> int:
        """Values of the axes that tiles are not made of."""
        tiled = {self.tiles.vector, self.tiles.block, self.tiles.column, self.tiles.row}
        return prod(extent(axis) for axis in self.found.op.axis if axis not in tiled)

    def _pieces(
        self, values: Mapping[str, NDArray[Any]]
    ) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
        """Pieces of parallel work, what part of it the largest of them is, and whether all of them
        do the same."""
        size, tile = extent(self.tiles.vector), values["width"]
        if self.tiles.row is not None:
            size, tile = _size(self.tiles.row), values["rows"]
        elif self.tiles.column is not None:
            size, tile = _size(self.tiles.column), values["columns"]
        tiles = np.ceil(size / tile)
        across = np.ceil(tiles / values["piece_rows"])
        others = self._others() // prod(phase.count for phase in self.found.phases.values())
        together = values["piece_panels"].astype(float)
        if self.tiles.panel is self.tiles.block:
            panels = np.ceil(_size(self.tiles.block) / values["blocks"])
            parts = panels
        elif self.tiles.panel is self.tiles.vector:
            (whole, vectors), (some, rest) = self._panels(values)
            panels, parts = whole + some, whole * vectors + rest
            together *= vectors
        else:
            panels = parts = np.full(len(across), float(_size(self.tiles.panel)))
            others //= _size(self.tiles.panel)
        shares = np.ceil(panels / values["piece_panels"])
        largest = np.minimum(1.0, values["piece_rows"] * tile / size) / others
        largest *= np.minimum(1.0, together / parts)
        even = (across == 1) | ((tiles % values["piece_rows"] == 0) & (size % tile == 0))
        even &= (shares == 1) | (panels % values["piece_panels"] == 0)
        if self.made_of:
            even &= (shares == 1) | (extent(self.tiles.vector) % values["width"] == 0)
        return np.asarray(others * across * shares), largest, even

    def _sums(self, values: Mapping[str, NDArray[Any]]) -> FloatArray:
        """Cycles in which the sums of a panel over a piece come and go for each part of the
        channels, where the first cache does not hold them."""
        element = bits(self.found.op.outputs[0].dtype) // 8
        parts = self._channels / values["depth"]
        columns = extent(self.tiles.across) if self.tiles.across is not None else 1
        across = values["width"] if not self._by_columns else 1
        rows = np.minimum(_size(self.tiles.row), values["piece_rows"] * values["rows"])
        held = element * rows * columns * values["blocks"] * across
        rate = np.where(
            held <= self.target.l2_bytes // 2, _L2_BYTES_PER_CYCLE, _MEMORY_BYTES_PER_CYCLE
        )
        moved = 2 * element * prod(map(extent, self.found.op.axis)) * parts
        near = (parts == 1) | (held <= self.target.l1_bytes // 2)
        return np.asarray(np.where(near, 0.0, moved / rate))

    def _scattered(self, values: Mapping[str, NDArray[Any]]) -> FloatArray:
        """Cycles of storing results that vectors have elsewhere than side by side; under a mask
        where the last vectors have more than there is."""
        elements = prod(map(extent, self.found.op.axis))
        masked = extent(self.tiles.vector) % values["width"] != 0
        return np.asarray(elements * np.where(masked, _MASKED_STORE, _SCATTERED_STORE))

    @property
    def _filter_bytes(self) -> int:
        """Of the whole filter, where it is read for one channel after the other."""
        read = self.found.filter
        if read is None or not self.found.channels:
            return 0
        return prod(read.tensor.shape) * bits(read.tensor.dtype) // 8

    def _filter_cycles(self, values: Mapping[str, NDArray[Any]]) -> FloatArray:
        """Cycles in which the filter comes: from memory for each core, and again for each further
        piece of rows where the second cache does not keep it meanwhile."""
        passes = np.ceil(np.ceil(_size(self.tiles.row) / values["rows"]) / values["piece_rows"])
        far = np.minimum(passes, self.target.cores)
        cycles = self._filter_bytes * _WAITED * far / _MEMORY_BYTES_PER_CYCLE
        if self._filter_bytes > self.target.l2_bytes // 2:
            cycles += self._filter_bytes * _WAITED_AGAIN * (passes - far) / _L3_BYTES_PER_CYCLE
        return np.asarray(cycles)

    def _weights(self, values: Mapping[str, NDArray[Any]]) -> FloatArray:
        """Cycles in which the part of the filter for one step comes from the cache that has it."""
        if not self._filter_bytes or self.found.filter is None:
            return np.zeros(len(values["width"]))
        element = bits(self.found.filter.tensor.dtype) // 8
        step = element * values["width"] * values["blocks"]
        panel = step * prod(map(extent, self.found.op.reduce_axis))
        # Panels outside: a part of one is read again for every tile of columns and rows.
        footprint = np.where(
            values["order"] == "panels rows columns",
            panel * values["depth"] / self._channels,
            np.minimum(self._filter_bytes, panel * 64),
        )
        rate = np.where(footprint <= self.target.l2_bytes, _L2_BYTES_PER_CYCLE, _L3_BYTES_PER_CYCLE)
        return np.asarray(np.where(footprint <= self.target.l1_bytes // 2, 0.0, step / rate))

    def _image(
        self, values: Mapping[str, NDArray[Any]], pieces: FloatArray, cycles: FloatArray
    ) -> FloatArray:
        """Cycles of the copies, or of the edges that are checked element by element."""
        found = self.found
        element = bits(found.image.tensor.dtype) // 8
        read = np.full(len(pieces), float(element))
        for dim, size in zip(found.dims, found.image.tensor.shape, strict=True):
            part: Any = float(size)
            if dim.data is not None and dim.data is self.tiles.row:
                overlap = (extent(dim.reduced) - 1) * dim.dilation if dim.reduced is not None else 0
                made = values["piece_rows"] * values["rows"]
                part = np.minimum(size, made * dim.stride + overlap)
            elif dim.data is not None and dim.data is self.tiles.panel and not self._by_columns:
                part = np.minimum(size, values["piece_panels"] * values["width"])
            elif dim.data is not None and dim.data is self.tiles.panel:
                part = np.minimum(size, values["piece_panels"])
            elif dim.data is not None and dim.data not in {self.tiles.vector, self.tiles.column}:
                part = 1.0
            read = read * part
        # Where a copy outgrows the first cache, it is written to the second and read from there.
        far = np.where(read > self.target.l1_bytes // 2, 2.0, 1.0)
        if self.tiles.turns:
            far = np.where(read > self.target.l2_bytes, _TURNED_FAR, far)
        rate = _TURNED_BYTES_PER_CYCLE if self.tiles.turns else _COPY_BYTES_PER_CYCLE
        copied = far * pieces * read / rate
        # Where it outgrows the second, it comes back from the third.
        again = pieces * read / _L3_BYTES_PER_CYCLE
        copied += np.where(read > self.target.l2_bytes // 2, again, 0.0)
        if self.made_of:
            together = np.minimum(
                extent(self.tiles.vector), values["piece_panels"] * values["width"]
            )
            made = pieces * read / element * self.made_of / (self.lanes * _MADE_PER_CYCLE)
            copied += made * made_width(together, self.lanes)[1]
            copied += pieces * read / together * self.made_of / _MADE_FROM_BYTES_PER_CYCLE
        edges: FloatArray = np.zeros(len(pieces))
        if found.is_padded and not (self.leaves_out and found.channels):
            whole, _, more = self._along(values)
            tiles = whole + (more > 0)
            if self._by_columns:
                tiles = np.ceil(extent(self.tiles.vector) / values["width"])
            edges = np.minimum(1.0, 2.0 / tiles) * (_CHECKED - 1) * cycles
        return np.where(values["image"] == "copied", copied, edges)


def made_width(together: NDArray[Any], lanes: int) -> tuple[NDArray[Any], FloatArray]:
    """The best width of the tiles in which an image is computed, and how much longer that takes
    than full tiles of the best width would.

    Args:
        together: channels that are computed at a time.
        lanes: of a vector.
    """
    widths = np.array([vectors * lanes for vectors in _MADE_SLOWER])[:, None]
    slower = np.array(list(_MADE_SLOWER.values()))[:, None]
    longer = np.ceil(together / widths) * widths / together * slower
    best = longer.argmin(axis=0)
    return widths[best, 0], longer.min(axis=0)


def _size(axis: IterVar | None) -> int:
    return extent(axis) if axis is not None else 1
