"""Contractions of any rank in one form: rows times columns, summed up over a depth, in batches.

The axes of a sum of products fall into four groups, whatever the operation is called: those of the
result that only one operand has are its rows, those that only the other has its columns, those of
both batches; those that are summed up are the depth. Rows, columns and depth become one axis each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.schedule.arith import Arithmetic
from tilewright.schedule.expr import Binary, Expr, index, is_true, substitute
from tilewright.schedule.linear import number
from tilewright.schedule.plan import inlined_bodies
from tilewright.schedule.schedule import create_schedule
from tilewright.schedule.tensor import ComputeOp, IterVar, reads
from tilewright.sketch.dimensions import in_dimensions_of
from tilewright.sketch.interface import SiteExpression
from tilewright.sketch.structure import (
    OperandRead,
    StageStructure,
    axes_of,
    extent,
    factors,
    source_read,
    structure_of,
)
from tilewright.space.pipeline import Unfit


@dataclass(frozen=True)
class MatrixOperand:
    """One side of the products.

    factor: in terms of the contraction's own axes. tile, batch: those of the axes of the result
    that it has: rows or columns, and batches. depth: those summed over. position: of the input that
    it is, where it is a constant one (conversions aside); else None. flat: whether the tile's axes,
    and the depth's, are each like one axis in memory. contiguous: whether the neighbours along the
    tile lie next to each other in memory, and those along the depth. stride: elements between
    neighbours along the slowest of its axes, of the tile's where it is in blocks, if it is a read.
    """

    factor: Expr
    tile: tuple[IterVar, ...]
    batch: tuple[IterVar, ...]
    depth: tuple[IterVar, ...]
    position: int | None
    flat: tuple[bool, bool]
    contiguous: tuple[bool, bool]
    stride: int

    @property
    def in_blocks(self) -> bool:
        """Whether it is a read whose depth is several pieces of memory, as with blocked channels;
        padding is none, which would be computed again for each element."""
        return self.flat[0] and not self.flat[1] and self.contiguous[1] and self.stride > 0

    @property
    def size(self) -> int:
        """Rows or columns."""
        return sizes_of(self.tile)

    def at(self, batch: Sequence[Expr], place: Expr, depth: Expr) -> Expr:
        """The factor at a place.

        Args:
            batch: an index for each axis of `batch`.
            place: the row or column.
            depth: which of the products.
        """
        values: dict[Expr, Expr] = dict(zip(self.batch, batch, strict=True))
        values.update(zip(self.tile, apart(place, self.tile), strict=True))
        for axis, part in zip(self.depth, apart(depth, self.depth), strict=True):
            values[axis] = part + first(axis)
        return substitute(self.factor, values)


@dataclass(frozen=True)
class ResultAxes:
    """Which axes of the output are which: by their positions, those of rows, columns and depth in
    the order in which they are like one axis; `again` those that have the same sums again."""

    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    again: tuple[int, ...] = ()


@dataclass(frozen=True)
class MatrixForm:
    """A site's one reduction as a contraction.

    site, main: what it is made of. batch: axes of the result that are neither rows nor columns.
    left, right: the operands with rows and with columns; vectors lie along the innermost column.
    depth: the axes summed over. result: the same groups in the output.
    """

    site: SiteExpression
    main: StageStructure
    batch: tuple[IterVar, ...]
    left: MatrixOperand
    right: MatrixOperand
    depth: tuple[IterVar, ...]
    result: ResultAxes

    @property
    def batches(self) -> int:
        """How many products of matrices there are."""
        return sizes_of(self.batch)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Rows, columns and depth."""
        return self.left.size, self.right.size, sizes_of(self.depth)

    @property
    def is_output(self) -> bool:
        """Whether nothing comes behind the sums."""
        return self.main.op is self.site.output.op


def sizes_of(axes: Sequence[IterVar]) -> int:
    """The number of places that axes have together.

    Args:
        axes: none for one place.
    """
    return prod(map(extent, axes))


def first(axis: IterVar) -> int:
    """The first value of an axis.

    Args:
        axis: of a computation.
    """
    assert axis.dom is not None
    return axis.dom.min


def together(places: Sequence[Expr], axes: Sequence[IterVar]) -> Expr:
    """One index of several, the last of which moves fastest.

    Args:
        places: one for each axis.
        axes: whose extents count.
    """
    total: Expr = index(0)
    for place, axis in zip(places, axes, strict=True):
        total = total * extent(axis) + place
    return total


def apart(place: Expr, axes: Sequence[IterVar]) -> tuple[Expr, ...]:
    """The indices of which `together` makes a place.

    Args:
        place: the one index.
        axes: whose extents count.
    """
    found: list[Expr] = []
    inner = sizes_of(axes)
    for number_, axis in enumerate(axes):
        inner //= extent(axis)
        part = place // inner if inner > 1 else place
        found.append(part % extent(axis) if number_ else part)
    return tuple(found)


def contraction_of(site: SiteExpression) -> MatrixForm:
    """The contraction that a site is.

    Args:
        site: the expression.

    Returns:
        Its groups of axes.

    Raises:
        Unfit: there is not one sum of products, no operand is shared along the vectors' axis, or
            what comes behind is no function of each element alone.
    """
    structure = structure_of(site)
    main = structure.main
    if main is None or not structure.is_single:
        raise Unfit("it is not one reduction with what is elementwise around it")
    reduction = main.op.reduction
    if reduction is None or main.op.num_outputs > 1:
        raise Unfit("it reduces several values at once")
    if reduction.init is not None or not is_true(reduction.condition):
        raise Unfit("its sums do not start from zero, or leave something out")
    try:
        return _matrix_form(site, main)
    except Unfit:
        other = _apart(site, main)
        if other.output is site.output:
            raise
        return _matrix_form(other, main)


def _matrix_form(site: SiteExpression, main: StageStructure) -> MatrixForm:
    """The groups of axes of a sum of products, or Unfit."""
    parts = factors(main.body)
    places = _places(site, main)
    lanes = _innermost(site, main, places)
    if len(parts) < 2 or lanes is None:
        raise Unfit("it is no sum of products with a result of several elements")
    # A number that all products are multiplied by is no operand of its own.
    own = [p for p in parts if axes_of(p, main.axes)]
    right = [p for p in parts if axes_of(p, [lanes]) or p not in own]
    left = [p for p in own if not axes_of(p, [lanes])]
    if not left or not right:
        raise Unfit("no operand is shared along the innermost axis of the result")
    result = [axis for axis in main.spatial if extent(axis) > 1]
    depth = tuple(axis for axis in main.reduced if extent(axis) > 1)
    depth = _depth_in_order(site, main, left, right, depth)
    rows = tuple(a for a in result if not any(axes_of(p, [a]) for p in right))
    columns = _columns(main, result, left, lanes)
    batch = tuple(a for a in result if a not in rows and a not in columns)
    return MatrixForm(
        site,
        main,
        batch,
        _operand(site, main, left, rows, batch, depth),
        _operand(site, main, right, columns, batch, depth),
        depth,
        _result_axes(site, main, places, (batch, rows, columns)),
    )


def _apart(site: SiteExpression, main: StageStructure) -> SiteExpression:
    """The site with each dimension of its output apart that is several of the sums: the groups of a
    convolution and their channels, or, where it is enlarged, rows and the numbers of their copies.
    """
    if site.output is main.output:
        return site
    output = in_dimensions_of(site.output, main.output, _element(site, main))
    return SiteExpression(site.inputs, site.constant, output)


def _element(site: SiteExpression, main: StageStructure) -> Expr:
    """An element of the output, of what the reduction gives."""
    output = site.output.op
    schedule = create_schedule(output)
    for stage in schedule.stages:
        if isinstance(stage.op, ComputeOp) and stage.op is not output and stage.op is not main.op:
            stage.compute_inline()
    return inlined_bodies(schedule)[schedule[site.output]][0]


def _places(site: SiteExpression, main: StageStructure) -> tuple[Expr, ...]:
    """The element of the reduction that each element of the output needs, by the output's axes."""
    output = site.output.op
    assert isinstance(output, ComputeOp)
    if output is main.op:
        return output.axis
    body = _element(site, main)
    found = [read.indices for read in reads(body) if read.tensor is main.output]
    arithmetic = _arithmetic(output)
    same = all(
        arithmetic.linear(a) == arithmetic.linear(b)
        for other in found[1:]
        for a, b in zip(found[0], other, strict=True)
    )
    if not found or not same:
        raise Unfit("an element of the result needs several sums")
    return tuple(found[0])


def _arithmetic(op: ComputeOp) -> Arithmetic:
    return Arithmetic({axis: (0, extent(axis) - 1) for axis in op.axis})


def _innermost(
    site: SiteExpression, main: StageStructure, places: Sequence[Expr]
) -> IterVar | None:
    """The axis of the reduction along which the output's neighbours lie."""
    output = site.output.op
    wide = [axis for axis in output.axis if extent(axis) > 1]
    if not wide:
        return None
    found = [a for a, p in zip(main.spatial, places, strict=True) if axes_of(p, wide[-1:])]
    if len(found) != 1:
        raise Unfit("the output's innermost axis is none of the reduction's")
    return found[0]


def _columns(
    main: StageStructure, result: Sequence[IterVar], left: Sequence[Expr], lanes: IterVar
) -> tuple[IterVar, ...]:
    """The vectors' axis and those before it that make one axis with it in operand and result."""
    columns = [lanes]
    strides = [r.strides for r in main.reads if r.depends_on(lanes)]
    for axis in reversed(result[: result.index(lanes)]):
        step, size = main.output_stride(columns[0]), extent(columns[0])
        if any(axes_of(p, [axis]) for p in left) or main.output_stride(axis) != step * size:
            break
        inner = [s[columns[0]] for s in strides]
        if any(i is None or s[axis] != i * size for s, i in zip(strides, inner, strict=True)):
            break
        columns.insert(0, axis)
    return tuple(columns)


def _depth_in_order(
    site: SiteExpression,
    main: StageStructure,
    left: Sequence[Expr],
    right: Sequence[Expr],
    depth: tuple[IterVar, ...],
) -> tuple[IterVar, ...]:
    """The axes summed over as the rows lie in memory, where that makes them one axis there and the
    columns are constant, which are then packed so: what is multiplied with the flattened image of a
    convolution, whose channels lie side by side."""
    found = _reads_in(main, left)
    if len(found) != 1 or len(right) != 1 or _constant_input(site, right[0]) is None:
        return depth
    strides = found[0].strides
    ordered = tuple(sorted(depth, key=lambda axis: -(strides[axis] or 0)))
    return ordered if _is_one_axis(found[0], ordered) else depth


def _reads_in(main: StageStructure, parts: Sequence[Expr]) -> list[OperandRead]:
    """The reads that are in some factors."""
    read_here = {id(read) for part in parts for read in reads(part)}
    return [one for one in main.reads if id(one.read) in read_here]


def _constant_input(site: SiteExpression, factor: Expr) -> int | None:
    """The position of the constant input that a factor is, conversions aside."""
    read = source_read(factor)
    if read is None or read.tensor not in site.inputs:
        return None
    position = site.inputs.index(read.tensor)
    return position if site.constant[position] else None


def _operand(
    site: SiteExpression,
    main: StageStructure,
    parts: Sequence[Expr],
    tile: tuple[IterVar, ...],
    batch: tuple[IterVar, ...],
    depth: tuple[IterVar, ...],
) -> MatrixOperand:
    factor = parts[0]
    for other in parts[1:]:
        factor = Binary("mul", factor, other, factor.dtype)
    single: dict[Expr, Expr] = {a: index(first(a)) for a in main.axes if extent(a) == 1}
    factor = substitute(factor, single)
    found = _reads_in(main, parts)
    own = axes_of(factor, batch)
    flat = (
        all(_is_one_axis(one, tile) for one in found),
        all(_is_one_axis(one, depth) for one in found),
    )

    def beside(axes: Sequence[IterVar]) -> bool:
        return bool(axes) and all(one.strides[axes[-1]] == 1 for one in found)

    source = source_read(parts[0]) if len(parts) == 1 else None
    # Of blocks of the depth, what counts is how far rows are apart.
    slowest = tile if flat[0] and not flat[1] and beside(depth) else (*tile, *depth)
    steps = (one.strides[a] or 0 for one in found[:1] for a in slowest)
    stride = max(map(abs, steps), default=0)
    return MatrixOperand(
        factor,
        tile,
        own,
        depth,
        _constant_input(site, factor),
        flat,
        (beside(tile), beside(depth)),
        stride if source is not None else 0,
    )


def _is_one_axis(read: OperandRead, axes: Sequence[IterVar]) -> bool:
    """Whether a read moves by the same number of elements from each place of several axes to the
    next."""
    step = None
    for axis in reversed(axes):
        stride = read.strides[axis]
        if stride is None or (step is not None and stride != step):
            return False
        step = stride * extent(axis)
    return True


def _result_axes(
    site: SiteExpression,
    main: StageStructure,
    places: Sequence[Expr],
    groups: tuple[tuple[IterVar, ...], ...],
) -> ResultAxes:
    """The output's axes by group; each must be of one group, and make up its one axis."""
    output = site.output.op
    assert isinstance(output, ComputeOp)
    arithmetic = _arithmetic(output)
    at = dict(zip(main.spatial, places, strict=True))
    taken: set[int] = set()
    found: list[tuple[int, ...]] = []
    for number_, axes in enumerate(groups):
        if number_ == 0:
            used = [i for i, a in enumerate(output.axis) for b in axes if axes_of(at[b], [a])]
            mine = tuple(dict.fromkeys(used))
        else:
            place = arithmetic.linear(together([at[axis] for axis in axes], axes))
            steps = {i: place.step(axis)[0] for i, axis in enumerate(output.axis)}
            wide = [i for i in steps if steps[i] != 0 and extent(output.axis[i]) > 1]
            mine = tuple(sorted(wide, key=lambda i: -(steps[i] or 0)))
            expected, left = number(0), sizes_of(axes)
            for i in mine:
                left //= extent(output.axis[i])
                expected = expected.plus(arithmetic.variable(output.axis[i]), left)
            if expected != place or left != 1:
                raise Unfit("what comes behind the sums takes only some, or in another order")
        if taken & set(mine):
            raise Unfit("an axis of the output is rows and columns at once")
        taken.update(mine)
        found.append(mine)
    again = (i for i, a in enumerate(output.axis) if i not in taken and extent(a) > 1)
    batch, rows, columns = found
    return ResultAxes(batch, rows, columns, tuple(again))
