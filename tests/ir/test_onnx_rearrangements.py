"""Quantised numbers that are only moved are moved as integers; all others are dequantised first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

ROWS, COLUMNS = 4, 24


def moved(
    scales: tuple[float, float] = (0.037, 0.037),
    zeros: tuple[int, int] = (131, 131),
    kind: str = "",
) -> Any:
    """Bytes that are dequantised, reshaped, quantised, dequantised, transposed and quantised; the
    first two with the first scale and zero point of those given, all others with the second."""
    from onnx import TensorProto, helper, numpy_helper

    signed = kind == "signed"
    dtype = np.int8 if signed else np.uint8
    known: dict[str, Any] = {"shape": np.array([2, 2, COLUMNS], np.int64)}
    for number, (scale, zero) in enumerate(zip(scales, zeros, strict=True)):
        known[f"s{number}"] = np.array(scale, np.float32)
        known[f"z{number}"] = np.array(zero - 128 * signed, dtype)
    if kind == "channels":
        known["s1"] = np.full(COLUMNS, scales[1], np.float32)
        known["z1"] = np.full(COLUMNS, zeros[1], dtype)
    types = TensorProto.INT8 if signed else TensorProto.UINT8
    shape, order = [COLUMNS, 2, 2], [2, 0, 1]
    first = helper.make_node("Reshape", ["a", "shape"], ["b"])
    if kind == "negated":
        shape, order = [COLUMNS, ROWS], [1, 0]
        first = helper.make_node("Neg", ["a"], ["b"])
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s0", "z0"], ["a"]),
        first,
        helper.make_node("QuantizeLinear", ["b", "s1", "z1"], ["c"], axis=-1),
        helper.make_node("DequantizeLinear", ["c", "s1", "z1"], ["d"], axis=-1),
        helper.make_node("Transpose", ["d"], ["e"], perm=order),
        helper.make_node("QuantizeLinear", ["e", "s1", "z1"], ["y"], axis=0),
    ]
    if kind == "also":
        nodes.append(helper.make_node("Identity", ["a"], ["a1"]))
    if kind == "constant nodes":
        nodes = [
            helper.make_node("Constant", [], [name], value=numpy_helper.from_array(known.pop(name)))
            for name in ("s1", "z1")
        ] + nodes
    outputs = [helper.make_tensor_value_info("y", types, shape)]
    if kind == "also":
        outputs.append(helper.make_tensor_value_info("a1", TensorProto.FLOAT, [ROWS, COLUMNS]))
    if kind == "read twice":
        outputs.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [2, 2, COLUMNS]))
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", types, [ROWS, COLUMNS])],
        outputs,
        [numpy_helper.from_array(array, name) for name, array in known.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(
    ("kind", "count", "left"),
    [
        ("", 2, {"Reshape", "Transpose"}),
        ("signed", 2, {"Reshape", "Transpose"}),
        ("constant nodes", 2, {"Reshape", "Transpose", "Constant"}),
        # What else reads the numbers still does.
        ("also", 2, {"Reshape", "Transpose", "DequantizeLinear", "Identity"}),
        ("read twice", 1, {"Reshape", "Transpose", "DequantizeLinear", "QuantizeLinear"}),
        ("negated", 1, {"Neg", "Transpose", "DequantizeLinear", "QuantizeLinear"}),
        ("channels", 0, set()),
    ],
)
def test_integers_are_moved(kind: str, count: int, left: set[str]) -> None:
    from onnx.reference import ReferenceEvaluator

    from tilewright.ir.onnx_rearrangements import move_integers

    model = moved(kind=kind)
    before = model.SerializeToString()
    rng = np.random.default_rng(3)
    low = -128 if kind == "signed" else 0
    values = rng.permutation(np.arange(low, low + 256))[: ROWS * COLUMNS].reshape(ROWS, COLUMNS)
    inputs = {"x": values.astype(np.int8 if low else np.uint8)}
    expected = ReferenceEvaluator(model).run(None, inputs) if count else []
    assert move_integers(model) == count
    if not count:
        assert model.SerializeToString() == before
        return
    onnx.checker.check_model(model, full_check=True)
    assert {one.op_type for one in model.graph.node} == left
    for one, other in zip(ReferenceEvaluator(model).run(None, inputs), expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("scales", "zeros", "count"),
    [
        ((0.037, 0.038), (131, 131), 1),
        ((0.037, 0.037), (131, 130), 1),
        ((1e-38, 1e-38), (131, 131), 0),
    ],
)
def test_other_scales_change_the_integers(
    scales: tuple[float, float], zeros: tuple[int, int], count: int
) -> None:
    from tilewright.ir.onnx_rearrangements import move_integers

    assert move_integers(moved(scales, zeros)) == count


def test_all_integers_come_back_as_they_were() -> None:
    # What the rewriting rests on, for every difference of 16 bits and scales of many sizes.
    numbers = np.arange(-65535, 65536)
    for scale in np.geomspace(1e-30, 1e30, 400, dtype=np.float32):
        again = np.rint(numbers.astype(np.float32) * scale / scale)
        np.testing.assert_array_equal(again, numbers)
