"""The schedule of a contraction in tiles, for sizes that are given.

The structure is that of Goto and van de Geijn ("Anatomy of High-Performance Matrix Multiplication",
ACM TOMS 2008) and of BLIS (Van Zee and van de Geijn, ACM TOMS 2015), which is also what the sketch
SSRSRS of Ansor (Zheng et al., OSDI 2020) covers: blocks of the result are pieces of parallel work;
a tile of a block stays in vector registers over (a part of) the depth; operands are copied into
panels of the tile's width, which the innermost loop reads from one end to the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.schedule.expr import Binary, Call, Expr, Select, cast, index
from tilewright.schedule.functions import sum as summed
from tilewright.schedule.schedule import create_schedule
from tilewright.schedule.stage import Stage
from tilewright.schedule.tensor import (
    ComputeOp,
    IterVar,
    Tensor,
    TensorRead,
    compute,
    reduce_axis,
)
from tilewright.schedule.types import BOOL, INDEX, bits
from tilewright.schedule.walk import nodes
from tilewright.sketch.contraction import MatrixForm, together
from tilewright.sketch.fetching import fetched_ahead
from tilewright.sketch.interface import SketchedKernel
from tilewright.sketch.structure import extent, rewritten, source_read, structure_of, summed_in
from tilewright.sketch.tile_operand import BY_BLOCK, TileOperand
from tilewright.target import Target

_LINE_BITS = 512
# Rows in a piece of the parallel work of copying them; steps of the depth of all panels, and
# elements, in one of packing.
_ROWS_COPIED = 16
_STEPS_COPIED, _LEAST_COPIED = 8, 4096
# Operations behind the sums that are written out for all rows of a tile.
_MOST_WRITTEN_OUT = 128
# Operations that a function such as exp is.
_FUNCTION = 20


@dataclass(frozen=True)
class TileChoice:
    """What a schedule of a contraction is written for.

    rows, columns: of the tile in registers. block_rows, block_columns: tiles of a block, which is a
    piece of parallel work. depth: of the sums that a tile adds up at once; the whole depth keeps
    the tile in registers until it is done, less keeps the block's sums in memory. unroll: steps of
    the depth that are written out. left, right: how the operands are read. rows_inside: whether
    tiles along the rows come one after the other, below those along the columns; rows_near: the
    same for blocks. apart: whether the parts of the depth are parallel work of their own, added up
    afterwards, instead of following each other.
    """

    rows: int
    columns: int
    block_rows: int
    block_columns: int
    depth: int
    unroll: int
    left: str
    right: str
    rows_inside: bool
    rows_near: bool
    apart: bool


def sum_type(form: MatrixForm) -> str:
    """The type in which products are added up; see `summed_in`.

    Args:
        form: the contraction.
    """
    return summed_in(form.main.output.dtype)


def adds_in_result(form: MatrixForm) -> bool:
    """Whether parts of the depth can be added up in the result's own memory, since it is these
    sums.

    Args:
        form: the contraction.
    """
    return form.is_output and form.main.output.dtype == sum_type(form)


class TileKernel:
    """Writes the schedule of a contraction for a processor."""

    def __init__(self, contraction: MatrixForm, choice: TileChoice, target: Target) -> None:
        self.contraction, self.choice, self._target = contraction, choice, target
        depth, dtype = contraction.sizes[2], sum_type(contraction)
        self.left = TileOperand(contraction.left, choice.left, choice.rows, depth, "left", dtype)
        self.right = TileOperand(
            contraction.right, choice.right, choice.columns, depth, "right", dtype
        )
        self.parts = self._parts()
        self.sums = self._sums()
        self.done = self._done()
        self.output = self._output()
        self.schedule = create_schedule(self.output)
        self._outer_tile: IterVar | None = None

    # -- the expression ----------------------------------------------------------------------------

    @property
    def _chunks(self) -> int:
        """Parts of the depth that are added up one after the other."""
        return self.contraction.sizes[2] // self.choice.depth

    def _parts(self) -> Tensor:
        """The contraction as batches of rows times columns, for each part of the depth."""
        contraction, chunks = self.contraction, self._chunks
        step = reduce_axis(self.choice.depth, "k")

        def element(*axes: Expr) -> Expr:
            chunk, *batch, row, column = axes if chunks > 1 else (index(0), *axes)
            by_axis = dict(zip(contraction.batch, batch, strict=True))
            k = chunk * self.choice.depth + step
            left, right = (
                side.at([by_axis[a] for a in side.operand.batch], place, k)
                for side, place in ((self.left, row), (self.right, column))
            )
            dtype = sum_type(contraction)
            product = Binary("mul", cast(dtype, left), cast(dtype, right), dtype)
            value: Expr = summed(product, axis=step)
            return value

        batches = [extent(axis) for axis in contraction.batch]
        shape = (*batches, self.left.size, self.right.size)
        made: Tensor = compute((chunks, *shape) if chunks > 1 else shape, element, name="parts")
        return made

    @property
    def _in_result(self) -> bool:
        """Whether parts of the depth are added up where the result is, not in memory of a block."""
        return self._chunks > 1 and not self.choice.apart and adds_in_result(self.contraction)

    def _sums(self) -> Tensor:
        """The parts added up."""
        if self._chunks == 1 or self._in_result:
            return self.parts
        chunk = reduce_axis(self._chunks, "chunk")

        def element(*axes: Expr) -> Expr:
            value: Expr = summed(TensorRead(self.parts, (chunk, *axes)), axis=chunk)
            return value

        made: Tensor = compute(self.parts.shape[1:], element, name="sums")
        return made

    def _done(self) -> Tensor:
        """The sums as what comes behind them reads them.

        Registers have no index, so their tile is written out row by row; where much is computed of
        each element the tile is put in memory instead, and what comes behind is a loop over it.
        """
        behind = structure_of(self.contraction.site).consumers
        spent = sum(_operations(expr) for op in behind for expr in op.body)
        if self._chunks > 1 or spent * self.choice.rows <= _MOST_WRITTEN_OUT:
            return self.sums
        made: Tensor = compute(
            self.sums.shape, lambda *axes: TensorRead(self.sums, axes), name="done"
        )
        return made

    def _output(self) -> Tensor:
        """The site's output, of these sums."""
        contraction = self.contraction
        main = contraction.main

        chunk = reduce_axis(self._chunks, "chunk") if self._in_result else None

        def element(indices: Sequence[Expr]) -> Expr:
            at = dict(zip(main.spatial, indices, strict=True))
            batch, rows, columns = (
                [at[axis] for axis in axes]
                for axes in (contraction.batch, contraction.left.tile, contraction.right.tile)
            )
            row = together(rows, contraction.left.tile)
            column = together(columns, contraction.right.tile)
            if chunk is not None:
                value: Expr = summed(TensorRead(self.done, (chunk, *batch, row, column)), chunk)
                return value
            return cast(main.output.dtype, TensorRead(self.done, (*batch, row, column)))

        if contraction.is_output:
            shape, name = main.output.shape, main.output.name
            made: Tensor = compute(shape, lambda *axes: element(axes), name=f"{name}.result")
        else:
            made = rewritten(contraction.site.output, {main.output: element})
        return made

    # -- the schedule ------------------------------------------------------------------------------

    def kernel(self) -> SketchedKernel:
        """The schedule with its arguments."""
        packings = {}
        arguments = list(self.contraction.site.inputs)
        for side in (self.left, self.right):
            position = side.operand.position
            if side.packing is not None and side.argument is not None and position is not None:
                packings[position] = side.packing
                arguments[position] = side.argument
        self._inline()
        tile, block = self._result()
        self._accumulate(tile, block)
        self._fetch(tile)
        return SketchedKernel(self.schedule, (*arguments, self.output), packings)

    def _inline(self) -> None:
        kept = {self.parts, self.sums, self.done, self.output, self.left.panels, self.right.panels}
        for stage in self.schedule.stages:
            if isinstance(stage.op, ComputeOp) and not kept & set(stage.op.outputs):
                stage.compute_inline()

    def _result(self) -> tuple[IterVar, IterVar]:
        """Loops over the output: blocks, tiles, and what is in a tile.

        Returns:
            The innermost loop over tiles, and that in which operands are packed: the innermost over
            blocks, or over parts of the depth that are added up in the result.
        """
        choice, stage = self.choice, self.schedule[self.output]
        axes, groups = stage.op.axis, self.contraction.result
        used = {*groups.batch, *groups.rows, *groups.columns, *groups.again}
        ones = [a for i, a in enumerate(axes) if i not in used]
        batch = [*ones, *(axes[i] for i in groups.batch)]
        again, rows, columns = (
            [axes[i] for i in group] for group in (groups.again, groups.rows, groups.columns)
        )
        stage.reorder(*batch, *again, *rows, *columns)
        outer = [self._fused(stage, batch)] if batch else []
        cuts = [
            self._cut(stage, self._fused(stage, group), tile, block)
            for group, tile, block in (
                (rows, choice.rows, choice.block_rows),
                (columns, choice.columns, choice.block_columns),
            )
            if group
        ]
        blocks, tiles, inside = map(list, zip(*cuts, strict=True))
        blocks = blocks[::-1] if choice.rows_near else blocks
        tiles = tiles[::-1] if choice.rows_inside else tiles
        chunks = stage.op.reduce_axis
        stage.reorder(*outer, *blocks, *chunks, *tiles, *again, *inside)
        for axis in (*outer, *blocks):
            stage.parallel(axis)
        if len(inside) > 1 and self.done is self.parts:
            stage.unroll(inside[0])
        stage.vectorize(inside[-1])
        self._outer_tile = tiles[0] if len(tiles) > 1 else None
        return tiles[-1], [*outer, *blocks, *chunks][-1]

    def _fetch(self, tile: IterVar) -> None:
        """What a tile adds its sums to comes while these are computed: where that is far away, and
        the depth short, each tile would wait for it."""
        stage, output = self.schedule[self.output], self.output
        found = [t for t in self.contraction.site.inputs if prod(t.shape) >= prod(output.shape)]
        for tensor in (*found, output) if self._in_result else found:
            if self.schedule.touches(stage, tensor):
                stage.prefetch(tensor, tile, 0)

    @staticmethod
    def _fused(stage: Stage, axes: Sequence[IterVar]) -> IterVar:
        return stage.fuse(*axes) if len(axes) > 1 else axes[0]

    @staticmethod
    def _cut(stage: Stage, axis: IterVar, tile: int, block: int) -> list[IterVar]:
        """An axis in blocks, tiles and what is in a tile."""
        tiles, inside = stage.split(axis, tile)
        return [*stage.split(tiles, block), inside]

    def _accumulate(self, tile: IterVar, block: IterVar) -> None:
        """Where and in which order the sums are computed, and the operands packed."""
        choice, parts = self.choice, self.schedule[self.parts]
        output = self.schedule[self.output]
        if self._chunks > 1 and choice.apart:
            at = self._apart(tile)
        elif self._chunks > 1 and not self._in_result:
            at = self._in_turn(block)
        else:
            parts.compute_at(output, tile)
            parts.set_scope("local")
            self._in_registers([], parts.op.axis[-2], parts.op.axis[-1], self._outer_tile)
            at = (output, block)
            if self.done is not self.sums:
                self._tile_at(self.schedule[self.done], tile)
        for side in (self.left, self.right):
            if side.panels is not None:
                self._pack(side, at)

    def _tile_at(self, stage: Stage, tile: IterVar) -> None:
        """A tile of a stage computed for a tile of the output, written out."""
        stage.compute_at(self.schedule[self.output], tile)
        stage.set_scope("local")
        row, column = stage.op.axis[-2:]
        if stage.op.reduce_axis:
            stage.reorder(*stage.op.reduce_axis, row, column)
        stage.unroll(row)
        stage.vectorize(column)

    def _in_registers(
        self, outside: Sequence[IterVar], row: IterVar, column: IterVar, tiles: IterVar | None
    ) -> None:
        """The loops in which a tile of the parts is summed up, below some others.

        Args:
            outside: loops of the parts' own around them.
            row, column: of the tile.
            tiles: the outer loop over tiles; what each of its iterations reads again and again
                comes while the one before is computed.
        """
        stage = self.schedule[self.parts]
        # Whole vectors, where the last panel has them: LLVM keeps sums of shorter ones beside them
        # in registers of another kind, and spills. 3136x144 by 20 took 0.41 ms, and takes 0.22
        # (AVX2, one thread).
        lanes = self._target.lanes(bits(self.parts.dtype))
        stage.align_extent(stage.op.axis[-1], min(lanes, self.choice.columns))
        outer, inner = stage.split(stage.op.reduce_axis[0], self.choice.unroll)
        steps = self._fetched(stage, tiles, outer) if tiles is not None else (outer,)
        stage.reorder(*outside, *steps, inner, row, column)
        stage.unroll(inner)
        stage.unroll(row)
        stage.vectorize(column)

    def _fetched(self, stage: Stage, tiles: IterVar, steps: IterVar) -> tuple[IterVar, ...]:
        """The loop over steps of the depth, in which the operand of the next tiles comes that all
        of these read."""
        choice = self.choice
        inside = choice.rows_inside
        side = self.right if inside else self.left
        read = source_read(side.operand.factor)
        tensor = side.argument if side.panels is None else side.panels
        if tensor is None and read is not None:
            tensor = read.tensor
        if tensor is None or side.place == BY_BLOCK:
            return (steps,)
        return fetched_ahead(
            stage,
            tensor,
            tiles,
            steps,
            count=-(-choice.depth // choice.unroll),
            turns=choice.block_rows if inside else choice.block_columns,
            share=side.tiles * self._chunks * prod(map(extent, side.operand.batch)),
            cache_bytes=self._target.l2_bytes,
        )

    def _in_turn(self, block: IterVar) -> tuple[Stage, IterVar]:
        """Parts of the depth one after the other, each added to the block's sums in memory."""
        choice, sums, parts = self.choice, self.schedule[self.sums], self.schedule[self.parts]
        sums.compute_at(self.schedule[self.output], block)
        sums.set_scope("shared")
        *batch, row, column = sums.op.axis
        (chunk,) = sums.op.reduce_axis
        row_tile, row = sums.split(row, choice.rows)
        column_tile, column = sums.split(column, choice.columns)
        tiles = (column_tile, row_tile) if choice.rows_inside else (row_tile, column_tile)
        sums.reorder(*batch, chunk, *tiles, row, column)
        sums.unroll(row)
        sums.vectorize(column)
        parts.compute_at(sums, tiles[-1])
        parts.set_scope("local")
        self._in_registers([], parts.op.axis[-2], parts.op.axis[-1], tiles[0])
        return sums, chunk

    def _apart(self, tile: IterVar) -> tuple[Stage, IterVar]:
        """Parts of the depth as parallel work: a dispatch before that which adds them up."""
        choice, parts = self.choice, self.schedule[self.parts]
        self._tile_at(self.schedule[self.sums], tile)
        *outer, row, column = parts.op.axis
        row_block, row_tile, row = self._cut(parts, row, choice.rows, choice.block_rows)
        column_block, column_tile, lane = self._cut(
            parts, column, choice.columns, choice.block_columns
        )
        pieces = self._fused(parts, outer)
        blocks = [column_block, row_block] if choice.rows_near else [row_block, column_block]
        tiles = [column_tile, row_tile] if choice.rows_inside else [row_tile, column_tile]
        self._in_registers([pieces, *blocks, *tiles], row, lane, tiles[0])
        for axis in (pieces, *blocks):
            parts.parallel(axis)
        return parts, blocks[-1]

    def _pack(self, side: TileOperand, at: tuple[Stage, IterVar]) -> None:
        stage = self.schedule[side.panels]
        *batch, outer, inner = stage.op.axis if side.by_rows else stage.op.axis[:-1]
        lane = stage.op.axis[-1]
        if side.by_rows:
            # An odd number of lines from row to row: neighbours lie in different sets of a cache.
            line = _LINE_BITS // bits(side.dtype)
            stage.storage_align(outer, 2 * line, line)
            _, lane = stage.split(inner, line)
            outer, _ = stage.split(outer, _ROWS_COPIED)
        elif side.operand.contiguous[0]:
            # A few steps of all panels: rows of memory are read from one end to the other.
            steps = max(_STEPS_COPIED, _LEAST_COPIED // (side.tiles * side.tile))
            panels, (outer, inner) = outer, stage.split(inner, steps)
            stage.reorder(*batch, outer, panels, inner, lane)
        if side.place == BY_BLOCK:
            stage.compute_at(*at)
            stage.set_scope("shared")
        else:
            stage.parallel(self._fused(stage, [*batch, outer]))
        if side.by_rows or side.operand.contiguous[0]:
            stage.vectorize(lane)
        else:
            stage.unroll(lane)


def _operations(expr: Expr) -> int:
    """What an element costs: operations, those of functions counted."""
    found = [node for node in nodes(expr) if isinstance(node, Binary | Select | Call)]
    own = [node for node in found if node.dtype not in (INDEX, BOOL)]
    return sum(_FUNCTION if isinstance(node, Call) else 1 for node in own)
