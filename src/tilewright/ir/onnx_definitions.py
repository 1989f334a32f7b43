"""Operations of ONNX that IREE's importer gets wrong or does not know, by others that say the same.

IREE 3.13's importer compiles some operations to wrong numbers without a word: a `DepthToSpace` in
`CRD` mode (which PyTorch's `pixel_shuffle` becomes) reads its channels in the other mode's order,
`QLinearConv` loses what its bytes mean, and `QLinearMatMul` of more than two dimensions its zero
points. They are written by what ONNX says that they are: a reshape around a transpose, and the
operation on numbers between a `DequantizeLinear` and a `QuantizeLinear`, which kernels take for one
of integers. Weights of f64 lose their numbers, as the compiler reads them as f32 where it is not
told to keep f64; they are stored so. What it does not know but ONNX defines by simpler operations,
such as the `Attention` of newer versions, is put in as these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper

from tilewright.ir.onnx_graphs import (
    GraphBuild,
    Shapes,
    constants_of,
    is_inside,
    replace_nodes,
    shapes_of,
    unused_prefix,
    uses,
    version_of,
)

# What is defined by other operations and not known to IREE's importer, which knows others that are.
_COMPOSED = ("Attention", "RMSNormalization", "RotaryEmbedding", "Swish")
_SHUFFLES = ("DepthToSpace", "SpaceToDepth")
_MISREAD = (*_SHUFFLES, "QLinearConv", "QLinearMatMul")
# The first version of ONNX whose DequantizeLinear has scales along an axis.
_AXES = 13
_PIXELS = 4
# From so many elements on IREE's importer puts a constant beside the program.
_OUTSIDE = 100


def name_apart(model: onnx.ModelProto) -> int:
    """Give a weight that is called like the graph another name: the program's function is called
    so, and IREE's importer then has two names for the weight, one in the program and one in the
    archive, where it is not found.

    Args:
        model: is changed.

    Returns:
        How many weights have another name.
    """
    graph = model.graph
    weights = [one for one in graph.initializer if one.name == graph.name]
    if not weights or graph.name in {one.name for one in (*graph.input, *graph.output)}:
        return 0
    names = {*uses(graph), *(name for node in graph.node for name in node.output)}
    names |= {one.name for one in (*graph.initializer, *graph.input)}
    name = unused_prefix(f"{graph.name}_weight", names)
    for one in weights:
        one.name = name
    _rename(graph, graph.name, name)
    return len(weights)


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    """Have what reads a name read another, in the branches inside a graph as well."""
    for node in graph.node:
        for at, given in enumerate(node.input):
            if given == old:
                node.input[at] = new
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _rename(inner, old, new)


def shorten_weights(model: onnx.ModelProto) -> int:
    """Have weights of f64 in f32. Told nothing, IREE computes in f32 what is of f64, and takes the
    bytes of weights, which its importer puts beside the program, for f32, too.

    Args:
        model: is changed. Constants that stay in the program are left as they are.

    Returns:
        How many were shortened.
    """
    graph = model.graph
    given = {one.name for one in graph.input}
    names = given | {one.name for one in graph.initializer}
    names |= {name for node in graph.node for name in (*node.input, *node.output)}
    build = GraphBuild(unused_prefix("f32_", names))
    wide = [
        one
        for one in graph.initializer
        if one.data_type == onnx.TensorProto.DOUBLE and one.name not in given and is_inside(one)
        if math.prod(one.dims) >= _OUTSIDE
    ]
    for one in wide:
        short = build.constant(numpy_helper.to_array(one).astype(np.float32))
        build.nodes.append(helper.make_node("Cast", [short], [one.name], to=one.data_type))
        graph.initializer.remove(one)
    graph.initializer.extend(build.constants)
    nodes = [*build.nodes, *graph.node]
    if wide:
        del graph.node[:]
        graph.node.extend(nodes)
    return len(wide)


def rewrite_misread(model: onnx.ModelProto) -> int:
    """Write what IREE's importer would get wrong by other operations.

    Args:
        model: is changed. Branches and bodies inside it are left alone.

    Returns:
        How many operations were rewritten.

    Raises:
        ValueError: one has scales that no other operation of the model's version of ONNX has, or
            sizes that are not known.
    """
    if not any(node.op_type in _MISREAD for node in model.graph.node):
        return 0
    version, shapes = version_of(model), shapes_of(model)
    constants = constants_of(model.graph)

    def write(node: onnx.NodeProto, build: GraphBuild) -> bool:
        if node.domain or node.op_type not in _MISREAD:
            return False
        if node.op_type in _SHUFFLES:
            return _write_shuffle(build, node, shapes)
        quantised = _Quantised(build, node, version, shapes, constants)
        if node.op_type == "QLinearConv":
            quantised.write_convolution()
        else:
            quantised.write_product()
        return True

    return replace_nodes(model.graph, "definition", write)


def inline_composed(model: onnx.ModelProto) -> int:
    """Put what ONNX defines operations by in their place, where IREE's importer knows only that.

    Args:
        model: is changed. Branches and bodies inside it are left alone.

    Returns:
        How many operations were replaced.
    """
    composed = [node for node in model.graph.node if not node.domain and node.op_type in _COMPOSED]
    names = [("", kind) for kind in sorted({node.op_type for node in composed})]
    if names:
        graph, known = model.graph, shapes_of(model)
        said = list(graph.value_info)
        for one in (*said, *graph.input, *graph.output):
            known.pop(one.name, None)
        # The inliner asks for the types of constants too, and of what is not given.
        known[""] = onnx.TensorProto.FLOAT, []
        for name, (element_type, sizes) in known.items():
            graph.value_info.append(helper.make_tensor_value_info(name, element_type, sizes))
        model.CopyFrom(
            inliner.inline_selected_functions(model, names, inline_schema_functions=True)
        )
        del graph.value_info[:]
        graph.value_info.extend(said)
    return len(composed)


def _write_shuffle(build: GraphBuild, node: onnx.NodeProto, shapes: Shapes) -> bool:
    """Blocks of pixels from channels, or channels from them, the channel before its block's pixels
    (`CRD`); false for the other order, which is left."""
    given = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    if given.get("mode", b"DCR") != b"CRD":
        return False
    sizes = shapes.get(node.input[0], (0, []))[1]
    if len(sizes) != _PIXELS:
        sizes = [None] * _PIXELS
    block, to = given["blocksize"], node.output[0]
    count, channels, height, width = sizes
    deep = node.op_type == "SpaceToDepth"
    if channels is None or None in (height, width):
        if deep or channels is None:
            raise ValueError(
                f"{node.op_type} in CRD mode, which IREE's importer gets wrong, of an image whose "
                "sizes are not known: export the model with fixed sizes"
            )
        # The other mode, of channels in its order.
        order = np.arange(channels).reshape(-1, block * block).T.ravel()
        value = build.op("Gather", node.input[0], build.constant(order), axis=1)
        build.op("DepthToSpace", value, to=to, blocksize=block)
        return True
    assert height is not None
    assert width is not None
    # A size that is not known is what is left.
    first = -1 if count is None else count
    if deep:
        rows, columns = height // block, width // block
        value = build.reshaped(node.input[0], (first, channels, rows, block, columns, block))
        value = build.op("Transpose", value, perm=[0, 1, 3, 5, 2, 4])
        sizes = [first, channels * block * block, rows, columns]
    else:
        channels //= block * block
        value = build.reshaped(node.input[0], (first, channels, block, block, height, width))
        value = build.op("Transpose", value, perm=[0, 1, 4, 2, 5, 3])
        sizes = [first, channels, height * block, width * block]
    build.op("Reshape", value, build.constant(np.array(sizes, np.int64)), to=to)
    return True


class _Quantised:
    """An operation on bytes, written as one on the numbers that they stand for."""

    def __init__(
        self,
        build: GraphBuild,
        node: onnx.NodeProto,
        version: int,
        shapes: Shapes,
        constants: Mapping[str, onnx.TensorProto],
    ) -> None:
        self._build, self._node, self._version = build, node, version
        self._shapes, self._constants = shapes, constants

    def write_convolution(self) -> None:
        """Of an image, filters and a bias, whose unit is the product of theirs."""
        image, of_image, middle, filters, of_filters, zeros, scale, zero, *bias = self._node.input
        operands = [
            self._numbers(image, of_image, middle, 1),
            self._numbers(filters, of_filters, zeros, 0),
        ]
        if bias and bias[0]:
            one = self._product(of_image, of_filters)
            operands.append(self._numbers(bias[0], one, "", 0))
        kept = {one.name: helper.get_attribute_value(one) for one in self._node.attribute}
        self._bytes(self._build.op("Conv", *operands, **kept), scale, zero, 1)

    def write_product(self) -> None:
        """Of two matrices, or of as many as the dimensions before the last two say."""
        left, of_left, middle, right, of_right, zeros, scale, zero = self._node.input
        operands = [
            self._numbers(left, of_left, middle, -2),
            self._numbers(right, of_right, zeros, -1),
        ]
        self._bytes(self._build.op("MatMul", *operands), scale, zero, -1)

    def _numbers(self, value: str, scale: str, zero: str, axis: int) -> str:
        """What integers stand for."""
        return self._convert("DequantizeLinear", value, scale, zero, axis)

    def _bytes(self, value: str, scale: str, zero: str, axis: int) -> None:
        """The result."""
        self._convert("QuantizeLinear", value, scale, zero, axis, self._node.output[0])

    def _convert(
        self, kind: str, value: str, scale: str, zero: str, axis: int, to: str = ""
    ) -> str:
        single = self._is_single(scale)
        if not single and self._version < _AXES:
            raise ValueError(
                f"{self._node.op_type} with a scale for each channel, which needs version {_AXES} "
                f"of ONNX's operations (the model has {self._version}): convert the model with "
                "onnx.version_converter, or quantise it anew"
            )
        parts = [scale, zero] if zero else [scale]
        if single:
            return self._build.op(kind, value, *(self._scalar(one) for one in parts), to=to)
        return self._build.op(kind, value, *parts, to=to, axis=axis)

    def _is_single(self, scale: str) -> bool:
        """Whether a scale is one number."""
        if scale in self._constants:
            sizes: list[int | None] = list(self._constants[scale].dims)
        else:
            sizes = self._shapes.get(scale, (0, []))[1]
        return all(size == 1 for size in sizes)

    def _scalar(self, name: str) -> str:
        """A number without dimensions."""
        if name in self._constants:
            array = numpy_helper.to_array(self._constants[name])
            return name if not array.ndim else self._build.constant(array.reshape(()))
        return self._build.reshaped(name, ()) if self._shapes.get(name, (0, []))[1] else name

    def _product(self, left: str, right: str) -> str:
        """The product of two scales, the first of which is one number."""
        single = self._is_single(right)
        if left in self._constants and right in self._constants:
            one, other = (numpy_helper.to_array(self._constants[name]) for name in (left, right))
            product = one.reshape(()) * other
            made = self._build.constant(product.reshape(()) if single else product)
        else:
            factors = self._scalar(left), self._scalar(right) if single else right
            made = self._build.op("Mul", *factors)
        self._shapes = {**self._shapes, made: (0, [] if single else [None])}
        return made
