"""Reductions that read an operand through sliding windows: convolutions and pooling, taken apart by
their loops and reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from math import prod

from tilewright.schedule.arith import Arithmetic
from tilewright.schedule.expr import Const, Expr, Var, substitute
from tilewright.schedule.linear import Linear
from tilewright.schedule.tensor import (
    ComputeOp,
    IterVar,
    PlaceholderOp,
    Reduce,
    Tensor,
    TensorRead,
    reads,
)
from tilewright.schedule.walk import transform
from tilewright.sketch.dimensions import in_dimensions_of
from tilewright.sketch.interface import SiteExpression
from tilewright.sketch.phases import Phase, by_phases
from tilewright.sketch.structure import axes_of, computed_stages, extent
from tilewright.space.pipeline import Unfit


@dataclass(frozen=True)
class ImageDim:
    """How one dimension of the image is read: at `stride` times an axis of the result plus
    `dilation` times an axis of the reduction.

    data, reduced: these axes, None where there is none. stride, dilation: 1 without an axis.
    shift: how much further some phases read than others, at most. is_grouped: the axis of the
    result chooses the filter too, and neighbours read parts that lie side by side: groups of
    channels, and the channels of one.
    """

    data: IterVar | None
    reduced: IterVar | None
    stride: int
    dilation: int
    shift: int = 0
    is_grouped: bool = False

    @property
    def slides(self) -> bool:
        """Whether neighbours of the result read overlapping or spaced parts of it."""
        if self.is_grouped:
            return False
        return self.data is not None and (self.reduced is not None or self.stride > 1)


@dataclass(frozen=True)
class SlidingReduction:
    """A site whose one reduction reads an image through sliding windows.

    site: the expression. op: the reduction. body: its source's, with elementwise producers put in
        place but for the image. image: the read of the image, an input or what is elementwise of
        one (padding). dims: for each dimension of the image. filter: the read of the input that
        goes with the image, each of its dimensions along one axis; None in pooling. order: of the
        site's output, for each of its dimensions the axis of the reduction, None for one of size 1
        or of the same sums again (a result enlarged by repeating them), never for the innermost.
        phases: by the axis along which the elements of one phase lie; those of a dimension of the
        output take turns, in all others there is none.
    """

    site: SiteExpression
    op: ComputeOp
    body: Reduce
    image: TensorRead
    dims: tuple[ImageDim, ...]
    filter: TensorRead | None
    order: tuple[IterVar | None, ...]
    phases: Mapping[IterVar, Phase] = field(default_factory=dict)

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
        """Reduced axes within a window, those of one element among them."""
        found = {dim.reduced for dim in self.dims if dim.slides}
        return tuple(a for a in self.op.reduce_axis if a in found or extent(a) == 1)

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

    def repeated(self, axes: Sequence[IterVar]) -> list[IterVar]:
        """Those of the axes of a result in the output's dimensions that have the same sums again.

        Args:
            axes: of the result, in its order.
        """
        named = zip(axes, self.order, strict=True)
        return [axis for axis, sums in named if sums is None and extent(axis) > 1]

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
    if site.output.op is not op:
        assert isinstance(site.output.op, ComputeOp)
        element = with_producers(site.output.op.body[0], op.outputs[0])
        apart = in_dimensions_of(site.output, op.outputs[0], element)
        site = SiteExpression(site.inputs, site.constant, apart)
    order = _order(site, op)
    phased = by_phases(site, op)
    phases = phased.phases if phased is not None else ()
    if phased is not None:
        site, op = phased.site, phased.op
        new = {phase.old: phase.data for phase in phases}
        order = tuple(axis if axis is None else new.get(axis, axis) for axis in order)
    axes = (*op.axis, *op.reduce_axis)
    arithmetic = Arithmetic(
        {a: (a.dom.min, a.dom.min + a.dom.extent - 1) for a in axes if a.dom is not None}
    )
    sliding = {}
    for read in [phased.image] if phased is not None else reads(op.body[0]):
        dims = _image_dims(read, arithmetic, op, phases)
        if dims is not None:
            dims = _grouped(dims, read, op)
        if dims is not None and any(dim.slides for dim in dims):
            sliding[read] = dims
    if not sliding:
        raise Unfit("no operand is read through sliding windows")
    if len({read.tensor for read in sliding}) > 1 or len(sliding) > 1:
        raise Unfit("several operands are read through sliding windows")
    ((image, image_dims),) = sliding.items()
    body = with_producers(op.body[0], image.tensor)
    if not isinstance(body, Reduce):
        raise Unfit("its body is no reduction")
    if sum(read.tensor is image.tensor for read in reads(body)) != 1:
        raise Unfit("the image is read in several places")
    weights = _filter(body, image, op, site, {phase.tap for phase in phases})
    return SlidingReduction(
        site, op, body, image, image_dims, weights, order, {phase.data: phase for phase in phases}
    )


def _image_dims(
    read: TensorRead, arithmetic: Arithmetic, op: ComputeOp, phases: Sequence[Phase]
) -> tuple[ImageDim, ...] | None:
    """How each dimension of an operand is read; None where one is read in no such way."""
    found = []
    by_place = {phase.place: phase for phase in phases}
    for index in read.indices:
        if index in by_place:
            one = by_place[index]
            found.append(ImageDim(one.data, one.window, 1, one.dilation, one.shift))
            continue
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


def _grouped(dims: tuple[ImageDim, ...], image: TensorRead, op: ComputeOp) -> tuple[ImageDim, ...]:
    """The dimensions of an image, with those marked that are groups of channels."""
    others = [read for read in reads(op.body[0]) if read.tensor is not image.tensor]
    return tuple(
        replace(dim, is_grouped=True)
        if dim.data is not None
        and dim.reduced is not None
        and dim.dilation == 1 < dim.stride == extent(dim.reduced)
        and any(dim.data in axes_of_read(read, op.axis) for read in others)
        else dim
        for dim in dims
    )


def _terms(form: Linear, axes: Sequence[IterVar]) -> list[tuple[IterVar, int]] | None:
    """The axes of a sum with their coefficients; None where one is there in another way."""
    steps = [(axis, form.step(axis)[0]) for axis in axes]
    if any(step is None for _, step in steps):
        return None
    return [(axis, step) for axis, step in steps if step]


def with_producers(expr: Expr, kept: Tensor) -> Expr:
    """An expression with elementwise producers in the place of their reads, but for one tensor.

    Args:
        expr: reads tensors of which each is computed elementwise, or an input.
        kept: whose reads stay as they are.
    """

    def changed(node: Expr) -> Expr | None:
        if not isinstance(node, TensorRead) or node.tensor is kept:
            return None
        op = node.tensor.op
        if not isinstance(op, ComputeOp):
            return None
        values: dict[Expr, Expr] = dict(zip(op.axis, node.indices, strict=True))
        return with_producers(substitute(op.body[0], values), kept)

    return transform(expr, changed)


def _filter(
    body: Reduce, image: TensorRead, op: ComputeOp, site: SiteExpression, taps: Set[Expr]
) -> TensorRead | None:
    """The largest input beside the image with a dimension for each of the axes that it is read
    along, or for the taps of all phases; others of its dimensions have one element."""
    found = []
    for read in reads(body):
        if read.tensor is image.tensor or not isinstance(read.tensor.op, PlaceholderOp):
            continue
        axes = [index for index in read.indices if isinstance(index, IterVar) or index in taps]
        ones = [
            index
            for index, size in zip(read.indices, read.tensor.shape, strict=True)
            if size == 1 and isinstance(index, Const)
        ]
        plain = len(axes) + len(ones) == len(read.indices) and len(axes) == len(set(axes))
        plain = plain and read.tensor in site.inputs
        if plain and set(axes) & {*op.reduce_axis, *taps}:
            found.append(read)
    return max(found, key=lambda read: prod(read.tensor.shape), default=None)


def _order(site: SiteExpression, op: ComputeOp) -> tuple[IterVar | None, ...]:
    """The axis of the reduction that each dimension of the site's output is."""
    output = site.output
    if output.op is op:
        return op.axis
    assert isinstance(output.op, ComputeOp)
    body = with_producers(output.op.body[0], op.outputs[0])
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
        if at is not None and extent(axis) != extent(at):
            raise Unfit("its result is not read element by element")
    wide = [at for at, axis in zip(order, output.op.axis, strict=True) if extent(axis) > 1]
    if wide and wide[-1] is None:
        raise Unfit("its result is read again and again by neighbours")
    return order
