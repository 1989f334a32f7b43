"""Contractions of small elements by instructions that add several products to each sum at once: of
bytes (VNNI on x86, `sdot` on Arm processors) and of bf16 (AVX-512 BF16, `bfdot`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilewright.schedule.expr import Binary, Cast, Expr
from tilewright.schedule.functions import if_then_else
from tilewright.schedule.functions import sum as summed
from tilewright.schedule.schedule import create_schedule
from tilewright.schedule.tensor import ComputeOp, IterVar, Tensor, TensorRead, compute, reduce_axis
from tilewright.sketch.contraction import MatrixOperand, contraction_of, together
from tilewright.sketch.interface import SiteExpression, Sketch, SketchedKernel
from tilewright.sketch.packing import Packing
from tilewright.sketch.structure import rewritten, source_read
from tilewright.sketch.tile_operand import tiles_of
from tilewright.space.arrays import FloatArray
from tilewright.space.constraints import Constraint
from tilewright.space.knobs import TileKnob
from tilewright.space.pipeline import Unfit, space_near
from tilewright.space.turns import turns
from tilewright.target import Target
from tilewright.trial import Configuration

_MOST_ROWS = 16
_MOST_PIECES = 64


@dataclass(frozen=True)
class DotProducts:
    """Instructions that add the products of a group of elements to each sum of a vector.

    intrinsic: its name among the language's. what: they add up, in words. dtype, sums: element
    types. group: elements of each sum. extensions: sums in a vector by LLVM's names of the
    extensions that bring an instruction, the widest first.
    """

    intrinsic: str
    what: str
    dtype: str
    sums: str
    group: int
    extensions: Mapping[str, int]

    def lanes(self, target: Target) -> int:
        """Sums that one instruction adds to.

        Args:
            target: a processor whose features are known.

        Returns:
            0 where there is no such instruction.
        """
        features = {name.strip("+") for name in target.features.split(",")}
        return next((lanes for name, lanes in self.extensions.items() if name in features), 0)


class _DotTilesSketch(Sketch):
    """Tiles of rows times one vector, summed up over the whole depth by dot products; columns in
    panels with the steps of a group beside each other, packed ahead or first.

    Knobs: `rows`, of a tile; `row_pieces`, `column_pieces`, into how many blocks the result is cut.
    """

    dots: ClassVar[DotProducts]

    def __init__(self, site: SiteExpression, target: Target) -> None:
        self._lanes, group = self.dots.lanes(target), self.dots.group
        if not self._lanes:
            raise Unfit(f"the processor has no dot products of {self.dots.what}")
        self._form = contraction_of(site)
        rows, columns, depth = self._form.sizes
        of_type = (self._is_of_type(side) for side in (self._form.left, self._form.right))
        if self._form.main.output.dtype != self.dots.sums or not all(of_type):
            raise Unfit(f"it does not add up products of {self.dots.what} in {self.dots.sums}")
        if depth % group or self._form.batch:
            raise Unfit(f"its depth of {depth} is no multiple of {group}, or it has batches")
        self._target = target
        tiles = tiles_of(columns, self._lanes)
        heights = [r for r in range(1, _MOST_ROWS + 1) if rows % r == 0]
        knobs = (
            TileKnob("rows", tuple(heights)),
            TileKnob("row_pieces", tuple(p for p in range(1, _MOST_PIECES + 1) if rows % p == 0)),
            TileKnob(
                "column_pieces", tuple(p for p in range(1, _MOST_PIECES + 1) if tiles % p == 0)
            ),
        )
        whole = Constraint(
            "row_pieces of tiles",
            ("row_pieces", "rows"),
            lambda p, r: rows // r % p == 0,
            lambda p, r: f"{rows // r} tiles are no {p} equal pieces, which an instruction needs",
            vectorised=True,
        )
        pieces = max(p for p in knobs[2].values if p <= max(1, 4 * target.cores))
        start = {"rows": heights[-1], "row_pieces": 1, "column_pieces": pieces}
        self.space = space_near(
            self.name, knobs, (whole,), Configuration.of(start), prior_many=self._prior
        )

    def _prior(self, configurations: Any) -> FloatArray:
        """Loads of a step for each of its products; pieces that are not shared out evenly."""
        values = [dict(one.items) for one in configurations]
        rows, high, wide = (
            np.array([one[name] for one in values], dtype=np.float64)
            for name in ("rows", "row_pieces", "column_pieces")
        )
        pieces, cores = high * wide, self._target.cores
        uneven = turns(pieces, cores, spread=True) * cores / pieces
        return -np.log((1 + 1.5 / rows) * uneven * (1 + pieces / 1000))

    def schedule(self, configuration: Configuration) -> SketchedKernel:
        """See :meth:`Sketch.schedule`."""
        # The intrinsics write operations of MLIR.
        from tilewright.schedule import intrinsics

        values: dict[str, Any] = dict(configuration.items)
        form, lanes, height = self._form, self._lanes, values["rows"]
        rows, columns, depth = form.sizes
        left, packing = self._left(), self._ahead()
        arguments, packings = list(form.site.inputs), {}
        panels = self._panels() if packing is None else packing.placeholder(self._right)
        if packing is not None and form.right.position is not None:
            arguments[form.right.position] = panels
            packings[form.right.position] = packing
        size, wide = self.dots.group, self.dots.sums
        g, e = reduce_axis(depth // size, "g"), reduce_axis(size, "e")

        def element(panel: Expr, row: Expr, lane: Expr) -> Expr:
            a = TensorRead(left, (row, g * size + e))
            b = TensorRead(panels, (panel, g, lane, e))
            total: Expr = summed(Binary("mul", Cast(wide, a), Cast(wide, b), wide), axis=[g, e])
            return total

        tiles = tiles_of(columns, lanes)
        sums: Tensor = compute((tiles, rows, lanes), element, name="sums")
        output = self._output(sums)
        schedule = create_schedule(output)
        for stage in schedule.stages:
            if isinstance(stage.op, ComputeOp) and not {sums, left, panels, output} & set(
                stage.op.outputs
            ):
                stage.compute_inline()
        result, groups = schedule[output], form.result
        axes = result.op.axis
        mine = [[axes[i] for i in group] for group in (groups.rows, groups.columns)]
        rest = [a for a in axes if a not in mine[0] and a not in mine[1]]
        result.reorder(*rest, *mine[0], *mine[1])
        loops = []
        for group, tile, size, parts in (
            (mine[0], height, rows, values["row_pieces"]),
            (mine[1], lanes, columns, values["column_pieces"]),
        ):
            if group:
                axis = result.fuse(*group) if len(group) > 1 else group[0]
                outer, inside = result.split(axis, tile)
                block, outer = result.split(outer, tiles_of(tiles_of(size, tile), parts))
                loops.append((block, outer, inside))
        blocks, outers, insides = zip(*loops, strict=True)
        result.reorder(*rest, *blocks, *reversed(outers), *insides)
        for block in blocks:
            result.parallel(block)
        result.vectorize(insides[-1])
        stage = schedule[sums]
        stage.compute_at(result, outers[0])
        stage.set_scope("local")
        _, row, lane = stage.op.axis
        dot = getattr(intrinsics, self.dots.intrinsic)
        stage.tensorize(row if height > 1 else lane, dot(lanes, depth, height))
        for tensor in (left, panels):
            if isinstance(tensor.op, ComputeOp):
                copy = schedule[tensor]
                copy.parallel(copy.op.axis[0])
        return SketchedKernel(schedule, (*arguments, output), packings)

    def _left(self) -> Tensor:
        """Rows with their depth side by side: the operand itself where it is that."""
        form = self._form
        read = source_read(form.left.factor)
        assert read is not None
        rows, _, depth = form.sizes
        if read.tensor.shape == (rows, depth) and read.indices == (*form.left.tile, *form.depth):
            return read.tensor
        made: Tensor = compute(
            (rows, depth), lambda row, k: source_read(form.left.at([], row, k)), name="left.rows"
        )
        return made

    @property
    def _right(self) -> Tensor:
        """The tensor that has the columns."""
        read = source_read(self._form.right.factor)
        assert read is not None
        return read.tensor

    def _ahead(self) -> Packing | None:
        """The packing of constant columns; None where they are not, or no matrix."""
        form, lanes = self._form, self._lanes
        read = source_read(form.right.factor)
        axes = (*form.right.tile, *form.depth)
        if read is None or form.right.position is None or len(axes) != 2:
            return None
        _, columns, depth = form.sizes
        tiles = tiles_of(columns, lanes)
        parts = {axes[0]: (tiles, lanes), axes[1]: (depth // self.dots.group, self.dots.group)}
        pads = {axes[0]: tiles * lanes - columns, axes[1]: 0}
        if set(read.indices) != set(axes) or len(read.indices) != 2:
            return None
        split = tuple(parts[axis] for axis in read.indices if isinstance(axis, IterVar))
        pad = tuple(pads[axis] for axis in read.indices if isinstance(axis, IterVar))
        first = 0 if read.indices[0] is axes[0] else 2
        return Packing(pad, split, (first, 2 - first, first + 1, 3 - first))

    def _panels(self) -> Tensor:
        """The columns in panels."""
        form, lanes = self._form, self._lanes
        _, columns, depth = form.sizes

        def packed(panel: Expr, group: Expr, lane: Expr, one: Expr) -> Expr:
            column = panel * lanes + lane
            value = source_read(form.right.at([], column, group * self.dots.group + one))
            assert value is not None
            return value if columns % lanes == 0 else if_then_else(column < columns, value, 0)

        shape = (tiles_of(columns, lanes), depth // self.dots.group, lanes, self.dots.group)
        made: Tensor = compute(shape, packed, name="right.panels")
        return made

    def _output(self, sums: Tensor) -> Tensor:
        """The site's output, of these sums."""
        form, main, lanes = self._form, self._form.main, self._lanes

        def element(indices: Any) -> Expr:
            at = dict(zip(main.spatial, indices, strict=True))
            row, column = (
                together([at[axis] for axis in axes], axes)
                for axes in (form.left.tile, form.right.tile)
            )
            return TensorRead(sums, (column // lanes, row, column % lanes))

        if form.is_output:
            made: Tensor = compute(
                main.output.shape, lambda *axes: element(axes), name=f"{main.output.name}.result"
            )
            return made
        return rewritten(form.site.output, {main.output: element})

    def _is_of_type(self, operand: MatrixOperand) -> bool:
        """Whether an operand is made of such elements, converted at once."""
        factor = operand.factor
        read = source_read(factor)
        return (
            read is not None
            and read.dtype == self.dots.dtype
            and isinstance(factor, Cast)
            and factor.value is read
        )


class ByteTilesSketch(_DotTilesSketch):
    """Products of bytes, added up in words of 32 bits."""

    name = "byte-tiles"
    dots = DotProducts(
        "byte_dot", "bytes", "i8", "i32", 4, {"avx512vnni": 16, "avxvnni": 8, "dotprod": 4}
    )


class Bf16TilesSketch(_DotTilesSketch):
    """Products of bf16, added up in f32."""

    name = "bf16-tiles"
    dots = DotProducts("bf16_dot", "bf16", "bf16", "f32", 2, {"avx512bf16": 16, "bf16": 4})


SKETCHES: tuple[type[Sketch], ...] = (ByteTilesSketch, Bf16TilesSketch)
