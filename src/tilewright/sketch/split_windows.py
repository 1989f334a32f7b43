"""Convolutions of floats by a matrix unit that multiplies bf16 (AMX of x86), without a copy for
each window: each piece of the result splits the lines of the image that it reads
(`schedule.splitting`), and tiles slide over what they are split into.

The padded points of those lines lie behind each other, the channels of a group beside each other,
so that what a tap multiplies is a run of rows, and the same run further on for the next tap. Sums
are of padded points, too: those at the edge of a line are computed and not read. Windows with a
stride find the points of each rest by it behind each other.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from tilewright.schedule.expr import Expr, binary, cast, const, index, substitute
from tilewright.schedule.functions import if_then_else
from tilewright.schedule.functions import sum as summed
from tilewright.schedule.matrix_shapes import ROWS, SUMS
from tilewright.schedule.schedule import create_schedule
from tilewright.schedule.splitting import GROUP, PAIR, Taps, part_of, products
from tilewright.schedule.tensor import (
    ComputeOp,
    IterVar,
    Tensor,
    TensorRead,
    compute,
    reads,
    reduce_axis,
)
from tilewright.schedule.types import bits
from tilewright.schedule.walk import transform
from tilewright.sketch.interface import SiteExpression, Sketch, SketchedKernel
from tilewright.sketch.packing import Packing, split_dimensions
from tilewright.sketch.sliding import sliding_reduction
from tilewright.sketch.split_work import (
    MOST_FILLED,
    MOST_PIECES,
    SplitWork,
    best_of,
    check_growth,
    column_knobs,
    heights_of,
    number_of,
    place_copy,
    read_of,
    split_panels,
    tile_rules,
    unit_of,
    widths_of,
)
from tilewright.sketch.structure import axes_of, extent, factors, result_with, summed_in
from tilewright.sketch.tile_operand import BY_BLOCK, FIRST, tiles_of
from tilewright.space.arrays import FloatArray
from tilewright.space.knobs import ChoiceKnob, TileKnob
from tilewright.space.pipeline import Unfit, space_near
from tilewright.target import Target
from tilewright.trial import Configuration


class Bf16x6WindowsSketch(Sketch):
    """Tiles of up to 32x32 sums, of points of several lines and of channels; filters are split and
    packed, ahead where they are constant.

    Knobs: `rows` and `columns` of a tile; `lines`, of the result that a piece has, for which it
    splits those of the image; `column_pieces`, into how many pieces the channels are cut; `groups`,
    of 32 channels of the image, that a tile is computed over at once; `panels`, when filters are
    split that are not constant: `first`, or each piece its own.
    """

    name = "bf16x6-windows"
    parts: ClassVar[int] = 3
    #: Of the image and the filters.
    dtype: ClassVar[str] = "f32"
    #: Whether the products of all parts are added up, not of the larger ones.
    every: ClassVar[bool] = False

    def __init__(self, site: SiteExpression, target: Target) -> None:
        unit_of(target)
        self._target, self._found = target, sliding_reduction(site)
        found = self._found
        if found.phases or any(dim.is_grouped for dim in found.dims) or found.filter is None:
            raise Unfit("its windows have phases, groups or no filter")
        if len(found.outputs) != 1:
            raise Unfit("its filters have several dimensions")
        self._ahead = found.filter_input is not None
        (self._column,) = found.outputs
        if found.order[-1] is not self._column or extent(self._column) < SUMS:
            raise Unfit(f"its channels are not innermost in the result, or fewer than {SUMS}")
        self._points = [dim for dim in found.dims if _size(dim.data) > 1]
        channels = [dim for dim in found.dims if dim.data is None and _size(dim.reduced) > 1]
        self._channels = [dim.reduced for dim in channels if dim.reduced is not None]
        self._window = [
            dim.reduced
            for dim in self._points
            if dim.reduced is not None and _size(dim.reduced) > 1
        ]
        summed_up = [axis for axis in found.op.reduce_axis if extent(axis) > 1]
        known = len(self._channels) + len(self._window)
        if not self._points or not self._channels or known < len(summed_up):
            raise Unfit("it has no channels, or a single point along its windows")
        if any(dim.dilation > 1 for dim in channels):
            raise Unfit("the channels of a point do not lie beside each other")
        self._check_products()
        self._inner = extent(self._channels[-1])
        self._filled = tiles_of(self._inner, GROUP) * GROUP
        if self._filled > MOST_FILLED * self._inner:
            raise Unfit(f"a point has {self._inner} channels")
        outer = self._channels[:-1]
        self._groups = prod(map(extent, outer)) * self._filled // GROUP
        widths = widths_of(extent(self._column))
        if self._ahead:
            check_growth(self._packing(SUMS), found.filter.dtype)
        else:
            widths = tuple(n for n in widths if extent(self._column) % n == 0)
            beside = found.filter.indices[-1] is self._column and found.filter.dtype == self.dtype
            if not widths or not beside or self._filled > self._inner:
                raise Unfit("its filters are neither constant nor whole vectors of memory")
        self._choose(widths)

    def _choose(self, widths: tuple[int, ...]) -> None:
        """The space of knobs, with so many columns of a tile."""
        all_lines = _size(self._points[0].data)
        counts = [
            n
            for n in range(1, all_lines + 1)
            if all_lines % n == 0 and all_lines // n <= MOST_PIECES
        ]
        # What a piece keeps of the image fits the second cache, as far as lines can be cut.
        fit = [n for n in counts if self._image_bytes(n) <= self._target.l2_bytes]
        counts = fit or counts[:1]
        few = [n for n in counts if all_lines // n <= self._target.cores] or counts[-1:]
        columns = extent(self._column)
        knobs = (
            TileKnob("rows", heights_of([self._taps(n, 1)[1] for n in few])),
            *column_knobs(columns, widths, self._groups),
            TileKnob("lines", tuple(counts)),
            *(() if self._ahead else (ChoiceKnob("panels", (FIRST, BY_BLOCK)),)),
        )
        rules = tile_rules(columns)
        start = best_of(knobs, rules, self._prior, self._target)
        self.space = space_near(self.name, knobs, rules, start, prior_many=self._prior)

    def _check_products(self) -> None:
        """Raises Unfit for what adds up anything but products of the image and the filters."""
        found = self._found
        own = [p for p in factors(found.body) if any(r is found.image for r in reads(p))]
        rest = [p for p in factors(found.body) if all(p is not one for one in own)]
        plain = len(own) == 1 and len(rest) == 1 and summed_in(found.op.outputs[0].dtype) == "f32"
        if not plain or read_of(rest[0], self.dtype) is not found.filter:
            raise Unfit(f"it does not add up products of two numbers of {self.dtype}")
        self._factor = own[0]
        none = const(0, found.image.dtype)
        here = transform(own[0], lambda e: none if e is found.image else None)
        axes = (*found.op.axis, *found.op.reduce_axis)
        single = number_of(own[0], self.dtype) is not None and found.image.dtype == self.dtype
        if axes_of(here, axes) or not single:
            raise Unfit("what is multiplied is no function of one number of the image")

    def _taps(self, lines: int, rows: int) -> tuple[list[Taps], int, int]:
        """How the taps of each dimension of points read a piece of so many lines; tiles of a
        piece; rows of each phase."""
        sizes = [lines, *(_size(dim.data) for dim in self._points[1:])]
        counts = [_size(dim.reduced) for dim in self._points]
        plain = [
            Taps(count, dim.dilation, dim.stride)
            for count, dim in zip(counts, self._points, strict=True)
        ]
        steps = [1]
        for size, one in reversed(list(zip(sizes[1:], plain[1:], strict=True))):
            steps.insert(0, steps[0] * (size + one.reach))
        last = sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
        tiles = last // rows + 1
        reach = sum(one.reach * step for one, step in zip(plain, steps, strict=True))
        each = tiles_of(tiles * rows + reach, steps[0]) * steps[0]
        made, phase = list[Taps](), each
        for one, step in reversed(list(zip(plain, steps, strict=True))):
            made.insert(0, Taps(one.count, one.dilation, one.stride, step, phase))
            phase *= one.phases
        return made, tiles, each

    def _shapes(self, pieces: set[tuple[float, float]]) -> tuple[dict[Any, int], dict[Any, int]]:
        """By lines of a piece and rows of a tile: tiles of a piece, bytes of its image."""
        tiles = {(n, rows): self._taps(int(n), int(rows))[1] for n, rows in pieces}
        return tiles, {(n, rows): self._image_bytes(int(n)) for n, rows in pieces}

    def _image_bytes(self, lines: int) -> int:
        taps, _, each = self._taps(lines, ROWS)
        phases = prod(one.phases for one in taps)
        return phases * each * self._groups * GROUP * 2 * self.parts

    def _prior(self, configurations: Any) -> FloatArray:
        """See `SplitWork`."""
        values = [dict(one.items) for one in configurations]
        height, width, lines, wide, groups = (
            np.array([one[name] for one in values], dtype=np.float64)
            for name in ("rows", "columns", "lines", "column_pieces", "groups")
        )
        down, image = (
            np.array([of[key] for key in zip(lines, height, strict=True)], dtype=np.float64)
            for of in self._shapes({*zip(lines, height, strict=True)})
        )
        window = prod(map(extent, self._window))
        across = np.ceil(extent(self._column) / width) / wide
        by_block = np.array([one.get("panels") == BY_BLOCK for one in values])
        first = ~by_block & (not self._ahead)
        filters = across * width * self._groups * window * GROUP
        work = SplitWork(
            products(self.parts, self.every),
            height,
            width,
            down,
            across,
            self._groups,
            groups,
            filters * np.where(by_block, bits(self.dtype) // 8, 2 * self.parts)
            + np.where(image > self._target.l2_bytes, image * (across - 1), 0),
            image / 2 / self.parts + by_block * filters,
            _size(self._points[0].data) / lines * wide,
            again=window,
            first=first * extent(self._column) * self._groups * window * GROUP,
            begins=first,
        )
        return -np.log(work.cycles(self._target))

    def schedule(self, configuration: Configuration) -> SketchedKernel:
        """See :meth:`Sketch.schedule`."""
        # The intrinsics write operations of MLIR.
        from tilewright.schedule import intrinsics

        values: dict[str, Any] = dict(configuration.items)
        found, height, lanes = self._found, values["rows"], values["columns"]
        panels = tiles_of(extent(self._column), lanes)
        taps, tiles, each = self._taps(values["lines"], height)
        window = [one for one in taps if one.count > 1]
        arguments, packings = list(found.site.inputs), {}
        if (position := found.filter_input) is not None:
            packings[position] = self._packing(lanes)
            right = arguments[position] = packings[position].placeholder(arguments[position])
        else:
            right = self._panels(lanes)
        pieces = _size(self._points[0].data) // values["lines"]
        points = self._flat_image(values["lines"], taps, each, pieces)
        left = _split(points, self._groups, self.parts)
        over = [reduce_axis(one.count, f"w{i}") for i, one in enumerate(window)]
        g, q, e = (
            reduce_axis(size, name)
            for size, name in ((self._groups, "g"), (GROUP // PAIR, "q"), (PAIR, "e"))
        )
        s, t = reduce_axis(self.parts, "s"), reduce_axis(self.parts, "t")

        def element(piece: Expr, panel: Expr, tile: Expr, row: Expr, lane: Expr) -> Expr:
            place = tile * height + row
            for one, tap in zip(window, over, strict=True):
                place = place + one.offset(tap)
            a = TensorRead(left, (piece, g, s, place, q * PAIR + e)).astype("f32")
            b = TensorRead(right, (panel, g, *over, t, lane // SUMS, q, lane % SUMS, e)).astype(
                "f32"
            )
            total: Expr = summed(a * b, axis=[g, *over, q, e, s, t])
            return total

        sums: Tensor = compute((pieces, panels, tiles, height, lanes), element, name="sums")
        output = self._output(sums, values["lines"], taps)
        schedule = create_schedule(output)
        kept = {sums, left, points, right, output}
        for stage in schedule.stages:
            if isinstance(stage.op, ComputeOp) and not kept & set(stage.op.outputs):
                stage.compute_inline()
        result = schedule[output]
        # Axes of one step stay where they are, outside.
        axes = {
            old: axis
            for old, axis in zip(found.order, result.op.axis, strict=True)
            if old is not None
        }
        mine = [axes[dim.data] for dim in self._points if dim.data is not None]
        piece, line = result.split(mine[0], values["lines"])
        panel, lane = result.split(axes[self._column], lanes)
        part, panel = result.split(panel, panels // values["column_pieces"])
        again = found.repeated(result.op.axis)
        rest = [a for a in result.op.axis if a not in (*mine, *again, axes[self._column])]
        result.reorder(*rest, piece, part, panel, *again, line, *mine[1:], lane)
        for axis in (*rest, piece, part):
            result.parallel(axis)
        result.vectorize(lane)
        stage = schedule[sums]
        stage.set_scope("local")
        stage.compute_at(result, panel)
        own_piece, across, down, row, lane = stage.op.axis
        whole_depth, *others = stage.op.reduce_axis
        outer, inner = stage.split(whole_depth, values["groups"])
        stage.reorder(outer, own_piece, across, down, row, lane, inner, *others)
        dot = intrinsics.split_matrix(
            lanes, values["groups"], height, self.parts, window, every=self.every
        )
        stage.tensorize(row, dot)
        self._place_image(schedule, left, points, (result, part), taps[0].step)
        if isinstance(right.op, ComputeOp):
            copy = schedule[right]
            across = split_panels(copy, lanes, self.parts, self.dtype)
            place_copy(copy, across, None if values["panels"] == FIRST else (result, panel))
        return SketchedKernel(schedule, (*arguments, output), packings)

    def _place_image(
        self, schedule: Any, left: Tensor, points: Tensor, at: tuple[Any, IterVar], step: int
    ) -> None:
        """Each piece splits the image line by line."""
        from tilewright.schedule import intrinsics

        split = schedule[left]
        split.set_scope("local")
        split.compute_at(*at)
        piece, group, part, row, lane = split.op.axis
        line, row = split.split(row, step)
        split.reorder(piece, line, row, group, part, lane)
        split.tensorize(part, intrinsics.split_rows(GROUP, self.parts))
        copy = schedule[points]
        copy.set_scope("local")
        copy.compute_at(split, line)
        copy.vectorize(copy.split(copy.op.axis[-1], SUMS)[1])

    def _flat_image(self, lines: int, taps: Sequence[Taps], each: int, pieces: int) -> Tensor:
        """The padded points of the lines that each piece reads, by phases, with their channels,
        filled up to whole groups."""
        found = self._found
        phases = prod(one.phases for one in taps)
        shape = (pieces, phases * each, self._groups * GROUP)
        sizes = found.image.tensor.shape
        extents = {dim.data: size for dim, size in zip(found.dims, sizes, strict=True)}

        def element(piece: Expr, row: Expr, channel: Expr) -> Expr:
            at: dict[IterVar | None, Expr] = {}
            outer = 1
            for number, (dim, one) in enumerate(zip(self._points, taps, strict=True)):
                place = row % each // one.step
                place = place % (outer // one.step) if number else piece * lines + place
                outer = one.step
                phase = row // one.phase % one.phases if one.phases > 1 else index(0)
                last = index(extents[dim.data] - 1)
                at[dim.data] = binary("min", place * one.stride + phase, last)
            left, step = channel // self._filled, channel % self._filled
            for axis in reversed(self._channels[:-1]):
                at[axis], left = left % extent(axis), left // extent(axis)
            at[self._channels[-1]] = step
            where = tuple(
                at.get(dim.data if _size(dim.data) > 1 else dim.reduced, index(0))
                for dim in found.dims
            )
            read = TensorRead(found.image.tensor, where)
            value = transform(self._factor, lambda e: read if e is found.image else None)
            value = cast("f32", value)
            if self._filled > self._inner:
                value = if_then_else(step < self._inner, value, const(0, "f32"))
            return value

        made: Tensor = compute(shape, element, name="points")
        return made

    def _panels(self, lanes: int) -> Tensor:
        """Parts of filters that are not constant, in the order of `_packing`."""
        found = self._found
        assert found.filter is not None
        own = found.filter
        plain: dict[Expr, Expr] = {axis: index(0) for axis in found.op.reduce_axis}

        def part(panel: Expr, group: Expr, *axes: Expr) -> Expr:
            *taps, number, vector, pair, lane, one = axes
            at = plain | dict(zip(self._window, taps, strict=True))
            at[self._column] = panel * lanes + vector * SUMS + lane
            left = group * GROUP + pair * PAIR + one
            for axis in reversed(self._channels):
                at[axis], left = left % extent(axis), left // extent(axis)
            return part_of(cast("f32", substitute(own, at)), self.parts, number)

        panels, window = extent(self._column) // lanes, map(extent, self._window)
        vectors = lanes // SUMS, GROUP // PAIR, SUMS, PAIR
        shape = (panels, self._groups, *window, self.parts, *vectors)
        made: Tensor = compute(shape, part, name="filter.panels")
        return made

    def _packing(self, lanes: int) -> Packing:
        """Of the filters: panels of channels, for each group of those of the image the window's
        points, their parts, and pairs of channels beside each other."""
        found = self._found
        assert found.filter is not None
        *outer, inner = self._channels
        parts: dict[Expr, tuple[int, ...]] = {a: (extent(a),) for a in (*outer, *self._window)}
        parts[self._column] = (tiles_of(extent(self._column), lanes), lanes // SUMS, SUMS)
        parts[inner] = (self._filled // GROUP, GROUP // PAIR, PAIR)
        by_axis = split_dimensions(found.filter, parts)
        if by_axis is None:
            raise Unfit("a dimension of its filters is none of the windows'")
        first, ones = by_axis.first, by_axis.ones
        column = first[self._column]
        taps = [first[axis] for axis in self._window]
        order = [first[axis] for axis in (self._column, *outer, inner)]
        return Packing(
            by_axis.pad,
            by_axis.split,
            (*ones, *order, *taps, column + 1, first[inner] + 1, column + 2, first[inner] + 2),
            joined=(len(ones) + 1, len(outer) + 1, *(1 for _ in taps), 1, 1, 1, 1),
            terms=(self.parts, 2 + len(taps)),
        )

    def _output(self, sums: Tensor, lines: int, taps: Sequence[Taps]) -> Tensor:
        """The site's output, of these sums."""
        found = self._found
        height, lanes = sums.shape[-2:]

        def element(indices: Sequence[Expr]) -> Expr:
            at = dict(zip(found.op.axis, indices, strict=True))
            column = at[self._column]
            row: Expr = index(0)
            first, *rest = (at[dim.data] for dim in self._points if dim.data is not None)
            for place, one in zip((first % lines, *rest), taps, strict=True):
                row = row + place * one.step
            where = first // lines, column // lanes, row // height, row % height, column % lanes
            return cast(found.op.outputs[0].dtype, TensorRead(sums, where))

        return result_with(found.site.output, found.op.outputs[0], element)


def _size(axis: IterVar | None) -> int:
    return 1 if axis is None else extent(axis)


def _split(points: Tensor, groups: int, parts: int) -> Tensor:
    """Numbers of points, split, those of a group of channels beside each other."""
    pieces, rows, _ = points.shape

    def part(piece: Expr, group: Expr, number: Expr, row: Expr, step: Expr) -> Expr:
        read = TensorRead(points, (piece, row, group * GROUP + step))
        return part_of(read, parts, number)

    made: Tensor = compute((pieces, groups, parts, rows, GROUP), part, name="image.parts")
    return made


class Bf16x3WindowsSketch(Bf16x6WindowsSketch):
    """Three products of two parts each."""

    name = "bf16x3-windows"
    is_exact = False
    parts = 2


class F16MatrixWindowsSketch(Bf16x6WindowsSketch):
    """Of f16, whose numbers are the sums of two parts: four products."""

    name = "f16-matrix-windows"
    parts, dtype, every = 2, "f16", True


class Bf16MatrixWindowsSketch(Bf16x6WindowsSketch):
    """Of bf16, of which numbers are the only part."""

    name = "bf16-matrix-windows"
    parts, dtype = 1, "bf16"


_SKETCHES = (
    Bf16x6WindowsSketch,
    Bf16x3WindowsSketch,
    F16MatrixWindowsSketch,
    Bf16MatrixWindowsSketch,
)
# Their kernels ask the system for the unit as Linux wants to be asked.
SKETCHES: tuple[type[Sketch], ...] = _SKETCHES if sys.platform == "linux" else ()
