"""Sliding reductions written anew for a tile: the filter packed, the image copied in the order in
which tiles read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.schedule.expr import Const, Expr, binary, const, substitute, variables
from tilewright.schedule.functions import conjunction, conjuncts, if_then_else
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
from tilewright.schedule.walk import transform
from tilewright.sketch.edges import edges_of
from tilewright.sketch.packing import Packing
from tilewright.sketch.sliding import SlidingReduction
from tilewright.sketch.structure import extent, rewritten

# Given the shape of a copy, and what an element of it is of the image, what its elements are.
Element = Callable[[Sequence[Expr]], Expr]
Computed = Callable[[tuple[int, ...], Element], Element]


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
    lanes: int,
    depth: int = 0,
    computed: Computed | None = None,
) -> Rewritten:
    """The expression with the sums in a tensor of their own, the filter packed for a tile, and a
    copy of the image.

    Args:
        found: the reduction.
        tile: elements of a tile along axes of the result; along the axes of the filter that the
            image is not read along, sums are computed for whole tiles, along `vector` for whole
            vectors, there also where the image is copied.
        vector: the axis whose elements make a vector.
        reduced: the reduced axes in the order of their loops.
        copied: whether the image is copied. The copy has what tiles read beyond the image, and
            where vectors are columns each phase of a stride for itself. What is beyond the image's
            edges, and nothing to the reduction, is left out: all of it where channels are read in
            place, of a copy rows that are tiles of one.
        lanes: of a vector.
        depth: of the innermost channels how many are together in the copy, where these are the
            image's innermost dimension; 0 for all.
        computed: makes the elements of the copy from what it has the place of; the image's own by
            default.

    Returns:
        The new expression, with a schedule of which nothing but the elementwise stages is placed.
    """
    position = found.filter_input
    sizes = {axis: extent(axis) for axis in found.op.axis}
    whole = _up(sizes[vector], tile[vector])
    last = _up(sizes[vector], min(lanes, tile[vector]))
    read_beyond = vector not in found.slides and found.filter is not None and position is None
    if copied and not read_beyond:
        sizes[vector] = last
    packings: dict[int, Packing] = {}
    packed: Tensor | None = None
    places: tuple[Expr, ...] = ()
    if position is not None and found.filter is not None:
        for axis in found.outputs:
            if axis in tile and any(axis is index for index in found.filter.indices):
                sizes[axis] = last if axis is vector else _up(sizes[axis], tile[axis])
        # Whole vectors of the filter also where the image has no more channels.
        padded = {**sizes, vector: whole}
        packing, places = _packing(found, tile, vector, reduced, padded, depth)
        packings[position] = packing
        old_filter = found.filter.tensor
        packed = placeholder(packing.shape, old_filter.dtype, name=old_filter.name)
    fresh = {
        a: reduce_axis((a.dom.min, a.dom.min + a.dom.extent), a.name)
        for a in found.op.reduce_axis
        if a.dom is not None
    }

    image, place_in = found.image.tensor, None
    if copied:
        image, place_in = _copy(found, sizes, vector, depth, computed)

    edges = edges_of(found)
    in_place = edges is not None and not copied and vector not in found.slides
    condition = found.body.condition
    if edges is not None and (in_place or (copied and found.channels)):
        # In a copy no element of a tile asks for itself: of rows that are at an edge all are.
        apart = {vector, *(axis for axis, size in tile.items() if size > 1)}
        parts = conjuncts(edges.holds(found.image))
        own = [c for c in parts if in_place or apart.isdisjoint(variables(c))]
        condition = conjunction([condition, *own])

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
            if in_place and edges is not None and node.tensor is found.image.tensor:
                return edges.value(node)
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
            condition=substitute(condition, values),
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


def _up(size: int, step: int) -> int:
    """The next multiple of a step."""
    return -(-size // step) * step


def _copy(
    found: SlidingReduction,
    sizes: Mapping[IterVar, int],
    vector: IterVar,
    depth: int,
    computed: Computed | None,
) -> tuple[Tensor, Callable[[Sequence[Expr]], tuple[Expr, ...]]]:
    """A copy of the image, and where an element of the image is in it."""
    source = found.image.tensor
    # Dimensions of the copy: a rank by which they are ordered, the size, and of which of the image
    # they are. A dimension of the image is `factor` times its first part plus its second.
    parts: list[tuple[tuple[int, int], int, int]] = []
    factors: list[int] = []
    wide: list[int] = []
    *_, innermost = found.dims
    # What lies side by side in the copy: the columns, where vectors are of these.
    last = next((dim for dim in found.dims if dim.data is vector and dim.slides), innermost)
    for at, (dim, size) in enumerate(zip(found.dims, source.shape, strict=True)):
        factors.append(1)
        wide.append(size)
        if dim.data is not None:
            reach = (extent(dim.reduced) - 1) * dim.dilation if dim.reduced is not None else 0
            reach += dim.shift
            wide[at] = max(size, (sizes[dim.data] - 1) * dim.stride + reach + 1)
        if dim.data is vector and dim.stride > 1:
            factors[at] = dim.stride
            wide[at] = -(-wide[at] // dim.stride) * dim.stride
            # Phases before the columns of one.
            parts.append(((3, 1), wide[at] // dim.stride, at))
            parts.append(((3, 0), dim.stride, at))
        elif dim is last and dim.data is None and depth < size and size % max(1, depth) == 0:
            factors[at] = depth
            parts.append(((0, 0), size // depth, at))
            parts.append(((3, 0), depth, at))
        elif dim is last:
            parts.append(((3, 0), size if dim.data is None else wide[at], at))
        else:
            # What steps of a tile read lies together: the channels of a row.
            parts.append(((2 if dim.data is None and last.slides else 1, at), wide[at], at))
    order = sorted(range(len(parts)), key=lambda part: parts[part][0])
    split = [sum(at == one for _, _, at in parts) > 1 for one in range(len(wide))]

    def place_of(indices: Sequence[Expr]) -> list[Expr]:
        given = dict(zip(order, indices, strict=True))
        place: list[Expr] = [const(0, INDEX)] * len(wide)
        for number_, (_, _, at) in enumerate(parts):
            place[at] = place[at] * (factors[at] if split[at] else 1) + given[number_]
        return place

    def read_at(indices: Sequence[Expr]) -> Expr:
        return TensorRead(source, tuple(place_of(indices)))

    shape = tuple(parts[part][1] for part in order)
    value = read_at if computed is None else computed(shape, read_at)

    def element(*indices: IterVar) -> Expr:
        place = place_of(indices)
        tests = [
            index < size
            for index, size, most in zip(place, source.shape, wide, strict=True)
            if most > size
        ]
        read = value(indices)
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
    taps = {phase.tap: phase for phase in found.phases.values()}
    for index, size in zip(read.indices, read.tensor.shape, strict=True):
        if index in taps:
            # The taps of a phase lie together.
            one = taps[index]
            count, period = extent(one.window), one.period
            pad.append(count * period - size)
            split.append((count, period))
            parts.append(((1, list(reduced).index(one.window), 0), one.window))
            parts.append(((0, -1, len(parts)), one.first))
            continue
        if isinstance(index, Const):
            # A dimension of one element, such as the channels of a depthwise filter.
            pad.append(0)
            split.append((1,))
            parts.append(((0, len(parts), 0), index))
            continue
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
