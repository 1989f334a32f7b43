"""Convolutions of bytes by dot products, without a copy for each window: each piece of the result
copies the lines of the image that it reads, and tiles slide over the copy.

A line of the copy has the channels of a point beside each other, and points side by side, so that
what a window has in a line is one run of bytes, and the same run further for the next point of the
result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from tilewright.schedule.expr import Binary, Cast, Expr, cast, const, substitute
from tilewright.schedule.functions import if_then_else
from tilewright.schedule.functions import sum as summed
from tilewright.schedule.schedule import create_schedule
from tilewright.schedule.tensor import (
    ComputeOp,
    IterVar,
    Tensor,
    TensorRead,
    compute,
    reads,
    reduce_axis,
)
from tilewright.schedule.walk import transform
from tilewright.sketch.dot_tiles import ByteTilesSketch
from tilewright.sketch.interface import SiteExpression, Sketch, SketchedKernel
from tilewright.sketch.packing import Packing, split_dimensions
from tilewright.sketch.sliding import sliding_reduction, with_producers
from tilewright.sketch.small_elements import (
    DotProducts,
    SmallElement,
    copy_in_vectors,
    small_element,
)
from tilewright.sketch.structure import extent, factors, result_with
from tilewright.sketch.tile_operand import tiles_of
from tilewright.space.arrays import FloatArray
from tilewright.space.knobs import TileKnob
from tilewright.space.pipeline import Unfit, space_near
from tilewright.space.turns import turns
from tilewright.target import Target
from tilewright.trial import Configuration

_MOST_ROWS = 16
_MOST_PIECES = 64
# Sums in a vector of the smallest instructions of x86, which take bytes without a sign.
_X86_LANES = 8


class ByteWindowsSketch(Sketch):
    """Tiles of points of one line times one vector of channels; filters packed ahead.

    Knobs: `rows`, points of a tile; `lines`, of the result that a piece has, for which it copies
    those of the image; `column_pieces`, into how many pieces the channels are cut.
    """

    name = "byte-windows"
    dots: ClassVar[DotProducts] = ByteTilesSketch.dots

    def __init__(self, site: SiteExpression, target: Target) -> None:
        self._lanes, self._group = self.dots.lanes(target), self.dots.group
        if self._lanes < _X86_LANES:
            raise Unfit("the processor has no dot products of bytes without a sign")
        self._target, self._found = target, sliding_reduction(site)
        found = self._found
        if found.phases or any(dim.is_grouped for dim in found.dims) or found.filter is None:
            raise Unfit("its windows have phases, groups or no filter")
        if found.filter_input is None or len(found.outputs) != 1:
            raise Unfit("its filters are not known ahead, or have several dimensions")
        (self._column,) = found.outputs
        *lines, self._point, channels = found.dims
        self._window = [one for one in lines if one.reduced is not None]
        if self._point.data is None or self._point.dilation > 1 or len(self._window) != 1:
            raise Unfit("no windows over lines of points, one for each element of the result")
        if channels.data is not None or channels.reduced is None or channels.dilation > 1:
            raise Unfit("the channels of a point do not lie beside each other")
        self._channels = channels.reduced
        # Those of a point are filled up to whole groups, with products of 0.
        self._filled = tiles_of(extent(self._channels), self._group) * self._group
        small = self._small_image()
        self._flips = not small.unsigned
        self._zero = small.zero + 128 * self._flips
        self._order = [axis for axis in found.order if axis is not None]
        others = [a for a in self._order if a not in (self._point.data, self._column)]
        if self._order[-1:] != [self._column] or not others:
            raise Unfit("the channels are not innermost in the result, or it has one line")
        self._line = others[-1]
        if found.dim_of(self._line) is None:
            raise Unfit("lines of the result are not those of an image")
        self._lanes = self._width()
        self._packed = self._packing()
        self._choose()

    def _width(self) -> int:
        """Channels of a tile: a vector's."""
        return self._lanes

    def _heights(self) -> list[int]:
        """Points of a tile, which are parts of a line."""
        return [r for r in range(1, _MOST_ROWS + 1) if extent(self._point_axis) % r == 0]

    def _choose(self) -> None:
        lines = extent(self._line)
        tiles = tiles_of(extent(self._column), self._lanes)
        if extent(self._column) < self._lanes:
            raise Unfit("it has fewer channels than a vector has sums")
        heights = self._heights()
        if not heights:
            raise Unfit("its lines are no tiles of equal size")
        counts = [n for n in range(1, lines + 1) if lines % n == 0 and lines // n <= _MOST_PIECES]
        knobs = (
            TileKnob("rows", tuple(heights)),
            TileKnob("lines", tuple(counts)),
            TileKnob(
                "column_pieces", tuple(p for p in range(1, _MOST_PIECES + 1) if tiles % p == 0)
            ),
        )
        few = [n for n in counts if lines // n <= 4 * self._target.cores]
        start = {"rows": heights[-1], "lines": few[0], "column_pieces": 1}
        self.space = space_near(
            self.name, knobs, (), Configuration.of(start), prior_many=self._prior
        )

    @property
    def _point_axis(self) -> IterVar:
        assert self._point.data is not None
        return self._point.data

    def _prior(self, configurations: Any) -> FloatArray:
        """Loads of a step for each of its products; lines that are copied for each piece; pieces
        that are not shared out evenly."""
        values = [dict(one.items) for one in configurations]
        rows, lines, wide = (
            np.array([one[name] for one in values], dtype=np.float64)
            for name in ("rows", "lines", "column_pieces")
        )
        dim = self._found.dim_of(self._line)
        assert dim is not None
        stride, reach = dim.stride, 1 if dim.reduced is None else extent(dim.reduced)
        copied = (lines - 1) * stride + reach
        columns = tiles_of(extent(self._column), self._lanes)
        # A point's copy takes about as long as a few of its dot products.
        copying = 1 + 4 * wide * copied / lines / columns / reach / reach
        pieces, cores = extent(self._line) / lines * wide, self._target.cores
        uneven = turns(pieces, cores, spread=True) * cores / pieces
        return -np.log((1 + 1.5 / rows) * uneven * copying * (1 + pieces / 1000))

    def _small_image(self, places: Sequence[Expr] | None = None) -> SmallElement:
        """An element of the image as it goes into products, at a place of it."""
        found = self._found
        own = found.image.tensor.op
        here = tuple(places) if places is not None else found.image.indices

        def at(node: Expr) -> Expr | None:
            if not isinstance(node, TensorRead) or node.tensor is not found.image.tensor:
                return None
            if not isinstance(own, ComputeOp):
                return TensorRead(node.tensor, here)
            values: dict[Expr, Expr] = dict(zip(own.axis, here, strict=True))
            return with_producers(substitute(own.body[0], values), found.image.tensor)

        parts = factors(found.body)
        image = [p for p in parts if any(r.tensor is found.image.tensor for r in reads(p))]
        rest = [p for p in parts if all(p is not one for one in image)]
        filters = [small_element(part, "i8") for part in rest]
        plain = len(filters) == 1 and filters[0] is not None and filters[0].is_plain
        small = small_element(transform(image[0], at), "i8") if len(image) == 1 else None
        if found.op.outputs[0].dtype != "i32" or small is None or not plain:
            raise Unfit("it does not add up products of bytes in i32")
        return small

    def schedule(self, configuration: Configuration) -> SketchedKernel:
        """See :meth:`Sketch.schedule`."""
        # The intrinsics write operations of MLIR.
        from tilewright.schedule import dot_products, intrinsics

        values: dict[str, Any] = dict(configuration.items)
        found, lanes, size, height = self._found, self._lanes, self._group, values["rows"]
        position = found.filter_input
        assert position is not None
        assert found.filter is not None
        packing = self._packed
        panels, image = packing.placeholder(found.filter.tensor), self._image()
        tap = self._point.reduced
        depth = (extent(tap) if tap is not None else 1) * self._filled
        lines = self._window[0].reduced
        assert lines is not None
        window = extent(lines)
        o = reduce_axis(window, "o")
        g, e = reduce_axis(depth // size, "g"), reduce_axis(size, "e")
        step = self._point.stride * self._filled
        kept = [a for a in found.op.axis if a not in (self._column, self._point_axis)]

        def element(*axes: Expr) -> Expr:
            panel, *places, row, lane = axes
            at: dict[Expr, Expr] = dict(zip(kept, places, strict=True))
            where: list[Expr] = []
            for dim in found.dims[:-2]:
                place = at[dim.data] * dim.stride if dim.data is not None else const(0, "index")
                slides = any(dim is one for one in self._window)
                where.append(place + o * dim.dilation if slides else place)
            read = TensorRead(image, (*where, row * step + g * size + e))
            taken = dot_products.byte_value(cast("i32", read), self._zero, True)
            weight = Cast("i32", TensorRead(panels, (panel, o, g, lane, e)))
            total: Expr = summed(Binary("mul", taken, weight, "i32"), axis=[o, g, e])
            return total

        tiles = tiles_of(extent(self._column), lanes)
        shape = (tiles, *map(extent, kept), extent(self._point_axis), lanes)
        sums: Tensor = compute(shape, element, name="sums")
        output = self._output(sums, kept)
        schedule = create_schedule(output)
        for stage in schedule.stages:
            if isinstance(stage.op, ComputeOp) and not {sums, image, output} & set(
                stage.op.outputs
            ):
                stage.compute_inline()
        result = schedule[output]
        # Axes of one step stay where they are, outside.
        axes = {
            old: axis
            for old, axis in zip(found.order, result.op.axis, strict=True)
            if old is not None
        }
        piece, line = result.split(axes[self._line], values["lines"])
        point, row = result.split(axes[self._point_axis], height)
        panel, lane = result.split(axes[self._column], lanes)
        part, panel = result.split(panel, tiles // values["column_pieces"])
        mine = [axes[a] for a in (self._line, self._point_axis, self._column)]
        again = found.repeated(result.op.axis)
        rest = [axis for axis in result.op.axis if axis not in (*mine, *again)]
        result.reorder(*rest, piece, part, line, panel, point, *again, row, lane)
        for axis in (*rest, piece, part):
            result.parallel(axis)
        result.vectorize(lane)
        stage = schedule[sums]
        stage.compute_at(result, point)
        stage.set_scope("local")
        dot = getattr(intrinsics, self.dots.intrinsic)
        dot = dot(lanes, depth, height, self._zero, True, (window, step))
        stage.tensorize(stage.op.axis[-2 if height > 1 else -1], dot)
        copy = schedule[image]
        copy.compute_at(result, part)
        copy.set_scope("local")
        copy_in_vectors(copy, copy.op.axis[-1], self._filled)
        arguments = list(found.site.inputs)
        arguments[position] = panels
        return SketchedKernel(schedule, (*arguments, output), {position: packing})

    def _image(self) -> Tensor:
        """The image as bytes without a sign, a line of it in one dimension."""
        filled, channels = self._filled, extent(self._channels)
        *outer, points, _ = self._found.image.tensor.shape

        def element(*places: Expr) -> Expr:
            *lines, flat = places
            channel = flat % filled
            small = self._small_image([*lines, flat // filled, channel])
            value = small.value
            if filled > channels:
                value = if_then_else(channel < channels, value, const(0, "i8"))
            return Binary("xor", value, const(-128, "i8"), "i8") if self._flips else value

        made: Tensor = compute((*outer, points * filled), element, name="image.lines")
        return made

    def _packing(self) -> Packing:
        """Of the filters: panels of a vector's channels, for each line of a window the points and
        channels in it, in groups."""
        found, size = self._found, self._group
        assert found.filter is not None
        tiles = tiles_of(extent(self._column), self._lanes)
        lines, tap = self._window[0].reduced, self._point.reduced
        taps = [axis for axis in (lines, tap) if axis is not None]
        parts: dict[Expr, tuple[int, ...]] = {axis: (extent(axis),) for axis in taps}
        parts[self._column] = (tiles, self._lanes)
        parts[self._channels] = (self._filled // size, size)
        by_axis = split_dimensions(found.filter, parts)
        if by_axis is None:
            raise Unfit("a dimension of its filters is none of the windows'")
        first, ones = by_axis.first, by_axis.ones
        tile, group = first[self._column], first[self._channels]
        order = (*ones, tile, *(first[axis] for axis in taps), group, tile + 1, group + 1)
        joined = (len(ones) + 1, 1, len(taps), 1, 1)
        return Packing(by_axis.pad, by_axis.split, order, joined=joined)

    def _output(self, sums: Tensor, kept: Sequence[IterVar]) -> Tensor:
        """The site's output, of these sums."""
        found, lanes = self._found, self._lanes

        def element(indices: Sequence[Expr]) -> Expr:
            at = dict(zip(found.op.axis, indices, strict=True))
            column = at[self._column]
            places = (at[axis] for axis in kept)
            return TensorRead(
                sums, (column // lanes, *places, at[self._point_axis], column % lanes)
            )

        return result_with(found.site.output, found.op.outputs[0], element)


SKETCHES: tuple[type[Sketch], ...] = (ByteWindowsSketch,)
