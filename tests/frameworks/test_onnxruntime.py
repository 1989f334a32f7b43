"""A model's program beside ONNX Runtime: of a run, and of results that are not the model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.argument import ArgumentType
from tilewright.measure.inputs import write_inputs, write_outputs
from tilewright.measure.jobs import WorkerState
from tilewright.tuning.model_check import ModelRequest, compare_with_model

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(0)
WEIGHTS = RNG.standard_normal((64, 64)).astype(np.float32)
X = RNG.standard_normal((8, 64)).astype(np.float32)


def model(folder: Path, quantised: bool = False) -> Path:
    """relu(x w), which may be rounded to bytes on its way."""
    from onnx import TensorProto, helper, numpy_helper

    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"])]
    known = [numpy_helper.from_array(WEIGHTS, "w")]
    last = "p"
    if quantised:
        nodes.append(helper.make_node("QuantizeLinear", ["p", "scale"], ["q"]))
        nodes.append(helper.make_node("DequantizeLinear", ["q", "scale"], ["d"]))
        known.append(numpy_helper.from_array(np.float32(0.1), "scale"))
        last = "d"
    nodes.append(helper.make_node("Relu", [last], ["y"]))
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, X.shape)],
        known,
    )
    path = folder / "net.onnx"
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, path)
    return path


@pytest.mark.parametrize(
    ("off", "quantised", "wrong"),
    [(0.0, False, False), (0.05, False, True), (0.05, True, False), (0.5, True, True)],
)
def test_results_that_are_not_the_models_are_found(
    off: float, quantised: bool, wrong: bool, tmp_path: Path
) -> None:
    result = np.maximum(X @ WEIGHTS, 0)
    if quantised:
        result = np.clip(np.round(result / np.float32(0.1)), 0, 255) * np.float32(0.1)
    result[0, 0] += off * result.max()
    write_outputs(tmp_path / "expected.npz", [result])
    inputs = write_inputs(tmp_path / "inputs", [ArgumentType("f32", X.shape)], [X])
    request = ModelRequest(model(tmp_path, quantised), inputs, tmp_path / "expected.npz", 1)
    found: Any = compare_with_model(WorkerState(), request)
    assert found.wrong is wrong
    assert found.result == 0
    assert found.by.startswith("onnxruntime ")
    if not quantised:
        assert found.error == pytest.approx(off, abs=1e-5)


def test_a_run_says_how_far_its_program_is_from_the_model(tmp_path: Path) -> None:
    result = tilewright.tune(
        model(tmp_path), output=tmp_path / "out", db=tmp_path / "db", max_trials=2, effort="quick"
    )
    assert result.program.model_run_by.startswith("onnxruntime ")
    assert result.program.model_error is not None
    assert result.program.model_error < 1e-5
    assert "differ from onnxruntime" in result.program.outputs
