# ruff: noqa: E501  (the lines of MLIR are as long as MLIR is)
"""What is read off a program about the error that its results may have."""

from __future__ import annotations

import numpy as np
import pytest
from reference_programs import PROGRAMS, elementwise, matmul
from reference_support import isolate_all, parsed, to_flow

from tilewright.ir.reference import (
    Accuracy,
    Unsupported,
    accuracy,
    evaluate,
    reduction_length,
    sensitivity,
)
from tilewright.measure.verify import compare


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("matmul_f32", 53),
        ("conv_nhwc_strided_dilated", 3 * 3 * 3),
        ("conv_depthwise", 9),
        ("pool_max", 1),
        ("mathematics", 1),
        ("softmax", 40),
        ("attention", 8 + 24),
        ("argmax", 1),
        ("sum_and_max", 65),
        ("mmt4d", 24),
        ("pack_padded", 1),
    ],
)
def test_reduction_length(name: str, length: int) -> None:
    with parsed(PROGRAMS[name]) as module:
        assert reduction_length(module, "main") == length


@pytest.mark.parametrize("flags", [(), ("--iree-opt-data-tiling",)])
def test_reduction_length_of_an_isolated_dispatch(flags: tuple[str, ...]) -> None:
    (program,) = isolate_all(to_flow(PROGRAMS["matmul_f32"], *flags))
    with parsed(program) as module:
        assert reduction_length(module, "main") == 53


def test_lengths_add_up_along_the_flow_of_data() -> None:
    text = """
func.func @main(%a: tensor<8x16xf32>, %b: tensor<16x32xf32>, %c: tensor<32x4xf32>) -> (tensor<8x4xf32>, tensor<8x32xf32>) {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8x32xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<8x32xf32>) -> tensor<8x32xf32>
  %x = linalg.matmul ins(%a, %b : tensor<8x16xf32>, tensor<16x32xf32>) outs(%f : tensor<8x32xf32>) -> tensor<8x32xf32>
  %e1 = tensor.empty() : tensor<8x4xf32>
  %f1 = linalg.fill ins(%z : f32) outs(%e1 : tensor<8x4xf32>) -> tensor<8x4xf32>
  %y = linalg.matmul ins(%x, %c : tensor<8x32xf32>, tensor<32x4xf32>) outs(%f1 : tensor<8x4xf32>) -> tensor<8x4xf32>
  return %y, %x : tensor<8x4xf32>, tensor<8x32xf32>
}"""
    with parsed(text) as module:
        assert reduction_length(module, "main") == 48


def test_dynamic_reduction_is_unsupported() -> None:
    text = """
func.func @main(%a: tensor<4x?xf32>, %i: tensor<4xf32>) -> tensor<4xf32> {
  %s = linalg.reduce { arith.addf } ins(%a : tensor<4x?xf32>) outs(%i : tensor<4xf32>) dimensions = [1]
  return %s : tensor<4xf32>
}"""
    with parsed(text) as module, pytest.raises(Unsupported, match="dynamic"):
        reduction_length(module, "main")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (matmul(8, 8, 16, "bf16", "f32"), Accuracy("f32", "f32", 16, False)),
        (matmul(8, 8, 16, "f16", "f16"), Accuracy("f16", "f16", 16, False)),
        (matmul(8, 8, 16, "i8", "i32"), Accuracy("", "", 16, False)),
        (PROGRAMS["rounding_inside"], Accuracy("bf16", "", 1, False)),
        (PROGRAMS["pool_max"], Accuracy("", "", 1, False)),
        (elementwise("%r = arith.fptosi %x0 : f32 to i8", "f32", "i8"), Accuracy("", "", 1, True)),
    ],
)
def test_formats_on_the_way(text: str, expected: Accuracy) -> None:
    with parsed(text) as module:
        assert accuracy(module, "main") == expected


def test_sensitivity_marks_ill_conditioned_elements_only() -> None:
    """x / sum(x): a row whose sum is near zero amplifies every rounding error, the others do not."""
    text = """
func.func @main(%a: tensor<4x64xf32>) -> tensor<4x64xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  %s = linalg.reduce { arith.addf } ins(%a : tensor<4x64xf32>) outs(%f : tensor<4xf32>) dimensions = [1]
  %o = tensor.empty() : tensor<4x64xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>,
      affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
      ins(%a, %s : tensor<4x64xf32>, tensor<4xf32>) outs(%o : tensor<4x64xf32>) {
  ^bb0(%x: f32, %y: f32, %out: f32):
    %q = arith.divf %x, %y : f32
    linalg.yield %q : f32
  } -> tensor<4x64xf32>
  return %r : tensor<4x64xf32>
}"""
    x = np.random.default_rng(3).uniform(0.5, 1.5, (4, 64)).astype(np.float32)
    x[2, :32] *= -1
    x[2, 63] += np.float32(1e-5) - x[2].astype(float).sum()
    with parsed(text) as module:
        (want,) = evaluate(module, "main", [x])
        (moves,) = sensitivity(module, "main", [x], "f32")
    in_f32 = x / np.add.accumulate(x, axis=1, dtype=np.float32)[:, -1:]
    assert not compare(in_f32, want, "f32", 64).ok
    assert compare(in_f32, want, "f32", 64, sensitivity=moves).ok
    # It excuses nothing elsewhere.
    wrong = in_f32.copy()
    wrong[0, 7] *= 1.01
    result = compare(wrong, want, "f32", 64, sensitivity=moves)
    assert not result.ok
    assert result.worst_index == (0, 7)
