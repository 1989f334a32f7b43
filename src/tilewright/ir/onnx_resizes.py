"""Images of an ONNX model that are made larger by whole numbers, each element several times.

IREE's importer computes where each element comes from in floats and gathers them one by one. Here
an element is repeated by a broadcast along dimensions of its own: where a dimension is made s times
as large, the place q * s + r with r < s has the element q by both usual ways to ask for `nearest`,

    floor((q * s + r) / s)    and    round((q * s + r + 1/2) / s - 1/2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tilewright.ir.onnx_graphs import Shapes, constants_of, shapes_of, unused_prefix, version_of

_KINDS = ("Resize", "Upsample")
# `Expand` exists since this version.
_OLDEST = 8
# Where elements come from, and what becomes of what lies between two of them.
_REPEATS = {
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
    ("half_pixel_symmetric", "round_prefer_floor"),
    ("half_pixel_symmetric", "round_prefer_ceil"),
    ("pytorch_half_pixel", "round_prefer_floor"),
    ("pytorch_half_pixel", "round_prefer_ceil"),
}
# Versions of Resize in which what it reads stands in other places.
_WITHOUT_REGION = 10
# `Unsqueeze` reads its axes since this version.
_AXES_ARE_READ = 13


def repeat_nearest(model: onnx.ModelProto) -> int:
    """Write what repeats each element of an image as a broadcast.

    Args:
        model: is changed. Scales in other files are not looked at.

    Returns:
        How many operations were rewritten.
    """
    graph, version = model.graph, version_of(model)
    if version < _OLDEST or not any(node.op_type in _KINDS for node in graph.node):
        return 0
    known, shapes = constants_of(graph), shapes_of(model)
    names = {name for node in graph.node for name in (*node.input, *node.output)} | set(known)
    nodes: list[onnx.NodeProto] = []
    count = 0
    for number, node in enumerate(graph.node):
        times = _times(node, version, known, shapes)
        if not times:
            nodes.append(node)
            continue
        prefix = unused_prefix(f"repeated_{number}_", names)
        nodes += _written(graph, node, version, times, prefix)
        count += 1
    if count:
        del graph.node[:]
        graph.node.extend(nodes)
    return count


def _times(
    node: onnx.NodeProto, version: int, known: Mapping[str, onnx.TensorProto], shapes: Shapes
) -> list[int]:
    """How often a node has each element along each dimension; none where it is another kind of
    node, or computes new elements."""
    if node.op_type not in _KINDS or node.input[0] not in shapes:
        return []
    given = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    way = {"coordinate_transformation_mode": b"half_pixel", "nearest_mode": b"round_prefer_floor"}
    if node.op_type == "Upsample" or version <= _WITHOUT_REGION:
        way = {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
    coordinates, nearest = (given.get(name, way[name]).decode() for name in way)
    if given.get("mode", b"nearest") != b"nearest" or (coordinates, nearest) not in _REPEATS:
        return []
    sizes = shapes[node.input[0]][1]
    axes = given.get("axes", range(len(sizes)))
    scales = _scales(node, version, [sizes[axis] for axis in axes], known)
    times = [1] * len(sizes)
    for axis, scale in zip(axes, scales, strict=False):
        times[axis] = int(scale)
    usable = len(scales) == len(axes) and all(s >= 1 and s == int(s) for s in scales)
    return times if usable and any(often > 1 for often in times) else []


def _scales(
    node: onnx.NodeProto,
    version: int,
    sizes: Sequence[int | None],
    known: Mapping[str, onnx.TensorProto],
) -> list[float]:
    """The factors that a node gives, or the quotients of the sizes that it gives."""
    given = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    if node.op_type == "Upsample" or version <= _WITHOUT_REGION:
        if "scales" in given:
            return [float(scale) for scale in given["scales"]]
        names = [*node.input[1:2], ""]
    else:
        names = [*node.input[2:4], "", ""]
    scales, wanted = (
        numpy_helper.to_array(known[name]) if name in known else np.zeros(0) for name in names[:2]
    )
    if scales.size:
        return [float(scale) for scale in scales]
    if not wanted.size or given.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        return []
    return [int(w) / s if s else 0.0 for w, s in zip(wanted, sizes, strict=False)]


def _written(
    graph: onnx.GraphProto, node: onnx.NodeProto, version: int, times: Sequence[int], prefix: str
) -> list[onnx.NodeProto]:
    """The nodes, whose constants are added to the graph. Sizes are asked for when the program runs,
    where importers put in those that they know: more than `shapes_of` does, behind padding."""
    repeated: list[int] = []
    new: list[int] = []
    for often in times:
        repeated.append(1)
        if often > 1:
            new.append(len(repeated))
            repeated.append(often)

    def constant(name: str, value: Sequence[int]) -> str:
        array = np.array(value, np.int64)
        graph.initializer.append(numpy_helper.from_array(array, f"{prefix}{name}"))
        return f"{prefix}{name}"

    image, result = node.input[0], node.output[0]
    parts = ("one", "several", "sizes", "whole")
    one, several, sizes, whole = (f"{prefix}{part}" for part in parts)
    if version < _AXES_ARE_READ:
        unsqueeze = helper.make_node("Unsqueeze", [image], [one], axes=new)
    else:
        unsqueeze = helper.make_node("Unsqueeze", [image, constant("new", new)], [one])
    return [
        unsqueeze,
        helper.make_node("Expand", [one, constant("repeated", repeated)], [several]),
        helper.make_node("Shape", [image], [sizes]),
        helper.make_node("Mul", [sizes, constant("times", times)], [whole]),
        helper.make_node("Reshape", [several, whole], [result]),
    ]
