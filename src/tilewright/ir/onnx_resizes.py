"""Images of an ONNX model that are made larger by whole numbers.

IREE's importer computes in floats where each element comes from, and gathers what it is made of one
by one. But where a dimension is made s times as large, the elements q * s + r with r < s are all
made of those about q: a broadcast along a dimension of its own.

    nearest:    x[q], by both usual ways to ask for it
    linear:     x[q - 1] * max(-f, 0) + x[q] * (1 - |f|) + x[q + 1] * max(f, 0)

where q + f is the place between elements: f = (r + 1/2) / s - 1/2, or r / s where corners of pixels
count, or (r (m - 1) - q (s - 1)) / (s m - 1) where the outermost of m pixels stay what they are;
outside of the image its outermost elements. One dimension after the other. The formulas are those
of ONNX's Resize.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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

# `Slice` has places as inputs since this version.
_OLDEST = 10
# Versions of Resize in which what it reads stands in other places.
_WITHOUT_REGION = 10
# `Unsqueeze` reads its axes since this version.
_AXES_ARE_READ = 13
# Where places are, by the names that say so: at the middle of pixels, at their corners, or so that
# the outermost are the image's.
_MIDDLES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
_CORNERS = "asymmetric"
_OUTERMOST = "align_corners"
_TO_NEAREST = ("round_prefer_floor", "round_prefer_ceil")
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)


def repeat_elements(model: onnx.ModelProto) -> int:
    """Write what makes images larger by whole numbers as broadcasts.

    Args:
        model: is changed. Scales in other files are not looked at.

    Returns:
        How many operations were rewritten.
    """
    graph, version = model.graph, version_of(model)
    if version < _OLDEST or not any(node.op_type == "Resize" for node in graph.node):
        return 0
    known, shapes = constants_of(graph), shapes_of(model)

    def write(node: onnx.NodeProto, build: GraphBuild) -> bool:
        resize = _resize(node, version, known, shapes)
        if resize is not None:
            _write(build, resize, version)
        return resize is not None

    return replace_nodes(graph, "resize", write)


@dataclass(frozen=True)
class _Resize:
    """image, result: names. sizes: the image's. times: how many times as large each dimension
    becomes. linear, where: how. dtype: of the elements that are computed; None where none are."""

    image: str
    result: str
    sizes: list[int | None]
    times: list[int]
    linear: bool
    where: str
    dtype: np.dtype[np.generic] | None


def _resize(
    node: onnx.NodeProto, version: int, known: Mapping[str, onnx.TensorProto], shapes: Shapes
) -> _Resize | None:
    """What a node is, where it can be rewritten; None where it cannot, or is another kind."""
    element_type, sizes = shapes.get(node.input[0], (0, [])) if node.input else (0, [])
    if node.op_type != "Resize" or not sizes:
        return None
    given = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    mode = given.get("mode", b"nearest")
    where, nearest = b"half_pixel", b"round_prefer_floor"
    if version <= _WITHOUT_REGION:
        where, nearest = _CORNERS.encode(), b"floor"
    where = given.get("coordinate_transformation_mode", where).decode()
    nearest = given.get("nearest_mode", nearest).decode()
    linear = mode == b"linear"
    if where not in (*_MIDDLES, _CORNERS, _OUTERMOST):
        return None
    usable = linear and element_type in _FLOATS
    if mode == b"nearest":
        usable = nearest == "floor" if where == _CORNERS else nearest in _TO_NEAREST
        usable &= where != _OUTERMOST
    axes = [axis % len(sizes) for axis in given.get("axes", range(len(sizes)))]
    scales = _scales(node, version, [sizes[axis] for axis in axes], known)
    if not usable or len(scales) != len(axes) or any(s < 1 or s != int(s) for s in scales):
        return None
    times = [1] * len(sizes)
    for axis, scale in zip(axes, scales, strict=True):
        times[axis] = int(scale)
    larger = [axis for axis, often in enumerate(times) if often > 1]
    if not larger or (where == _OUTERMOST and any(sizes[axis] is None for axis in larger)):
        return None
    dtype = helper.tensor_dtype_to_np_dtype(element_type) if linear else None
    return _Resize(node.input[0], node.output[0], sizes, times, linear, where, dtype)


def _scales(
    node: onnx.NodeProto,
    version: int,
    sizes: Sequence[int | None],
    known: Mapping[str, onnx.TensorProto],
) -> list[float]:
    """The factors that a node gives, or the quotients of the sizes that it gives."""
    given = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    names = node.input[1:2] if version <= _WITHOUT_REGION else node.input[2:4]
    scales, wanted = (
        numpy_helper.to_array(known[name]) if name in known else np.zeros(0)
        for name in [*names, "", ""][:2]
    )
    if scales.size:
        return [float(scale) for scale in scales]
    if len(wanted) != len(sizes) or given.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        return []
    return [int(w) / s if s else 0.0 for w, s in zip(wanted, sizes, strict=True)]


def _write(build: GraphBuild, resize: _Resize, version: int) -> None:
    """The nodes. Sizes are asked for when the program runs, where importers put in those that they
    know: more than `shapes_of` does, behind padding."""
    value, times = resize.image, resize.times
    larger = [axis for axis, often in enumerate(times) if often > 1]
    if not resize.linear:
        value = _spread(build, value, larger, version)
        repeated = [n for often in times for n in ((1, often) if often > 1 else (1,))]
        value = build.op("Expand", value, build.constant(np.array(repeated, np.int64)))
        _join(build, resize.image, value, times, resize.result)
        return
    for axis in larger:
        one = [often if other == axis else 1 for other, often in enumerate(times)]
        made = _between(build, resize, value, axis, version)
        value = _join(build, value, made, one, resize.result if axis == larger[-1] else "")


def _between(build: GraphBuild, resize: _Resize, value: str, axis: int, version: int) -> str:
    """The elements between those along an axis, along a dimension of its own behind that."""
    last, places = np.iinfo(np.int64).max, _places(resize, axis)
    edges = [build.part(value, axis, 0, 1), build.part(value, axis, -1, last)]
    before = build.part(build.op("Concat", edges[0], value, axis=axis), axis, 0, -1)
    behind = build.part(build.op("Concat", value, edges[1], axis=axis), axis, 1, last)
    total = ""
    for part, weights in (
        (value, 1 - np.abs(places)),
        (before, np.maximum(-places, 0)),
        (behind, np.maximum(places, 0)),
    ):
        if not weights.any():
            continue
        shape = (*weights.shape, *(1 for _ in resize.times[axis + 1 :]))
        spread = _spread(build, part, [axis], version)
        factors = build.constant(weights.astype(resize.dtype).reshape(shape))
        product = build.op("Mul", spread, factors)
        total = build.op("Add", total, product) if total else product
    return total


def _places(resize: _Resize, axis: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """How far behind an element those are that take its place: (times,), the same for all elements,
    or (size, times)."""
    often, size = resize.times[axis], resize.sizes[axis]
    each = np.arange(often)
    if resize.where == _OUTERMOST and size is not None:
        away = np.arange(size)[:, None] * (often - 1)
        return np.asarray((each * (size - 1) - away) / (often * size - 1))
    return each / often if resize.where == _CORNERS else (each + 0.5) / often - 0.5


def _spread(build: GraphBuild, value: str, axes: Sequence[int], version: int) -> str:
    """A value with a dimension of one element behind each of some axes."""
    new = [axis + 1 + number for number, axis in enumerate(axes)]
    if version < _AXES_ARE_READ:
        return build.op("Unsqueeze", value, axes=new)
    return build.op("Unsqueeze", value, build.constant(np.array(new, np.int64)))


def _join(build: GraphBuild, before: str, value: str, times: Sequence[int], to: str) -> str:
    """A value with the dimensions that were put in joined to those before them."""
    sizes = build.op("Shape", before)
    sizes = build.op("Mul", sizes, build.constant(np.array(times, np.int64)))
    return build.op("Reshape", value, sizes, to=to)
