"""ONNX models of older versions of its operations, as ones that IREE's importer knows.

IREE's importer knows most operations as they have been since some version only: of version 12 it
takes no `MaxPool`, `Softmax`, `Slice`, `Erf`, `BatchNormalization` or `ReduceMax`. ONNX's own
converter, which the importer has an option for, brings models to a newer one, but forgets that
before version 11 an image was made larger from its corner, which newer versions ask for by
attributes: linear ones came out wrong. Brought up first, a model is also one that the other
rewritings know.
"""

from __future__ import annotations

from math import prod

import onnx
from onnx import helper, version_converter

from tilewright.ir.onnx_graphs import version_of

# The version that IREE's documentation asks for.
_KNOWN = 17
# `Upsample` was one more name of it; since this version where pixels come from is said.
_RESIZES, _SAID = ("Upsample", "Resize"), 11
_REFUSED = (
    RuntimeError,
    ValueError,
    version_converter.ConvertError,
    onnx.shape_inference.InferenceError,
)
# Tensors with more elements say nothing about which operation is meant.
_LARGE = 1024


def bring_up(model: onnx.ModelProto) -> int:
    """Write a model of an older version as one of that which IREE's importer knows.

    Args:
        model: is changed, but where ONNX's converter refuses it.

    Returns:
        1 where it was changed, else 0.
    """
    version = version_of(model)
    if not version or version >= _KNOWN:
        return 0
    older = onnx.ModelProto()
    older.CopyFrom(model)
    graph = older.graph
    given = {one.name for one in graph.input}
    # Weights stay out of it: they may be in other files, and more than a message can hold.
    weights = [one for one in graph.initializer if prod(one.dims) > _LARGE]
    for one in weights:
        graph.initializer.remove(one)
        if one.name not in given:
            graph.input.append(helper.make_tensor_value_info(one.name, one.data_type, one.dims))
    try:
        newer = version_converter.convert_version(onnx.shape_inference.infer_shapes(older), _KNOWN)
    except _REFUSED:
        # What it cannot convert the importer may take as it is.
        return 0
    if version < _SAID:
        resized = {one.output[0] for one in graph.node if one.op_type in _RESIZES}
        for node in newer.graph.node:
            if node.op_type == "Resize" and node.output[0] in resized:
                _set(node, coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    apart = {one.name for one in weights} - given
    for one in [one for one in newer.graph.input if one.name in apart]:
        newer.graph.input.remove(one)
    newer.graph.initializer.extend(weights)
    model.CopyFrom(newer)
    return 1


def _set(node: onnx.NodeProto, **attributes: str) -> None:
    kept = [one for one in node.attribute if one.name not in attributes]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.extend(helper.make_attribute(*one) for one in attributes.items())
