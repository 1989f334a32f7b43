"""Zero points of ONNX models: those that are all 0 are left out, those of the rows of products are
taken off the sums; others and their use elsewhere stay."""

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
    from tilewright.ir.onnx_zero_points import drop_zero_points

    model = quantised(np.zeros(CHANNELS))
    assert drop_zero_points(model) == 1
    assert names(model) == {"weights", "scales"}
    onnx.checker.check_model(model)


@pytest.mark.parametrize("shared", [False, True])
def test_what_is_needed_stays(shared: bool) -> None:
    from tilewright.ir.onnx_zero_points import drop_zero_points

    one = np.zeros(CHANNELS)
    one[7] = 0 if shared else 1
    model = quantised(one, shared=shared)
    assert drop_zero_points(model) == int(shared)
    assert "zeros" in names(model), "another node reads it, or it is not all 0"
    onnx.checker.check_model(model)


def test_what_a_branch_reads_stays() -> None:
    from onnx import TensorProto, helper

    from tilewright.ir.onnx_zero_points import drop_zero_points

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


@pytest.mark.parametrize("outside", [False, True], ids=["in the model", "in a file beside it"])
def test_a_model_is_imported_without_them(tmp_path: Path, outside: bool) -> None:
    sizes = []
    for name, zeros in (("without", np.zeros(CHANNELS)), ("with", np.ones(CHANNELS))):
        path = tmp_path / f"{name}.onnx"
        where = {"save_as_external_data": outside, "location": f"{name}.data", "size_threshold": 0}
        onnx.save(quantised(zeros), path, **where)
        before = path.read_bytes()
        _, weights = import_onnx(path, tmp_path)
        assert path.read_bytes() == before, "the user's file is left as it is"
        sizes.append(weights[0][1].stat().st_size if weights else 0)
    assert sizes[0] < sizes[1]


KINDS = {
    "scalar of the model": ("i8", 0, "known"),
    "made when it runs": ("i8", 0, "made"),
    "weights without a sign": ("u8", 128, "made"),
    "of weights": ("i8", 3, "made"),
    "of weights without a sign": ("u8", 127, "made"),
    "weights at run time": ("i8", 0, "weights"),
    "for each row": ("i8", 0, "rows"),
    "none": ("i8", 0, "none"),
    "a vector": ("i8", 0, "vector"),
    "batches": ("i8", 0, "batches"),
}
REWRITTEN = (
    *("scalar of the model", "made when it runs", "weights without a sign"),
    *("a vector", "batches"),
)


def integer_product(kind: str) -> Any:
    """A product of what is quantised when it runs, or is given as integers, with weights."""
    from onnx import TensorProto, helper, numpy_helper

    dtype, zero, how = KINDS[kind]
    low, high, numpy_type = (-128, 128, np.int8) if dtype == "i8" else (0, 256, np.uint8)
    rng = np.random.default_rng(1)
    batches = (2,) if how == "batches" else ()
    known = {"w": rng.integers(low, high, (*batches, 32, 24)).astype(numpy_type)}
    known["wz"] = np.zeros(1, numpy_type) if batches else np.full(24, zero, numpy_type)
    rows = [] if how == "vector" else [2, 16]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [*rows, 32])]
    nodes = [helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])]
    if how == "known":
        known["z0"] = np.array([77], np.uint8)
    elif how == "rows":
        known["z0"] = rng.integers(0, 256, (2, 16, 1)).astype(np.uint8)
    elif how == "weights":
        del known["w"]
        inputs.append(helper.make_tensor_value_info("w", TensorProto.INT8, [32, 24]))
    which = {"known": "z0", "rows": "z0", "none": ""}.get(how, "z")
    nodes.append(helper.make_node("MatMulInteger", ["q", "w", which, "wz"], ["y"]))
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT32, [*rows, 24])]
    tensors = [numpy_helper.from_array(array, name) for name, array in known.items()]
    graph = helper.make_graph(nodes, "net", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("kind", KINDS)
def test_zero_points_of_rows_are_taken_off_the_sums(kind: str) -> None:
    from onnx.reference import ReferenceEvaluator

    from tilewright.ir.onnx_zero_points import drop_zero_points, split_products

    model = integer_product(kind)
    rng = np.random.default_rng(2)
    shape = [one.dim_value for one in model.graph.input[0].type.tensor_type.shape.dim]
    inputs = {"x": rng.standard_normal(shape).astype(np.float32)}
    if KINDS[kind][2] == "weights":
        inputs["w"] = rng.integers(-128, 128, (32, 24)).astype(np.int8)
    before = model.SerializeToString()
    runs = kind not in ("for each row", "none")  # the evaluator has no zero points of such shapes
    expected = ReferenceEvaluator(model).run(None, inputs) if runs else None
    assert split_products(model) == int(kind in REWRITTEN)
    if kind not in REWRITTEN:
        assert model.SerializeToString() == before
        return
    drop_zero_points(model)
    onnx.checker.check_model(model, full_check=True)
    assert {one.op_type for one in model.graph.node} >= {"MatMul", "Sub"}
    assert "MatMulInteger" not in {one.op_type for one in model.graph.node}
    assert "wz" not in names(model), "nothing reads it any more"
    found = ReferenceEvaluator(model).run(None, inputs)
    np.testing.assert_array_equal(found[0], expected[0])
