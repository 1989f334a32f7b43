"""Zero points of ONNX models that are all 0 are left out, others and their use elsewhere stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.ir.importing import import_onnx

onnx = pytest.importorskip("onnx")

CHANNELS = 9000  # more than a page of an archive, so that its size tells


def quantised(zeros: np.ndarray, *, shared: bool = False) -> Any:
    """A product with a matrix of bytes, whose columns have scales and zero points."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    known = {
        "weights": rng.integers(-127, 128, (16, CHANNELS)).astype(np.int8),
        "scales": rng.uniform(0.5, 1.0, CHANNELS).astype(np.float32),
        "zeros": zeros.astype(np.int8),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["weights", "scales", "zeros"], ["w"], axis=1),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    if shared:
        nodes.append(helper.make_node("Cast", ["zeros"], ["z"], to=TensorProto.FLOAT))
    outputs = [("y", [4, CHANNELS]), ("z", [CHANNELS])][: 1 + shared]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 16])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in outputs],
        [numpy_helper.from_array(array, name) for name, array in known.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def names(model: Any) -> set[str]:
    return {one.name for one in model.graph.initializer}


def test_zeros_are_left_out() -> None:
    from tilewright.ir.onnx_import import drop_zero_points

    model = quantised(np.zeros(CHANNELS))
    assert drop_zero_points(model) == 1
    assert names(model) == {"weights", "scales"}
    onnx.checker.check_model(model)


@pytest.mark.parametrize("shared", [False, True])
def test_what_is_needed_stays(shared: bool) -> None:
    from tilewright.ir.onnx_import import drop_zero_points

    one = np.zeros(CHANNELS)
    one[7] = 0 if shared else 1
    model = quantised(one, shared=shared)
    assert drop_zero_points(model) == int(shared)
    assert "zeros" in names(model), "another node reads it, or it is not all 0"
    onnx.checker.check_model(model)


def test_what_a_branch_reads_stays() -> None:
    from onnx import TensorProto, helper

    from tilewright.ir.onnx_import import drop_zero_points

    model = quantised(np.zeros(CHANNELS))
    output = helper.make_tensor_value_info("i", TensorProto.INT8, [CHANNELS])
    branch = helper.make_graph([helper.make_node("Identity", ["zeros"], ["i"])], "b", [], [output])
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.INT8, [CHANNELS]))
    model.graph.node.append(
        helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch)
    )
    assert drop_zero_points(model) == 1
    assert "zeros" in names(model)


def test_a_model_is_imported_without_them(tmp_path: Path) -> None:
    sizes = []
    for name, zeros in (("without", np.zeros(CHANNELS)), ("with", np.ones(CHANNELS))):
        path = tmp_path / f"{name}.onnx"
        onnx.save(quantised(zeros), path)
        before = path.read_bytes()
        _, weights = import_onnx(path, tmp_path)
        assert path.read_bytes() == before, "the user's file is left as it is"
        sizes.append(weights[0][1].stat().st_size if weights else 0)
    assert sizes[0] < sizes[1]
