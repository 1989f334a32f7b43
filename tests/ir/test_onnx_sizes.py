"""What follows from known sizes is a constant; what does not stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.ir.program import load_program

onnx = pytest.importorskip("onnx")

# As PyTorch splits the last dimension of the queries, keys and values of an attention: the sizes
# before it, and what it becomes.
UNFLATTEN = """
  whole = Shape (y)
  zero = Constant <value = int64[1] {0}> ()
  last = Constant <value = int64[1] {-1}> ()
  before = Slice (whole, zero, last)
  parts = Constant <value = int64[2] {3, 4}> ()
  sizes = Concat <axis = 0> (before, parts)
  split = Reshape (y, sizes)
  first = Constant <value = int64[1] {0}> ()
  wider = Unsqueeze (split, first)
  z = Transpose <perm = [3, 1, 2, 0, 4]> (wider)
"""


def model(body: str, inputs: str = "float[5, 2, 12] x", outputs: str = "float[a,b,c,d,e] z") -> Any:
    """A model of one function, in ONNX's own text."""
    head = f'<ir_version: 8, opset_import: ["" : 17]> net ({inputs}) => ({outputs})'
    return onnx.parser.parse_model(f"{head} {{ {body} }}")


def kinds(one: Any) -> set[str]:
    return {node.op_type for node in one.graph.node}


def test_a_reshape_by_parts_of_sizes_is_one_by_constants() -> None:
    from onnx.reference import ReferenceEvaluator

    from tilewright.ir.onnx_sizes import compute_sizes

    one = model("y = Relu (x)" + UNFLATTEN)
    x = np.random.default_rng(0).standard_normal((5, 2, 12)).astype(np.float32)
    (before,) = ReferenceEvaluator(one).run(None, {"x": x})
    assert compute_sizes(one) == 3
    assert not {"Shape", "Slice", "Concat"} & kinds(one)
    onnx.checker.check_model(one, full_check=True)
    (after,) = ReferenceEvaluator(one).run(None, {"x": x})
    np.testing.assert_array_equal(before, after)
    assert compute_sizes(one) == 0


def test_sizes_that_follow_from_others_are_found_too() -> None:
    from tilewright.ir.onnx_sizes import compute_sizes

    # The rank of what comes second is known when the first reshape is.
    again = (
        UNFLATTEN.replace("z =", "w =")
        + """
      all = Shape (w)
      count = Size (w)
      two = Constant <value = int64[1] {2}> ()
      one = Constant <value = int64[1] {1}> ()
      part = Slice (all, one, two)
      flat = Concat <axis = 0> (part, last)
      z = Reshape (w, flat)
    """
    )
    one = model("y = Relu (x)" + again, outputs="float[a, b] z")
    compute_sizes(one)
    assert not {"Shape", "Size", "Slice", "Concat"} & kinds(one)
    shape = onnx.shape_inference.infer_shapes(one).graph.output[0].type.tensor_type.shape
    assert [d.dim_value or d.dim_param for d in shape.dim][:1] == [5]
    # What nothing reads any more is left out.
    assert {i.name for i in one.graph.initializer} == {"sizes", "flat"}


STAYS = {
    "sizes at run time": ("y = Relu (x)" + UNFLATTEN, "float[n, 2, 12] x", "float[a,b,c,d,e] z"),
    "no rank": ("s = Shape (x) z = Identity (s)", "float x, int64[k] r", "int64[k] z"),
    "nothing of sizes": ("z = Relu (x)", "float[5] x", "float[5] z"),
    "what is returned": ("z = Shape (x)", "float[5, 2] x", "int64[2] z"),
    "too large": (
        "s = Shape (r) w = Reshape (x, s) z = ConstantOfShape (x)",
        "int64[2] x, float[n] r",
        "float[a, b] z",
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_is_not_known_stays(name: str) -> None:
    from tilewright.ir.onnx_sizes import compute_sizes

    one = model(*STAYS[name])
    if name == "no rank":
        one.graph.input[0].type.tensor_type.ClearField("shape")
    before = one.SerializeToString()
    assert compute_sizes(one) == 0
    assert one.SerializeToString() == before


def test_large_constants_and_wrong_operations_are_left_alone() -> None:
    from tilewright.ir.onnx_sizes import compute_sizes

    one = model(
        """
        s = Shape (x)
        big = ConstantOfShape (s)
        five = Constant <value = int64 {5}> ()
        wrong = Gather <axis = 0> (s, five)
        z = Add (x, big)
        w = Identity (wrong)
        """,
        "float[5, 100] x",
        "float[5, 100] z, int64 w",
    )
    assert compute_sizes(one) == 1
    assert kinds(one) == {"ConstantOfShape", "Constant", "Gather", "Add", "Identity"}


def test_integers_are_divided_as_onnx_has_it() -> None:
    from tilewright.ir.onnx_sizes import compute_sizes

    text = "s = Shape (x) t = Div (s, by) y = ConstantOfShape (t) z = Identity (t)"
    for by, left in ((2, {"Identity"}), (-2, {"Div", "ConstantOfShape", "Identity"})):
        one = model(text, "float[5, 7] x", "int64[2] z, float[a, b] y")
        one.graph.output.pop()
        one.graph.initializer.append(onnx.numpy_helper.from_array(np.array([by, by]), "by"))
        compute_sizes(one)
        assert kinds(one) == left


def test_what_a_caller_may_give_is_no_constant() -> None:
    from tilewright.ir.onnx_sizes import compute_sizes

    one = model(
        "s = Shape (x) t = Mul (s, by) z = Expand (x, t)",
        "float[2, 3] x, int64[2] by",
        "float[a, b] z",
    )
    one.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 1], np.int64), "by"))
    assert compute_sizes(one) == 1
    assert kinds(one) == {"Mul", "Expand"}
    assert {i.name for i in one.graph.initializer} == {"s", "by"}


def test_an_attention_of_pytorch_is_imported_with_its_sizes(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(model("y = Relu (x)" + UNFLATTEN), path)
    text = load_program(path, tmp_path / "work").path.read_text()
    # Without the constants the importer says that the result of the reshape has no dimensions.
    assert "vtensor<[5,2,3,4],f32>" in text
    assert "vtensor<[],f32>" not in text
