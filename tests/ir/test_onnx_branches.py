"""Convolutions of one image that are added up are one, with the numbers of their sum."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_onnx import numbers

onnx = pytest.importorskip("onnx")

CHANNELS = 6


class Net:
    """A model of one image, put together node by node."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(3)
        self._known: dict[str, np.ndarray] = {}
        self.nodes: list[Any] = []

    def known(self, *shape: int, least: float = -1.0, dtype: Any = np.float32) -> str:
        name = f"k{len(self._known)}"
        self._known[name] = self._rng.uniform(least, 1.0, shape).astype(dtype)
        return name

    def op(self, kind: str, *inputs: str, **how: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(kind, inputs, [name], **how))
        return name

    def conv(
        self,
        x: str,
        kernel: int | tuple[int, int],
        groups: int = 1,
        stride: int = 1,
        *,
        results: int = CHANNELS,
        bias: bool = True,
        **how: Any,
    ) -> str:
        size = (kernel, kernel) if isinstance(kernel, int) else kernel
        operands = [self.known(results, CHANNELS // groups, *size)]
        if bias:
            operands.append(self.known(results))
        pads = [n // 2 for n in size] * 2
        how = {"pads": pads, "strides": [stride, stride], "group": groups, **how}
        return self.op("Conv", x, *operands, **how)

    def norm(self, x: str, channels: int = CHANNELS) -> str:
        scale, bias, mean = (self.known(channels) for _ in range(3))
        return self.op("BatchNormalization", x, scale, bias, mean, self.known(channels, least=0.5))

    def model(self, output: str) -> Any:
        from onnx import TensorProto, helper, numpy_helper

        sizes = [1, CHANNELS, 9, 8]
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, [None] * 4)],
            [numpy_helper.from_array(array, name) for name, array in self._known.items()],
        )
        version = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=version, ir_version=8)
        onnx.checker.check_model(model)
        return model


def block(net: Net) -> str:
    """Of a RepVGG: windows, single pixels, and the image, normalised each."""
    both = net.op("Add", net.norm(net.conv("x", 3, bias=False)), net.norm(net.conv("x", 1)))
    return net.op("Relu", net.op("Add", both, net.norm("x")))


def strided(net: Net) -> str:
    return net.op("Add", net.conv("x", 5, 3, 2, results=12), net.conv("x", 3, 3, 2, results=12))


def mixer(net: Net) -> str:
    """Of a FastViT: the image, and what its channels by themselves differ from it by."""
    single = net.op("Add", net.conv("x", 1, CHANNELS), net.norm("x"))
    apart = net.op("Sub", net.op("Add", single, net.conv("x", 3, CHANNELS)), net.norm("x"))
    return net.op("Add", "x", net.op("Mul", net.known(CHANNELS, 1, 1), apart))


def groups(net: Net) -> str:
    """Channels by themselves, and in pairs, less one number and one for each channel."""
    total = net.op("Sub", net.conv("x", 3, CHANNELS), net.conv("x", 3, CHANNELS // 2))
    return net.op("Sub", net.known(1, CHANNELS, 1, 1), net.op("Add", total, net.known(1)))


def residual(net: Net) -> str:
    """The image of one sum is another, which is used twice, and one that is not."""
    first = net.op("Add", net.conv("x", 3), "x")
    made = net.op("Add", net.conv(first, 3), net.op("Relu", first))
    return net.op("Add", net.conv(made, 1), net.conv(made, 3))


MERGED: dict[str, tuple[Callable[[Net], str], int, int]] = {
    "windows, pixels and the image": (block, 1, 1),
    "every second pixel": (strided, 1, 1),
    "what differs from the image": (mixer, 1, 1),
    "groups of channels": (groups, 1, 1),
    "sums of sums": (residual, 2, 3),
}


@pytest.mark.parametrize("name", MERGED)
def test_sums_are_one_convolution(tmp_path: Path, name: str) -> None:
    from onnx.reference import ReferenceEvaluator

    from tilewright.ir.onnx_branches import merge_branches

    make, sums, convolutions = MERGED[name]
    net = Net()
    model = net.model(make(net))
    given = {"x": np.random.default_rng(1).standard_normal((1, CHANNELS, 9, 8), np.float32)}
    (expected,) = ReferenceEvaluator(model).run(None, given)
    before = [node.op_type for node in model.graph.node].count("Conv")
    found = numbers(tmp_path, model, given)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert merge_branches(model) == sums
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("Conv") == convolutions < before
    assert not {"BatchNormalization", "Mul", "Sub"} & set(kinds)
    used = {name for node in model.graph.node for name in node.input}
    assert {one.name for one in model.graph.initializer} <= used
    (again,) = ReferenceEvaluator(model).run(None, given)
    np.testing.assert_allclose(again, expected, rtol=1e-4, atol=1e-4)


def crossed(net: Net) -> str:
    """Rows and columns: one convolution would have windows of both."""
    return net.op("Add", net.conv("x", (1, 3)), net.conv("x", (3, 1)))


def mixed(net: Net) -> str:
    """All channels of one pixel, and windows of each: all channels of windows are more."""
    return net.op("Add", net.conv("x", 1), net.conv("x", 3, CHANNELS))


def apart(net: Net) -> str:
    return net.op("Add", net.conv("x", 3), net.conv(net.op("Relu", "x"), 3))


def used(net: Net) -> str:
    """What else is asked of one of both."""
    one = net.conv("x", 3)
    return net.op("Add", net.op("Add", one, net.conv("x", 3)), net.op("Relu", one))


def of_a_row(net: Net) -> str:
    """A number for each column, not for each channel."""
    return net.op("Mul", net.conv("x", 3), net.known(8))


STAYS: dict[str, Callable[[Net], str]] = {
    "rows and columns": crossed,
    "pixels and windows": mixed,
    "different images": apart,
    "used elsewhere": used,
    "one for each column": of_a_row,
    "dilated": lambda net: net.op("Add", net.conv("x", 1), net.conv("x", 1, dilations=[2, 2])),
    "a single place, added to all": lambda net: net.op(
        "Add", net.conv("x", 3), net.conv("x", (9, 8), pads=[0] * 4)
    ),
    "a channel, added to all": lambda net: net.op("Add", net.conv("x", 1, results=1), "x"),
    "a number of more dimensions": lambda net: net.op(
        "Add", net.op("Mul", net.conv("x", 3), net.known(1, 1, 1, 1, 1)), net.conv("x", 3)
    ),
    "a convolution by itself": lambda net: net.norm(net.conv("x", 3)),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_is_no_cheaper_convolution_stays(name: str) -> None:
    from tilewright.ir.onnx_branches import merge_branches

    net = Net()
    model = net.model(STAYS[name](net))
    before = model.SerializeToString()
    assert merge_branches(model) == 0
    assert model.SerializeToString() == before


def test_short_floats_stay() -> None:
    from tilewright.ir.onnx_branches import merge_branches

    net = Net()
    model = net.model(block(net))
    for one in model.graph.initializer:
        array = onnx.numpy_helper.to_array(one)
        one.CopyFrom(onnx.numpy_helper.from_array(array.astype(np.float16), one.name))
    assert merge_branches(model) == 0, "numbers of f16 are rounded once more by that"
