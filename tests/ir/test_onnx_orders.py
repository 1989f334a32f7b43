"""The largest of many in ONNX models: the numbers are NumPy's, and nothing is sorted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'tilewright[onnx]'")

from compiled_onnx import numbers, operation  # noqa: E402

from tilewright.ir.onnx_orders import rank_largest  # noqa: E402


def some(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    values = np.random.default_rng(sum(shape)).standard_normal(shape) * 100
    return values.astype(dtype)


def largest(x: np.ndarray, first: int, version: int = 17, **how: Any) -> Any:
    known = {"k": np.array([first])}
    return operation("TopK", ["x", "k"], {"x": x}, known, version, ("y", "places"), **how)


@pytest.mark.parametrize("version", [13, 18])
@pytest.mark.parametrize(
    ("x", "first", "axis", "most"),
    [
        (some(2, 700), 20, -1, True),
        (some(2, 900, 3), 7, 1, False),
        (some(4, 6), 6, 1, True),
        (some(2, 700, dtype=np.int32), 9, -1, False),
        (np.zeros((2, 40), np.float32), 5, 1, True),
    ],
)
def test_the_numbers_are_those_of_a_sort(
    tmp_path: Path, version: int, x: np.ndarray, first: int, axis: int, most: bool
) -> None:
    model = largest(x, first, version, axis=axis, largest=int(most))
    order = np.argsort(-x if most else x, axis=axis, kind="stable")
    places = order.take(range(first), axis=axis)
    (tmp_path / "values").mkdir()
    found = numbers(tmp_path / "values", model, {"x": x})
    np.testing.assert_array_equal(found, np.take_along_axis(x, places, axis))
    # The places are what the model returns first.
    del model.graph.output[0]
    np.testing.assert_array_equal(numbers(tmp_path, model, {"x": x}), places)


def test_nearest_neighbours_are_those_of_the_distances(tmp_path: Path) -> None:
    # IREE gets such distances wrong where it computes them again with each comparison.
    from onnx import helper, numpy_helper

    x = some(1, 3, 512) / 100
    steps = [
        ("Transpose", ["x"], "t", {"perm": [0, 2, 1]}),
        ("MatMul", ["t", "x"], "products", {}),
        ("Mul", ["x", "x"], "squares", {}),
        ("ReduceSum", ["squares", "axes"], "r", {"keepdims": 1}),
        ("Transpose", ["r"], "rt", {"perm": [0, 2, 1]}),
        ("Sub", ["products", "r"], "u", {}),
        ("Sub", ["u", "rt"], "v", {}),
        ("TopK", ["v", "k"], "y", {}),
    ]
    nodes = [
        helper.make_node(kind, given, [made] if kind != "TopK" else [made, "places"], **how)
        for kind, given, made, how in steps
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)],
        [helper.make_empty_tensor_value_info("y")],
        [
            numpy_helper.from_array(np.array([8]), "k"),
            numpy_helper.from_array(np.array([1]), "axes"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    squares = (x * x).sum(1, keepdims=True)
    near = x.transpose(0, 2, 1) @ x - squares - squares.transpose(0, 2, 1)
    found = numbers(tmp_path, onnx.shape_inference.infer_shapes(model), {"x": x})
    np.testing.assert_allclose(found, np.sort(near)[..., ::-1][..., :8], atol=1e-4)


def test_places_are_inside_even_where_there_is_no_order(tmp_path: Path) -> None:
    x = np.where(some(2, 700) > 50, np.nan, some(2, 700)).astype(np.float32)
    model = largest(x, 20)
    del model.graph.output[0]
    places = numbers(tmp_path, model, {"x": x})
    assert places.min() >= 0
    assert places.max() < 700


def test_nothing_is_sorted_where_the_sizes_are_known() -> None:
    model = largest(some(2, 700), 20)
    assert rank_largest(model) == 1
    assert "TopK" not in {node.op_type for node in model.graph.node}


def test_what_is_known_at_run_time_only_stays() -> None:
    model = largest(some(2, 700), 20)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "many"
    assert rank_largest(model) == 0
    # How many images there are need not be known.
    model = largest(some(2, 700), 20)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "images"
    assert rank_largest(model) == 1


def test_how_many_must_be_a_constant() -> None:
    model = largest(some(2, 700), 20)
    del model.graph.initializer[:]
    assert rank_largest(model) == 0
