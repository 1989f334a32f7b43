"""Sizes that an ONNX model computes from sizes that are known, as the constants that they are.

PyTorch's older exporter writes a reshape as what the program did: the sizes of a tensor, parts of
them, a product, put together. ONNX's shape inference gives up where the ends of a part are computed
as well (which dimension, modulo the rank), and from there on not even the rank is known: IREE
3.13's importer takes that for rank 0 and refuses the transpose of a `torch.nn.MultiheadAttention`.
What a program does where a size is one and where it is not is an `If`, of which one branch is left.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tilewright.ir.onnx_graphs import constants_of, is_inside, remove_unused, shapes_of

_Array = npt.NDArray[np.generic]

# What sizes are computed with. All of it gives the same whenever it is computed.
_COMPUTING = {
    *("Abs", "Add", "Ceil", "Div", "Floor", "Max", "Min", "Mod", "Mul", "Neg", "Sub"),
    *("And", "Cast", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or"),
    *("ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Where"),
    *("Concat", "Gather", "Identity", "Reshape", "ScatterND", "Slice", "Squeeze", "Unsqueeze"),
    *("ConstantOfShape", "Expand", "Range", "Transpose"),
}
# Those whose last input says how large the result is.
_FILLING = {"ConstantOfShape", "Expand"}
# Elements of a constant that can be of sizes; others are the model's weights.
_MOST = 256


def compute_sizes(model: onnx.ModelProto) -> int:
    """Compute what follows from sizes that are known, and put constants in its place.

    Args:
        model: is changed. Branches and bodies inside it are left alone.

    Returns:
        How many operations were left out.
    """
    graph = model.graph
    if not _computes_sizes(graph):
        return 0
    light = _without_weights(model)
    values, found = _known(light.graph), dict[str, _Array]()
    kept, decided = {one.name for one in graph.output}, dict[str, bool]()
    while True:
        new, now = _computed(light, kept, values), _decided(light.graph, values)
        if not new and not now:
            break
        # With them more sizes are known.
        found.update(new)
        values.update(new)
        decided.update(now)
        _replace(light.graph, new)
        _take_branches(light.graph, now)
        values.update(_known(light.graph))
    _take_branches(graph, decided)
    _replace(graph, found)
    remove_unused(graph, {one.name for one in graph.initializer})
    return len(found) + len(decided)


def _computes_sizes(graph: onnx.GraphProto) -> bool:
    """Whether a graph asks for sizes, or computes something of constants alone: how much PyTorch's
    older exporter pads is put together so."""
    known = {one.name for one in graph.initializer} - {one.name for one in graph.input}
    known |= {node.output[0] for node in graph.node if node.op_type == "Constant"}
    return any(
        node.op_type in ("Shape", "Size")
        or (node.op_type in _COMPUTING and bool(node.input) and known >= _given(node))
        for node in graph.node
    )


def _given(node: onnx.NodeProto) -> set[str]:
    """What a node reads."""
    return {name for name in node.input if name}


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model of the same operations that is given its weights: those are not copied each time that
    sizes are looked for."""
    graph = model.graph
    light = onnx.ModelProto(ir_version=model.ir_version)
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    light.graph.name = graph.name
    light.graph.node.extend(graph.node)
    light.graph.output.extend(graph.output)
    light.graph.value_info.extend(graph.value_info)
    light.graph.input.extend(graph.input)
    given = {one.name for one in graph.input}
    for one in graph.initializer:
        # What a caller may give has no value that is known.
        if one.name in given:
            continue
        if is_inside(one) and math.prod(one.dims) <= _MOST:
            light.graph.initializer.append(one)
        else:
            kind = helper.make_tensor_value_info(one.name, one.data_type, list(one.dims))
            light.graph.input.append(kind)
    return light


def _known(graph: onnx.GraphProto) -> dict[str, _Array]:
    """The constants that can be of sizes, by their names."""
    small = {
        name: numpy_helper.to_array(one)
        for name, one in constants_of(graph).items()
        if math.prod(one.dims) <= _MOST
    }
    return {name: one for name, one in small.items() if _can_be_of_sizes(one)}


def _computed(
    model: onnx.ModelProto, kept: Collection[str], known: Mapping[str, _Array]
) -> dict[str, _Array]:
    """What operations make of sizes and of what is known, by its name; of those in `kept` nothing.

    Operations are in order: each stands after those that it reads from.
    """
    shapes, values = shapes_of(model), dict(known)
    found: dict[str, _Array] = {}
    for node in model.graph.node:
        if node.domain or not node.input or len(node.output) != 1 or node.output[0] in kept:
            continue
        made = None
        if node.op_type in ("Shape", "Size"):
            made = _of_sizes(node, shapes.get(node.input[0], (0, [None]))[1])
        elif node.op_type in _COMPUTING:
            made = _evaluated(model, node, values)
        if made is not None and _can_be_of_sizes(made):
            values[node.output[0]] = found[node.output[0]] = made
    return found


def _can_be_of_sizes(one: _Array) -> bool:
    """Whether a constant is one of those that are computed with: few numbers that NumPy has."""
    return one.size <= _MOST and one.dtype.kind in "biuf"


def _of_sizes(node: onnx.NodeProto, sizes: Collection[int | None]) -> _Array | None:
    """What an operation that asks for sizes gives; None where one of them is not known."""
    known = np.array([size for size in sizes if size is not None], np.int64)
    if len(known) < len(sizes):
        return None
    if node.op_type == "Size":
        return np.asarray(known.prod(), np.int64)
    part = {one.name: one.i for one in node.attribute}
    return known[part.get("start") : part.get("end")]


def _evaluated(
    model: onnx.ModelProto, node: onnx.NodeProto, values: Mapping[str, _Array]
) -> _Array | None:
    """What an operation makes of constants; None where it reads others, or fails."""
    names = _given(node)
    if not names <= values.keys():
        return None
    if node.op_type == "Div" and any(np.any(np.less(values[name], 0)) for name in names):
        # NumPy rounds down what ONNX rounds towards 0.
        return None
    if node.op_type in _FILLING and math.prod(np.ravel(values[node.input[-1]]).tolist()) > _MOST:
        return None
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(values[name].dtype), values[name].shape
        )
        for name in names
    ]
    graph = helper.make_graph([node], "", inputs, [onnx.ValueInfoProto(name=node.output[0])])
    alone = helper.make_model(graph, opset_imports=model.opset_import)
    # What has no value is said by whoever compiles it.
    with contextlib.suppress(RuntimeError, ValueError, TypeError, LookupError, AttributeError):
        (made,) = ReferenceEvaluator(alone).run(None, {name: values[name] for name in names})
        return np.asarray(made)
    return None


def _decided(graph: onnx.GraphProto, values: Mapping[str, _Array]) -> dict[str, bool]:
    """Which branch is taken of each `If` whose condition is known, by its first result."""
    return {
        node.output[0]: bool(np.all(values[node.input[0]]))
        for node in graph.node
        if node.op_type == "If" and not node.domain and node.input[0] in values
    }


def _take_branches(graph: onnx.GraphProto, decided: Mapping[str, bool]) -> None:
    """Put the branch that is taken in its `If`'s place, those inside it as well. Names in branches
    are those of nothing around them."""
    left = list(graph.node)
    del graph.node[:]
    while left:
        node = left.pop(0)
        if node.op_type != "If" or node.output[0] not in decided:
            graph.node.append(node)
            continue
        which = "then_branch" if decided[node.output[0]] else "else_branch"
        branch = next(one.g for one in node.attribute if one.name == which)
        graph.initializer.extend(branch.initializer)
        given = zip(branch.output, node.output, strict=True)
        named = [helper.make_node("Identity", [one.name], [name]) for one, name in given]
        left = [*branch.node, *named, *left]


def _replace(graph: onnx.GraphProto, found: Mapping[str, _Array]) -> None:
    """Constants in the place of the operations that make them."""
    left = [node for node in graph.node if not found.keys() & set(node.output)]
    del graph.node[:]
    graph.node.extend(left)
    graph.initializer.extend(numpy_helper.from_array(one, name) for name, one in found.items())
