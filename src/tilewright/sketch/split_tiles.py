"""Contractions of f32, and of f16, by a matrix unit that multiplies bf16 (AMX of x86): numbers are
split into parts of bf16, of which the products that matter are added up (`schedule.splitting`).

With three parts six products count, which is at least as exact as products of f32 in the order of
a sum; with two parts three, with errors of a 2^-16th of a product. Numbers of f16 are the sums of
two parts, whose four products are exact.
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar

import numpy as np

from tilewright.schedule.expr import Cast, Expr, binary, cast, const, index
from tilewright.schedule.functions import if_then_else
from tilewright.schedule.functions import sum as summed
from tilewright.schedule.matrix_shapes import ROWS, SUMS
from tilewright.schedule.schedule import create_schedule
from tilewright.schedule.splitting import GROUP, PAIR, part_of, products
from tilewright.schedule.tensor import ComputeOp, Tensor, TensorRead, compute, reduce_axis
from tilewright.schedule.types import bits
from tilewright.sketch.contraction import MatrixOperand, contraction_of, sizes_of
from tilewright.sketch.interface import SiteExpression, Sketch, SketchedKernel
from tilewright.sketch.packing import Packing, split_dimensions
from tilewright.sketch.result_tiles import cut_in_tiles, result_of
from tilewright.sketch.split_work import (
    KEPT,
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
from tilewright.sketch.structure import extent, summed_in
from tilewright.sketch.tile_operand import BY_BLOCK, FIRST, pieces_of, tiles_of
from tilewright.space.arrays import FloatArray
from tilewright.space.constraints import Constraint
from tilewright.space.knobs import ChoiceKnob, TileKnob
from tilewright.space.pipeline import Unfit, space_near
from tilewright.target import Target
from tilewright.trial import Configuration

# Rows, columns and steps of the depth from which on the unit is worth its way.
_LEAST = 16
# What is left of the time of a byte from beyond the second cache where it is fetched ahead.
_STREAMED = 0.2


class Bf16x6TilesSketch(Sketch):
    """Tiles of up to 32x32 sums. Columns are split and packed ahead where they are constant; else
    they are split and copied, as rows are.

    Knobs: `rows` and `columns` of a tile; `row_pieces`, `column_pieces`, into how many blocks the
    result is cut; `groups`, of 32 steps of the depth, that a tile is computed over at once: where
    that is not the whole depth, a block's sums are added to from piece to piece of it; `copy`, when
    rows are split: `first`, or each block its own; `panels`, the same of columns that are not
    constant.
    """

    name = "bf16x6-tiles"
    parts: ClassVar[int] = 3
    #: Of rows and columns.
    dtype: ClassVar[str] = "f32"
    #: Whether the products of all parts are added up, not of the larger ones.
    every: ClassVar[bool] = False

    def __init__(self, site: SiteExpression, target: Target) -> None:
        unit_of(target)
        self._form = form = contraction_of(site)
        self._target = target
        rows, columns, depth = form.sizes
        numbers = [number_of(one.factor, self.dtype) for one in (form.left, form.right)]
        if summed_in(form.main.output.dtype) != "f32" or any(one is None for one in numbers):
            raise Unfit(f"it does not add up products of {self.dtype}")
        narrow = {one.value.dtype if isinstance(one, Cast) else "" for one in numbers}
        if narrow in ({"f16"}, {"bf16"}):
            raise Unfit(f"its numbers are converted from {narrow.pop()}, which has fewer parts")
        if form.batch or not form.depth or min(rows, columns, depth) < _LEAST:
            raise Unfit(f"it has batches, or fewer than {_LEAST} rows, columns or steps")
        if not form.left.contiguous[1]:
            raise Unfit("the steps of a row do not lie beside each other")
        self._inner = extent(form.depth[-1])
        self._filled = tiles_of(self._inner, GROUP) * GROUP
        if self._filled > MOST_FILLED * self._inner:
            raise Unfit(f"the innermost of its depth has {self._inner} steps")
        self._groups = sizes_of(form.depth[:-1]) * self._filled // GROUP
        packing = self._packing(SUMS)
        self._ahead = packing is not None
        if packing is not None:
            assert form.right.position is not None
            check_growth(packing, site.inputs[form.right.position].dtype)
        widths = widths_of(columns)
        if not self._ahead:
            widths = tuple(n for n in widths if columns % n == 0)
        beside = self._is_read(form.right) and form.right.contiguous[0]
        if not widths or not (self._ahead or beside):
            raise Unfit("its columns are neither constant nor whole vectors of memory")
        most = tiles_of(rows, ROWS)
        pieces = range(1, min(most, MOST_PIECES) + 1)
        knobs: tuple[TileKnob | ChoiceKnob, ...] = (
            TileKnob("rows", heights_of([rows])),
            *column_knobs(columns, widths, self._groups),
            TileKnob("row_pieces", tuple(pieces)),
            ChoiceKnob("copy", (BY_BLOCK, FIRST)),
            *(() if self._ahead else (ChoiceKnob("panels", (FIRST, BY_BLOCK)),)),
        )
        rules = (
            *tile_rules(columns),
            Constraint(
                "row_pieces of tiles",
                ("row_pieces", "rows"),
                lambda p, r: pieces_of(tiles_of(rows, r), p) == p,
                lambda p, r: f"{tiles_of(rows, r)} tiles are no {p} pieces",
            ),
        )
        start = best_of(knobs, rules, self._prior, target)
        self.space = space_near(self.name, knobs, rules, start, prior_many=self._prior)

    def _prior(self, configurations: Any) -> FloatArray:
        """See `SplitWork`."""
        values = [dict(one.items) for one in configurations]
        height, width, high, wide, groups = (
            np.array([one[name] for one in values], dtype=np.float64)
            for name in ("rows", "columns", "row_pieces", "column_pieces", "groups")
        )
        rows, columns, _ = self._form.sizes
        rows_by_block = np.array([one["copy"] == BY_BLOCK for one in values])
        columns_by_block = np.array([one.get("panels") == BY_BLOCK for one in values])
        columns_first = ~columns_by_block & (not self._ahead)
        down = np.ceil(np.ceil(rows / height) / high)
        across = np.ceil(columns / width) / wide
        depth, size, own = self._groups * GROUP, 2 * self.parts, bits(self.dtype) // 8
        # Of a block: its rows, columns and sums, in bytes.
        left = down * height * depth * size
        # What is read once and one behind the other, the processor fetches ahead.
        far = _STREAMED * across * width * depth * np.where(columns_by_block, own, size)
        far += np.where(rows_by_block, _STREAMED * own / size, 1) * left
        sums = down * height * across * width * 4
        at_once = (groups == self._groups) | self._goes_by_panels(down * height)
        piece = np.where(at_once, left, left * groups / self._groups)

        def lost(kept: Any) -> Any:
            # The fuller the cache, the less of it it keeps.
            return np.minimum(kept / self._target.l2_bytes, 1) ** 3

        far += left * (across - 1) * lost(piece)
        far += ~at_once * 2 * sums * self._groups / groups * lost(piece + sums)
        work = SplitWork(
            products(self.parts, self.every),
            height,
            width,
            down,
            across,
            self._groups,
            groups,
            far,
            (rows_by_block * down * height + columns_by_block * across * width) * depth,
            high * wide,
            first=(~rows_by_block * rows + columns_first * columns) * depth,
            begins=~rows_by_block | columns_first,
        )
        return -np.log(work.cycles(self._target))

    def schedule(self, configuration: Configuration) -> SketchedKernel:
        """See :meth:`Sketch.schedule`."""
        # The intrinsics write operations of MLIR.
        from tilewright.schedule import intrinsics

        values: dict[str, Any] = dict(configuration.items)
        form, height, lanes = self._form, values["rows"], values["columns"]
        rows, columns, _ = form.sizes
        tiles, panels = tiles_of(rows, height), tiles_of(columns, lanes)
        each = tiles_of(tiles, values["row_pieces"])
        tiles = tiles_of(tiles, each) * each
        left = self._left(tiles, height)
        arguments, packings = list(form.site.inputs), {}
        packing, position = self._packing(lanes), form.right.position
        if packing is not None and position is not None:
            right = packing.placeholder(form.site.inputs[position])
            arguments[position], packings[position] = right, packing
        else:
            right = self._panels(lanes)
        g, q, e = (
            reduce_axis(size, name)
            for size, name in ((self._groups, "g"), (GROUP // PAIR, "q"), (PAIR, "e"))
        )
        s, t = reduce_axis(self.parts, "s"), reduce_axis(self.parts, "t")

        def element(panel: Expr, tile: Expr, row: Expr, lane: Expr) -> Expr:
            a = TensorRead(left, (tile, g, s, row, q * PAIR + e)).astype("f32")
            b = TensorRead(right, (panel, g, t, lane // SUMS, q, lane % SUMS, e)).astype("f32")
            total: Expr = summed(a * b, axis=[g, q, e, s, t])
            return total

        sums: Tensor = compute((panels, tiles, height, lanes), element, name="sums")
        output = result_of(
            form,
            lambda row, column: TensorRead(
                sums, (column // lanes, row // height, row % height, column % lanes)
            ),
        )
        schedule = create_schedule(output)
        sizes = (height, each), (lanes, panels // values["column_pieces"])
        result = cut_in_tiles(schedule, output, form, {sums, left, right}, sizes)
        stage = schedule[sums]
        stage.set_scope("local")
        whole = values["groups"] == self._groups
        by_panel = self._goes_by_panels(each * height)
        panel = result.outers[-1] if by_panel else result.blocks[-1]
        stage.compute_at(schedule[output], result.outers[0] if whole else panel)
        across, down, row, lane = stage.op.axis
        whole_depth, *others = stage.op.reduce_axis
        piece, inner = stage.split(whole_depth, values["groups"])
        stage.reorder(piece, across, down, row, lane, inner, *others)
        dot = intrinsics.split_matrix(lanes, values["groups"], height, self.parts, every=self.every)
        stage.tensorize(row, dot)
        rows_split = schedule[left]
        tile, block, part, one, step = rows_split.op.axis
        rows_split.reorder(tile, block, one, part, step)
        if self._is_read(form.left):
            rows_split.tensorize(part, intrinsics.split_rows(GROUP, self.parts, self.dtype))
        else:
            rows_split.unroll(part)
            rows_split.vectorize(step)
        by_block, by_columns = (
            (schedule[output], axis) if whole or by_panel else (stage, piece)
            for axis in (result.blocks[-1], result.outers[-1])
        )
        place_copy(rows_split, tile, None if values["copy"] == FIRST else by_block)
        if isinstance(right.op, ComputeOp):
            copy = schedule[right]
            across = split_panels(copy, lanes, self.parts, self.dtype)
            place_copy(copy, across, None if values["panels"] == FIRST else by_columns)
        return SketchedKernel(schedule, (*arguments, output), packings)

    def _goes_by_panels(self, rows: Any) -> Any:
        """Whether a block adds up its sums panel by panel, where its rows as they are split fit the
        second cache; else it goes over all its sums for each piece of the depth."""
        size = rows * self._groups * GROUP * 2 * self.parts
        return (size < self._target.l2_bytes * KEPT) & (len(self._form.right.tile) > 0)

    def _is_read(self, operand: MatrixOperand) -> bool:
        """Whether each number of an operand is one of memory, at each step of the filled depth."""
        number = number_of(operand.factor, self.dtype)
        return isinstance(number, TensorRead) and self._filled == self._inner

    def _at(self, operand: MatrixOperand, place: Expr, step: Expr) -> Expr:
        """The number of an operand at a step of the filled depth; 0 where that is none of it."""
        outer, inner = step // self._filled, step % self._filled
        value = cast("f32", operand.at([], place, outer * self._inner + inner))
        if self._filled == self._inner:
            return value
        return if_then_else(inner < self._inner, value, const(0, "f32"))

    def _left(self, tiles: int, height: int) -> Tensor:
        """Parts of the rows of each tile, those of each group of steps beside each other."""
        own = self._form.sizes[0]

        def part(tile: Expr, group: Expr, number: Expr, row: Expr, step: Expr) -> Expr:
            row = tile * height + row
            # Of rows behind the last one nothing is kept.
            row = binary("min", row, index(own - 1)) if tiles * height > own else row
            at = self._at(self._form.left, row, group * GROUP + step)
            return part_of(at, self.parts, number)

        shape = (tiles, self._groups, self.parts, height, GROUP)
        made: Tensor = compute(shape, part, name="left.parts")
        return made

    def _panels(self, lanes: int) -> Tensor:
        """Parts of columns in panels, pairs of steps beside each other."""
        own = self._form.sizes[1]

        def part(*axes: Expr) -> Expr:
            panel, group, number, vector, pair, lane, one = axes
            step = group * GROUP + pair * PAIR + one
            at = self._at(self._form.right, panel * lanes + vector * SUMS + lane, step)
            return part_of(at, self.parts, number)

        vectors = lanes // SUMS, GROUP // PAIR, SUMS
        shape = (tiles_of(own, lanes), self._groups, self.parts, *vectors, PAIR)
        made: Tensor = compute(shape, part, name="right.panels")
        return made

    def _packing(self, lanes: int) -> Packing | None:
        """Of constant columns; None where they are not, or no dimension is an axis itself."""
        form = self._form
        read, position = read_of(form.right.factor, self.dtype), form.right.position
        if read is None or position is None or len(form.right.tile) != 1:
            return None
        (column,) = form.right.tile
        *outer, inner = form.depth
        parts: dict[Expr, tuple[int, ...]] = {axis: (extent(axis),) for axis in outer}
        parts[column] = (tiles_of(extent(column), lanes), lanes // SUMS, SUMS)
        parts[inner] = (self._filled // GROUP, GROUP // PAIR, PAIR)
        by_axis = split_dimensions(read, parts)
        if by_axis is None:
            return None
        first, ones = by_axis.first, by_axis.ones
        at = first[column]
        order = [first[axis] for axis in (column, *outer, inner)]
        return Packing(
            by_axis.pad,
            by_axis.split,
            (*ones, *order, at + 1, first[inner] + 1, at + 2, first[inner] + 2),
            joined=(len(ones) + 1, len(outer) + 1, 1, 1, 1, 1),
            terms=(self.parts, 2),
        )


class Bf16x3TilesSketch(Bf16x6TilesSketch):
    """Three products of two parts each."""

    name = "bf16x3-tiles"
    is_exact = False
    parts = 2


class F16MatrixTilesSketch(Bf16x6TilesSketch):
    """Of f16: all products of two parts each."""

    name = "f16-matrix-tiles"
    parts, dtype, every = 2, "f16", True


_SKETCHES = (Bf16x6TilesSketch, Bf16x3TilesSketch, F16MatrixTilesSketch)
# Their kernels ask the system for the unit as Linux wants to be asked.
SKETCHES: tuple[type[Sketch], ...] = _SKETCHES if sys.platform == "linux" else ()
