"""Reductions that read an operand through sliding windows: convolutions and pooling, taken apart by
their loops and reads, and written anew with the filter packed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.schedule.arith import Arithmetic, Linear
from tilewright.schedule.expr import Expr, Var, binary, const, substitute
from tilewright.schedule.functions import conjunction, if_then_else
from tilewright.schedule.schedule import Schedule, create_schedule
from tilewright.schedule.tensor import (
    ComputeOp,
    IterVar,
    PlaceholderOp,
    Reduce,
    Tensor,
    TensorRead,
    compute,
    placeholder,
    reads,
    reduce_axis,
)
from tilewright.schedule.types import INDEX
from tilewright.schedule.walk import transform
from tilewright.sketch.interface import SiteExpression
from tilewright.sketch.packing import Packing
from tilewright.sketch.structure import axes_of, computed_stages, extent, rewritten
from tilewright.space.pipeline import Unfit


@dataclass(frozen=True)
class ImageDim:
    """How one dimension of the image is read: at `stride` times an axis of the result plus
    `dilation` times an axis of the reduction.

    data, reduced: these axes, None where there is none. stride, dilation: 1 without an axis.
    """

    data: IterVar | None
    reduced: IterVar | None
    stride: int
    dilation: int

    @property
    def slides(self) -> bool:
        """Whether neighbours of the result read overlapping or spaced parts of it."""
        return self.data is not None and (self.reduced is not None or self.stride > 1)


@dataclass(frozen=True)
class SlidingReduction:
    """A site whose one reduction reads an image through sliding windows.

    site: the expression. op: the reduction. body: its source's, with elementwise producers put in
        place but for the image. image: the read of the image, an input or what is elementwise of
        one (padding). dims: for each dimension of the image. filter: the read of the input that
        goes with the image, each of its dimensions along one axis; None in pooling. order: of the
        site's output, for each of its dimensions the axis of the reduction, None for one of size 1.
    """

    site: SiteExpression
    op: ComputeOp
    body: Reduce
    image: TensorRead
    dims: tuple[ImageDim, ...]
    filter: TensorRead | None
    order: tuple[IterVar | None, ...]

    @property
    def slides(self) -> tuple[IterVar, ...]:
        """Axes of the result along which windows slide, in the order of the output."""
        found = {dim.data for dim in self.dims if dim.slides}
        return tuple(axis for axis in self.order if axis is not None and axis in found)

    @property
    def outputs(self) -> tuple[IterVar, ...]:
        """Axes of the result that the image is read again for: output channels."""
        used = set(axes_of_read(self.image, self.op.axis))
        return tuple(axis for axis in self.order if axis is not None and axis not in used)

    @property
    def windows(self) -> tuple[IterVar, ...]:
        """Reduced axes within a window."""
        found = {dim.reduced for dim in self.dims if dim.slides}
        return tuple(axis for axis in self.op.reduce_axis if axis in found)

    @property
    def channels(self) -> tuple[IterVar, ...]:
        """Reduced axes that are not within a window."""
        return tuple(axis for axis in self.op.reduce_axis if axis not in self.windows)

    @property
    def is_padded(self) -> bool:
        """Whether the image is computed of an input, and not an input itself."""
        return isinstance(self.image.tensor.op, ComputeOp)

    @property
    def filter_input(self) -> int | None:
        """Which input of the site the filter is, where it can be packed ahead."""
        if self.filter is None:
            return None
        position = self.site.inputs.index(self.filter.tensor)
        return position if self.site.constant[position] else None

    def dim_of(self, axis: IterVar) -> ImageDim | None:
        """How the image is read along an axis of the result.

        Args:
            axis: of the result.

        Returns:
            None where it is not.
        """
        return next((dim for dim in self.dims if dim.data is axis), None)


def axes_of_read(read: TensorRead, axes: Sequence[IterVar]) -> tuple[IterVar, ...]:
    """The axes that a read depends on.

    Args:
        read: of a tensor.
        axes: in the order of the result.
    """
    used = {axis for index in read.indices for axis in axes_of(index, axes)}
    return tuple(axis for axis in axes if axis in used)


def sliding_reduction(site: SiteExpression) -> SlidingReduction:
    """Takes a site apart.

    Args:
        site: the expression.

    Returns:
        Its reduction.

    Raises:
        Unfit: it has none or several, nothing slides, or its result is read in another way than
            element by element.
    """
    reductions = [op for op in computed_stages(site.output) if op.reduction is not None]
    if len(reductions) != 1:
        raise Unfit(f"{len(reductions)} reductions instead of one")
    (op,) = reductions
    if op.num_outputs > 1:
        raise Unfit("its reduction has several results")
    axes = (*op.axis, *op.reduce_axis)
    arithmetic = Arithmetic(
        {a: (a.dom.min, a.dom.min + a.dom.extent - 1) for a in axes if a.dom is not None}
    )
    sliding = {}
    for read in reads(op.body[0]):
        dims = _image_dims(read, arithmetic, op)
        if dims is not None and any(dim.slides for dim in dims):
            sliding[read] = dims
    if not sliding:
        raise Unfit("no operand is read through sliding windows")
    if len({read.tensor for read in sliding}) > 1 or len(sliding) > 1:
        raise Unfit("several operands are read through sliding windows")
    ((image, image_dims),) = sliding.items()
    body = _with_producers(op.body[0], image.tensor)
    if not isinstance(body, Reduce):
        raise Unfit("its body is no reduction")
    if sum(read.tensor is image.tensor for read in reads(body)) != 1:
        raise Unfit("the image is read in several places")
    return SlidingReduction(
        site, op, body, image, image_dims, _filter(body, image, op, site), _order(site, op)
    )


def _image_dims(
    read: TensorRead, arithmetic: Arithmetic, op: ComputeOp
) -> tuple[ImageDim, ...] | None:
    """How each dimension of an operand is read; None where one is read in no such way."""
    found = []
    for index in read.indices:
        form = arithmetic.linear(index)
        data = _terms(form, op.axis)
        reduced = _terms(form, op.reduce_axis)
        if data is None or reduced is None or form.constant:
            return None
        if len(data) > 1 or len(reduced) > 1 or len(data) + len(reduced) < len(form.terms):
            return None
        (axis, stride) = data[0] if data else (None, 1)
        (window, dilation) = reduced[0] if reduced else (None, 1)
        if stride < 1 or dilation < 1:
            return None
        found.append(ImageDim(axis, window, stride, dilation))
    return tuple(found)


def _terms(form: Linear, axes: Sequence[IterVar]) -> list[tuple[IterVar, int]] | None:
    """The axes of a sum with their coefficients; None where one is there in another way."""
    steps = [(axis, form.step(axis)[0]) for axis in axes]
    if any(step is None for _, step in steps):
        return None
    return [(axis, step) for axis, step in steps if step]


def _with_producers(expr: Expr, kept: Tensor) -> Expr:
    """An expression with elementwise producers in the place of their reads, but for one tensor."""

    def changed(node: Expr) -> Expr | None:
        if not isinstance(node, TensorRead) or node.tensor is kept:
            return None
        op = node.tensor.op
        if not isinstance(op, ComputeOp):
            return None
        values: dict[Expr, Expr] = dict(zip(op.axis, node.indices, strict=True))
        return _with_producers(substitute(op.body[0], values), kept)

    return transform(expr, changed)


def _filter(
    body: Reduce, image: TensorRead, op: ComputeOp, site: SiteExpression
) -> TensorRead | None:
    """The largest input beside the image with a dimension for each of the axes that it is read
    along."""
    found = []
    for read in reads(body):
        if read.tensor is image.tensor or not isinstance(read.tensor.op, PlaceholderOp):
            continue
        axes = [index for index in read.indices if isinstance(index, IterVar)]
        plain = len(axes) == len(read.indices) == len(set(axes)) and read.tensor in site.inputs
        if plain and set(axes) & set(op.reduce_axis):
            found.append(read)
    return max(found, key=lambda read: prod(read.tensor.shape), default=None)


def _order(site: SiteExpression, op: ComputeOp) -> tuple[IterVar | None, ...]:
    """The axis of the reduction that each dimension of the site's output is."""
    output = site.output
    if output.op is op:
        return op.axis
    assert isinstance(output.op, ComputeOp)
    body = _with_producers(output.op.body[0], op.outputs[0])
    places = {tuple(read.indices): read for read in reads(body) if read.tensor is op.outputs[0]}
    if output.op.num_outputs > 1 or len(places) != 1:
        raise Unfit("its result is read in several ways")
    (indices,) = places
    found: dict[Var, IterVar] = {}
    for axis, index in zip(op.axis, indices, strict=True):
        if isinstance(index, IterVar) and index in output.op.axis and index not in found:
            found[index] = axis
        elif extent(axis) > 1:
            raise Unfit("its result is not read element by element")
    order = tuple(found.get(axis) for axis in output.op.axis)
    for at, axis in zip(order, output.op.axis, strict=True):
        if extent(axis) != (1 if at is None else extent(at)):
            raise Unfit("its result is not read element by element")
    return order


@dataclass(frozen=True)
class Rewritten:
    """A sliding reduction written anew, for one schedule.

    schedule: of `output`. sums: the tensor that holds the sums. image: the tensor that the sums
        read. axes: for each axis of the old reduction's result that axis of the output; for each of
        its reduced axes the one of the new reduction. places: the axes of `sums` that those of the
        result are. arguments, packings: of the kernel.
    """

    schedule: Schedule
    output: Tensor
    sums: Tensor
    image: Tensor
    axes: Mapping[IterVar, IterVar]
    places: Mapping[IterVar, IterVar]
    arguments: tuple[Tensor, ...]
    packings: Mapping[int, Packing]


def written_anew(
    found: SlidingReduction,
    tile: Mapping[IterVar, int],
    vector: IterVar,
    reduced: Sequence[IterVar],
    *,
    copied: bool,
    depth: int = 0,
) -> Rewritten:
    """The expression with the sums in a tensor of their own, the filter packed for a tile, and a
    copy of the image.

    Args:
        found: the reduction.
        tile: elements of a tile along axes of the result; along the axes of the filter that the
            image is not read along, sums are computed for whole tiles, also along `vector` where
            the image is copied.
        vector: the axis whose elements make a vector.
        reduced: the reduced axes in the order of their loops.
        copied: whether the image is copied. The copy has what tiles read beyond the image, and
            where vectors are columns each phase of a stride for itself.
        depth: of the innermost channels how many are together in the copy, where these are the
            image's innermost dimension; 0 for all.

    Returns:
        The new expression, with a schedule of which nothing but the elementwise stages is placed.
    """
    position = found.filter_input
    sizes = {axis: extent(axis) for axis in found.op.axis}
    if copied and vector in found.slides:
        sizes[vector] = -(-sizes[vector] // tile[vector]) * tile[vector]
    packings: dict[int, Packing] = {}
    packed: Tensor | None = None
    places: tuple[Expr, ...] = ()
    if position is not None and found.filter is not None:
        for axis in found.outputs:
            if axis in tile and axis in found.filter.indices:
                sizes[axis] = -(-sizes[axis] // tile[axis]) * tile[axis]
        packing, places = _packing(found, tile, vector, reduced, sizes, depth)
        packings[position] = packing
        old_filter = found.filter.tensor
        packed = placeholder(packing.shape, old_filter.dtype, name=old_filter.name)
    fresh = {
        a: reduce_axis((a.dom.min, a.dom.min + a.dom.extent), a.name)
        for a in found.op.reduce_axis
        if a.dom is not None
    }

    image, place_in = _copy(found, sizes, vector, depth) if copied else (found.image.tensor, None)

    # The sums of a vector lie side by side, whatever the order of the result.
    kept = [*(a for a in found.op.axis if a is not vector), vector]

    def sums_of(*axes: IterVar) -> Expr:
        values: dict[Expr, Expr] = dict(zip(kept, axes, strict=True))
        values.update(fresh.items())

        def changed(node: Expr) -> Expr | None:
            if not isinstance(node, TensorRead):
                return None
            if place_in is not None and node.tensor is found.image.tensor:
                return TensorRead(image, place_in(node.indices))
            if packed is not None and node is found.filter:
                return TensorRead(packed, places)
            return None

        sources = tuple(
            substitute(transform(source, changed), values) for source in found.body.sources
        )
        return replace(
            found.body,
            sources=sources,
            axes=tuple(fresh[a] for a in found.body.axes),
            condition=substitute(found.body.condition, values),
        )

    sums = compute(tuple(sizes[a] for a in kept), sums_of, name="sums")
    ranks = [found.op.axis.index(a) for a in kept]

    def sum_at(indices: Sequence[Expr]) -> Expr:
        read: Expr = sums(*(indices[rank] for rank in ranks))
        return read

    old = found.op.outputs[0]
    if found.site.output is old:
        output = compute(old.shape, lambda *axes: sum_at(axes), name=old.name)
    else:
        output = rewritten(found.site.output, {old: sum_at})
    arguments = list(found.site.inputs)
    if packed is not None and position is not None:
        arguments[position] = packed
    schedule = create_schedule(output.op)
    for stage in schedule.stages:
        elementwise = isinstance(stage.op, ComputeOp) and stage.compute.reduction is None
        if elementwise and not stage.is_output and (not copied or stage.op is not image.op):
            stage.compute_inline()
    axes = dict(fresh)
    axes |= {
        old: new for old, new in zip(found.order, output.op.axis, strict=True) if old is not None
    }
    return Rewritten(
        schedule,
        output,
        sums,
        image,
        axes,
        dict(zip(kept, sums.op.axis, strict=True)),
        (*arguments, output),
        packings,
    )


def _copy(
    found: SlidingReduction, sizes: Mapping[IterVar, int], vector: IterVar, depth: int
) -> tuple[Tensor, Callable[[Sequence[Expr]], tuple[Expr, ...]]]:
    """A copy of the image, and where an element of the image is in it."""
    source = found.image.tensor
    # Dimensions of the copy: a rank by which they are ordered, the size, and of which of the image
    # they are. A dimension of the image is `factor` times its first part plus its second.
    parts: list[tuple[tuple[int, int], int, int]] = []
    factors: list[int] = []
    wide: list[int] = []
    *_, innermost = found.dims
    for at, (dim, size) in enumerate(zip(found.dims, source.shape, strict=True)):
        factors.append(1)
        wide.append(size)
        if dim.data is not None:
            reach = (extent(dim.reduced) - 1) * dim.dilation if dim.reduced is not None else 0
            wide[at] = max(size, (sizes[dim.data] - 1) * dim.stride + reach + 1)
        if dim.data is vector and dim.stride > 1:
            factors[at] = dim.stride
            wide[at] = -(-wide[at] // dim.stride) * dim.stride
            # Phases before the columns of one.
            parts.append(((3, 1), wide[at] // dim.stride, at))
            parts.append(((3, 0), dim.stride, at))
        elif dim is innermost and dim.data is None and depth < size and size % max(1, depth) == 0:
            factors[at] = depth
            parts.append(((0, 0), size // depth, at))
            parts.append(((3, 0), depth, at))
        elif dim is innermost:
            parts.append(((3, 0), size if dim.data is None else wide[at], at))
        else:
            # What steps of a tile read lies together: the channels of a row.
            parts.append(((2 if dim.data is None and innermost.slides else 1, at), wide[at], at))
    order = sorted(range(len(parts)), key=lambda part: parts[part][0])
    split = [sum(at == one for _, _, at in parts) > 1 for one in range(len(wide))]

    def element(*indices: IterVar) -> Expr:
        given = dict(zip(order, indices, strict=True))
        place: list[Expr] = [const(0, INDEX)] * len(wide)
        for number_, (_, _, at) in enumerate(parts):
            place[at] = place[at] * (factors[at] if split[at] else 1) + given[number_]
        tests = [
            index < size
            for index, size, most in zip(place, source.shape, wide, strict=True)
            if most > size
        ]
        read = TensorRead(source, tuple(place))
        return if_then_else(conjunction(tests), read, const(0, source.dtype)) if tests else read

    def place_in(indices: Sequence[Expr]) -> tuple[Expr, ...]:
        found_parts: list[Expr] = []
        first: set[int] = set()
        for _, _, at in parts:
            index = indices[at]
            if split[at]:
                index = index % factors[at] if at in first else index // factors[at]
            first.add(at)
            found_parts.append(index)
        return tuple(found_parts[part] for part in order)

    shape = tuple(parts[part][1] for part in order)
    return compute(shape, element, name="piece"), place_in


def _packing(
    found: SlidingReduction,
    tile: Mapping[IterVar, int],
    vector: IterVar,
    reduced: Sequence[IterVar],
    sizes: Mapping[IterVar, int],
    depth: int,
) -> tuple[Packing, tuple[Expr, ...]]:
    """The filter in the order in which tiles read it, and where an element of it then is.

    Tiles come first, in each of them the reduced axes in the order of their loops, innermost what
    one step of a tile reads, which lies side by side.
    """
    read = found.filter
    assert read is not None
    pad: list[int] = []
    split: list[tuple[int, ...]] = []
    parts: list[tuple[tuple[int, int, int], Expr]] = []
    for index, size in zip(read.indices, read.tensor.shape, strict=True):
        assert isinstance(index, IterVar)
        padded = sizes.get(index, size)
        inner = tile.get(index, 0) if index in sizes else 0
        pad.append(padded - size)
        if index in reduced:
            place = list(reduced).index(index)
            part = depth if index in found.channels[-1:] and 0 < depth < size else 0
            if part and size % part == 0:
                split.append((size // part, part))
                parts.append(((1, -1, 0), binary("floordiv", index, part)))
                parts.append(((1, place, 0), binary("floormod", index, part)))
            else:
                split.append((padded,))
                parts.append(((1, place, 0), index))
        elif inner and padded % inner == 0 and inner < padded:
            split.append((padded // inner, inner))
            parts.append(((0, len(parts), 0), binary("floordiv", index, inner)))
            parts.append(((2, int(index is vector), len(parts)), binary("floormod", index, inner)))
        else:
            split.append((padded,))
            within = inner >= padded
            rank = (2, int(index is vector), len(parts)) if within else (0, len(parts), 0)
            parts.append((rank, index))
    order = tuple(sorted(range(len(parts)), key=lambda part: parts[part][0]))
    return (
        Packing(tuple(pad), tuple(split), order),
        tuple(parts[part][1] for part in order),
    )
