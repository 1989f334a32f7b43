"""How reductions combine: each as an expression that may be reduced in any order."""

from __future__ import annotations

import numpy as np
import pytest
from expression_evaluator import evaluate_expression
from reference_support import parsed

from tilewright.ir.reference import evaluate
from tilewright.schedule.tensor import ComputeOp
from tilewright.sketch.translate import translate, translate_function
from tilewright.sketch.untranslatable import Untranslatable

# Values of which each row has some more than once, some rows only one value.
TIES = np.random.default_rng(0).integers(-3, 3, (7, 13)).astype("f")
TIES[3] = 2.0
TIES[4] = -np.inf


def place(
    predicate: str, start: str, order: str = "%x, %best", value: str = "select", first: str = "0"
) -> str:
    """The extreme values of rows and where they are."""
    chosen = {
        "select": "arith.select %more, %x, %best",
        "max": "arith.maximumf %x, %best",
        "min": "arith.minimumf %x, %best",
    }[value]
    return f"""
#row = affine_map<(i, j) -> (i)>
func.func @main(%a: tensor<7x13xf32>) -> (tensor<7xf32>, tensor<7xi32>) {{
  %zero = arith.constant {first} : i32
  %low = arith.constant {start} : f32
  %ev = tensor.empty() : tensor<7xf32>
  %ei = tensor.empty() : tensor<7xi32>
  %fv = linalg.fill ins(%low : f32) outs(%ev : tensor<7xf32>) -> tensor<7xf32>
  %fi = linalg.fill ins(%zero : i32) outs(%ei : tensor<7xi32>) -> tensor<7xi32>
  %r:2 = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>, #row, #row],
      iterator_types = ["parallel", "reduction"]}}
      ins(%a : tensor<7x13xf32>) outs(%fv, %fi : tensor<7xf32>, tensor<7xi32>) {{
  ^bb0(%x: f32, %best: f32, %at: i32):
    %j = linalg.index 1 : index
    %ji = arith.index_cast %j : index to i32
    %more = arith.cmpf {predicate}, {order} : f32
    %v = {chosen} : f32
    %w = arith.select %more, %ji, %at : i32
    linalg.yield %v, %w : f32, i32
  }} -> (tensor<7xf32>, tensor<7xi32>)
  return %r#0, %r#1 : tensor<7xf32>, tensor<7xi32>
}}"""


@pytest.mark.parametrize(
    "source",
    [
        place("ogt", "0xFF800000"),
        place("oge", "0xFF800000"),
        place("olt", "0x7F800000"),
        place("ole", "0x7F800000"),
        place("ogt", "0xFF800000", value="max"),
        place("olt", "0x7F800000", value="min"),
        place("olt", "0xFF800000", order="%best, %x"),
        place("ogt", "0.0"),
        place("oge", "0.0"),
        place("ogt", "0xFF800000", first="-1"),
    ],
)
def test_of_equal_extremes_the_one_counts_that_the_program_says(source: str) -> None:
    with parsed(source) as module:
        inputs, outputs = translate_function(module, "main")
        found = evaluate_expression(inputs, outputs, [TIES])
        wanted = evaluate(module, "main", [TIES])
    for got, want in zip(found, wanted, strict=True):
        assert np.array_equal(got, want)


def test_places_that_do_not_count_upwards_are_refused() -> None:
    source = place("ogt", "0xFF800000").replace(
        "%ji = arith.index_cast %j : index to i32",
        "%c = arith.constant 12 : index\n    %k = arith.subi %c, %j : index\n"
        "    %ji = arith.index_cast %k : index to i32",
    )
    with parsed(source) as module, pytest.raises(Untranslatable, match="no known form"):
        translate_function(module, "main")


def reduced(body: str, start: str, type_: str = "f32", given: bool = False) -> str:
    """A reduction of rows; `given`: it starts from an argument."""
    argument = f", %g: tensor<5x{type_}>" if given else ""
    return f"""
func.func @main(%a: tensor<5x9x{type_}>, %b: tensor<9x{type_}>{argument}) -> tensor<5x{type_}> {{
  %z = arith.constant {start} : {type_}
  %e = tensor.empty() : tensor<5x{type_}>
  %f = linalg.fill ins(%z : {type_}) outs(%e : tensor<5x{type_}>) -> tensor<5x{type_}>
  %r = linalg.generic {{
      indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]}}
      ins(%a, %b : tensor<5x9x{type_}>, tensor<9x{type_}>) outs({"%g" if given else "%f"} : tensor<5x{type_}>) {{
  ^bb0(%x: {type_}, %y: {type_}, %acc: {type_}):
    {body}
    linalg.yield %r : {type_}
  }} -> tensor<5x{type_}>
  return %r : tensor<5x{type_}>
}}"""  # noqa: E501


FLOAT_BODIES = {
    "%r = arith.addf %x, %acc : f32": "0.0",
    "%p = arith.mulf %x, %y : f32\n%r = arith.subf %acc, %p : f32": "0.0",
    "%p = arith.subf %acc, %y : f32\n%r = arith.addf %p, %x : f32": "0.0",
    "%p = arith.addf %x, %y : f32\n%r = arith.addf %p, %acc : f32": "-0.0",
    "%r = arith.mulf %acc, %x : f32": "1.0",
    "%r = arith.maximumf %x, %acc : f32": "0xFF800000",
    "%p = arith.maximumf %x, %y : f32\n%r = arith.maximumf %acc, %p : f32": "0xFF800000",
    "%r = arith.minimumf %acc, %y : f32": "0x7F800000",
    "%r = arith.maxnumf %x, %acc : f32": "0xFF800000",
    "%r = arith.maxnumf %acc, %x : f32": "0xFF800000",
    "%r = arith.minnumf %acc, %x : f32": "0x7F800000",
    "%m = arith.cmpf ogt, %x, %acc : f32\n%r = arith.select %m, %x, %acc : f32": "0xFF800000",
    "%m = arith.cmpf olt, %acc, %x : f32\n%r = arith.select %m, %x, %acc : f32": "0xFF800000",
    "%m = arith.cmpf ogt, %acc, %x : f32\n%r = arith.select %m, %acc, %x : f32": "0xFF800000",
    "%m = arith.cmpf ole, %acc, %x : f32\n%r = arith.select %m, %acc, %x : f32": "0x7F800000",
}
INTEGER_BODIES = {
    "%r = arith.addi %x, %acc : i32": "0",
    "%r = arith.muli %x, %acc : i32": "1",
    "%r = arith.maxsi %x, %acc : i32": "-2147483648",
    "%r = arith.minsi %x, %acc : i32": "2147483647",
    "%r = arith.andi %x, %acc : i32": "-1",
    "%r = arith.ori %x, %acc : i32": "0",
    "%r = arith.xori %x, %acc : i32": "0",
    "%m = arith.cmpi slt, %x, %acc : i32\n%r = arith.select %m, %x, %acc : i32": "2147483647",
}


def check(source: str, stages: int) -> None:
    type_ = "f32" if "xf32" in source else "i32"
    rng = np.random.default_rng(1)
    with parsed(source) as module:
        expression = translate(module, "main")
        values = [
            rng.standard_normal(t.shape).astype("f")
            if type_ == "f32"
            else rng.integers(-99, 99, t.shape).astype(np.int32)
            for t in expression.inputs
        ]
        (found,) = evaluate_expression(expression.inputs, [expression.output], values)
        (wanted,) = evaluate(module, "main", values)
    assert np.allclose(found, wanted, rtol=1e-12, atol=1e-12)
    op = expression.output.op
    assert isinstance(op, ComputeOp)
    assert (op.reduction is not None) is (stages == 1)


@pytest.mark.parametrize("body", FLOAT_BODIES)
def test_reductions_of_floats(body: str) -> None:
    check(reduced(body, FLOAT_BODIES[body]), 1)
    check(reduced(body, "0.25"), 2)
    check(reduced(body, "0.0", given=True), 2)


@pytest.mark.parametrize("body", INTEGER_BODIES)
def test_reductions_of_integers(body: str) -> None:
    check(reduced(body, INTEGER_BODIES[body], "i32"), 1)
    check(reduced(body, "5", "i32"), 2)


def test_what_is_no_number_is_left_out_where_the_program_leaves_it_out() -> None:
    values = [np.ones((5, 9), "f"), np.ones(9, "f")]
    values[0][1, 3] = np.nan
    values[0][2] = np.nan
    for body, start in FLOAT_BODIES.items():
        if "num" not in body and "maximumf %x, %acc" not in body:
            continue
        with parsed(reduced(body, start)) as module:
            inputs, outputs = translate_function(module, "main")
            (found,) = evaluate_expression(inputs, outputs, values)
            (wanted,) = evaluate(module, "main", values)
        assert np.array_equal(found, wanted, equal_nan=True)


@pytest.mark.parametrize(
    "body",
    [
        "%p = arith.mulf %acc, %y : f32\n%r = arith.addf %p, %x : f32",
        "%p = arith.addf %acc, %acc : f32\n%r = arith.addf %p, %x : f32",
        "%r = arith.subf %x, %acc : f32",
        "%r = arith.divf %acc, %x : f32",
        "%p = arith.mulf %acc, %acc : f32\n%r = arith.maximumf %p, %x : f32",
    ],
)
def test_what_depends_on_the_order_is_refused(body: str) -> None:
    with (
        parsed(reduced(body, "0.0")) as module,
        pytest.raises(Untranslatable, match="a reduction of no known form"),
    ):
        translate(module, "main")
