"""Translation of functions and dispatches: what the expressions compute is what the programs do."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from expression_evaluator import evaluate_expression
from iree.compiler import ir
from reference_programs import PROGRAMS
from reference_support import parsed, random_inputs

from dispatch_corpus import CASES, flow_module, session
from tilewright.argument import ArgumentType
from tilewright.ir.dispatches import find_dispatches, isolate
from tilewright.ir.reference import evaluate
from tilewright.schedule.expr import Binary, Call
from tilewright.schedule.tensor import ComputeOp, Tensor
from tilewright.schedule.types import is_float, numpy_type
from tilewright.sketch.translate import translate, translate_function
from tilewright.sketch.untranslatable import Untranslatable

# What has no expression, and what is said of it: of the programs and of the dispatches.
UNTRANSLATABLE = {
    "scan": "iree_linalg_ext.scan: no rule for this operation",
    "scatter": "iree_linalg_ext.scatter: no rule for this operation",
    "sort": "iree_linalg_ext.sort: no rule for this operation",
    "topk": "iree_linalg_ext.topk: no rule for this operation",
    "horner": ("linalg.generic: a reduction of no known form: acc0*arg1[r0] + arg0[i0, r0]"),
}
# One of each family goes through the compiler in every run, the others in the slow one.
QUICK = (
    "argmax",
    "attention",
    "conv_1x1_strided_bias",
    "conv_im2col",
    "grouped_nhwgc",
    "horner",
    "layernorm",
    "matmul_bias_data_tiled",
    "matmul_nn_i8_i32",
    "pad",
    "pool_max",
    "shortcut",
    "softmax_f16",
    "sort",
    "two_matmuls_data_tiled",
    "unpack",
)
SOURCES = {name: case.source for name, case in CASES.items() if "stablehlo." not in case.source}


def agree(found: Sequence[Any], expected: Sequence[Any], outputs: Sequence[Tensor]) -> bool:
    """Whether results are equal but for rounding in float64, or once to their narrow type."""
    for got, want, tensor in zip(found, expected, outputs, strict=True):
        tolerance = 1e-9
        if is_float(tensor.dtype) and numpy_type(tensor.dtype).itemsize < 4:
            tolerance = {"f16": 2.0**-10, "bf16": 2.0**-7}[tensor.dtype]
        if got.shape != want.shape or got.dtype != want.dtype:
            return False
        if not np.allclose(got, want, rtol=tolerance, atol=tolerance, equal_nan=True):
            return False
    return True


def check(name: str, module: ir.Module, values: Sequence[Any]) -> None:
    """Translate `main`, unless that is expected to fail, and compare what is computed."""
    if name in UNTRANSLATABLE:
        with pytest.raises(Untranslatable) as refusal:
            translate_function(module, "main")
        assert str(refusal.value) == UNTRANSLATABLE[name]
        return
    inputs, outputs = translate_function(module, "main")
    found = evaluate_expression(inputs, outputs, values)
    assert agree(found, evaluate(module, "main", values), outputs)
    zeros = [np.zeros_like(value) for value in found]
    assert not agree(zeros, found, outputs)


def dispatch_values(types: Sequence[ArgumentType], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    values = []
    for one in types:
        shape = one.shape or ()
        if one.element_type == "i1":
            values.append(rng.integers(0, 2, shape).astype(np.bool_))
        elif "i" in one.element_type:
            low = -7 if one.element_type == "i8" else 0
            values.append(rng.integers(low, 8, shape).astype(one.dtype))
        else:
            values.append(rng.standard_normal(shape).astype(one.dtype))
    return values


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_programs_of_the_reference(name: str) -> None:
    with parsed(PROGRAMS[name]) as module:
        check(name, module, random_inputs(module))


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_programs_of_the_corpus(name: str) -> None:
    with parsed(SOURCES[name]) as module:
        check(name, module, random_inputs(module))


def check_dispatches(name: str) -> None:
    case = CASES[name]
    compiler = session(case.flags)
    module = flow_module(case.source, case.flags)
    for number, site in enumerate(find_dispatches(module)):
        alone = isolate(compiler, module, site)
        check(name, alone.module, dispatch_values(alone.arguments, number))


@pytest.mark.parametrize("name", QUICK)
def test_dispatches(name: str) -> None:
    check_dispatches(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(CASES) - set(QUICK)))
def test_every_dispatch(name: str) -> None:
    check_dispatches(name)


# -- the form of expressions -----------------------------------------------------------------------


def stages(output: Tensor) -> list[ComputeOp]:
    """The stages that an output is made of, each behind what it reads."""
    found: dict[ComputeOp, None] = {}

    def visit(op: Any) -> None:
        if isinstance(op, ComputeOp) and op not in found:
            for tensor in op.input_tensors:
                visit(tensor.op)
            found[op] = None

    visit(output.op)
    return list(found)


def translated(source: str) -> list[ComputeOp]:
    with parsed(source) as module:
        return stages(translate(module, "main").output)


FUSED = """
#id = affine_map<(i, j) -> (i, j)>
func.func @main(%a: tensor<8x16xf32>, %b: tensor<16x12xf32>, %bias: tensor<12xf32>) -> tensor<2x4x12xf32> {
  %zero = arith.constant 0.0 : f32
  %half = arith.constant 0.5 : f32
  %e = tensor.empty() : tensor<8x12xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<8x12xf32>) -> tensor<8x12xf32>
  %p = linalg.matmul ins(%a, %b : tensor<8x16xf32>, tensor<16x12xf32>) outs(%f : tensor<8x12xf32>) -> tensor<8x12xf32>
  %w = linalg.broadcast ins(%bias : tensor<12xf32>) outs(%e : tensor<8x12xf32>) dimensions = [0]
  %s = arith.addf %p, %w : tensor<8x12xf32>
  %g = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%s : tensor<8x12xf32>) outs(%e : tensor<8x12xf32>) {
  ^bb0(%x: f32, %out: f32):
    %y = math.erf %x : f32
    %z = arith.mulf %y, %half : f32
    linalg.yield %z : f32
  } -> tensor<8x12xf32>
  %r = tensor.expand_shape %g [[0, 1], [2]] output_shape [2, 4, 12] : tensor<8x12xf32> into tensor<2x4x12xf32>
  return %r : tensor<2x4x12xf32>
}"""  # noqa: E501


def test_what_follows_a_product_is_one_elementwise_stage() -> None:
    product, output = translated(FUSED)
    assert product.reduction is not None
    assert output.reduction is None
    assert str(product.body[0]) == "sum(arg0[i0, r0]*arg1[r0, i1], axis=[r0])"
    assert str(output.body[0]) == "erf(matmul[i0*4 + i1, i2] + arg2[i2])*0.5"


def test_reshapes_that_undo_each_other_leave_nothing() -> None:
    source = """
func.func @main(%a: tensor<6x8xf32>) -> tensor<6x8xf32> {
  %x = tensor.expand_shape %a [[0, 1], [2, 3]] output_shape [2, 3, 4, 2] : tensor<6x8xf32> into tensor<2x3x4x2xf32>
  %c = tensor.collapse_shape %x [[0, 1, 2, 3]] : tensor<2x3x4x2xf32> into tensor<48xf32>
  %r = tensor.expand_shape %c [[0, 1]] output_shape [6, 8] : tensor<48xf32> into tensor<6x8xf32>
  return %r : tensor<6x8xf32>
}"""  # noqa: E501
    (output,) = translated(source)
    assert str(output.body[0]) == "arg0[i0, i1]"


def test_dimensions_of_one_element_take_nothing_from_an_index() -> None:
    source = """
func.func @main(%a: tensor<3x1x8xf32>, %z: tensor<3x17xf32>) -> tensor<3x17xf32> {
  %c = tensor.collapse_shape %a [[0], [1, 2]] : tensor<3x1x8xf32> into tensor<3x8xf32>
  %r = tensor.insert_slice %c into %z[0, 1] [3, 8] [1, 2] : tensor<3x8xf32> into tensor<3x17xf32>
  return %r : tensor<3x17xf32>
}"""
    (output,) = translated(source)
    # The index that is no more than 7 under the condition has neither quotient nor remainder of 8.
    assert "arg0[i0, 0, (i1 + 1)//2 - 1]" in str(output.body[0])


def test_a_padding_is_a_stage_of_its_own_with_checks_only_where_it_pads() -> None:
    source = """
func.func @main(%a: tensor<1x6x8xf32>) -> tensor<1x7x8xf32> {
  %z = arith.constant 0.0 : f32
  %p = tensor.pad %a low[0, 1, 0] high[0, 0, 0] {
  ^bb0(%i: index, %j: index, %k: index):
    tensor.yield %z : f32
  } : tensor<1x6x8xf32> to tensor<1x7x8xf32>
  return %p : tensor<1x7x8xf32>
}"""
    (output,) = translated(source)
    assert str(output.body[0]) == "if_then_else(i1 - 1 >= 0, arg0[0, i1 - 1, i2], 0.0)"


def test_what_two_operations_read_is_a_stage() -> None:
    names = [op.name for op in translated(CASES["layernorm"].source)]
    assert names == ["generic", "generic_1", "generic_2"]
    assert [op.name for op in translated(CASES["softmax"].source)] == [
        "row_max",
        "powers",
        "row_sum",
        "softmax",
    ]


def test_a_value_that_is_used_twice_at_one_place_is_part_of_its_reader() -> None:
    source = """
#id = affine_map<(i, j) -> (i, j)>
func.func @main(%a: tensor<8x12xf32>, %b: tensor<8x12xf32>) -> tensor<8x12xf32> {
  %s = arith.addf %a, %b : tensor<8x12xf32>
  %e = math.exp %s : tensor<8x12xf32>
  %r = arith.mulf %s, %e : tensor<8x12xf32>
  return %r : tensor<8x12xf32>
}"""
    (output,) = translated(source)
    product = output.body[0]
    assert isinstance(product, Binary)
    assert isinstance(product.b, Call)
    assert product.b.args == (product.a,)


def test_a_row_scalar_is_computed_once_a_row() -> None:
    source = """
func.func @main(%a: tensor<8x12xf32>, %b: tensor<8xf32>) -> tensor<8x12xf32> {
  %q = math.sqrt %b : tensor<8xf32>
  %e = tensor.empty() : tensor<8x12xf32>
  %w = linalg.broadcast ins(%q : tensor<8xf32>) outs(%e : tensor<8x12xf32>) dimensions = [1]
  %r = arith.mulf %a, %w : tensor<8x12xf32>
  return %r : tensor<8x12xf32>
}"""
    scalar, output = translated(source)
    assert scalar.outputs[0].shape == (8,)
    assert str(output.body[0]) == "arg0[i0, i1]*sqrt[i0]"


def test_a_product_of_joined_dimensions_runs_over_each_and_goes_where_its_transpose_goes() -> None:
    source = """
func.func @main(%a: tensor<6x3x4xf32>, %b: tensor<12x10xf32>) -> tensor<10x6xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<6x10xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<6x10xf32>) -> tensor<6x10xf32>
  %c = tensor.collapse_shape %a [[0], [1, 2]] : tensor<6x3x4xf32> into tensor<6x12xf32>
  %p = linalg.matmul ins(%c, %b : tensor<6x12xf32>, tensor<12x10xf32>) outs(%f : tensor<6x10xf32>) -> tensor<6x10xf32>
  %o = tensor.empty() : tensor<10x6xf32>
  %r = linalg.transpose ins(%p : tensor<6x10xf32>) outs(%o : tensor<10x6xf32>) permutation = [1, 0]
  return %r : tensor<10x6xf32>
}"""  # noqa: E501
    (product,) = translated(source)
    assert str(product.body[0]) == "sum(arg0[i1, r0a, r0b]*arg1[r0a*4 + r0b, i0], axis=[r0a, r0b])"


def test_a_reduction_that_is_spread_out_is_computed_once() -> None:
    source = """
func.func @main(%a: tensor<6x8xf32>) -> tensor<6x5xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<6xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<6xf32>) -> tensor<6xf32>
  %s = linalg.reduce { arith.addf } ins(%a : tensor<6x8xf32>) outs(%f : tensor<6xf32>) dimensions = [1]
  %o = tensor.empty() : tensor<6x5xf32>
  %r = linalg.broadcast ins(%s : tensor<6xf32>) outs(%o : tensor<6x5xf32>) dimensions = [1]
  return %r : tensor<6x5xf32>
}"""  # noqa: E501
    total, output = translated(source)
    assert str(total.body[0]) == "sum(arg0[i0, r0], axis=[r0])"
    assert str(output.body[0]) == "reduce[i0]"


def test_conversions_are_part_of_the_reduction_that_reads_them() -> None:
    (product,) = translated(CASES["matmul_nn_i8_i32"].source)
    assert str(product.body[0]) == "sum(i32(arg0[i0, r0])*i32(arg1[r0, i1]), axis=[r0])"


def test_an_accumulator_that_is_an_input_is_added_behind_the_reduction() -> None:
    reduction, output = translated(PROGRAMS["mmt4d"])
    assert reduction.reduction is not None
    assert reduction.reduction.init is None
    assert str(output.body[0]) == "arg2[i0, i1, i2, i3] + mmt4d[i0, i1, i2, i3]"


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "func.func @main(%a: tensor<?xf32>) -> tensor<?xf32> { return %a : tensor<?xf32> }",
            "argument 0: a size that is known at run time only",
        ),
        (
            "func.func @main(%a: tensor<4xi4>) -> tensor<4xi4> { return %a : tensor<4xi4> }",
            "argument 0: element type i4",
        ),
        (
            "func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {\n"
            "  %r = arith.remf %a, %b : tensor<4xf32>\n  return %r : tensor<4xf32>\n}",
            "arith.remf: no rule for this operation",
        ),
        (
            "func.func @main(%a: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {\n"
            "  return %a, %a : tensor<4xf32>, tensor<4xf32>\n}",
            "return: 2 results",
        ),
    ],
)
def test_what_has_no_expression_says_why(source: str, message: str) -> None:
    with parsed(source) as module, pytest.raises(Untranslatable) as refusal:
        translate(module, "main")
    assert str(refusal.value) == message


def test_what_is_too_deep_for_the_walks_over_it_is_refused() -> None:
    lines = "\n".join(f"  %v{i + 1} = math.sin %v{i} : tensor<8xf32>" for i in range(500))
    source = f"""
func.func @main(%v0: tensor<8xf32>) -> tensor<8xf32> {{
{lines}
  return %v500 : tensor<8xf32>
}}"""
    with parsed(source) as module, pytest.raises(Untranslatable, match="behind each other"):
        translate(module, "main")


def test_an_expression_travels() -> None:
    with parsed(FUSED) as module:
        expression = pickle.loads(pickle.dumps(translate(module, "main", (False, True, True))))
        assert expression.constant == (False, True, True)
        values = random_inputs(module)
        found = evaluate_expression(expression.inputs, [expression.output], values)
        assert agree(found, evaluate(module, "main", values), [expression.output])
