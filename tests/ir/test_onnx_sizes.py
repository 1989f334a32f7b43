"""What follows from known sizes is a constant; what does not stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.ir.program import load_program

onnx = pytest.importorskip("onnx")

# As PyTorch splits the last dimension of the queries, keys and values of an attention: the sizes
# before it, what it becomes, and the sizes after it, of which there are none. Which dimension it is
# stands there as a remainder.
UNFLATTEN = """
  whole = Shape (y)
  two = Constant <value = int64 {2}> ()
  rank = Constant <value = int64 {3}> ()
  one = Constant <value = int64 {1}> ()
  alone = Constant <value = int64[1] {-1}> ()
  dimension = Mod (two, rank)
  zero = Constant <value = int64[1] {0}> ()
  end = Reshape (dimension, alone)
  before = Slice (whole, zero, end)
  next = Add (dimension, one)
  begin = Reshape (next, alone)
  all = Constant <value = int64[1] {9223372036854775807}> ()
  after = Slice (whole, begin, all)
  parts = Constant <value = int64[2] {3, 4}> ()
  sizes = Concat <axis = 0> (before, parts, after)
  split = Reshape (y, sizes)
  wider = Unsqueeze (split, zero)
  z = Transpose <perm = [3, 1, 2, 0, 4]> (wider)
"""


def sizes_of_result(one: Any) -> list[int | str]:
    """What ONNX's inference finds."""
    one.graph.output[0].type.tensor_type.ClearField("shape")
    found = onnx.shape_inference.infer_shapes(one, data_prop=True).graph.output[0]
    return [d.dim_value or d.dim_param for d in found.type.tensor_type.shape.dim]


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
    assert sizes_of_result(onnx.ModelProto.FromString(one.SerializeToString())) == []
    assert compute_sizes(one) == 8
    assert not {"Shape", "Slice", "Concat", "Mod", "Add"} & kinds(one)
    onnx.checker.check_model(one, full_check=True)
    (after,) = ReferenceEvaluator(one).run(None, {"x": x})
    np.testing.assert_array_equal(before, after)
    assert compute_sizes(one) == 0


def test_sizes_that_follow_from_others_are_found_too() -> None:
    from tilewright.ir.onnx_sizes import compute_sizes

    # The rank of what comes second is known when the first reshape is.
    again = """
      shape = Shape (w)
      count = Size (w)
      first = Slice (shape, zero, end)
      flat = Concat <axis = 0> (first, alone)
      z = Reshape (w, flat)
    """
    body = "y = Relu (x)" + UNFLATTEN.replace("z =", "w =") + again
    one = model(body, outputs="float[a, b, c] z")
    compute_sizes(one)
    assert not {"Shape", "Size", "Slice", "Concat"} & kinds(one)
    assert sizes_of_result(one) == [3, 5, 8]
    # What nothing reads any more is left out.
    assert {i.name for i in one.graph.initializer} == {"sizes", "flat"}


def test_padding_that_is_put_together_of_constants_alone_is_one() -> None:
    from tilewright.ir.onnx_sizes import compute_sizes

    # As PyTorch's exporter writes a mirrored edge: no size of a tensor is asked for.
    one = model(
        """
        said = Constant <value = int64[4] {1, 1, 2, 2}> ()
        count = Constant <value = int64[1] {4}> ()
        none = ConstantOfShape <value = int64[1] {0}> (count)
        all = Concat <axis = 0> (said, none)
        two = Constant <value = int64[2] {-1, 2}> ()
        pairs = Reshape (all, two)
        begin = Constant <value = int64[1] {-1}> ()
        end = Constant <value = int64[1] {-9223372036854775807}> ()
        axis = Constant <value = int64[1] {0}> ()
        turned = Slice (pairs, begin, end, axis, begin)
        columns = Transpose <perm = [1, 0]> (turned)
        pads = Reshape (columns, begin)
        z = Pad <mode = "reflect"> (x, pads)
        """,
        "float[1, 3, 8, 9] x",
        "float[a, b, c, d] z",
    )
    assert compute_sizes(one) == 6
    assert kinds(one) <= {"Constant", "Pad"}
    assert sizes_of_result(one) == [1, 3, 12, 11]


@pytest.mark.parametrize("sizes", [[1, 5], [3, 5]])
def test_of_what_sizes_decide_one_branch_is_left(sizes: list[int]) -> None:
    from onnx import TensorProto, helper, numpy_helper
    from onnx.reference import ReferenceEvaluator

    from tilewright.ir.onnx_sizes import compute_sizes

    def branch(name: str, *nodes: Any, known: float = 0.0) -> Any:
        result = helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 2)
        weight = numpy_helper.from_array(np.array([known], np.float32), f"{name}_weight")
        return helper.make_graph(list(nodes), name, [], [result], [weight])

    def decided(condition: str, result: str, one: Any, other: Any) -> Any:
        how = {"then_branch": one, "else_branch": other}
        return helper.make_node("If", [condition], [result], **how)

    squeezed = helper.make_node("Squeeze", ["x", "axis"], ["less"])
    moved = helper.make_node("Add", ["less", "then_weight"], ["then"])
    inner = decided(
        "yes",
        "else",
        branch("in", helper.make_node("Mul", ["x", "in_weight"], ["in"]), known=3.0),
        branch("out", helper.make_node("Neg", ["x"], ["out"])),
    )
    graph = helper.make_graph(
        [
            helper.make_node("Shape", ["x"], ["whole"]),
            helper.make_node("Gather", ["whole", "axis"], ["first"]),
            helper.make_node("Equal", ["first", "one"], ["single"]),
            helper.make_node("Equal", ["one", "one"], ["yes"]),
            decided(
                "single", "z", branch("then", squeezed, moved, known=2.0), branch("else", inner)
            ),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [None] * 2)],
        [numpy_helper.from_array(np.array([n]), name) for n, name in ((0, "axis"), (1, "one"))],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.random.default_rng(0).standard_normal(sizes).astype(np.float32)
    (before,) = ReferenceEvaluator(made).run(None, {"x": x})
    compute_sizes(made)
    assert "If" not in kinds(made)
    assert kinds(made) == ({"Squeeze", "Add"} if sizes[0] == 1 else {"Mul"}) | {"Identity"}
    onnx.checker.check_model(made)
    (after,) = ReferenceEvaluator(made).run(None, {"x": x})
    np.testing.assert_array_equal(before, after)


def test_with_a_size_at_run_time_the_rank_is_known() -> None:
    from tilewright.ir.onnx_sizes import compute_sizes

    one = model("y = Relu (x)" + UNFLATTEN, "float[n, 2, 12] x")
    assert compute_sizes(one) == 4
    assert {"Shape", "Slice", "Concat"} <= kinds(one)
    assert len(sizes_of_result(one)) == 5


STAYS = {
    "sizes at run time": ("s = Shape (x) z = Identity (s)", "float[n, 2] x", "int64[k] z"),
    "no rank": ("s = Shape (x) z = Identity (s)", "float x, int64[k] r", "int64[k] z"),
    "nothing of sizes": ("z = Relu (x)", "float[5] x", "float[5] z"),
    "what is returned": ("z = Shape (x)", "float[5, 2] x", "int64[2] z"),
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


def test_what_would_be_large_is_not_even_made() -> None:
    from tilewright.ir.onnx_sizes import compute_sizes

    one = model(
        "s = Shape (x) y = ConstantOfShape (s) z = Relu (y)",
        "float[1000000, 1000000] x",
        "float[a, b] z",
    )
    assert compute_sizes(one) == 1
    assert kinds(one) == {"ConstantOfShape", "Relu"}


def test_data_in_other_files_is_left_there(tmp_path: Path) -> None:
    from tilewright.ir.onnx_sizes import compute_sizes

    one = model("y = Mul (x, by)" + UNFLATTEN, inputs="float[5, 2, 12] x")
    one.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(12, np.float32), "by"))
    path = tmp_path / "net.onnx"
    onnx.save(one, path, save_as_external_data=True, location="w", size_threshold=0)
    found = onnx.load(path, load_external_data=False)
    assert compute_sizes(found) == 8
    (by,) = [i for i in found.graph.initializer if i.name == "by"]
    assert by.external_data
    text = load_program(path, tmp_path / "work").path.read_text()
    assert "vtensor<[5,2,3,4],f32>" in text


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
