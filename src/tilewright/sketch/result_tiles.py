"""The result of a contraction in tiles of its rows and columns, of sums that are computed apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.schedule.expr import Expr, cast
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.tensor import ComputeOp, IterVar, Tensor
from tilewright.sketch.contraction import MatrixForm, together
from tilewright.sketch.structure import result_with


@dataclass(frozen=True)
class ResultTiles:
    """The loops over a result in tiles, of rows and of columns as far as it has them: blocks, which
    are shared out, tiles of a block, columns outermost, and elements of a tile."""

    blocks: tuple[IterVar, ...]
    outers: tuple[IterVar, ...]
    insides: tuple[IterVar, ...]


def result_of(form: MatrixForm, sums: Callable[[Expr, Expr], Expr]) -> Tensor:
    """A site's output, of sums that are computed apart.

    Args:
        form: the contraction.
        sums: the sum of a row and column.
    """
    main = form.main

    def element(indices: Any) -> Expr:
        at = dict(zip(main.spatial, indices, strict=True))
        row, column = (
            together([at[axis] for axis in axes], axes)
            for axes in (form.left.tile, form.right.tile)
        )
        return cast(main.output.dtype, sums(row, column))

    return result_with(form.site.output, main.output, element)


def cut_in_tiles(
    schedule: Schedule,
    output: Tensor,
    form: MatrixForm,
    kept: set[Tensor],
    tiles: Sequence[tuple[int, int]],
) -> ResultTiles:
    """Cut the loops of an output of `result_of`, and inline what is computed beside it.

    Args:
        schedule: of the output.
        output: what was made of sums.
        form: the contraction.
        kept: what is not inlined.
        tiles: for rows and for columns: elements of a tile, and tiles of a block.
    """
    for stage in schedule.stages:
        if isinstance(stage.op, ComputeOp) and not {*kept, output} & set(stage.op.outputs):
            stage.compute_inline()
    result, groups = schedule[output], form.result
    axes = result.op.axis
    again, *mine = (
        [axes[i] for i in group] for group in (groups.again, groups.rows, groups.columns)
    )
    rest = [a for a in axes if a not in (*again, *mine[0], *mine[1])]
    result.reorder(*rest, *again, *mine[0], *mine[1])
    loops = []
    for group, (tile, count) in zip(mine, tiles, strict=True):
        if group:
            axis = result.fuse(*group) if len(group) > 1 else group[0]
            outer, inside = result.split(axis, tile)
            loops.append((*result.split(outer, count), inside))
    blocks, outers, insides = zip(*loops, strict=True)
    result.reorder(*rest, *blocks, *reversed(outers), *again, *insides)
    for block in blocks:
        result.parallel(block)
    result.vectorize(insides[-1])
    return ResultTiles(blocks, outers, insides)
