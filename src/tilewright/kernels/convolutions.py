"""Two-dimensional convolutions, depthwise and with a bias and relu fused behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.kernels.contractions import BATCH, Contraction, Window
from tilewright.kernels.operation import Array, Axes, Dimension, Operation, OperationKind

if TYPE_CHECKING:
    from tilewright.kernels.program_builder import ProgramBuilder

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

# Letters of a variant, such as nhwc_hwcf: the axes of the image and of the filter.
_IMAGE: Mapping[str, str] = {"n": "batch", "h": "h", "w": "w", "c": "ci"}
_FILTER: Mapping[str, str] = {"h": "kh", "w": "kw", "c": "ci", "f": "co"}


class Convolution(Contraction):
    """A convolution; the image is padded with zeros in the program, where it has padding.

    Sizes: `oh = (h + 2 ph - dh (kh - 1) - 1) / sh + 1`, rounded down, and `ow` likewise.
    """

    operands = ("image", "filter")
    windows = MappingProxyType(
        {side: Window(f"o{side}", f"k{side}", f"s{side}", f"d{side}", f"p{side}") for side in "hw"}
    )
    aliases = MappingProxyType(
        {
            "kernel": ("kh", "kw"),
            "stride": ("sh", "sw"),
            "dilation": ("dh", "dw"),
            "padding": ("ph", "pw"),
        }
    )

    def __init__(self, depthwise: bool = False, steps: tuple[str, ...] = ()) -> None:
        self.depthwise = depthwise
        self.steps = steps
        self.channel = "ci" if depthwise else "co"
        channels = (CI,) if depthwise else (CI, CO)
        self.dimensions = (BATCH, H, W, *channels, *WINDOW)
        self.name = "_".join(["depthwise_conv2d" if depthwise else "conv2d", *self.step_words])
        self.about = "a depthwise convolution" if depthwise else "a convolution"
        self.variants = ("nhwc_hwc", "nchw_chw") if depthwise else ("nhwc_hwcf", "nchw_fchw")
        co = {} if depthwise else {"co": 64}
        self.shapes = (
            {"batch": 1, "h": 28, "w": 28, "ci": 64, **co, "ph": 1, "pw": 1},
            {"batch": 2, "h": 17, "w": 15, "ci": 24, **co, "sh": 2, "sw": 2},
            {"batch": 1, "h": 20, "w": 18, "ci": 16, **co, "dh": 2, "dw": 2},
        )
        if steps:
            self.about += f" with {' and '.join(self.step_words)} fused"
            self.shapes = self.shapes[:2]

    def variant_axes(self, variant: str) -> tuple[Axes, ...]:
        image, _, filters = variant.partition("_")
        of_result = {**_IMAGE, "h": "oh", "w": "ow", "c": self.channel}
        return (
            tuple(_IMAGE[letter] for letter in image),
            tuple(_FILTER[letter] for letter in filters),
            tuple(of_result[letter] for letter in image),
        )

    def extent(self, operation: Operation, axis: str) -> int:
        if axis not in ("oh", "ow"):
            return operation[axis]
        whole, reach = self._reach(operation, axis[1])
        return (whole - reach) // operation[f"s{axis[1]}"] + 1

    def _reach(self, operation: Operation, side: str) -> tuple[int, int]:
        """Along `h` or `w`: the padded image, and how far the filter reaches."""
        whole = operation[side] + 2 * operation[f"p{side}"]
        return whole, operation[f"d{side}"] * (operation[f"k{side}"] - 1) + 1

    def reason_against(self, operation: Operation) -> str:
        for side in ("h", "w"):
            whole, reach = self._reach(operation, side)
            if reach > whole:
                return (
                    f"a filter that reaches over {reach} (k{side}={operation[f'k{side}']}, "
                    f"d{side}={operation[f'd{side}']}) does not fit {side} with its padding, "
                    f"{whole}"
                )
        return ""

    def reduction_length(self, operation: Operation) -> int:
        window = operation["kh"] * operation["kw"]
        return window if self.depthwise else window * operation["ci"]

    def emit_product(
        self, operation: Operation, build: ProgramBuilder, operands: Sequence[Any]
    ) -> Any:
        image, filters = operands
        amounts = self.padding(operation)
        return build.convolution(
            ("depthwise_conv_2d_" if self.depthwise else "conv_2d_") + operation.variant,
            build.pad(image, amounts) if any(amounts) else image,
            filters,
            operation.result,
            (operation["sh"], operation["sw"]),
            (operation["dh"], operation["dw"]),
        )

    def reference_product(self, operation: Operation, operands: Sequence[Array]) -> Array:
        o = operation
        of_image, of_filter, of_result = o.axes
        channels = ("ci",) if self.depthwise else ("co", "ci")
        image = _reordered(operands[0], of_image, ("batch", "ci", "h", "w"))
        filters = _reordered(operands[1], of_filter, (*channels, "kh", "kw"))
        image = np.pad(image, ((0, 0), (0, 0), (o["ph"], o["ph"]), (o["pw"], o["pw"])))
        in_order = ("batch", self.channel, "oh", "ow")
        _, _, oh, ow = shape = o.shape(in_order)
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
        return _reordered(total, in_order, of_result)


def _reordered(array: Array, have: Axes, want: Axes) -> Array:
    """The array with its axes in another order."""
    return array.transpose([have.index(axis) for axis in want])


KINDS: tuple[OperationKind, ...] = (
    Convolution(),
    Convolution(depthwise=True),
    Convolution(steps=("add", "relu")),
)
