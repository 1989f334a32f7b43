"""Rearrangements of an ONNX model's quantised numbers, done on the integers themselves.

Quantisation tools write each operation between a `DequantizeLinear` and a `QuantizeLinear`, those
that move numbers without changing them as well, where both have one scale and one zero point. There
each integer stays what it is: (n - z) * s / s differs from n - z by less than a thousandth. As in
onnxruntime's `DropQDQNodesRules`; products between which only such moves were then read integers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from tilewright.ir.onnx_graphs import constants_of, remove_unused, uses

# What moves the numbers that it reads first, or leaves some out, or has some several times.
_MOVES = frozenset(
    (
        "DepthToSpace",
        "Expand",
        "Flatten",
        "Gather",
        "Reshape",
        "Slice",
        "SpaceToDepth",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    )
)
_SCALE, _ZERO_POINT = 1, 2
# Whose roundings leave integers of up to 16 bits what they are: no sum or quotient of theirs is
# infinite or less than the smallest normal number.
_SMALLEST, _LARGEST = 1e-30, 1e30
_SMALL = (np.uint8, np.int8, np.uint16, np.int16)
# Of scales of whole tensors, and of integers.
_WITHOUT_EFFECT = ("axis", "saturate")


def move_integers(model: onnx.ModelProto) -> int:
    """Let what only moves quantised numbers move the integers.

    Args:
        model: is changed. Scales in other files are not looked at.

    Returns:
        How many operations were rewritten.
    """
    graph = model.graph
    known = constants_of(graph)
    makers = {name: node for node in graph.node for name in node.output}
    used = uses(graph)
    gone = set[str]()
    count = 0
    for quantize in [node for node in graph.node if node.op_type == "QuantizeLinear"]:
        move = makers.get(quantize.input[0])
        if move is None or move.op_type not in _MOVES or used[move.output[0]] > 1:
            continue
        dequantize = makers.get(move.input[0])
        if dequantize is None or dequantize.op_type != "DequantizeLinear":
            continue
        quantisation = _quantisation(quantize, known)
        if quantisation is None or quantisation != _quantisation(dequantize, known):
            continue
        used[move.input[0]] -= 1
        gone.add(move.output[0])
        if not used[move.input[0]]:
            gone.add(move.input[0])
        # The name of what is gone stays with it.
        result = quantize.output[0]
        quantize.output[0], move.output[0] = move.output[0], result
        move.input[0] = dequantize.input[0]
        makers[result] = move
        count += 1
    if count:
        stay = [node for node in graph.node if node.output[0] not in gone]
        del graph.node[:]
        graph.node.extend(stay)
        remove_unused(graph, set(known))
    return count


def _quantisation(
    node: onnx.NodeProto, known: Mapping[str, onnx.TensorProto]
) -> tuple[float, int, str] | None:
    """The scale, the zero point and the integers' type; None where they are not known or not those
    of the whole tensor, or where integers might not come back as they were."""
    if len(node.input) <= _ZERO_POINT or any(n not in known for n in node.input[_SCALE:]):
        return None
    if any(one.name not in _WITHOUT_EFFECT for one in node.attribute):
        return None
    scale, zero = (numpy_helper.to_array(known[n]) for n in node.input[_SCALE:])
    if scale.size != 1 or zero.size != 1 or scale.dtype != np.float32:
        return None
    if zero.dtype not in _SMALL or not _SMALLEST < float(scale.item()) < _LARGEST:
        return None
    return float(scale.item()), int(zero.item()), str(zero.dtype)
