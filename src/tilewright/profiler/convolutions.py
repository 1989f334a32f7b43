"""Two-dimensional convolutions, depthwise and with a bias and relu fused behind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.argument import ArgumentType
from tilewright.profiler.contractions import BATCH
from tilewright.profiler.epilogue import emit_steps, flops_of, reference_steps
from tilewright.profiler.operation import Array, Dimension, Operation, OperationKind

if TYPE_CHECKING:
    from tilewright.profiler.builder import ProgramBuilder

H = Dimension("h", about="height of the image, padding not counted")
W = Dimension("w", about="width of the image, padding not counted")
CI = Dimension("ci", about="channels of the image")
CO = Dimension("co", about="channels of the result")
WINDOW = (
    Dimension("kh", "k", 3, about="height of the filter"),
    Dimension("kw", "k", 3, about="width of the filter"),
    Dimension("sh", "s", 1, about="vertical stride"),
    Dimension("sw", "s", 1, about="horizontal stride"),
    Dimension("dh", "d", 1, about="vertical dilation"),
    Dimension("dw", "d", 1, about="horizontal dilation"),
    Dimension("ph", "p", 0, 0, "rows of padding above and below"),
    Dimension("pw", "p", 0, 0, "columns of padding left and right"),
)
ALIASES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "kernel": ("kh", "kw"),
        "stride": ("sh", "sw"),
        "dilation": ("dh", "dw"),
        "padding": ("ph", "pw"),
    }
)

_NHWC = "nhwc"


class Convolution(OperationKind):
    """A convolution; the image is padded with zeros in the program, where it has padding.

    Sizes: `oh = (h + 2 ph - dh (kh - 1) - 1) / sh + 1`, rounded down, and `ow` likewise.
    """

    operands = ("image", "filter")
    aliases = ALIASES

    def __init__(self, depthwise: bool = False, steps: tuple[str, ...] = ()) -> None:
        self.depthwise = depthwise
        self.steps = steps
        channels = (CI,) if depthwise else (CI, CO)
        self.dimensions = (BATCH, H, W, *channels, *WINDOW)
        self.name = "depthwise_conv2d" if depthwise else "conv2d"
        self.about = "a depthwise convolution" if depthwise else "a convolution"
        self.variants = ("nhwc_hwc", "nchw_chw") if depthwise else ("nhwc_hwcf", "nchw_fchw")
        co = {} if depthwise else {"co": 64}
        self.shapes = (
            {"batch": 1, "h": 28, "w": 28, "ci": 64, **co, "ph": 1, "pw": 1},
            {"batch": 2, "h": 17, "w": 15, "ci": 24, **co, "sh": 2, "sw": 2},
            {"batch": 1, "h": 20, "w": 18, "ci": 16, **co, "dh": 2, "dw": 2},
        )
        if steps:
            self.name += "_bias_relu"
            self.about += " with bias and relu fused"
            self.shapes = self.shapes[:2]

    def reason_against(self, operation: Operation) -> str:
        for size, kernel, dilation, padding in (("h", "kh", "dh", "ph"), ("w", "kw", "dw", "pw")):
            whole = operation[size] + 2 * operation[padding]
            reach = operation[dilation] * (operation[kernel] - 1) + 1
            if reach > whole:
                return (
                    f"a filter that reaches over {reach} ({kernel}={operation[kernel]}, "
                    f"{dilation}={operation[dilation]}) does not fit {size} with its padding, "
                    f"{whole}"
                )
        return ""

    def arguments(self, operation: Operation) -> tuple[ArgumentType, ...]:
        h, w, ci, kh, kw = (operation[d] for d in ("h", "w", "ci", "kh", "kw"))
        filters: tuple[int, ...]
        if operation.variant.startswith(_NHWC):
            image = (operation["batch"], h, w, ci)
            filters = (kh, kw, ci) if self.depthwise else (kh, kw, ci, operation["co"])
        else:
            image = (operation["batch"], ci, h, w)
            filters = (ci, kh, kw) if self.depthwise else (operation["co"], ci, kh, kw)
        types = operation.types
        operands = (ArgumentType(types.operand, image), ArgumentType(types.operand, filters))
        bias = ArgumentType(types.result, (self._channels(operation),))
        return (*operands, bias) if self.steps else operands

    def result(self, operation: Operation) -> ArgumentType:
        batch, oh, ow = operation["batch"], *self._image(operation)
        channels = self._channels(operation)
        nhwc = operation.variant.startswith(_NHWC)
        shape = (batch, oh, ow, channels) if nhwc else (batch, channels, oh, ow)
        return ArgumentType(operation.types.result, shape)

    def _channels(self, operation: Operation) -> int:
        return operation["ci" if self.depthwise else "co"]

    def _image(self, operation: Operation) -> tuple[int, int]:
        o = operation
        return (
            (o["h"] + 2 * o["ph"] - o["dh"] * (o["kh"] - 1) - 1) // o["sh"] + 1,
            (o["w"] + 2 * o["pw"] - o["dw"] * (o["kw"] - 1) - 1) // o["sw"] + 1,
        )

    def flops(self, operation: Operation) -> int:
        points = math.prod((operation["batch"], self._channels(operation), *self._image(operation)))
        return points * (2 * self.reduction_length(operation) + flops_of(self.steps))

    def reduction_length(self, operation: Operation) -> int:
        window = operation["kh"] * operation["kw"]
        return window if self.depthwise else window * operation["ci"]

    def emit(self, operation: Operation, build: ProgramBuilder, arguments: Sequence[Any]) -> Any:
        nhwc = operation.variant.startswith(_NHWC)
        image, filters, *bias = arguments
        rows, columns = operation["ph"], operation["pw"]
        if rows or columns:
            image = build.pad(image, (0, rows, columns, 0) if nhwc else (0, 0, rows, columns))
        result = self.result(operation)
        convolved = build.convolution(
            ("depthwise_conv_2d_" if self.depthwise else "conv_2d_") + operation.variant,
            image,
            filters,
            result,
            (operation["sh"], operation["sw"]),
            (operation["dh"], operation["dw"]),
        )
        if not bias:
            return convolved
        every = (0, 1, 2, 3)
        return build.generic(
            (convolved, bias[0]),
            (every, (3,) if nhwc else (1,), every),
            result,
            lambda scalars, value, other, _: emit_steps(self.steps, scalars, value, other),
        )

    def reference(self, operation: Operation, inputs: Sequence[Array]) -> Array:
        o = operation
        nhwc = o.variant.startswith(_NHWC)
        image, filters = inputs[:2]
        # Batch, channel, row, column; filters as (result channel,) channel, row, column.
        if nhwc:
            image = image.transpose(0, 3, 1, 2)
            filters = filters.transpose((2, 0, 1) if self.depthwise else (3, 2, 0, 1))
        image = np.pad(image, ((0, 0), (0, 0), (o["ph"], o["ph"]), (o["pw"], o["pw"])))
        oh, ow = self._image(o)
        shape = (o["batch"], self._channels(o), oh, ow)
        total = np.zeros(shape, image.dtype)
        for i in range(o["kh"]):
            for j in range(o["kw"]):
                top, left = i * o["dh"], j * o["dw"]
                part = image[:, :, top :: o["sh"], left :: o["sw"]][:, :, :oh, :ow]
                tap = filters[..., i, j]
                if self.depthwise:
                    total += part * tap[None, :, None, None]
                else:
                    total += np.tensordot(tap, part, axes=(1, 1)).transpose(1, 0, 2, 3)
        if self.steps:
            total = reference_steps(self.steps, total, inputs[2][None, :, None, None])
        return total.transpose(0, 2, 3, 1) if nhwc else total


KINDS: Mapping[str, OperationKind] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            Convolution(),
            Convolution(depthwise=True),
            Convolution(steps=("add", "relu")),
        )
    }
)
