"""3x3 convolutions by Winograd's algorithm: fewer multiplications, other rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.schedule import functions
from tilewright.schedule.expr import Expr, binary, const, is_true
from tilewright.schedule.functions import conjunction, if_then_else
from tilewright.schedule.schedule import Schedule, create_schedule
from tilewright.schedule.tensor import (
    ComputeOp,
    IterVar,
    Tensor,
    TensorRead,
    compute,
    placeholder,
    reduce_axis,
)
from tilewright.schedule.types import INDEX
from tilewright.sketch.cook_toom import SIZES, WINDOW, Matrix, short_convolution
from tilewright.sketch.interface import SiteExpression, Sketch, SketchedKernel
from tilewright.sketch.packing import Packing
from tilewright.sketch.sliding import SlidingReduction, sliding_reduction
from tilewright.sketch.structure import extent, factors, rewritten, source_read, tile_sizes
from tilewright.space.arrays import FloatArray
from tilewright.space.constraints import Constraint
from tilewright.space.knobs import Knob, TileKnob
from tilewright.space.pipeline import Unfit, space_near
from tilewright.target import Target
from tilewright.trial import Configuration

_ELEMENT = 4
# Steps of the products' loop that are written out.
_UNROLLED = 4
# What a piece of parallel work keeps at once may be as much as this many second-level caches.
_MOST_CACHES = 3

# For a guess of the time, in cycles: multiply-adds and loads in one; bytes that come from the
# second and from the third cache; an element of a transformation, whose values are in registers
# and the first cache; for a block of products, a piece of parallel work.
_FMA_PER_CYCLE, _LOADS_PER_CYCLE, _FMA_LATENCY = 2.0, 1.5, 4.5
_L2_BYTES_PER_CYCLE, _L3_BYTES_PER_CYCLE = 32.0, 12.0
_TRANSFORMED_CYCLES = 3.0
_BLOCK_CYCLES, _PIECE_CYCLES = 12.0, 1500.0
_HERTZ = 3e9


@dataclass(frozen=True)
class _Form:
    """A convolution with windows of 3x3, channels innermost in its image and its result.

    rows, columns, outputs: axes of the result. channels: the reduced axis that is not within a
    window. others: axes of the result that are neither, such as a batch. taps: the window's axes.
    """

    found: SlidingReduction
    rows: IterVar
    columns: IterVar
    outputs: IterVar
    channels: IterVar
    others: tuple[IterVar, ...]
    taps: tuple[IterVar, IterVar]
    filter: TensorRead
    position: int

    @staticmethod
    def of(site: SiteExpression, lanes: int) -> _Form:
        """Takes a site apart; raises Unfit."""
        found = sliding_reduction(site)
        position = found.filter_input
        if found.filter is None or position is None:
            raise Unfit("its filter is not known ahead")
        operands = [source_read(one) for one in factors(found.body)]
        tensors = {read.tensor for read in operands if read is not None}
        if len(operands) != 2 or tensors != {found.image.tensor, found.filter.tensor}:
            raise Unfit("it is no sum of products of the image and the filter")
        if {found.image.dtype, found.filter.dtype, found.body.dtype} != {"f32"}:
            raise Unfit("it is not in f32")
        slides = [dim for dim in found.dims if dim.slides]
        if len(slides) != 2 or any(
            (dim.stride, dim.dilation) != (1, 1)
            or dim.reduced is None
            or extent(dim.reduced) != WINDOW
            for dim in slides
        ):
            raise Unfit("its windows are not 3x3 side by side")
        rows, columns = found.slides
        taps = [d.reduced for a in (rows, columns) for d in slides if d.data is a]
        channels = [a for a in found.op.reduce_axis if a not in set(taps)]
        innermost = found.dims[-1]
        if len(channels) != 1 or innermost.reduced is not channels[0] or innermost.data is not None:
            raise Unfit("its channels are not the image's innermost dimension")
        if len(found.outputs) != 1 or found.order[-1] is not found.outputs[0]:
            raise Unfit("its output channels are not the result's innermost dimension")
        (outputs,) = found.outputs
        if extent(channels[0]) % lanes or extent(outputs) % lanes:
            raise Unfit(f"its channels are no whole vectors of {lanes}")
        others = tuple(a for a in found.op.axis if a not in {rows, columns, outputs})
        if set(found.filter.indices) != {outputs, channels[0], *taps}:
            raise Unfit("its filter is not the same everywhere")
        if not is_true(found.body.condition):
            raise Unfit("some of its products are left out")
        first, second = taps
        assert first is not None
        assert second is not None
        return _Form(
            found,
            rows,
            columns,
            outputs,
            channels[0],
            others,
            (first, second),
            found.filter,
            position,
        )

    def tiles(self, size: Any) -> tuple[Any, Any]:
        """Tiles of `size` rows and columns that the result has."""
        return -(-extent(self.rows) // size), -(-extent(self.columns) // size)


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
        self._form = form = _Form.of(site, lanes)
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
        image = (piece_rows * size + WINDOW - 1) * (extent(self._form.columns) + size + WINDOW)
        return _ELEMENT * (values * values * tiles * (channels + width) + image * channels)

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
        moved = values * values * channels + values * size * panel
        cycles += tiles * moved / self._lanes * _TRANSFORMED_CYCLES
        # Filters come from the third cache where all of them are more than the second holds.
        filters = values**2 * channels * panel * _ELEMENT
        rate = np.where(filters <= target.l2_bytes, _L2_BYTES_PER_CYCLE, _L3_BYTES_PER_CYCLE)
        cycles += filters / rate
        kept = self._bytes(size, knobs["piece_rows"], width)
        beyond = np.maximum(0, kept - target.l2_bytes // 2)
        cycles += beyond * panel / width / _L3_BYTES_PER_CYCLE
        pieces = np.ceil(rows / knobs["piece_rows"]) * np.ceil(outputs / panel)
        pieces = pieces * prod(extent(axis) for axis in form.others)
        waves = np.ceil(pieces / target.cores)
        return np.asarray(waves * (cycles + _PIECE_CYCLES) / _HERTZ)

    # -- the schedule ------------------------------------------------------------------------------

    def schedule(self, configuration: Configuration) -> SketchedKernel:
        """See :meth:`Sketch.schedule`."""
        knobs = {n: value for n, value in configuration.items if isinstance(value, int)}
        size, piece_rows, panel, rows, width = (
            knobs[name] for name in ("size", "piece_rows", "panel", "rows", "width")
        )
        made = _written_anew(self._form, size, width)
        s = made.schedule
        products = s[s.cache_write(made.products, "local")]

        # The result: pieces of rows of tiles and of channels, in them panels, then tiles.
        output = s[made.output]
        order = zip(output.op.axis, self._form.found.order, strict=True)
        axes = {old: new for new, old in order if old is not None}
        units = [a for a in output.op.axis if a not in set(axes.values())]
        down, row = output.split(axes[self._form.rows], size)
        along, column = output.split(axes[self._form.columns], size)
        piece, down = output.split(down, piece_rows)
        channels, within = output.split(axes[self._form.outputs], panel)
        within, vector = output.split(within, width)
        others = (axes[a] for a in self._form.others if a in axes)
        pieces = [*units, *others, piece, channels]
        output.reorder(*pieces, within, down, along, row, column, vector)
        part = output.fuse(*pieces)
        output.parallel(part)
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
        products.reorder(*points, step, unrolled, tile, channel)
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


@dataclass(frozen=True)
class _Rewritten:
    """The convolution written anew.

    image: with its edges, as far as tiles reach. half, transformed: tiles of it, transformed along
    rows, then along columns. products: sums over channels. back: these, transformed along rows.
    """

    schedule: Schedule
    image: Tensor
    half: Tensor
    transformed: Tensor
    products: Tensor
    back: Tensor
    output: Tensor
    arguments: tuple[Tensor, ...]
    packing: Packing


def _written_anew(form: _Form, size: int, width: int) -> _Rewritten:
    matrices = short_convolution(size)
    found, values = form.found, size + WINDOW - 1
    down, along = form.tiles(size)
    batch = tuple(extent(axis) for axis in form.others)
    channels, outputs = extent(form.channels), extent(form.outputs)
    rank = len(batch)
    source = found.image.tensor

    def element(*at: Expr) -> Expr:
        given: dict[IterVar | None, Expr] = dict(zip(form.others, at, strict=False))
        given |= {form.rows: at[rank], form.columns: at[rank + 1]}
        place, tests = [], []
        for dim, length in zip(found.dims, source.shape, strict=True):
            if dim.data is None:
                place.append(at[-1] if dim.reduced is form.channels else const(0, INDEX))
                continue
            place.append(given[dim.data])
            if dim.slides:
                tests.append(given[dim.data] < length)
        read = TensorRead(source, tuple(place))
        return if_then_else(conjunction(tests), read, const(0.0, "f32"))

    reach = (down * size + WINDOW - 1, along * size + WINDOW - 1)
    image = compute((*batch, *reach, channels), element, name="piece")

    def half_of(first: Expr, second: Expr, *at: Expr) -> Expr:
        *others, row, column, channel = at

        def value(number: int) -> Expr:
            place = (*others, row * size + number, column * size + second, channel)
            return TensorRead(image, place)

        return _combined(matrices.image, first, value)

    half = compute((values, values, *batch, down, along, channels), half_of, name="half")

    def both_of(first: Expr, second: Expr, *at: Expr) -> Expr:
        *others, tile, channel = at
        row, column = binary("floordiv", tile, along), binary("floormod", tile, along)

        def value(number: int) -> Expr:
            place = (first, const(number, INDEX), *others, row, column, channel)
            return TensorRead(half, place)

        return _combined(matrices.image, second, value)

    shape = (values, values, *batch, down * along)
    transformed = compute((*shape, channels), both_of, name="transformed")

    packing, places = _packing(form, matrices.filter, width)
    packed = placeholder(packing.shape, "f32", name=form.filter.tensor.name)
    step = reduce_axis(channels, "channel")

    def product(first: Expr, second: Expr, *at: Expr) -> Expr:
        *others, tile, channel = at
        weight = packed(*places(first, second, step, channel))
        summand = transformed(first, second, *others, tile, step) * weight
        total: Expr = functions.sum(summand, axis=step)
        return total

    products = compute((*shape, outputs), product, name="products")

    def back_of(first: Expr, second: Expr, *at: Expr) -> Expr:
        return _combined(
            matrices.result, first, lambda number: products(const(number, INDEX), second, *at)
        )

    back = compute((size, values, *batch, down * along, outputs), back_of, name="back")

    def sum_at(indices: Sequence[Expr]) -> Expr:
        at = dict(zip(found.op.axis, indices, strict=True))
        row, column = at[form.rows], at[form.columns]
        tile = binary("floordiv", row, size) * along + binary("floordiv", column, size)
        others = [at[axis] for axis in form.others]
        inside = binary("floormod", row, size)
        return _combined(
            matrices.result,
            binary("floormod", column, size),
            lambda number: back(inside, const(number, INDEX), *others, tile, at[form.outputs]),
        )

    old = found.op.outputs[0]
    if found.site.output is old:
        output = compute(old.shape, lambda *axes: sum_at(axes), name=old.name)
    else:
        output = rewritten(found.site.output, {old: sum_at})
    arguments = list(found.site.inputs)
    arguments[form.position] = packed
    schedule = create_schedule(output.op)
    kept = {image.op, half.op, transformed.op, products.op, back.op, output.op}
    for stage in schedule.stages:
        if isinstance(stage.op, ComputeOp) and stage.op not in kept:
            stage.compute_inline()
    return _Rewritten(
        schedule,
        image,
        half,
        transformed,
        products,
        back,
        output,
        (*arguments, output),
        packing,
    )


def _combined(matrix: Matrix, which: Expr, value: Callable[[int], Expr]) -> Expr:
    """A row of the matrix times values: which one is known once the loop over it is unrolled."""

    def total(row: Sequence[float]) -> Expr:
        terms = [
            value(number) if factor == 1 else value(number) * const(factor, "f32")
            for number, factor in enumerate(row)
            if factor
        ]
        return sum(terms[1:], start=terms[0])

    found = total(matrix[-1])
    for number in reversed(range(len(matrix) - 1)):
        here = binary("eq", which, const(number, INDEX))
        found = if_then_else(here, total(matrix[number]), found)
    return found


def _packing(
    form: _Form, matrix: Matrix, width: int
) -> tuple[Packing, Callable[[Expr, Expr, Expr, Expr], tuple[Expr, ...]]]:
    """The filter, transformed, in panels of channels; and where an element of it then is."""
    values = len(matrix)
    split: list[tuple[int, ...]] = []
    place: dict[str, int] = {}
    for axis in form.filter.indices:
        number = sum(map(len, split))
        if axis is form.outputs:
            split.append((extent(form.outputs) // width, width))
            place |= {"panel": number, "vector": number + 1}
        elif axis is form.channels:
            split.append((extent(form.channels),))
            place["channel"] = number
        else:
            split.append((values,))
            place["first" if axis is form.taps[0] else "second"] = number
    names = ("panel", "first", "second", "channel", "vector")
    taps = set(form.taps)
    transformed = tuple(matrix if axis in taps else None for axis in form.filter.indices)
    order = tuple(place[name] for name in names)
    packing = Packing((0,) * len(split), tuple(split), order, transformed)

    def places(first: Expr, second: Expr, channel: Expr, output: Expr) -> tuple[Expr, ...]:
        panel, vector = binary("floordiv", output, width), binary("floormod", output, width)
        return (panel, first, second, channel, vector)

    return packing, places


SKETCHES: tuple[type[Sketch], ...] = (WinogradSketch,)
