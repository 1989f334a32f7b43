"""Winograd's 3x3 convolutions as stages: tiles transformed, multiplied, added, transformed back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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
from tilewright.sketch.cook_toom import WINDOW, short_convolution
from tilewright.sketch.interface import SiteExpression
from tilewright.sketch.packing import Matrix, Packing
from tilewright.sketch.sliding import SlidingReduction, sliding_reduction
from tilewright.sketch.structure import extent, factors, rewritten, source_read
from tilewright.space.pipeline import Unfit


@dataclass(frozen=True)
class WinogradForm:
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
    def of(site: SiteExpression, lanes: int) -> WinogradForm:
        """Takes a site apart.

        Args:
            site: the expression.
            lanes: of a vector.

        Returns:
            The convolution that it is.

        Raises:
            Unfit: it is another one, or none.
        """
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
        if (
            found.phases
            or len(slides) != 2
            or any(
                (dim.stride, dim.dilation) != (1, 1)
                or dim.reduced is None
                or extent(dim.reduced) != WINDOW
                for dim in slides
            )
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
        return WinogradForm(
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
        """How many tiles the result has.

        Args:
            size: rows and columns of one; a number or an array of them.

        Returns:
            Along the rows, and along the columns.
        """
        return -(-extent(self.rows) // size), -(-extent(self.columns) // size)


@dataclass(frozen=True)
class WinogradStages:
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


def winograd_stages(form: WinogradForm, size: int, width: int) -> WinogradStages:
    """The convolution as transformations and products.

    Args:
        form: the convolution.
        size: rows and columns of a tile of the result.
        width: output channels that lie side by side in the packed filter.

    Returns:
        The stages, with a schedule in which nothing but what is elementwise is placed.
    """
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
    return WinogradStages(
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
    form: WinogradForm, matrix: Matrix, width: int
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
