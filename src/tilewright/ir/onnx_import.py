"""IREE's importer of ONNX models, run as a program, on a model that says the same in a better way.

Recurrent layers are written as a product and a loop (`ir/onnx_recurrent`). Exporters give each
channel of a quantised filter a zero point even where all of them are 0. As a parameter outside the
program its value is not known to any compiler, which then corrects each sum by what it might be: a
sum of the image for each element of the result.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnx
from iree.compiler.tools.import_onnx.__main__ import main, parse_arguments
from onnx import numpy_helper

from tilewright.ir.onnx_recurrent import split_recurrent

_DEQUANTIZE, _ZERO_POINT = "DequantizeLinear", 2


def drop_zero_points(model: onnx.ModelProto) -> int:
    """Leave out the zero points of filters that are all 0, which is what none means.

    Args:
        model: is changed. Data in other files is left alone.

    Returns:
        How many were left out.
    """
    graph = model.graph
    asked = [
        node for node in graph.node if node.op_type == _DEQUANTIZE and len(node.input) > _ZERO_POINT
    ]
    names = {node.input[_ZERO_POINT] for node in asked}
    inside = onnx.TensorProto.DEFAULT
    zeros = {
        one.name
        for one in graph.initializer
        if one.name in names and one.data_location == inside and one.dims
        if not numpy_helper.to_array(one).any()
    }
    dropped = 0
    for node in asked:
        if node.input[_ZERO_POINT] in zeros:
            del node.input[_ZERO_POINT]
            dropped += 1
    used = _names_used(graph)
    for one in [one for one in graph.initializer if one.name in zeros - used]:
        graph.initializer.remove(one)
    return dropped


def _names_used(graph: onnx.GraphProto) -> set[str]:
    """The names that a graph reads or returns, those that branches in it read of it among them."""
    used = {one.name for one in (*graph.input, *graph.output)}
    for node in graph.node:
        used.update(node.input)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                used |= _names_used(inner)
    return used


def run(arguments: Sequence[str]) -> None:
    """Import a model.

    Args:
        arguments: of IREE's importer, the model first.
    """
    path, *options = arguments
    with tempfile.TemporaryDirectory() as folder:
        model = onnx.load(path, load_external_data=False)
        if drop_zero_points(model) + split_recurrent(model):
            # Where other files are is said relative to the model.
            options += ["--data-dir", str(Path(path).resolve().parent)]
            path = str(Path(folder) / Path(path).name)
            onnx.save(model, path)
        del model
        main(parse_arguments([path, *options]))


if __name__ == "__main__":
    run(sys.argv[1:])
