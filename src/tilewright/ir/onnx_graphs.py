"""What several rewritings of ONNX models ask of a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import onnx

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
            for inner in (attribute.g, *attribute.graphs):
                found += uses(inner)
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
