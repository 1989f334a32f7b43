"""ONNX models with random weights, put together node by node: for the scripts beside this one.

Needs the `onnx` package.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_OPSET = 17
_IR_VERSION = 9


class Network:
    """Nodes and weights as they are added; values go by their names."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._tensors: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(seed)

    def weight(self, *shape: int, inputs: int = 0) -> str:
        """Normally distributed, as wide as keeps the size of values (He et al., 2015).

        inputs: how many of them make one output; by default all dimensions but the first.
        """
        scale = (2.0 / max(1, inputs or int(np.prod(shape[1:])))) ** 0.5
        return self.constant(self._rng.normal(0, scale, shape).astype(np.float32))

    def constant(self, values: np.ndarray) -> str:
        name = f"w{len(self._tensors)}"
        self._tensors.append(numpy_helper.from_array(values, name))
        return name

    def add(self, operator: str, *inputs: str, **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def save(
        self,
        path: Path,
        inputs: Sequence[tuple[str, type, Sequence[int]]],
        output: str,
        shape: Sequence[int],
    ) -> None:
        """Write the model, checked. inputs: names, NumPy types and shapes; one output in f32."""
        kinds = {np.float32: TensorProto.FLOAT, np.int64: TensorProto.INT64}
        graph = helper.make_graph(
            self.nodes,
            path.stem,
            [helper.make_tensor_value_info(n, kinds[t], list(s)) for n, t, s in inputs],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, list(shape))],
            self._tensors,
        )
        opsets = [helper.make_opsetid("", _OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
        onnx.checker.check_model(model)
        onnx.save(model, path)
        count = sum(int(np.prod(t.dims)) for t in self._tensors)
        print(f"{path}: {len(self.nodes)} nodes, {count / 1e6:.1f} million weights")
