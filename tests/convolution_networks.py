# ruff: noqa: E501  (the lines of MLIR are as long as MLIR is)
"""Small convolution networks in MLIR, in NCHW and in NHWC, as importers make them.

`network(layout)` has what residual networks and mobile networks are made of: 3x3 convolutions with
and without strides, 1x1 convolutions with and without strides, depthwise convolutions, bias and
ReLU, residual sums, maximum and average pooling, and a last matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import numpy as np

LAYOUTS = ("nchw", "nhwc")


@dataclass
class Value:
    """A value of the program: name, channels, and the size of a side of the picture."""

    name: str
    channels: int
    side: int


@dataclass
class Network:
    """Writes a network, op after op; weights are arguments of `main`, or constants drawn from
    `constants`."""

    layout: str
    constants: np.random.Generator | None = None
    lines: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)

    def type(self, channels: int, side: int) -> str:
        sizes = (1, channels, side, side) if self.layout == "nchw" else (1, side, side, channels)
        return f"tensor<{'x'.join(map(str, sizes))}xf32>"

    def argument(self, type_: str) -> str:
        self.arguments.append(f"%a{len(self.arguments)}: {type_}")
        return f"%a{len(self.arguments) - 1}"

    def weights(self, type_: str) -> str:
        if self.constants is None:
            return self.argument(type_)
        shape = [int(size) for size in type_.removeprefix("tensor<").split("x")[:-1]]
        scale = 1 / np.sqrt(max(1, prod(shape[1:])))
        data = (self.constants.standard_normal(shape) * scale).astype("<f4").tobytes()
        return self.add(f'arith.constant dense<"0x{data.hex().upper()}"> : {type_}')

    def add(self, text: str) -> str:
        self.lines.append(f"%v{len(self.lines)} = {text}")
        return f"%v{len(self.lines) - 1}"

    def filled(self, type_: str, number: str = "0.0") -> str:
        zero = self.add(f"arith.constant {number} : f32")
        empty = self.add(f"tensor.empty() : {type_}")
        return self.add(f"linalg.fill ins({zero} : f32) outs({empty} : {type_}) -> {type_}")

    def padded(self, x: Value, low: int, high: int, number: str = "0.0") -> Value:
        zero = self.add(f"arith.constant {number} : f32")
        side = x.side + low + high
        before, after = self.type(x.channels, x.side), self.type(x.channels, side)
        first, last = (
            f"[0, 0, {n}, {n}]" if self.layout == "nchw" else f"[0, {n}, {n}, 0]"
            for n in (low, high)
        )
        name = self.add(
            f"tensor.pad {x.name} low{first} high{last} {{\n^bb0(%i0: index, %i1: index, %i2: index, "
            f"%i3: index):\n  tensor.yield {zero} : f32\n}} : {before} to {after}"
        )
        return Value(name, x.channels, side)

    def convolution(self, x: Value, channels: int, kernel: int, stride: int = 1) -> Value:
        nchw = self.layout == "nchw"
        side = x.side // stride
        if kernel > 1:
            x = self.padded(x, kernel // 2, kernel // 2)
        sizes = (
            (channels, x.channels, kernel, kernel)
            if nchw
            else (kernel, kernel, x.channels, channels)
        )
        weight_type = f"tensor<{'x'.join(map(str, sizes))}xf32>"
        op = "linalg.conv_2d_nchw_fchw" if nchw else "linalg.conv_2d_nhwc_hwcf"
        return self._window(op, x, weight_type, channels, side, stride)

    def depthwise(self, x: Value, stride: int = 1) -> Value:
        nchw = self.layout == "nchw"
        side = x.side // stride
        x = self.padded(x, 1, 1)
        sizes = (x.channels, 3, 3) if nchw else (3, 3, x.channels)
        weight_type = f"tensor<{'x'.join(map(str, sizes))}xf32>"
        op = "linalg.depthwise_conv_2d_nchw_chw" if nchw else "linalg.depthwise_conv_2d_nhwc_hwc"
        return self._window(op, x, weight_type, x.channels, side, stride)

    def _window(
        self, op: str, x: Value, weights: str, channels: int, side: int, stride: int
    ) -> Value:
        type_ = self.type(channels, side)
        weight, start = self.weights(weights), self.filled(type_)
        name = self.add(
            f"{op} {{dilations = dense<1> : tensor<2xi64>, strides = dense<{stride}> : tensor<2xi64>}} "
            f"ins({x.name}, {weight} : {self.type(x.channels, x.side)}, {weights}) outs({start} : {type_}) -> {type_}"
        )
        return Value(name, channels, side)

    def pooled(self, x: Value, op: str, kernel: int, stride: int, number: str = "0.0") -> Value:
        side = (x.side - kernel) // stride + 1
        type_ = self.type(x.channels, side)
        start = self.filled(type_, number)
        window = self.add(f"tensor.empty() : tensor<{kernel}x{kernel}xf32>")
        name = self.add(
            f"linalg.pooling_{self.layout}_{op} {{dilations = dense<1> : tensor<2xi64>, strides = dense<{stride}> : tensor<2xi64>}} "
            f"ins({x.name}, {window} : {self.type(x.channels, x.side)}, tensor<{kernel}x{kernel}xf32>) outs({start} : {type_}) -> {type_}"
        )
        return Value(name, x.channels, side)

    def biased(self, x: Value, relu: bool = True) -> Value:
        bias = self.weights(f"tensor<{x.channels}xf32>")
        return self._added(
            x,
            bias,
            f"tensor<{x.channels}xf32>",
            "(n, a, b, c) -> (a)" if self.layout == "nchw" else "(n, a, b, c) -> (c)",
            relu,
        )

    def sum(self, x: Value, y: Value) -> Value:
        type_ = self.type(y.channels, y.side)
        return self._added(x, y.name, type_, "(n, a, b, c) -> (n, a, b, c)", relu=True)

    def _added(self, x: Value, other: str, other_type: str, access: str, relu: bool) -> Value:
        type_, same = self.type(x.channels, x.side), "(n, a, b, c) -> (n, a, b, c)"
        empty, zero = self.add(f"tensor.empty() : {type_}"), self.add("arith.constant 0.0 : f32")
        last = (
            f"  %m = arith.maximumf %s, {zero} : f32\n  linalg.yield %m : f32"
            if relu
            else "  linalg.yield %s : f32"
        )
        name = self.add(
            f"linalg.generic {{indexing_maps = [affine_map<{same}>, affine_map<{access}>, affine_map<{same}>], "
            'iterator_types = ["parallel", "parallel", "parallel", "parallel"]} '
            f"ins({x.name}, {other} : {type_}, {other_type}) outs({empty} : {type_}) {{\n^bb0(%p: f32, %q: f32, %o: f32):\n"
            f"  %s = arith.addf %p, %q : f32\n{last}\n}} -> {type_}"
        )
        return Value(name, x.channels, x.side)

    def product(self, x: Value, features: int) -> str:
        """A matrix product of a picture of one point; the name of the result."""
        flat, weights, type_ = (
            f"tensor<{s}xf32>"
            for s in (f"1x{x.channels}", f"{x.channels}x{features}", f"1x{features}")
        )
        name = self.add(
            f"tensor.collapse_shape {x.name} [[0], [1, 2, 3]] : {self.type(x.channels, x.side)} into {flat}"
        )
        weight, start = self.weights(weights), self.filled(type_)
        return self.add(
            f"linalg.matmul ins({name}, {weight} : {flat}, {weights}) outs({start} : {type_}) -> {type_}"
        )

    def program(self, result: str, type_: str) -> str:
        body = "\n".join(self.lines)
        return f"func.func @main({', '.join(self.arguments)}) -> {type_} {{\n{body}\nreturn {result} : {type_}\n}}\n"


def _residual(net: Network, x: Value, channels: int, stride: int) -> Value:
    """A block with a bottleneck, as in ResNet-50; its shortcut is a 1x1 convolution with a stride
    where the size changes."""
    inner = net.biased(net.convolution(x, channels // 2, 1))
    inner = net.biased(net.convolution(inner, channels // 2, 3, stride))
    inner = net.biased(net.convolution(inner, channels, 1), relu=False)
    if stride > 1 or channels != x.channels:
        x = net.biased(net.convolution(x, channels, 1, stride), relu=False)
    return net.sum(inner, x)


def _mobile(net: Network, x: Value, channels: int, stride: int) -> Value:
    """A block of MobileNetV2: wider, depthwise, narrower."""
    inner = net.biased(net.convolution(x, 3 * x.channels, 1))
    inner = net.biased(net.depthwise(inner, stride))
    inner = net.convolution(inner, channels, 1)
    return net.sum(inner, x) if stride == 1 and channels == x.channels else inner


def network(layout: str, side: int = 32, channels: int = 16, seed: int | None = None) -> str:
    """A network of every kind of layer in one of `LAYOUTS`; with a seed its weights are random
    constants."""
    net = Network(layout, None if seed is None else np.random.default_rng(seed))
    x = Value(net.argument(net.type(3, side)), 3, side)
    x = net.biased(net.convolution(x, channels, 3, 2))
    x = net.pooled(net.padded(x, 0, 1, "0xFF800000"), "max", 3, 2, "0xFF800000")
    x = _residual(net, x, 4 * channels, 1)
    x = _residual(net, x, 8 * channels, 2)
    x = _mobile(net, x, 8 * channels, 1)
    x = _mobile(net, x, 4 * channels, 2)
    x = net.pooled(x, "sum", x.side, 1)
    return net.program(net.product(x, 10), "tensor<1x10xf32>")


def strided(layout: str, before: int = 256, after: int = 512, side: int = 56) -> str:
    """A 1x1 convolution with a stride of 2, followed by bias and ReLU: a shortcut of ResNet-50."""
    net = Network(layout)
    x = Value(net.argument(net.type(before, side)), before, side)
    y = net.biased(net.convolution(x, after, 1, 2))
    return net.program(y.name, net.type(after, side // 2))


@dataclass
class QuantisedNetwork(Network):
    """A network whose filters are bytes, with a scale for each channel, and whose pictures are
    bytes between its layers: channels first. unsigned: whether these are without a sign."""

    unsigned: bool = False

    def weights(self, type_: str) -> str:
        shape = [int(size) for size in type_.removeprefix("tensor<").split("x")[:-1]]
        if len(shape) == 1:
            return super().weights(type_)
        assert self.constants is not None
        # Of filters the first dimension is that of channels, of a matrix the last.
        place = 1 if len(shape) == 2 else 0
        data = self.constants.integers(-127, 128, shape).astype("i1").tobytes().hex().upper()
        bytes_ = type_.replace("xf32", "xi8")
        one = self.constants.uniform(0.5, 1.5, shape[place]) / (64 * np.sqrt(prod(shape[1:])))
        scales = self.add(
            f'arith.constant dense<"0x{one.astype("<f4").tobytes().hex().upper()}"> : tensor<{one.size}xf32>'
        )
        whole = self.add(f'arith.constant dense<"0x{data}"> : {bytes_}')
        dims = ", ".join(f"d{d}" for d in range(len(shape)))
        same, along = (f"affine_map<({dims}) -> ({to})>" for to in (dims, f"d{place}"))
        empty = self.add(f"tensor.empty() : {type_}")
        return self.add(
            f"iree_linalg_ext.dequantize_affine <indexing_maps = [{same}, {along}, {same}], quant_min = -128, quant_max = 127> "
            f"ins({whole}, {scales} : {bytes_}, tensor<{one.size}xf32>) outs({empty} : {type_}) -> {type_}"
        )

    def quantised(self, x: Value, scale: float, zero: int) -> Value:
        """A picture as bytes, and these as numbers again."""
        type_ = self.type(x.channels, x.side)
        bytes_ = type_.replace("xf32", "xi8")
        same, one = "affine_map<(n, a, b, c) -> (n, a, b, c)>", "affine_map<(n, a, b, c) -> ()>"
        by = self.add(f"arith.constant {scale:e} : f32")
        at = self.add(f"arith.constant {zero + 128 * self.unsigned} : i64")
        name = x.name
        low, high = (0, 255) if self.unsigned else (-128, 127)
        for op, before, after in (("quantize", type_, bytes_), ("dequantize", bytes_, type_)):
            mark = {"quantize": ", storage_unsigned", "dequantize": ", input_unsigned"}[op]
            empty = self.add(f"tensor.empty() : {after}")
            name = self.add(
                f"iree_linalg_ext.{op}_affine <indexing_maps = [{same}, {one}, {one}, {same}], quant_min = {low}, quant_max = {high}"
                f"{mark if self.unsigned else ''}> ins({name}, {by}, {at} : {before}, f32, i64) outs({empty} : {after}) -> {after}"
            )
        return Value(name, x.channels, x.side)


def quantised_network(side: int = 16, channels: int = 8, unsigned: bool = False) -> str:
    """A quantised network: 3x3 with and without strides, strided 1x1, depthwise, a residual sum."""
    net = QuantisedNetwork("nchw", np.random.default_rng(0), unsigned=unsigned)
    x = net.quantised(Value(net.argument(net.type(3, side)), 3, side), 0.03, -3)
    x = net.quantised(net.biased(net.convolution(x, channels, 3), relu=False), 0.04, -128)
    y = net.quantised(net.biased(net.convolution(x, channels, 3), relu=False), 0.05, 6)
    x = net.quantised(net.sum(y, x), 0.05, -128)
    y = net.quantised(net.biased(net.depthwise(x, 2), relu=False), 0.04, -20)
    z = net.quantised(net.biased(net.convolution(x, channels, 1, 2), relu=False), 0.06, 9)
    x = net.quantised(net.sum(y, z), 0.05, -128)
    x = net.quantised(net.pooled(x, "max", x.side, 1, "0xFF800000"), 0.05, -128)
    return net.program(net.product(x, 10), "tensor<1x10xf32>")
