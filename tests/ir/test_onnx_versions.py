"""Models of older versions of ONNX's operations compile, with the numbers that they have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'tilewright[onnx]'")

from compiled_onnx import numbers, operation  # noqa: E402
from onnx import helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from tilewright.ir.onnx_graphs import version_of  # noqa: E402
from tilewright.ir.onnx_import import run  # noqa: E402
from tilewright.ir.onnx_versions import bring_up  # noqa: E402


def image() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((1, 4, 12, 10)).astype(np.float32)


CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "the largest of windows": ("MaxPool", 11, {"kernel_shape": [2, 3], "strides": [2, 1]}),
    "probabilities of the last axis": ("Softmax", 11, {"axis": 3}),
    "the largest": ("ReduceMax", 9, {"axes": [1, 2], "keepdims": 0}),
    "error function": ("Erf", 9, {}),
    "rounded down": ("Floor", 9, {}),
    "one more axis": ("Unsqueeze", 9, {"axes": [0, 3]}),
    "a part": ("Slice", 9, {"starts": [1, 2], "ends": [3, 9], "axes": [1, 2]}),
}


@pytest.mark.parametrize("name", CASES)
def test_older_operations_compile_to_their_numbers(tmp_path: Path, name: str) -> None:
    kind, version, how = CASES[name]
    x = image()
    model = operation(kind, ["x"], {"x": x}, {}, version, **how)
    expected = ReferenceEvaluator(model).run(None, {"x": x})[0]
    found = numbers(tmp_path, model, {"x": x})
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_older_probabilities_are_of_all_axes_from_one_on(tmp_path: Path) -> None:
    x = image()
    found = numbers(tmp_path, operation("Softmax", ["x"], {"x": x}, {}, 11, axis=2), {"x": x})
    powers = np.exp(x)
    np.testing.assert_allclose(found, powers / powers.sum((2, 3), keepdims=True), rtol=1e-4)


@pytest.mark.parametrize(("kind", "version"), [("Upsample", 9), ("Resize", 10)])
def test_older_resizes_are_made_from_the_corner(tmp_path: Path, kind: str, version: int) -> None:
    x = image()
    scales = {"s": np.array([1, 1, 2, 3], np.float32)}
    nearest = operation(kind, ["x", "s"], {"x": x}, scales, version, mode="nearest")
    found = numbers(tmp_path, nearest, {"x": x})
    np.testing.assert_array_equal(found, x.repeat(2, 2).repeat(3, 3))
    linear = operation(kind, ["x", "s"], {"x": x}, scales, version, mode="linear")
    found = numbers(tmp_path, linear, {"x": x})
    # Each second row is a row of the image, those between them the mean of two.
    np.testing.assert_allclose(found[:, :, ::2, ::3], x, atol=1e-6)
    between = (x[:, :, :-1] + x[:, :, 1:]) / 2
    np.testing.assert_allclose(found[:, :, 1:-1:2, ::3], between, atol=1e-6)


def test_the_importer_is_given_what_it_knows() -> None:
    model = operation("Floor", ["x"], {"x": image()}, {}, 9)
    assert bring_up(model) == 1
    assert version_of(model) == 17
    newer = operation("Floor", ["x"], {"x": image()}, {}, 18)
    assert bring_up(newer) == 0
    assert version_of(newer) == 18


@pytest.mark.parametrize(
    "refused",
    [
        # One that there is no more, one that ONNX has no converter for.
        helper.make_node("NoSuchOperation", ["y"], ["z"]),
        helper.make_node("Tile", ["y", "z"], ["w"]),
    ],
)
def test_what_the_converter_refuses_stays_as_it_is(refused: Any) -> None:
    model = operation("Floor", ["x"], {"x": image()}, {}, 5)
    model.graph.node.append(refused)
    before = model.SerializeToString()
    assert bring_up(model) == 0
    assert model.SerializeToString() == before


def test_weights_in_other_files_stay_there(tmp_path: Path) -> None:
    weights = np.random.default_rng(1).standard_normal((40, 50)).astype(np.float32)
    model = operation("MatMul", ["x", "w"], {"x": np.ones((3, 40), np.float32)}, {"w": weights}, 9)
    path = tmp_path / "net.onnx"
    onnx.save(model, path, save_as_external_data=True, size_threshold=0, location="net.data")
    older = onnx.load(path, load_external_data=False)
    assert bring_up(older) == 1
    [kept] = older.graph.initializer
    assert {one.key: one.value for one in kept.external_data}["location"] == "net.data"
    assert [one.name for one in older.graph.input] == ["x"]
    run([str(path), "-o", str(tmp_path / "net.mlir")])
    onnx.load_external_data_for_model(older, str(tmp_path))
    np.testing.assert_array_equal(numpy_helper.to_array(older.graph.initializer[0]), weights)


def test_weights_that_a_caller_may_give_are_inputs_still() -> None:
    known = {"w": np.ones((40, 50), np.float32)}
    model = operation("MatMul", ["x", "w"], {"x": np.ones((3, 40), np.float32)}, known, 9)
    model.graph.input.append(helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, (40, 50)))
    assert bring_up(model) == 1
    assert {one.name for one in model.graph.input} == {"x", "w"}
    assert [one.name for one in model.graph.initializer] == ["w"]
