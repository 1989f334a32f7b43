"""Zero points of an ONNX model's integers, as far as they can be taken out of its products.

Exporters give each channel of a quantised filter a zero point even where all of them are 0. As a
parameter outside the program its value is not known to any compiler, which then corrects each sum
by what it might be: a sum of the image for each element of the result. And where a model quantises
what it is given while it runs, what stands for 0 in it is known at run time only:

    sum((a - z) * b)  =  sum(a * b) - z * sum(b)

of which the second sum is of weights alone (Jacob et al., "Quantization and Training of Neural
Networks for Efficient Integer-Arithmetic-Only Inference", CVPR 2018, 2.3). Integers of 32 bits are
added up exactly, or wrap around, either way alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from tilewright.ir.onnx_graphs import is_inside, remove_unused, unused_prefix

# By the operation, where the zero points of its filters stand among what it reads.
_OF_FILTERS = {"DequantizeLinear": 2, "MatMulInteger": 3, "ConvInteger": 3}
_PRODUCT, _OF_ROWS = "MatMulInteger", 2
# Of bytes without a sign, which as bytes with one are so much less.
_HALF = 128


def drop_zero_points(model: onnx.ModelProto) -> int:
    """Leave out the zero points of filters that are all 0, which is what none means.

    Args:
        model: is changed. Data in other files is left alone.

    Returns:
        How many were left out.
    """
    graph = model.graph
    places = ((node, _OF_FILTERS.get(node.op_type)) for node in graph.node)
    asked = [(node, at) for node, at in places if at is not None and len(node.input) > at]
    names = {node.input[at] for node, at in asked}
    zeros = {
        one.name
        for one in graph.initializer
        if one.name in names and is_inside(one) and one.dims
        if not numpy_helper.to_array(one).any()
    }
    dropped = 0
    for node, at in asked:
        if node.input[at] in zeros:
            del node.input[at]
            dropped += 1
    remove_unused(graph, zeros)
    return dropped


def split_products(model: onnx.ModelProto) -> int:
    """Take what stands for 0 in the rows of products of integers with weights off their sums.

    Weights without a sign whose zero points are all 128 become bytes with one. Products whose
    weights have other zero points stay, and those of rows that each have a zero point.

    Args:
        model: is changed. Weights in other files are not looked at.

    Returns:
        How many products were rewritten.
    """
    graph = model.graph
    if not any(node.op_type == _PRODUCT for node in graph.node):
        return 0
    known = {one.name: one for one in graph.initializer if is_inside(one)}
    scalars = {n.output[2] for n in graph.node if n.op_type == "DynamicQuantizeLinear"}
    scalars |= {name for name, one in known.items() if int(np.prod(one.dims)) == 1}
    names = {name for node in graph.node for name in (*node.input, *node.output)} | set(known)
    nodes: list[onnx.NodeProto] = []
    count, replaced = 0, set[str]()
    for node in graph.node:
        product = _product(node, known, scalars)
        if product is None:
            nodes.append(node)
            continue
        prefix = unused_prefix(f"{node.output[0]}.split{count}", names)
        nodes += _written(product, graph, prefix)
        replaced.update(node.input)
        count += 1
    del graph.node[:]
    graph.node.extend(nodes)
    remove_unused(graph, replaced)
    return count


@dataclass(frozen=True)
class _Product:
    """node: which. weights: with a sign, standing for themselves. zero: the name of what stands for
    0 in the rows. is_new: whether the weights are not those of the model."""

    node: onnx.NodeProto
    weights: npt.NDArray[np.int8]
    zero: str
    is_new: bool


def _product(
    node: onnx.NodeProto, known: Mapping[str, onnx.TensorProto], scalars: set[str]
) -> _Product | None:
    """A product of rows with a zero point that can be rewritten; None for others."""
    if node.op_type != _PRODUCT or node.input[1] not in known:
        return None
    zero, of_weights = (
        node.input[at] if len(node.input) > at else "" for at in (_OF_ROWS, _OF_FILTERS[_PRODUCT])
    )
    weights = numpy_helper.to_array(known[node.input[1]])
    is_new = weights.dtype == np.uint8
    if weights.ndim < 2 or zero not in scalars:
        return None
    if of_weights and of_weights not in known:
        return None
    zeros = numpy_helper.to_array(known[of_weights]) if of_weights else np.zeros(1, weights.dtype)
    if (zeros != (_HALF if is_new else 0)).any():
        return None
    if is_new:
        weights = (weights.astype(np.int16) - _HALF).astype(np.int8)
    return _Product(node, weights, zero, is_new)


def _written(product: _Product, graph: onnx.GraphProto, prefix: str) -> list[onnx.NodeProto]:
    """The nodes of a product, whose constants are added to the graph."""
    node = product.node
    left, right = node.input[0], node.input[1]

    def constant(name: str, value: npt.NDArray[np.generic]) -> str:
        graph.initializer.append(numpy_helper.from_array(value, f"{prefix}.{name}"))
        return f"{prefix}.{name}"

    if product.is_new:
        right = constant("weights", product.weights)
    # One row, or one of each batch: what is multiplied may be a vector.
    batched = product.weights.ndim > 2
    sums = product.weights.sum(axis=-2, dtype=np.int32, keepdims=batched)
    added, one = constant("sums", sums), constant("one", np.array([1], np.int64))
    parts = ("left", "right", "products", "zero", "scalar", "taken")
    wide, weights, products, zero, flat, taken = (f"{prefix}.{part}" for part in parts)

    def as_words(name: str, result: str) -> onnx.NodeProto:
        return helper.make_node("Cast", [name], [result], to=onnx.TensorProto.INT32)

    # IREE's importer takes `MatMulInteger` with zero points alone.
    return [
        as_words(left, wide),
        as_words(right, weights),
        helper.make_node("MatMul", [wide, weights], [products]),
        as_words(product.zero, zero),
        helper.make_node("Reshape", [zero, one], [flat]),
        helper.make_node("Mul", [flat, added], [taken]),
        helper.make_node("Sub", [products, taken], [node.output[0]]),
    ]
