"""What several rewritings of ONNX models ask of a graph, and put into it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

#: Element types and sizes by the names of values; a size that is not known is None.
Shapes = dict[str, tuple[int, list[int | None]]]


def version_of(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operations.

    Args:
        model: which has 0 where it says none.
    """
    return next((one.version for one in model.opset_import if not one.domain), 0)


def shapes_of(model: onnx.ModelProto) -> Shapes:
    """Element types and sizes of the values of a model, where they are known.

    Args:
        model: stays as it is.
    """
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    found: Shapes = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if not tensor.HasField("shape"):
            # Not even the rank is known.
            continue
        sizes = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
        found[value.name] = tensor.elem_type, sizes
    for one in graph.initializer:
        found[one.name] = one.data_type, list(one.dims)
    return found


def constants_of(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """The constants of a graph by their names, those that nodes give among them.

    Args:
        graph: whose constants in other files are left out.
    """
    made = {
        node.output[0]: one.t
        for node in graph.node
        if node.op_type == "Constant"
        for one in node.attribute
        if one.name == "value"
    }
    given = {one.name: one for one in graph.initializer}
    return {name: one for name, one in {**given, **made}.items() if is_inside(one)}


def unused_prefix(prefix: str, names: Collection[str]) -> str:
    """A prefix that no name begins with.

    Args:
        prefix: that it begins with.
        names: of a graph's values.
    """
    while any(name.startswith(prefix) for name in names):
        prefix += "_"
    return prefix


def uses(graph: onnx.GraphProto) -> Counter[str]:
    """How often each name is read or returned, in the branches inside a graph as well.

    Args:
        graph: a model's, or a branch.
    """
    found = Counter(one.name for one in graph.output)
    for node in graph.node:
        found.update(node.input)
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                found.update(uses(inner))
    return found


def is_inside(one: onnx.TensorProto) -> bool:
    """Whether a tensor's data is in the model itself.

    Args:
        one: a constant of a graph.
    """
    return bool(one.data_location == onnx.TensorProto.DEFAULT)


def remove_unused(graph: onnx.GraphProto, names: set[str]) -> None:
    """Leave out those of some constants that nothing reads and no caller gives.

    Args:
        graph: is changed.
        names: of constants.
    """
    unused = names - uses(graph).keys() - {one.name for one in graph.input}
    for one in [one for one in graph.initializer if one.name in unused]:
        graph.initializer.remove(one)


class GraphBuild:
    """Nodes and constants that a rewriting makes, with names of their own."""

    def __init__(self, prefix: str) -> None:
        """Nothing yet.

        Args:
            prefix: of all names.
        """
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._prefix, self._count = prefix, 0

    def name(self) -> str:
        """A new name."""
        self._count += 1
        return f"{self._prefix}{self._count}"

    def constant(self, array: Any) -> str:
        """A constant's name."""
        name = self.name()
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def op(self, kind: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        """The name of what a new node of one output makes, `to` or a new one."""
        name = to or self.name()
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def part(self, value: str, axis: int, begin: int, end: int) -> str:
        """A slice along one axis."""
        places = [self.constant(np.array([n], np.int64)) for n in (begin, end, axis)]
        return self.op("Slice", value, *places)

    def reshaped(self, value: str, shape: Sequence[int]) -> str:
        """The same elements in another shape."""
        return self.op("Reshape", value, self.constant(np.array(shape, np.int64)))

    def cast(self, value: str, kind: int) -> str:
        """The same numbers as others, whose kind is ONNX's number for it."""
        name = self.name()
        self.nodes.append(helper.make_node("Cast", [value], [name], to=kind))
        return name

    def added(self, value: str, bias: str) -> str:
        """The sum with a bias, if there is one."""
        return self.op("Add", value, bias) if bias else value

    def inner(self) -> GraphBuild:
        """What goes into the body of a loop, whose constants are this one's."""
        other = GraphBuild(f"{self.name()}_")
        other.constants = self.constants
        return other


def replace_nodes(
    graph: onnx.GraphProto, prefix: str, write: Callable[[onnx.NodeProto, GraphBuild], bool]
) -> int:
    """Put others in the place of some nodes.

    Args:
        graph: is changed.
        prefix: of the names of what is made.
        write: makes what takes a node's place, with the same outputs; false where the node stays.

    Returns:
        How many were replaced.
    """
    names = {name for node in graph.node for name in (*node.input, *node.output)}
    names |= {one.name for one in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    count = 0
    for number, node in enumerate(graph.node):
        build = GraphBuild(unused_prefix(f"{prefix}_{number}_", names))
        if not write(node, build):
            nodes.append(node)
            continue
        graph.initializer.extend(build.constants)
        nodes += build.nodes
        count += 1
    if count:
        del graph.node[:]
        graph.node.extend(nodes)
    return count
