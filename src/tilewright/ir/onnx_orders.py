"""`TopK` of an ONNX model by ranks (`ir/ranks`), which IREE's importer makes an order of all of."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
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
from tilewright.ir.ranks import pieces

# IREE's importer knows the operations that it takes since this version.
_OLDEST = 13


def rank_largest(model: onnx.ModelProto) -> int:
    """Write what asks for the largest or smallest of many by ranks.

    Args:
        model: is changed. Branches and bodies inside it are left alone, and so is what asks for as
            many as is known at run time only, or of as many.

    Returns:
        How many operations were rewritten.
    """
    graph = model.graph
    if version_of(model) < _OLDEST or not any(node.op_type == "TopK" for node in graph.node):
        return 0
    shapes, known = shapes_of(model), constants_of(graph)

    def write(node: onnx.NodeProto, build: GraphBuild) -> bool:
        if node.domain or node.op_type != "TopK":
            return False
        return _write(node, build, shapes, known)

    return replace_nodes(graph, "order", write)


def _write(
    node: onnx.NodeProto,
    build: GraphBuild,
    shapes: Shapes,
    known: Mapping[str, onnx.TensorProto],
) -> bool:
    kind, sizes = shapes.get(node.input[0], (0, []))
    if not sizes or not kind or node.input[1] not in known:
        return False
    given = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    axis = given.get("axis", -1) % len(sizes)
    order = [n for n in range(len(sizes)) if n != axis] + [axis]
    count, lead = sizes[axis], [sizes[n] for n in order[:-1]]
    first = int(numpy_helper.to_array(known[node.input[1]]).reshape(()))
    if count is None or not 0 < first <= count:
        return False
    value = node.input[0]
    moved = axis != len(sizes) - 1
    if moved:
        value = build.op("Transpose", value, perm=order)
    ranks = _Ranks(build, kind, lead, bool(given.get("largest", 1)))
    found = ranks.first(value, count, first)
    back = [int(n) for n in np.argsort(order)]
    for name, result in zip(node.output, found, strict=False):
        if name and moved:
            build.op("Transpose", result, to=name, perm=back)
        elif name:
            build.op("Identity", result, to=name)
    return True


class _Ranks:
    """What finds the first elements along the last axis of values with the same other sizes."""

    def __init__(self, build: GraphBuild, kind: int, lead: list[int | None], largest: bool) -> None:
        self._build, self._largest = build, largest
        self._type = helper.tensor_dtype_to_np_dtype(kind)
        # A size of 0 is that of the value.
        self._lead = [size or 0 for size in lead]
        self._rows = prod(size or 1 for size in lead)

    def first(self, value: str, count: int, first: int) -> tuple[str, str]:
        """The names of the first elements, in their order, and of their places."""
        places, asked_of = "", count
        # What the elements are computed by must not be computed again with each comparison, which
        # IREE 3.13 gets wrong: behind padding they are there.
        value, count = self._padded(value, 1), count + 1
        for size in pieces(count, first, self._rows):
            number, kept = -(-count // size), min(first, size)
            cut = self._shaped(self._padded(value, number * size - count), number, size)
            at = self._places(cut, [number, size], kept)
            value = self._shaped(self._gather(cut, at), number * kept)
            begins = np.arange(number, dtype=np.int64).reshape(-1, 1) * size
            at = self._build.op("Add", at, self._build.constant(begins))
            at = self._shaped(at, number * kept)
            # What was added at the end is never among the first, but has a place.
            at = self._at_most(at, np.int64(count - 1))
            places = self._gather(places, at) if places else at
            count = number * kept
        at = self._places(value, [count], first)
        places = self._gather(places, at) if places else at
        return self._gather(value, at), self._at_most(places, np.int64(asked_of - 1))

    def _places(self, value: str, sizes: list[int], first: int) -> str:
        """Where the first elements of each row are."""
        build, count = self._build, sizes[-1]
        place = np.arange(count, dtype=np.int32)
        others = self._shaped(value, *sizes[:-1], 1, count)
        each = self._shaped(value, *sizes, 1)
        before = build.op("Greater" if self._largest else "Less", others, each)
        # Of equal ones the one that stands first is the first.
        earlier = build.op("Less", build.constant(place), build.constant(place.reshape(-1, 1)))
        equal = build.op("And", build.op("Equal", others, each), earlier)
        comes = build.cast(build.op("Or", before, equal), onnx.TensorProto.INT32)
        rank = self._shaped(self._sum(comes), *sizes[:-1], 1, count)
        asked = build.constant(np.arange(first, dtype=np.int32).reshape(-1, 1))
        is_it = build.op("Equal", rank, asked)
        at = build.op("Where", is_it, build.constant(place), build.constant(np.int32(0)))
        # One is, but where there are NaN, which come before none and none before them.
        at = self._at_most(self._sum(at), np.int32(count - 1))
        return build.cast(at, onnx.TensorProto.INT64)

    def _sum(self, value: str) -> str:
        """Along the last axis, which is gone then."""
        return self._build.op("ReduceSum", value, self._build.constant(np.array([-1])), keepdims=0)

    def _at_most(self, value: str, most: np.integer[Any]) -> str:
        limit = self._build.constant(most)
        return self._build.op("Where", self._build.op("Greater", value, limit), limit, value)

    def _gather(self, value: str, at: str) -> str:
        return self._build.op("GatherElements", value, at, axis=-1)

    def _shaped(self, value: str, *sizes: int) -> str:
        return self._build.reshaped(value, [*self._lead, *sizes])

    def _padded(self, value: str, more: int) -> str:
        """With elements at its end that come after all others."""
        if not more:
            return value
        around = [0] * (2 * len(self._lead) + 1) + [more]
        pads = self._build.constant(np.array(around, np.int64))
        return self._build.op("Pad", value, pads, self._build.constant(self._last()))

    def _last(self) -> Any:
        if np.issubdtype(self._type, np.floating):
            return np.array(-np.inf if self._largest else np.inf, self._type)
        limits = np.iinfo(self._type)
        return np.array(limits.min if self._largest else limits.max, self._type)
