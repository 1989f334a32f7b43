"""Operands of a contraction as a schedule in tiles reads them: in place, or packed into panels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.schedule.arith import Arithmetic
from tilewright.schedule.expr import Expr, cast, const, index
from tilewright.schedule.functions import if_then_else
from tilewright.schedule.tensor import IterVar, Tensor, TensorRead, compute
from tilewright.schedule.walk import transform
from tilewright.sketch.contraction import MatrixOperand
from tilewright.sketch.packing import Packing
from tilewright.sketch.structure import extent, source_read

#: How an operand is read: where it lies; packed before the kernel; packed by a dispatch before the
#: others; packed in a workgroup's own memory, block by block.
IN_PLACE, AHEAD, FIRST, BY_BLOCK = "in place", "ahead", "first", "by block"


def tiles_of(size: int, tile: int) -> int:
    """How many tiles cover an axis.

    Args:
        size: of the axis.
        tile: places in a tile.
    """
    return -(-size // tile)


def pieces_of(tiles: Any, pieces: Any) -> Any:
    """How many pieces tiles make, each of as many as that many equal pieces would have at most:
    10 pieces of 32 tiles are 8, of four each.

    Args:
        tiles: one number, or a column of them.
        pieces: asked for, as many numbers.
    """
    return -(-tiles // -(-tiles // pieces))


def ahead_packing(operand: MatrixOperand, tile: int) -> Packing | None:
    """The packing of a constant operand into panels of a tile's width.

    Args:
        operand: one with a position.
        tile: rows or columns of the tile in registers.

    Returns:
        None where its dimensions are not made of the axes, or tiles would cross from one row of a
        dimension into the next.
    """
    read = source_read(operand.factor)
    if read is None or operand.position is None:
        return None
    last = operand.tile[-1] if operand.tile else None
    if last is None or (len(operand.tile) > 1 and extent(last) % tile):
        return None
    parts: list[tuple[int, ...]] = []
    pads: list[int] = []
    places: dict[IterVar | None, int] = {}
    for place, size in zip(read.indices, read.tensor.shape, strict=True):
        axes = _axes_in(place, size, (*operand.batch, *operand.tile, *operand.depth))
        if axes is None or not places.keys().isdisjoint(axes):
            return None
        first = sum(map(len, parts))
        if axes == (last,):
            count = tiles_of(size, tile)
            parts.append((count, tile))
            pads.append(count * tile - size)
        elif last in axes:
            return None
        else:
            parts.append(tuple(map(extent, axes)) or (size,))
            pads.append(0)
        places.update((axis, first + number) for number, axis in enumerate(axes))
    wanted = (*operand.batch, *operand.tile, *operand.depth)
    if any(axis not in places for axis in wanted if extent(axis) > 1):
        return None
    order = [places[axis] for axis in wanted]
    inner = places[last] + 1
    ones = [i for i in range(sum(map(len, parts))) if i not in order and i != inner]
    return Packing(tuple(pads), tuple(parts), (*ones, *order, inner))


def _axes_in(place: Expr, size: int, axes: Sequence[IterVar]) -> tuple[IterVar, ...] | None:
    """The axes that a dimension is made of, outermost first: one, or several of which it is the
    places together, as of an image that was flattened. None where it is not all of their places."""
    if isinstance(place, IterVar) and extent(place) == size:
        return (place,) if size > 1 else ()
    form = Arithmetic({a: (0, extent(a) - 1) for a in axes}).linear(place)
    steps = {axis: form.step(axis)[0] for axis in axes}
    if form.constant or any(step is None for step in steps.values()):
        return None
    found = sorted((a for a in axes if steps[a]), key=lambda a: -(steps[a] or 0))
    left = size
    for axis in found:
        left, rest = divmod(left, extent(axis))
        if rest or steps[axis] != left:
            return None
    return tuple(found) if left == 1 else None


class TileOperand:
    """An operand as the schedule reads it.

    place: how. tile: the tile's width. panels: the computation that packs it, where there is one.
    packing, argument: of one that is packed ahead. padded: whether there is more of it than is
    needed, up to whole tiles. as_read: whether panels have the elements as they are in memory, to
    be converted when they are read: columns are loaded as vectors, which are converted as fast, and
    of rows each element would be converted alone. by_rows: whether it is copied row by row instead
    of into panels: elements of a row are read one by one, so that rows need not be transposed, only
    lie so that they do not share the sets of a cache.
    """

    def __init__(
        self, operand: MatrixOperand, place: str, tile: int, depth: int, name: str, dtype: str
    ) -> None:
        """Of an operand.

        Args:
            operand: the operand.
            place: how it is read.
            tile: the tile's width: its rows or columns.
            depth: steps of the whole depth.
            name: `left`, whose places are rows, or `right`.
            dtype: the type that panels have, in which products are added up.
        """
        self.operand, self.place, self.tile, self.dtype = operand, place, tile, dtype
        self.as_read = name == "right" and source_read(operand.factor) is not None
        self.panels: Tensor | None = None
        self.packing: Packing | None = None
        self.argument: Tensor | None = None
        copied = place in (FIRST, BY_BLOCK)
        self.by_rows = copied and name == "left" and operand.contiguous[1]
        self.padded = place != IN_PLACE and not self.by_rows
        if place == AHEAD:
            read = source_read(operand.factor)
            self.packing = ahead_packing(operand, tile)
            assert read is not None
            assert self.packing is not None
            self.argument = self.packing.placeholder(read.tensor)
        elif copied:
            self.panels = self._packed(depth, name)

    @property
    def tiles(self) -> int:
        """How many panels there are."""
        return tiles_of(self.operand.size, self.tile)

    @property
    def size(self) -> int:
        """Rows or columns that can be read."""
        return self.tiles * self.tile if self.padded else self.operand.size

    def _packed(self, depth: int, name: str) -> Tensor:
        operand, tile = self.operand, self.tile
        batches = [extent(axis) for axis in operand.batch]

        def copied(*axes: Expr) -> Expr:
            *batch, place, step = axes
            return cast(self.dtype, operand.at(batch, place, step))

        if self.by_rows:
            rows: Tensor = compute((*batches, operand.size, depth), copied, name=f"{name}.rows")
            return rows

        def packed(*axes: Expr) -> Expr:
            *batch, panel, step, lane = axes
            place = panel * tile + lane
            value = operand.at(batch, place, step)
            read = source_read(value) if self.as_read else None
            value = cast(self.dtype, value) if read is None else read
            if self.tiles * tile == operand.size:
                return value
            return if_then_else(place < index(operand.size), value, const(0, value.dtype))

        made: Tensor = compute((*batches, self.tiles, depth, tile), packed, name=f"{name}.panels")
        return made

    def at(self, batch: Sequence[Expr], place: Expr, step: Expr) -> Expr:
        """The factor at a place of the contraction's.

        Args:
            batch: places on the axes of batches that the operand has.
            place: the row or column.
            step: of the depth.
        """
        panels, packing, argument = self.panels, self.packing, self.argument
        factor = self.operand.at(batch, place, step)
        if panels is not None and self.by_rows:
            return TensorRead(panels, (*batch, place, step))
        if panels is not None:
            packed = TensorRead(panels, (*batch, place // self.tile, step, place % self.tile))
            if not self.as_read:
                return packed

        def moved(node: Expr) -> Expr | None:
            if not isinstance(node, TensorRead):
                return None
            if packing is not None and argument is not None:
                return packing.read(argument, node.indices)
            return packed if panels is not None else None

        return transform(factor, moved)
