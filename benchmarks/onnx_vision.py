"""Write a vision network with random weights as an ONNX model, for `tilewright compare`.

    python benchmarks/onnx_vision.py resnet50 resnet50.onnx         # 1x3x224x224, 8.2 GFLOP
    python benchmarks/onnx_vision.py mobilenetv2 small.onnx --size 96 --scale 0.5

`resnet50` (He et al., 2016), `mobilenetv2` (Sandler et al., 2018), `mobilenetv3` (Howard et al.,
2019: squeeze and excitation, hard-swish), `unet` (Ronneberger et al., 2015: transposed
convolutions, concatenations), `inception` (Szegedy et al., 2015: many branches). Layers, strides
and channels are the papers'; normalisation is folded into the convolutions. `--scale` multiplies
the channels. Needs the `onnx` package.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

from onnx_network import Network


class Vision(Network):
    """Layers of vision networks; a value goes with its channels."""

    def __init__(self, seed: int, scale: float) -> None:
        super().__init__(seed)
        self._scale = scale

    def wide(self, channels: int) -> int:
        """Channels at the network's scale, a multiple of 8."""
        return max(8, round(channels * self._scale / 8) * 8)

    def convolution(
        self,
        value: str,
        before: int,
        after: int,
        kernel: int | tuple[int, int] = 1,
        stride: int = 1,
        groups: int = 1,
        activation: str = "Relu",
    ) -> str:
        """Padded so that only the stride changes the size; '' for no activation."""
        window = (kernel, kernel) if isinstance(kernel, int) else kernel
        pads = [window[0] // 2, window[1] // 2] * 2
        made = self.add(
            "Conv", value, self.weight(after, before // groups, *window), self.weight(after),
            kernel_shape=list(window), strides=[stride] * 2, pads=pads, group=groups,
        )  # fmt: skip
        return self.activated(made, activation)

    def activated(self, value: str, activation: str) -> str:
        if activation == "Relu6":
            low, high = (self.constant(np.array(v, np.float32)) for v in (0.0, 6.0))
            return self.add("Clip", value, low, high)
        return self.add(activation, value) if activation else value

    def pooled(self, value: str, kernel: int, stride: int, kind: str = "MaxPool") -> str:
        return self.add(
            kind, value, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4
        )

    def classified(self, value: str, channels: int) -> str:
        value = self.add("Flatten", self.add("GlobalAveragePool", value))
        return self.add("Gemm", value, self.weight(1000, channels), self.weight(1000), transB=1)


def resnet50(net: Vision) -> str:
    before = net.wide(64)
    value = net.pooled(net.convolution("image", 3, before, 7, 2), 3, 2)
    for width, blocks, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        inner, after = net.wide(width), net.wide(4 * width)
        for block in range(blocks):
            stride = first if block == 0 else 1
            outer = net.convolution(value, before, inner)
            outer = net.convolution(outer, inner, inner, 3, stride)
            outer = net.convolution(outer, inner, after, activation="")
            if block == 0:
                value = net.convolution(value, before, after, 1, stride, activation="")
            value, before = net.add("Relu", net.add("Add", outer, value)), after
    return net.classified(value, before)


def mobilenetv2(net: Vision) -> str:
    before = net.wide(32)
    value = net.convolution("image", 3, before, 3, 2, activation="Relu6")
    for expansion, channels, blocks, first in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
        (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        after = net.wide(channels)
        for block in range(blocks):
            stride, inner, outer = first if block == 0 else 1, expansion * before, value
            if expansion > 1:
                outer = net.convolution(outer, before, inner, activation="Relu6")
            outer = net.convolution(outer, inner, inner, 3, stride, inner, "Relu6")
            outer = net.convolution(outer, inner, after, activation="")
            value = net.add("Add", outer, value) if stride == 1 and before == after else outer
            before = after
    last = net.wide(1280)
    return net.classified(net.convolution(value, before, last, activation="Relu6"), last)


# Kernel, expanded channels, channels, squeeze and excitation, activation, stride: table 1.
_V3 = (
    (3, 16, 16, False, "Relu", 1), (3, 64, 24, False, "Relu", 2), (3, 72, 24, False, "Relu", 1),
    (5, 72, 40, True, "Relu", 2), (5, 120, 40, True, "Relu", 1), (5, 120, 40, True, "Relu", 1),
    (3, 240, 80, False, "HardSwish", 2), (3, 200, 80, False, "HardSwish", 1),
    (3, 184, 80, False, "HardSwish", 1), (3, 184, 80, False, "HardSwish", 1),
    (3, 480, 112, True, "HardSwish", 1), (3, 672, 112, True, "HardSwish", 1),
    (5, 672, 160, True, "HardSwish", 2), (5, 960, 160, True, "HardSwish", 1),
    (5, 960, 160, True, "HardSwish", 1),
)  # fmt: skip


def mobilenetv3(net: Vision) -> str:
    before = net.wide(16)
    value = net.convolution("image", 3, before, 3, 2, activation="HardSwish")
    for kernel, expanded, channels, squeezed, activation, stride in _V3:
        inner, after = net.wide(expanded), net.wide(channels)
        outer = net.convolution(value, before, inner, activation=activation)
        outer = net.convolution(outer, inner, inner, kernel, stride, inner, activation)
        if squeezed:
            weight = net.convolution(
                net.add("GlobalAveragePool", outer), inner, net.wide(inner // 4)
            )
            weight = net.convolution(weight, net.wide(inner // 4), inner, activation="HardSigmoid")
            outer = net.add("Mul", outer, weight)
        outer = net.convolution(outer, inner, after, activation="")
        value = net.add("Add", outer, value) if stride == 1 and before == after else outer
        before = after
    last = net.wide(960)
    value = net.convolution(value, before, last, activation="HardSwish")
    return net.classified(value, last)


def unet(net: Vision) -> str:
    value, before, kept = "image", 3, []
    for channels in (32, 64, 128, 256):
        after = net.wide(channels)
        value = net.convolution(value, before, after, 3)
        value, before = net.convolution(value, after, after, 3), after
        kept.append((value, after))
        value = net.add("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
    bottom = net.wide(512)
    value, before = net.convolution(value, before, bottom, 3), bottom
    for skipped, after in reversed(kept):
        up = net.add(
            "ConvTranspose", value, net.weight(before, after, 2, 2, inputs=before),
            net.weight(after), kernel_shape=[2, 2], strides=[2, 2],
        )  # fmt: skip
        value = net.add("Concat", skipped, up, axis=1)
        value = net.convolution(value, 2 * after, after, 3)
        value, before = net.convolution(value, after, after, 3), after
    return net.convolution(value, before, 8, activation="Sigmoid")


# Channels of the branches 1x1; 1x1, 3x3; 1x1, 5x5; pool, 1x1: table 1; then whether to pool.
_INCEPTION = (
    (64, 96, 128, 16, 32, 32, False), (128, 128, 192, 32, 96, 64, True),
    (192, 96, 208, 16, 48, 64, False), (160, 112, 224, 24, 64, 64, False),
    (128, 128, 256, 24, 64, 64, False), (112, 144, 288, 32, 64, 64, False),
    (256, 160, 320, 32, 128, 128, True), (256, 160, 320, 32, 128, 128, False),
    (384, 192, 384, 48, 128, 128, False),
)  # fmt: skip


def inception(net: Vision) -> str:
    before = net.wide(64)
    value = net.pooled(net.convolution("image", 3, before, 7, 2), 3, 2)
    value = net.convolution(value, before, before)
    value, before = net.convolution(value, before, net.wide(192), 3), net.wide(192)
    value = net.pooled(value, 3, 2)
    for row in _INCEPTION:
        one, three_in, three, five_in, five, pool = map(net.wide, row[:6])
        branches = [
            net.convolution(value, before, one),
            net.convolution(net.convolution(value, before, three_in), three_in, three, 3),
            net.convolution(net.convolution(value, before, five_in), five_in, five, 5),
            net.convolution(net.pooled(value, 3, 1), before, pool),
        ]
        value, before = net.add("Concat", *branches, axis=1), one + three + five + pool
        if row[6]:
            value = net.pooled(value, 3, 2)
    return net.classified(value, before)


NETWORKS: dict[str, Callable[[Vision], str]] = {
    made.__name__: made for made in (resnet50, mobilenetv2, mobilenetv3, unet, inception)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("output", type=Path)
    parser.add_argument("--size", type=int, default=224, help="of the image, a multiple of 32")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    net = Vision(given.seed, given.scale)
    output = NETWORKS[given.network](net)
    shape = (1, 8, given.size, given.size) if given.network == "unet" else (1, 1000)
    net.save(given.output, [("image", np.float32, (1, 3, given.size, given.size))], output, shape)


if __name__ == "__main__":
    main()
