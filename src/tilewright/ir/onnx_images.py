"""Operations on images of an ONNX model that IREE's importer gets wrong or does not take.

IREE 3.13 gives other numbers for a `GridSample`, for an `AveragePool` whose last windows reach
beyond its padding, and for an `InstanceNormalization` of sizes that are known at run time only. It
does not compile a transposed convolution of single channels, nor one that takes more off one side
or asks for the usual padding by name, nor a `Pad` that takes away or mirrors one side alone, nor
the sum of two convolutions of single channels where one reads every second pixel alone, and refuses
`Col2Im`. They are written by other operations:

    GridSample             the pixels about a place, gathered, by their distances from it
    AveragePool            the padding by zeros first, of which then all counts
    InstanceNormalization  means, and what is apart from them
    ConvTranspose          of a channel by itself: what falls on each of the places between two
                           pixels is a convolution of its own; their results take turns, as in
                           DepthToSpace. Otherwise what is taken off one side alone is taken off
                           the result
    Conv                   of single channels and single pixels: of those that it reads
    Pad                    a slice, or parts of the image backwards beside it
    Col2Im                 a transposed convolution with filters of a single one

The formulas are those of ONNX's own definitions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tilewright.ir.onnx_graphs import (
    GraphBuild,
    Shapes,
    constants_of,
    replace_nodes,
    shapes_of,
    version_of,
)

# `Pad` and `Clip` have what they need as inputs since this version, and `ReduceMean`.
_OLDEST, _AXES_ARE_READ = 11, 18
_BACKWARDS, _TO_THE_END = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_SAME = ("SAME_UPPER", "SAME_LOWER")


def rewrite_images(model: onnx.ModelProto) -> int:
    """Write what IREE's importer would get wrong or refuse of images by other operations.

    Args:
        model: is changed. Branches and bodies inside it are left alone, and so is what needs sizes
            or constants that are not known.

    Returns:
        How many operations were rewritten.
    """
    graph = model.graph
    if version_of(model) < _OLDEST or not any(_may_be_rewritten(one) for one in graph.node):
        return 0
    images = _Images(version_of(model), shapes_of(model), constants_of(graph))

    def write(node: onnx.NodeProto, build: GraphBuild) -> bool:
        if not _may_be_rewritten(node):
            return False
        given = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        return bool(_WRITERS[node.op_type](images, node, given, build))

    return replace_nodes(graph, "image", write)


class _Images:
    """What writes operations, with what is known of a model's values."""

    def __init__(self, version: int, shapes: Shapes, known: Mapping[str, onnx.TensorProto]) -> None:
        self._version, self._shapes, self._known = version, shapes, known

    def _sizes(self, name: str) -> list[int | None]:
        return self._shapes.get(name, (0, []))[1]

    def _array(self, name: str) -> Any:
        return numpy_helper.to_array(self._known[name]) if name in self._known else None

    # -- pooling and padding -------------------------------------------------------------------

    def pool(self, node: onnx.NodeProto, given: dict[str, Any], build: GraphBuild) -> bool:
        """An average over windows of which the last may reach beyond the padding."""
        whole = given.get("ceil_mode") and given.pop("count_include_pad", 0)
        if not whole or given.pop("auto_pad", b"NOTSET") != b"NOTSET":
            return False
        kernel = given["kernel_shape"]
        rank = len(kernel)
        pads = given.pop("pads", [0] * 2 * rank)
        strides = given.get("strides", [1] * rank)
        reach = [
            d * (k - 1) for d, k in zip(given.get("dilations", [1] * rank), kernel, strict=True)
        ]
        for axis, size in enumerate(self._sizes(node.input[0])[2:] if any(pads) else []):
            # The last window may begin in the padding, where there is none; of a size that is not
            # known it never does where the padding is too narrow for it.
            begin, end = pads[axis], pads[rank + axis]
            if size is None and end + strides[axis] < reach[axis] + 2:
                continue
            windows = -(-((size or 0) + begin + end - reach[axis] - 1) // strides[axis])
            if size is None or windows * strides[axis] >= size + begin:
                return False
        image = node.input[0]
        if any(pads):
            around = [0, 0, *pads[:rank], 0, 0, *pads[rank:]]
            image = build.op("Pad", image, build.constant(np.array(around, np.int64)))
        build.op("AveragePool", image, to=node.output[0], **given)
        return True

    def pad(self, node: onnx.NodeProto, given: dict[str, Any], build: GraphBuild) -> bool:
        """Padding that takes elements away, or mirrors some on one side alone."""
        image, mode = node.input[0], given.get("mode", b"constant")
        sizes, rank = self._sizes(image), len(self._sizes(image))
        pads = self._array(node.input[1])
        axes = self._array(node.input[3]) if len(node.input) > 3 and node.input[3] else range(rank)
        if pads is None or axes is None or not rank:
            return False
        begins, ends = [0] * rank, [0] * rank
        for place, axis in enumerate(axes):
            begins[axis], ends[axis] = int(pads[place]), int(pads[len(axes) + place])
        less = min(*begins, *ends) < 0
        if mode == b"constant" and less:
            for axis in range(rank):
                if begins[axis] < 0 or ends[axis] < 0:
                    begin, end = max(0, -begins[axis]), min(0, ends[axis])
                    image = build.part(image, axis, begin, end or _TO_THE_END)
            around = [max(0, n) for n in (*begins, *ends)]
            value = list(node.input[2:3])
            build.op(
                "Pad", image, build.constant(np.array(around, np.int64)), *value, to=node.output[0]
            )
            return True
        mirrored = [axis for axis in range(rank) if begins[axis] or ends[axis]]
        one_sided = any(not begins[axis] or not ends[axis] for axis in mirrored)
        if mode != b"reflect" or less or not one_sided:
            return False
        for axis in mirrored:
            size = sizes[axis]
            if size is None or max(begins[axis], ends[axis]) >= size:
                return False
        for axis in mirrored:
            size, parts = sizes[axis] or 0, [image]
            if begins[axis]:
                parts.insert(0, _backwards(build, image, axis, begins[axis], 0))
            if ends[axis]:
                parts.append(_backwards(build, image, axis, size - 2, size - 2 - ends[axis]))
            image = build.op("Concat", *parts, axis=axis)
        build.op("Identity", image, to=node.output[0])
        return True

    def instances(self, node: onnx.NodeProto, given: dict[str, Any], build: GraphBuild) -> bool:
        """A normalisation of images whose sizes are not all known."""
        sizes = self._sizes(node.input[0])
        if None not in sizes:
            return False
        axes = list(range(2, len(sizes)))

        def mean(value: str) -> str:
            if self._version < _AXES_ARE_READ:
                return build.op("ReduceMean", value, axes=axes)
            return build.op("ReduceMean", value, build.constant(np.array(axes, np.int64)))

        apart = build.op("Sub", node.input[0], mean(node.input[0]))
        dtype = helper.tensor_dtype_to_np_dtype(self._shapes[node.input[0]][0])
        least = build.constant(np.asarray(given.get("epsilon", 1e-5), dtype))
        spread = build.op("Add", mean(build.op("Mul", apart, apart)), least)
        scale, bias = (build.reshaped(one, (-1, *(1 for _ in axes))) for one in node.input[1:3])
        times = build.op("Div", scale, build.op("Sqrt", spread))
        build.op("Add", build.op("Mul", apart, times), bias, to=node.output[0])
        return True

    # -- convolutions --------------------------------------------------------------------------

    def strided(self, node: onnx.NodeProto, given: dict[str, Any], build: GraphBuild) -> bool:
        """A convolution of channels by themselves that reads single pixels, not all of them."""
        channels, *kernel = self._sizes(node.input[1])[1:] or [None]
        if [channels, *kernel] != [1] * (1 + len(kernel)) or any(given.get("pads", ())):
            return False
        steps, axes = given.pop("strides"), range(2, 2 + len(kernel))
        ends = [_TO_THE_END for _ in axes]
        slices = (np.array(one, np.int64) for one in ([0 for _ in axes], ends, axes, steps))
        image = build.op("Slice", node.input[0], *(build.constant(one) for one in slices))
        build.op("Conv", image, *node.input[1:], to=node.output[0], **given)
        return True

    def transposed(self, node: onnx.NodeProto, given: dict[str, Any], build: GraphBuild) -> bool:
        """One that takes more off one side, or whose padding is asked for by name, or one of
        channels by themselves."""
        filters = self._sizes(node.input[1])
        if len(filters) < 3 or None in filters or "output_shape" in given:
            return False
        kernel = [size or 0 for size in filters[2:]]
        rank = len(kernel)
        strides = list(given.get("strides", [1] * rank))
        dilations = given.get("dilations", [1] * rank)
        more = list(given.get("output_padding", [0] * rank))
        named = given.pop("auto_pad", b"NOTSET").decode()
        if named in _SAME:
            reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
            cut = [max(0, m + r - s) for m, r, s in zip(more, reach, strides, strict=True)]
            less = [one // 2 for one in cut]
            rest = [one - half for one, half in zip(cut, less, strict=True)]
            given["pads"] = less + rest if named == "SAME_UPPER" else rest + less
        pads = list(given.get("pads", [0] * 2 * rank))
        groups, single = given.get("group", 1), any(d > 1 for d in dilations)
        weights = self._array(node.input[1])
        bias = self._array(node.input[2]) if len(node.input) > 2 and node.input[2] else ""
        sizes = self._sizes(node.input[0])
        alone = groups > 1 and filters[0] == groups and not single
        if not alone or weights is None or bias is None or None in sizes[1:] or not sizes:
            less = [min(pair) for pair in zip(pads[:rank], pads[rank:], strict=True)]
            if named in _SAME or less * 2 != pads:
                # What is cut off one side alone is cut off the result.
                value = build.op("ConvTranspose", *node.input, **{**given, "pads": less * 2})
                for axis, kept in enumerate(less):
                    begin, end = pads[axis] - kept, kept - pads[rank + axis]
                    if begin or end:
                        value = build.part(value, 2 + axis, begin, end or _TO_THE_END)
                build.op("Identity", value, to=node.output[0])
                return True
            return False
        of_bias = None if isinstance(bias, str) else bias
        value = _Turns(strides, kernel, pads, more).write(
            build, node.input[0], sizes, weights, of_bias
        )
        build.op("Identity", value, to=node.output[0])
        return True

    def columns(self, node: onnx.NodeProto, given: dict[str, Any], build: GraphBuild) -> bool:
        """Blocks of pixels, each added to the image at its place."""
        image, block = (self._array(name) for name in node.input[1:3])
        sizes = self._sizes(node.input[0])
        if image is None or block is None or len(sizes) != 3 or sizes[1] is None:
            return False
        rank, places = len(image), int(np.prod(block))
        strides = list(given.get("strides", [1] * rank))
        pads = list(given.get("pads", [0] * 2 * rank))
        dilations = list(given.get("dilations", [1] * rank))
        spans = [d * (k - 1) + 1 for d, k in zip(dilations, block.tolist(), strict=True)]
        whole = [n + pads[a] + pads[rank + a] - spans[a] for a, n in enumerate(image.tolist())]
        blocks = [n // s + 1 for n, s in zip(whole, strides, strict=True)]
        channels = sizes[1] // places
        first = -1 if sizes[0] is None else sizes[0]
        value = build.reshaped(node.input[0], (first, sizes[1], *blocks))
        dtype = helper.tensor_dtype_to_np_dtype(self._shapes[node.input[0]][0])
        ones = np.zeros((channels, places, 1, places), dtype)
        ones[:, np.arange(places), 0, np.arange(places)] = 1
        build.op(
            "ConvTranspose",
            value,
            build.constant(ones.reshape(channels * places, 1, *block.tolist())),
            to=node.output[0],
            group=channels,
            strides=strides,
            pads=pads,
            dilations=dilations,
            output_padding=[n % s for n, s in zip(whole, strides, strict=True)],
        )
        return True

    # -- places that are computed --------------------------------------------------------------

    def grid(self, node: onnx.NodeProto, given: dict[str, Any], build: GraphBuild) -> bool:
        """Pixels at places that a tensor says, between -1 and 1 from side to side."""
        image, grid = node.input
        sizes, places = self._sizes(image), self._sizes(grid)
        mode = given.get("mode", b"bilinear").decode()
        if len(sizes) != 4 or len(places) != 4 or mode not in ("bilinear", "linear", "nearest"):
            return False
        kinds = {self._shapes[image][0], self._shapes[grid][0]}
        if None in sizes or None in places or kinds != {onnx.TensorProto.FLOAT}:
            return False
        count, channels, *area = [size or 0 for size in sizes]
        rows, columns = places[1] or 0, places[2] or 0
        corners = bool(given.get("align_corners", 0))
        beyond = given.get("padding_mode", b"zeros").decode()
        flat = build.reshaped(image, (count, channels, area[0] * area[1]))
        near = []
        for axis, size in enumerate(reversed(area)):
            place = build.reshaped(build.part(grid, 3, axis, axis + 1), (count, 1, rows * columns))
            at = _place(build, place, size, corners, beyond)
            near.append(_near(build, at, size, mode == "nearest", beyond == "zeros"))
        total = ""
        for (column, of_column), (row, of_row) in product(*near):
            row, column = (build.cast(one, onnx.TensorProto.INT64) for one in (row, column))
            above = build.op("Mul", row, build.constant(np.int64(area[1])))
            index = build.op("Add", above, column)
            if count == 1:
                index = build.reshaped(index, (rows * columns,))
                pixel = build.op("Gather", flat, index, axis=2)
            else:
                wide = np.array((count, channels, rows * columns), np.int64)
                index = build.op("Expand", index, build.constant(wide))
                pixel = build.op("GatherElements", flat, index, axis=2)
            if of_column and of_row:
                pixel = build.op("Mul", pixel, build.op("Mul", of_column, of_row))
            total = build.op("Add", total, pixel) if total else pixel
        shape = build.constant(np.array((count, channels, rows, columns), np.int64))
        build.op("Reshape", total, shape, to=node.output[0])
        return True


_WRITERS = {
    "AveragePool": _Images.pool,
    "Col2Im": _Images.columns,
    "Conv": _Images.strided,
    "ConvTranspose": _Images.transposed,
    "GridSample": _Images.grid,
    "InstanceNormalization": _Images.instances,
    "Pad": _Images.pad,
}


def _may_be_rewritten(node: onnx.NodeProto) -> bool:
    """Whether an operation may have to be written by others; a model is full of convolutions."""
    if node.domain or node.op_type not in _WRITERS:
        return False
    given = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    strided = bool(given.get("group", 1) > 1 and max(given.get("strides", (1,))) > 1)
    return node.op_type != "Conv" or strided


def _backwards(build: GraphBuild, value: str, axis: int, begin: int, end: int) -> str:
    """The elements along an axis from one back to before another."""
    stop = end if end >= 0 else _BACKWARDS
    places = [build.constant(np.array([n], np.int64)) for n in (begin, stop, axis, -1)]
    return build.op("Slice", value, *places)


def _place(build: GraphBuild, value: str, size: int, corners: bool, beyond: str) -> str:
    """Where a grid's numbers are among the elements of an axis, `beyond` the edges inside again."""

    def number(one: float) -> str:
        return build.constant(np.float32(one))

    times = (size - 1) / 2 if corners else size / 2
    value = build.op("Add", build.op("Mul", value, number(times)), number((size - 1) / 2))
    if beyond == "reflection":
        low, span = (0.0, size - 1.0) if corners else (-0.5, float(size))
        away = build.op("Abs", build.op("Sub", value, number(low)))
        if not span:
            return build.op("Mul", away, number(0.0))
        # Back and forth, each twice the way.
        way = number(2 * span)
        turns = build.op("Floor", build.op("Div", away, way))
        left = build.op("Sub", away, build.op("Mul", turns, way))
        value = build.op("Min", left, build.op("Sub", way, left))
        value = build.op("Add", value, number(low))
    return value if beyond == "zeros" else build.op("Clip", value, number(0), number(size - 1))


def _near(
    build: GraphBuild, at: str, size: int, nearest: bool, zeros: bool
) -> list[tuple[str, str]]:
    """The elements about a place along an axis, each with how much it counts; '' is all."""
    first = build.op("Round" if nearest else "Floor", at)
    whole, last = build.constant(np.float32(1)), build.constant(np.float32(size - 1))
    zero = build.constant(np.float32(0))
    found = [(first, "")]
    if not nearest:
        behind = build.op("Sub", at, first)
        before = build.op("Sub", whole, behind)
        found = [(first, before), (build.op("Add", first, whole), behind)]
    near: list[tuple[str, str]] = []
    for place, counts in found:
        inside = build.op("Clip", place, zero, last)
        if zeros:
            # What is beyond the edge is not where it was put.
            same = build.cast(build.op("Equal", place, inside), onnx.TensorProto.FLOAT)
            counts = build.op("Mul", counts, same) if counts else same
        near.append((inside, counts))
    return near


class _Turns:
    """A transposed convolution of channels by themselves, as one whose results take turns.

    Along an axis with stride s element i adds `w[k]` times itself to place `i s - p + k`. To the
    places `q s + r - p`, r < s, only the taps `k = r + s j` add: `sum_j w[r + s j] x[q - j]`, which
    is a convolution of x for each r.

    strides, kernel, pads, more: as ONNX has them, `more` what is added to the end.
    """

    def __init__(
        self,
        strides: Sequence[int],
        kernel: Sequence[int],
        pads: Sequence[int],
        more: Sequence[int],
    ) -> None:
        self._strides, self._kernel = strides, kernel
        self._begins, self._ends = pads[: len(kernel)], pads[len(kernel) :]
        self._more = more
        self._taps = [
            -(-max(k, k + m - e) // s)
            for k, m, e, s in zip(kernel, more, self._ends, strides, strict=True)
        ]

    def write(
        self, build: GraphBuild, image: str, sizes: Sequence[int | None], weights: Any, bias: Any
    ) -> str:
        """The name of the result.

        Args:
            build: gets the nodes.
            image: its name.
            sizes: the image's; the number of images need not be known.
            weights: groups x results of each x kernel.
            bias: one number for each result, or None.
        """
        rank, taps = len(self._kernel), self._taps
        count, area = sizes[0], [size or 0 for size in sizes[2:]]
        groups, results = weights.shape[:2]
        turns = math.prod(self._strides)
        room = [t * s - k for t, s, k in zip(taps, self._strides, self._kernel, strict=True)]
        filters = np.pad(weights, [(0, 0), (0, 0), *((0, r) for r in room)])
        split = [n for pair in zip(taps, self._strides, strict=True) for n in pair]
        filters = filters.reshape(groups, results, *split)
        order = [*range(3, 3 + 2 * rank, 2), *range(2, 2 + 2 * rank, 2)]
        filters = np.flip(
            filters.transpose(0, 1, *order), axis=tuple(range(2 + rank, 2 + 2 * rank))
        )
        filters = np.ascontiguousarray(filters).reshape(groups * results * turns, 1, *taps)
        operands = [image, build.constant(filters)]
        if bias is not None:
            operands.append(build.constant(np.repeat(bias, turns)))
        around = [tap - 1 for tap in taps]
        value = build.op("Conv", *operands, group=groups, pads=around * 2)
        places = [n + t - 1 for n, t in zip(area, taps, strict=True)]
        first, channels = -1 if count is None else count, groups * results
        value = build.reshaped(value, (first, channels, *self._strides, *places))
        order = [n for axis in range(rank) for n in (2 + rank + axis, 2 + axis)]
        value = build.op("Transpose", value, perm=[0, 1, *order])
        whole = [n * s for n, s in zip(places, self._strides, strict=True)]
        value = build.reshaped(value, (first, channels, *whole))
        for axis, begin in enumerate(self._begins):
            full = (area[axis] - 1) * self._strides[axis] + self._kernel[axis] + self._more[axis]
            value = build.part(value, 2 + axis, begin, full - self._ends[axis])
        return value
