"""Contractions of small elements by instructions that add several products to each sum at once: of
bytes (VNNI on x86, `sdot` on Arm processors), of bytes as words of 16 bits (other processors of
x86) and of bf16 (AVX-512 BF16, `bfdot`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any, ClassVar

import numpy as np

from tilewright.schedule.expr import Binary, Cast, Expr, cast, const
from tilewright.schedule.functions import if_then_else
from tilewright.schedule.functions import sum as summed
from tilewright.schedule.schedule import create_schedule
from tilewright.schedule.tensor import ComputeOp, Tensor, TensorRead, compute, reduce_axis
from tilewright.schedule.types import bits
from tilewright.sketch.contraction import MatrixOperand, contraction_of, sizes_of
from tilewright.sketch.interface import SiteExpression, Sketch, SketchedKernel
from tilewright.sketch.packing import Packing, split_dimensions
from tilewright.sketch.result_tiles import cut_in_tiles, result_of
from tilewright.sketch.small_elements import (
    DotProducts,
    SmallElement,
    copy_in_vectors,
    small_element,
)
from tilewright.sketch.structure import extent, source_read, summed_in
from tilewright.sketch.tile_operand import BY_BLOCK, FIRST, tiles_of
from tilewright.space.arrays import FloatArray
from tilewright.space.constraints import Constraint
from tilewright.space.knobs import ChoiceKnob, TileKnob
from tilewright.space.pipeline import Unfit, space_near
from tilewright.space.turns import turns
from tilewright.target import Target
from tilewright.trial import Configuration

_MOST_ROWS = 16
_MOST_PIECES = 64
# Cycles until an instruction has added to a sum.
_LATENCY = 4.0
# By what part tiles are slower whose rows the first cache does not keep from panel to panel.
_FAR = 0.1
# For each core, of what is shared out.
_PIECES_EACH = 4
# Sums in a vector of Arm processors.
_ARM_LANES = 4


class DotTilesSketch(Sketch):
    """Tiles of rows times a vector or two, summed up over the whole depth by dot products; columns
    in panels with the steps of a group beside each other, packed ahead or first. Rows are read
    where they are, where their depth lies side by side; else they are copied so: those of a
    convolution with its padding, which stands for 0 there.

    Knobs: `rows`, and where there is a choice `columns`, of a tile; `row_pieces`, `column_pieces`,
    into how many blocks the result is cut; where rows are copied `copy`, when: `first`, or each
    block its own.
    """

    dots: ClassVar[DotProducts]
    #: Whether the instructions take bytes with a sign, too.
    takes_signed: ClassVar[bool] = False

    def __init__(self, site: SiteExpression, target: Target) -> None:
        self._lanes, group = self.dots.lanes(target), self.dots.group
        if not self._lanes:
            raise Unfit(f"the processor has no dot products of {self.dots.what}")
        self._form = contraction_of(site)
        rows, columns, _ = self._form.sizes
        left, right = (self._small(one.factor) for one in (self._form.left, self._form.right))
        sums = summed_in(self._form.main.output.dtype)
        plain = right is not None and right.is_plain
        if sums != self.dots.sums or left is None or not plain:
            raise Unfit(f"it does not add up products of {self.dots.what} in {self.dots.sums}")
        if self._form.batch or not self._form.depth or columns < self._lanes:
            raise Unfit("it has batches, no depth, or fewer columns than a vector has sums")
        # The innermost steps of the depth are filled up to whole groups, with products of 0.
        self._inner = extent(self._form.depth[-1])
        self._filled = tiles_of(self._inner, group) * group
        self._target = target
        # With a sign an instruction of x86 takes one more step for each: copies are without.
        self._copies = self._in_place is None
        flips = self._copies and self._takes_bytes and self._lanes > _ARM_LANES
        flips = flips and not self.takes_signed
        self._flips = flips and not left.unsigned
        self._unsigned = not self.dots.wide and (left.unsigned or self._flips)
        self._zero = 0 if self.dots.wide else left.zero + 128 * self._flips
        if self._unsigned and self._lanes == _ARM_LANES:
            raise Unfit("the processor has no dot products of bytes without a sign")
        widths = self._widths(columns)
        pieces_of = {
            width: [p for p in range(1, _MOST_PIECES + 1) if tiles_of(columns, width) % p == 0]
            for width in widths
        }
        heights = [r for r in self._heights() if rows % r == 0]
        if not heights:
            raise Unfit("its rows are no tiles of equal size")
        pieces_wide = tuple(sorted(set().union(*pieces_of.values())))
        knobs: list[TileKnob | ChoiceKnob] = [
            TileKnob("rows", tuple(heights)),
            TileKnob("row_pieces", tuple(p for p in range(1, _MOST_PIECES + 1) if rows % p == 0)),
            TileKnob("column_pieces", pieces_wide),
        ]
        whole = Constraint(
            "row_pieces of tiles",
            ("row_pieces", "rows"),
            lambda p, r: rows // r % p == 0,
            lambda p, r: f"{rows // r} tiles are no {p} equal pieces, which an instruction needs",
            vectorised=True,
        )
        constraints = [whole]
        start: dict[str, Any] = {"rows": heights[-1], "row_pieces": 1, "column_pieces": 1}
        if len(widths) > 1:
            knobs.append(TileKnob("columns", widths))
            constraints += [
                Constraint(
                    "column_pieces of tiles",
                    ("column_pieces", "columns"),
                    lambda p, c: p in pieces_of[c],
                    lambda p, c: f"{tiles_of(columns, c)} tiles are no {p} equal pieces",
                ),
                Constraint(
                    "tile in registers",
                    ("rows", "columns"),
                    self._in_registers,
                    lambda r, c: f"{r}x{c} sums are more than the registers hold",
                    vectorised=True,
                ),
            ]
            start["columns"] = self._lanes
        if self._copies:
            knobs.append(ChoiceKnob("copy", (BY_BLOCK, FIRST)))
            start["copy"] = BY_BLOCK
        wide = [{"columns": width} for width in widths] if len(widths) > 1 else [{}]
        tiles = [{"rows": height, **more} for height in heights for more in wide]
        begin = self._best(start, tiles, pieces_wide, constraints)
        self.space = space_near(
            self.name, tuple(knobs), tuple(constraints), begin, prior_many=self._prior
        )

    def _widths(self, columns: int) -> tuple[int, ...]:
        """Of tiles: a vector, or two where there are so many columns, as loading what is spread
        takes as long as an instruction does."""
        return tuple(n * self._lanes for n in (1, 2) if n == 1 or columns >= 2 * self._lanes)

    def _heights(self) -> range:
        """Rows of a tile: what is spread and what it is multiplied by are in registers too."""
        return range(1, min(_MOST_ROWS, self._target.vector_registers - 2) + 1)

    def _in_registers(self, rows: Any, columns: Any) -> Any:
        """Whether the sums of tiles are in registers: of one, or of arrays of them."""
        return (rows + 1) * (columns // self._lanes) < self._target.vector_registers

    def _best(
        self,
        start: Mapping[str, Any],
        sizes: Sequence[Mapping[str, int]],
        column_pieces: Sequence[int],
        rules: Sequence[Constraint],
    ) -> Configuration:
        """The most promising of tiles of these sizes, in so many pieces that they are shared out
        and that what one copies fits half of the second-level cache, as far as they can be."""
        rows, cores = self._form.sizes[0], self._target.cores
        copies = rows * self._row_bytes * self._copies
        least = max(_PIECES_EACH * cores, 2 * copies / self._target.l2_bytes)
        tiles: list[dict[str, Any]] = [
            {**start, **size, "row_pieces": high, "column_pieces": wide}
            for size in sizes
            for high in range(1, _MOST_PIECES + 1)
            for wide in column_pieces
            if rows // size["rows"] % high == 0 and wide <= _PIECES_EACH * cores
        ]
        tiles = [one for one in tiles if all(rule.holds(one) for rule in rules)]
        many = [one for one in tiles if one["row_pieces"] * one["column_pieces"] >= least]
        found = [Configuration.of(one) for one in many or tiles]
        return found[int(np.argmax(self._prior(found)))]

    @property
    def _row_bytes(self) -> int:
        """Of a row as it is read."""
        depth = sizes_of(self._form.depth[:-1]) * self._filled
        return depth * bits(self.dots.wide or self.dots.dtype) // 8

    @property
    def _takes_bytes(self) -> bool:
        return self.dots.dtype == "i8" and not self.dots.wide

    @property
    def _in_place(self) -> TensorRead | None:
        """The read of rows whose depth lies side by side; None where they have to be copied."""
        form = self._form
        rows, _, depth = form.sizes
        small = self._small(form.left.factor)
        assert small is not None
        read, wanted = small.value, (*form.left.tile, *form.depth)
        if not isinstance(read, TensorRead) or self._filled != self._inner or self.dots.wide:
            return None
        same = len(read.indices) == len(wanted) and all(map(is_, read.indices, wanted))
        return read if same and read.tensor.shape == (rows, depth) else None

    def _steps(self, rows: FloatArray, columns: FloatArray) -> FloatArray:
        """Instructions for each of the products of a tile, of what they would be without loads."""
        vectors = columns / self._lanes
        if not self.dots.wide:
            # Of bytes on a Zen 4, 16x1 and 8x2 vectors: 167 to 193 and 197 to 210 products a ns.
            return np.maximum(1, _LATENCY / (rows * vectors)) + (1 / rows + 1 / vectors) / 5
        return 1 + 1 / vectors / 2 + 1 / rows

    def _prior(self, configurations: Any) -> FloatArray:
        """Loads of a step for each of its products; pieces that are not shared out evenly; rows
        that are copied for each block of columns, or come from the second cache for each panel."""
        values = [dict(one.items) for one in configurations]
        values = [{"columns": self._lanes, **one} for one in values]
        rows, high, wide, width = (
            np.array([one[name] for one in values], dtype=np.float64)
            for name in ("rows", "row_pieces", "column_pieces", "columns")
        )
        again = np.array([one.get("copy") == BY_BLOCK for one in values]) * (wide - 1)
        pieces, cores = high * wide, self._target.cores
        uneven = turns(pieces, cores, spread=True) * cores / pieces
        tiles = np.ceil(self._form.sizes[1] / width)
        copying = 1 + 4 * again / tiles
        block = self._form.sizes[0] / high * self._row_bytes
        far = 1 + _FAR * (block > self._target.l1_bytes)
        return -np.log(self._steps(rows, width) * uneven * copying * far * (1 + pieces / 1000))

    def schedule(self, configuration: Configuration) -> SketchedKernel:
        """See :meth:`Sketch.schedule`."""
        # The intrinsics write operations of MLIR.
        from tilewright.schedule import dot_products, intrinsics

        values: dict[str, Any] = dict(configuration.items)
        form, height = self._form, values["rows"]
        lanes = values.get("columns", self._lanes)
        rows, columns, _ = form.sizes
        left, packing = self._left(), self._ahead(lanes)
        arguments, packings = list(form.site.inputs), {}
        panels = self._panels(lanes) if packing is None else packing.placeholder(self._right)
        if packing is not None and form.right.position is not None:
            arguments[form.right.position] = panels
            packings[form.right.position] = packing
        size, wide = self.dots.group, self.dots.sums
        depth = sizes_of(form.depth[:-1]) * self._filled
        g, e = reduce_axis(depth // size, "g"), reduce_axis(size, "e")
        zero = self._zero

        def element(panel: Expr, row: Expr, lane: Expr) -> Expr:
            a = cast(wide, TensorRead(left, (row, g * size + e)))
            b = TensorRead(panels, (panel, g, lane, e))
            taken = dot_products.byte_value(a, zero, self._unsigned)
            total: Expr = summed(Binary("mul", taken, Cast(wide, b), wide), axis=[g, e])
            return total

        tiles = tiles_of(columns, lanes)
        sums: Tensor = compute((tiles, rows, lanes), element, name="sums")
        output = result_of(
            form,
            lambda row, column: TensorRead(sums, (column // lanes, row, column % lanes)),
        )
        schedule = create_schedule(output)
        sizes = (
            (height, tiles_of(tiles_of(rows, height), values["row_pieces"])),
            (lanes, tiles_of(tiles, values["column_pieces"])),
        )
        result = cut_in_tiles(schedule, output, form, {sums, left, panels}, sizes)
        stage = schedule[sums]
        stage.compute_at(schedule[output], result.outers[0])
        stage.set_scope("local")
        _, row, lane = stage.op.axis
        dot = getattr(intrinsics, self.dots.intrinsic)
        more = (zero, self._unsigned) if self._takes_bytes else ()
        stage.tensorize(row if height > 1 else lane, dot(lanes, depth, height, *more))
        if isinstance(left.op, ComputeOp):
            copy = schedule[left]
            copy_in_vectors(copy, copy.op.axis[1], self._filled)
            if values.get("copy") == BY_BLOCK:
                copy.compute_at(schedule[output], result.blocks[-1])
                copy.set_scope("local")
            else:
                copy.parallel(copy.op.axis[0])
        if isinstance(panels.op, ComputeOp):
            copy = schedule[panels]
            copy.parallel(copy.op.axis[0])
        return SketchedKernel(schedule, (*arguments, output), packings)

    def _left(self) -> Tensor:
        """Rows with their depth side by side: the operand itself where it is that."""
        from tilewright.schedule import dot_products

        form = self._form
        read, small = self._in_place, self._small(form.left.factor)
        if read is not None:
            return read.tensor
        assert small is not None

        def element(row: Expr, step: Expr) -> Expr:
            # What is no step of the depth is multiplied by 0.
            value = self._at(form.left, row, step, const(0, self.dots.dtype))
            if self.dots.wide:
                value = cast(self.dots.wide, value)
                return dot_products.byte_value(value, small.zero, small.unsigned)
            flip = const(-128, self.dots.dtype)
            return Binary("xor", value, flip, value.dtype) if self._flips else value

        depth = sizes_of(form.depth[:-1]) * self._filled
        made: Tensor = compute((form.sizes[0], depth), element, name="left.rows")
        return made

    def _at(self, operand: MatrixOperand, place: Expr, step: Expr, nothing: Expr) -> Expr:
        """The small element of an operand at a step of the filled depth; `nothing` where that is
        none of the depth's."""
        outer, inner = step // self._filled, step % self._filled
        small = self._small(operand.at([], place, outer * self._inner + inner))
        assert small is not None
        if self._filled == self._inner:
            return small.value
        return if_then_else(inner < self._inner, small.value, nothing)

    @property
    def _right(self) -> Tensor:
        """The tensor that has the columns."""
        read = source_read(self._form.right.factor)
        assert read is not None
        return read.tensor

    def _ahead(self, lanes: int) -> Packing | None:
        """The packing of constant columns; None where they are not, or their dimensions are not
        the axes themselves."""
        form, group = self._form, self.dots.group
        read = source_read(form.right.factor)
        if read is None or form.right.position is None or len(form.right.tile) != 1:
            return None
        (column,) = form.right.tile
        *outer, inner = form.depth
        parts: dict[Expr, tuple[int, ...]] = {axis: (extent(axis),) for axis in outer}
        parts[column] = (tiles_of(extent(column), lanes), lanes)
        parts[inner] = (self._filled // group, group)
        by_axis = split_dimensions(read, parts)
        if by_axis is None:
            return None
        first, ones = by_axis.first, by_axis.ones
        order = [first[axis] for axis in (column, *outer, inner)]
        joined = (len(ones) + 1, len(outer) + 1, 1, 1)
        return Packing(
            by_axis.pad,
            by_axis.split,
            (*ones, *order, first[column] + 1, first[inner] + 1),
            joined=joined if sum(joined) > len(joined) else (),
        )

    def _panels(self, lanes: int) -> Tensor:
        """The columns in panels."""
        form = self._form
        _, columns, _ = form.sizes

        def packed(panel: Expr, group: Expr, lane: Expr, one: Expr) -> Expr:
            column = panel * lanes + lane
            step = group * self.dots.group + one
            value = self._at(form.right, column, step, const(0, self.dots.dtype))
            return value if columns % lanes == 0 else if_then_else(column < columns, value, 0)

        depth = sizes_of(form.depth[:-1]) * self._filled
        shape = (tiles_of(columns, lanes), depth // self.dots.group, lanes, self.dots.group)
        made: Tensor = compute(shape, packed, name="right.panels")
        return made

    def _small(self, factor: Expr) -> SmallElement | None:
        """What a factor is made of, where that is a small element, converted at once."""
        return small_element(factor, self.dots.dtype)


class ByteTilesSketch(DotTilesSketch):
    """Products of bytes, added up in words of 32 bits."""

    name = "byte-tiles"
    dots = DotProducts(
        "byte_dot", "bytes", "i8", "i32", 4, {"avx512vnni": 16, "avxvnni": 8, "dotprod": 4}
    )


class WordTilesSketch(DotTilesSketch):
    """Products of bytes as words of 16 bits, added up in words of 32."""

    name = "word-tiles"
    dots = DotProducts(
        "word_dot",
        "words of 16 bits",
        "i8",
        "i32",
        2,
        {"avx512bw": 16, "avx2": 8},
        wide="i16",
        better=frozenset({"avx512vnni", "avxvnni"}),
    )


class Bf16TilesSketch(DotTilesSketch):
    """Products of bf16, added up in f32."""

    name = "bf16-tiles"
    dots = DotProducts("bf16_dot", "bf16", "bf16", "f32", 2, {"avx512bf16": 16, "bf16": 4})


SKETCHES: tuple[type[Sketch], ...] = (ByteTilesSketch, WordTilesSketch, Bf16TilesSketch)
