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

from onnx_vision import Vision


def block(net: Vision, value: str, before: int, after: int) -> str:
    stride = 1 if before == after else 2
    inner = net.convolution(value, before, after, 3, stride)
    outer = net.convolution(inner, after, after, 3, activation="")
    if before != after:
        value = net.convolution(value, before, after, 1, stride, activation="")
    return net.add("Relu", net.add("Add", outer, value))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--size", type=int, default=112)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    net, width = Vision(given.seed, 1.0), given.width
    value = net.convolution("image", 3, width, 7, 2)
    before = width
    for after in (width, width, 2 * width, 2 * width, 4 * width, 4 * width):
        value, before = block(net, value, before, after), after
    value = net.add("Flatten", net.add("GlobalAveragePool", value))
    value = net.add("Gemm", value, net.weight(1000, before), net.weight(1000), transB=1)
    image = ("image", np.float32, (1, 3, given.size, given.size))
    net.save(given.output, [image], value, (1, 1000))


if __name__ == "__main__":
    main()
