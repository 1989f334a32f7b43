"""Write a convolutional network with random weights as an ONNX model, for `tilewright compare`.

    python benchmarks/onnx_convnet.py convnet.onnx                 # 1x3x112x112, 0.35 GFLOP
    python benchmarks/onnx_convnet.py convnet.onnx --size 224 --width 64

Residual blocks as in ResNet-18 (He et al., 2016), normalisation folded into the convolutions. Needs
the `onnx` package.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Network:
    """Nodes and weights as they are added."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(seed)

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        scale = (2.0 / max(1, int(np.prod(shape[1:])))) ** 0.5
        values = self._rng.normal(0, scale, shape).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def add(self, operator: str, *inputs: str, **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def convolution(self, value: str, channels: tuple[int, int], kernel: int, stride: int) -> str:
        before, after = channels
        return self.add(
            "Conv", value, self.weight(after, before, kernel, kernel), self.weight(after),
            kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4,
        )  # fmt: skip

    def block(self, value: str, before: int, after: int) -> str:
        stride = 1 if before == after else 2
        inner = self.add("Relu", self.convolution(value, (before, after), 3, stride))
        outer = self.convolution(inner, (after, after), 3, 1)
        if before != after:
            value = self.convolution(value, (before, after), 1, stride)
        return self.add("Relu", self.add("Add", outer, value))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--size", type=int, default=112)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    net, width = Network(given.seed), given.width
    value = net.add("Relu", net.convolution("image", (3, width), 7, 2))
    before = width
    for after in (width, width, 2 * width, 2 * width, 4 * width, 4 * width):
        value, before = net.block(value, before, after), after
    value = net.add("Flatten", net.add("GlobalAveragePool", value))
    value = net.add("Gemm", value, net.weight(1000, before), net.weight(1000), transB=1)
    shape = [1, 3, given.size, given.size]
    graph = helper.make_graph(
        net.nodes,
        "convnet",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, [1, 1000])],
        net.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, given.output)
    print(f"{given.output}: {len(net.nodes)} nodes")


if __name__ == "__main__":
    main()
