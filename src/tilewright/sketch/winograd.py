"""3x3 convolutions by Winograd's algorithm: fewer multiplications, other rounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.sketch.cook_toom import SIZES, WINDOW
from tilewright.sketch.fetching import fetched_ahead
from tilewright.sketch.interface import SiteExpression, Sketch, SketchedKernel
from tilewright.sketch.structure import extent, tile_sizes
from tilewright.sketch.window_schedule import in_parallel
from tilewright.sketch.winograd_stages import WinogradForm, winograd_stages
from tilewright.space.arrays import FloatArray
from tilewright.space.constraints import Constraint
from tilewright.space.knobs import Knob, TileKnob
from tilewright.space.pipeline import Unfit, space_near
from tilewright.space.turns import turns
from tilewright.target import Target
from tilewright.trial import Configuration

_ELEMENT = 4
# Steps of the products' loop that are written out.
_UNROLLED = 4
# What a piece of parallel work keeps at once may be as much as this many second-level caches.
_MOST_CACHES = 3

# For a guess of the time, fitted to some kernels, 50 at most, for each of a ResNet-50's four sizes
# of layers on two cores of an AVX-512 Xeon, with weights that were last read long ago. In cycles:
# multiply-adds and loads in one; a vector of the image copied, transformed, and of the result;
# bytes from the second and the third cache; bytes of filters, which come from wherever a network's
# are while others are multiplied, with how much of the shorter of the two is not hidden behind the
# longer; a block of products, a piece of parallel work.
_FMA_PER_CYCLE, _LOADS_PER_CYCLE, _FMA_LATENCY = 2.0, 1.7, 5.5
_COPIED_CYCLES, _TRANSFORMED_CYCLES, _RESULT_CYCLES = 1.4, 14.0, 21.0
_L2_BYTES_PER_CYCLE, _L3_BYTES_PER_CYCLE = 55.0, 6.4
_FAR_BYTES_PER_CYCLE, _BESIDE = 2.8, 0.2
_BLOCK_CYCLES, _PIECE_CYCLES = 11.0, 1400.0
_HERTZ = 4.25e9


class WinogradSketch(Sketch):
    """Tiles of the image and the filter are transformed, multiplied element by element and added up
    over the channels, which are products of matrices, and transformed back, all in one kernel.

    A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks", 2016. Knobs: `size`,
    rows and columns of a tile of the result; `piece_rows`, rows of tiles in a piece of parallel
    work; `panel`, output channels in one; `rows`, tiles, and `width`, channels, whose products are
    added up in registers.
    """

    name = "winograd"
    is_exact = False

    def __init__(self, site: SiteExpression, target: Target) -> None:
        self._target = target
        self._lanes = lanes = target.lanes(8 * _ELEMENT)
        self._form = form = WinogradForm.of(site, lanes)
        outputs = extent(form.outputs)
        most_rows = form.tiles(min(SIZES))[0]
        registers = target.vector_registers
        knobs: list[Knob] = [
            TileKnob("size", SIZES),
            TileKnob("piece_rows", tile_sizes(most_rows, most_rows)),
            TileKnob("panel", tuple(p for p in tile_sizes(outputs, outputs, lanes))),
            TileKnob("rows", tuple(range(1, registers))),
            TileKnob("width", tuple(w for w in range(lanes, 4 * lanes + 1, lanes) if w <= outputs)),
        ]
        self.space = space_near(
            self.name, knobs, self._constraints(), self._start(knobs), prior_many=self._prior
        )

    # -- the space ---------------------------------------------------------------------------------

    def _constraints(self) -> list[Constraint]:
        lanes, registers = self._lanes, self._target.vector_registers
        outputs = extent(self._form.outputs)
        room = _MOST_CACHES * self._target.l2_bytes

        def used(rows: Any, width: Any) -> Any:
            return (rows + 1) * (width // lanes) + 1

        return [
            Constraint(
                "registers",
                ("rows", "width"),
                lambda rows, width: used(rows, width) <= registers,
                lambda rows, width: f"{used(rows, width)} vectors; registers: {registers}",
                vectorised=True,
            ),
            Constraint(
                "panels",
                ("panel", "width"),
                lambda panel, width: (panel % width == 0) & (outputs % width == 0),
                lambda panel, width: (
                    f"{width} channels are no whole part of {panel}, or not of {outputs}"
                ),
                vectorised=True,
            ),
            Constraint(
                "rows of a piece",
                ("size", "piece_rows"),
                lambda size, rows: rows <= self._form.tiles(size)[0],
                lambda size, rows: f"{rows} rows of tiles; there are {self._form.tiles(size)[0]}",
                vectorised=True,
            ),
            Constraint(
                "blocks",
                ("size", "piece_rows", "rows"),
                self._whole,
                lambda size, piece_rows, rows: (
                    f"blocks of {rows} tiles reach beyond a piece of "
                    f"{piece_rows * self._form.tiles(size)[1]}"
                ),
                vectorised=True,
            ),
            Constraint(
                "memory",
                ("size", "piece_rows", "width"),
                lambda *values: self._bytes(*values) <= room,
                lambda *values: f"{self._bytes(*values)} bytes in a piece; allowed: {room}",
                vectorised=True,
            ),
        ]

    def _whole(self, size: Any, piece_rows: Any, rows: Any) -> Any:
        """Whether blocks need no more of the image than their piece has: behind the last piece
        there is nothing."""
        down, along = self._form.tiles(size)
        return (piece_rows * along % rows == 0) | (piece_rows >= down)

    def _bytes(self, size: Any, piece_rows: Any, width: Any) -> Any:
        """What a piece keeps: the image's part, transformed and as it is, and products."""
        values, tiles = size + WINDOW - 1, piece_rows * self._form.tiles(size)[1]
        channels = extent(self._form.channels)
        image = self._image(size, piece_rows)
        return _ELEMENT * (values * values * tiles * (channels + width) + image)

    def _image(self, size: Any, piece_rows: Any) -> Any:
        """Elements of the image that a piece reads."""
        columns = extent(self._form.columns) + size + WINDOW
        return (piece_rows * size + WINDOW - 1) * columns * extent(self._form.channels)

    def _start(self, knobs: Sequence[Knob]) -> Configuration:
        """The best by the prior."""
        names = [knob.name for knob in knobs]
        grid = np.meshgrid(
            *([knob.value(i) for i in range(knob.cardinality)] for knob in knobs), indexing="ij"
        )
        values = {n: np.asarray(one).reshape(-1) for n, one in zip(names, grid, strict=True)}
        allowed = np.ones(grid[0].size, dtype=bool)
        for rule in self._constraints():
            allowed &= np.asarray(rule.check(*(values[n] for n in rule.knobs)))
        if not allowed.any():
            raise Unfit("the rules leave no tile")
        best = int(np.argmin(np.where(allowed, self._seconds(values), np.inf)))
        return Configuration.of({n: int(values[n][best]) for n in names})

    def _prior(self, configurations: Sequence[Configuration]) -> FloatArray:
        if not configurations:
            return np.zeros(0)
        rows = [dict(one.items) for one in configurations]
        return -np.log(self._seconds({n: np.array([row[n] for row in rows]) for n in rows[0]}))

    def _seconds(self, knobs: Mapping[str, NDArray[Any]]) -> FloatArray:
        """Guessed, of one execution."""
        form, target = self._form, self._target
        size, width, panel = knobs["size"], knobs["width"], knobs["panel"]
        rows, columns = form.tiles(size)
        channels, outputs = extent(form.channels), extent(form.outputs)
        values = size + WINDOW - 1
        tiles = knobs["piece_rows"] * columns
        blocks = np.ceil(tiles / knobs["rows"]) * (panel / width)
        vectors = width / self._lanes
        sums = knobs["rows"] * vectors
        step = np.maximum(sums / _FMA_PER_CYCLE, (knobs["rows"] + vectors) / _LOADS_PER_CYCLE)
        step = np.maximum(step, _FMA_LATENCY)
        cycles = values**2 * blocks * (channels * step + _BLOCK_CYCLES)
        # The image's transformation for each piece anew, the result's once in all.
        moved = values * values * channels * _TRANSFORMED_CYCLES
        moved = tiles * (moved + values * size * panel * _RESULT_CYCLES)
        cycles += (moved + self._image(size, knobs["piece_rows"]) * _COPIED_CYCLES) / self._lanes
        filters = values**2 * channels * _ELEMENT
        cycles += filters * panel / _L2_BYTES_PER_CYCLE
        kept = self._bytes(size, knobs["piece_rows"], width)
        beyond = np.maximum(0, kept - target.l2_bytes // 2)
        cycles += beyond * panel / width / _L3_BYTES_PER_CYCLE
        pieces = np.ceil(rows / knobs["piece_rows"]) * np.ceil(outputs / panel)
        pieces = pieces * prod(extent(axis) for axis in form.others)
        waves = turns(pieces, target.cores, spread=True)
        cycles = waves * (cycles + _PIECE_CYCLES)
        # Each piece's filters come from far, unless the cache holds those of all.
        stay = filters * outputs <= target.l2_bytes / 2
        far = filters * np.where(stay, np.minimum(outputs, waves * panel), waves * panel)
        far = far / _FAR_BYTES_PER_CYCLE
        cycles = np.maximum(cycles, far) + _BESIDE * np.minimum(cycles, far)
        return np.asarray(cycles / _HERTZ)

    # -- the schedule ------------------------------------------------------------------------------

    def schedule(self, configuration: Configuration) -> SketchedKernel:
        """See :meth:`Sketch.schedule`."""
        knobs = {n: value for n, value in configuration.items if isinstance(value, int)}
        size, piece_rows, panel, rows, width = (
            knobs[name] for name in ("size", "piece_rows", "panel", "rows", "width")
        )
        made = winograd_stages(self._form, size, width)
        s = made.schedule
        products = s[s.cache_write(made.products, "local")]

        # The result: pieces of rows of tiles and of channels, in them panels, then tiles.
        output = s[made.output]
        order = zip(output.op.axis, self._form.found.order, strict=True)
        axes = {old: new for new, old in order if old is not None}
        again = self._form.found.repeated(output.op.axis)
        units = [a for a in output.op.axis if a not in {*axes.values(), *again}]
        down, row = output.split(axes[self._form.rows], size)
        along, column = output.split(axes[self._form.columns], size)
        piece, down = output.split(down, piece_rows)
        channels, within = output.split(axes[self._form.outputs], panel)
        within, vector = output.split(within, width)
        alike = [*units, *(axes[a] for a in self._form.others if a in axes)]
        output.reorder(*alike, piece, channels, within, down, along, *again, row, column, vector)
        part = in_parallel(output, alike, [piece, channels])
        for axis in (row, column):
            output.unroll(axis)
        output.vectorize(vector)

        # The image: the piece's part with its edges, transformed along columns and rows.
        image = s[made.image]
        image.compute_at(output, part)
        image.set_scope("shared")
        image.vectorize(image.op.axis[-1])
        both, one = s[made.transformed], s[made.half]
        both.compute_at(output, part)
        both.set_scope("shared")
        first, second, *rest, channel = both.op.axis
        channel, lanes = both.split(channel, self._lanes)
        both.reorder(*rest, channel, first, second, lanes)
        one.compute_at(both, channel)
        one.set_scope("local")
        for stage, (a, b), inner in ((both, (first, second), lanes), (one, one.op.axis[:2], None)):
            stage.unroll(a)
            stage.unroll(b)
            stage.vectorize(stage.op.axis[-1] if inner is None else inner)

        # The products of a panel: rows of tiles times channels in registers.
        whole = s[made.products]
        whole.compute_at(output, within)
        whole.set_scope("shared")
        *_, tile, channel = whole.op.axis
        block, tile = whole.split(tile, rows)
        whole.unroll(tile)
        whole.vectorize(channel)
        products.compute_at(whole, block)
        *points, tile, channel = products.op.axis
        (step,) = products.op.reduce_axis
        step, unrolled = products.split(step, _UNROLLED)
        form = self._form
        steps = fetched_ahead(
            products,
            made.arguments[form.position],
            whole.op.axis[1],
            step,
            count=extent(form.channels) // _UNROLLED,
            turns=-(-piece_rows * form.tiles(size)[1] // rows),
            share=(size + WINDOW - 1) ** 2 * extent(form.outputs) // width,
            cache_bytes=self._target.l2_bytes,
            work=_UNROLLED * rows * (width // self._lanes),
        )
        products.reorder(*points, *steps, unrolled, tile, channel)
        products.unroll(unrolled)
        products.unroll(tile)
        products.vectorize(channel)

        # Their sums, transformed back, tile by tile.
        back = s[made.back]
        back.compute_at(output, along)
        back.set_scope("local")
        first, second, *_, channel = back.op.axis
        back.unroll(first)
        back.unroll(second)
        back.vectorize(channel)
        return SketchedKernel(s, made.arguments, {self._form.position: made.packing})


SKETCHES: tuple[type[Sketch], ...] = (WinogradSketch,)
