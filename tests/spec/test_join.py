"""Preprocessing specs joined, shown and checked, with kernels and without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernel_specs import (
    PRODUCT,
    TARGET,
    Compiler,
    function,
    plain_kernel,
    pointwise,
    product,
    product_kernel,
    programs,
    random,
    same,
    spec_kernel,
    spec_of,
)
from tilewright import te
from tilewright.errors import UserError
from tilewright.sketch.interface import SketchedKernel
from tilewright.sketch.packing import Packing
from tilewright.sketch.spec_tasks import check_code
from tilewright.spec.join import join_specs, merge_any
from tilewright.spec.preprocessing import PHASE, applied_sites, conv_sites, write_im2col_spec
from tilewright.spec.read import check_spec
from tilewright.spec.write import write_spec
from tilewright.target import parse_target
from tilewright.toolchain import Toolchain
from tilewright.tuning.apply import apply
from tilewright.tuning.variants import PREPROCESSING_FLAG

DOUBLE = "%r = arith.addf %p, %p : f32"
DOUBLED = function("%x: tensor<24x32xf32>", "%y", "tensor<24x32xf32>", pointwise("y", "%x", DOUBLE))
INPUTS = "%x: tensor<24x16xf32>, %w: tensor<16x32xf32>, %b: tensor<32xf32>"
PROGRAM = programs(
    [product("y", "%x", "%w", "%b"), "\n%v = util.optimization_barrier %y : tensor<24x32xf32>",
     pointwise("z", "%v", DOUBLE)],
    INPUTS, "%z", "tensor<24x32xf32>",
)  # fmt: skip


def double_kernel() -> SketchedKernel:
    x = te.placeholder((24, 32), "f32", name="x")
    return plain_kernel(x, te.compute((24, 32), lambda i, j: x[i, j] + x[i, j], name="y"))


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    return Compiler(tmp_path)


@pytest.fixture(scope="module")
def dense() -> str:
    return spec_of(spec_kernel("dense", PRODUCT, product_kernel()))


@pytest.fixture(scope="module")
def doubling() -> str:
    return spec_of(spec_kernel("dense", DOUBLED, double_kernel()))


def test_kernels_of_both_apply(compiler: Compiler, dense: str, doubling: str) -> None:
    joined = join_specs([dense, doubling])
    assert joined.entries == ("dense", "dense (2)")
    assert joined.notes == ("spec 2: kernel 'dense' is called 'dense (2)' now",)
    assert compiler.dispatched(PROGRAM, joined.text) == {"dense": 1, "dense (2)": 1}
    x, w, b = random(24, 16), random(16, 32, seed=1), random(32, seed=2)
    same(compiler.run(PROGRAM, joined.text, x, w, b)[0], 2 * np.maximum(x @ w + b, 0))
    again = join_specs([joined.text, doubling])
    assert again.duplicates_dropped == ("dense",)
    assert again.entries == joined.entries
    assert compiler.dispatched(PROGRAM, again.text) == {"dense": 1, "dense (2)": 1}


def test_of_two_kernels_for_one_site_the_earlier_is_kept(compiler: Compiler, dense: str) -> None:
    wrong = spec_of(spec_kernel("wrong", PRODUCT, product_kernel(packed=False, top=9.0)))
    joined = join_specs([dense, wrong])
    assert joined.entries == ("dense",)
    assert joined.duplicates_dropped == ("wrong",)
    assert compiler.dispatched(PROGRAM, joined.text) == {"dense": 1}
    assert joined.text.count('"hal.executable.source"(') == 1


FOREIGN = """
module attributes {transform.with_named_sequence} {
  transform.named_sequence @tilewright_constant_0(%op: !transform.any_op {transform.readonly}) {
    transform.annotate %op "somebody.was.here" : !transform.any_op
    transform.yield
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op) {
    %0 = transform.apply_registered_pass "canonicalize" to %module
      : (!transform.any_op) -> !transform.any_op
    transform.include @tilewright_constant_0 failures(propagate) (%0) : (!transform.any_op) -> ()
    transform.yield
  }
}
"""


def test_what_another_spec_does_comes_first(compiler: Compiler, dense: str) -> None:
    joined = join_specs([FOREIGN, dense]).text
    assert compiler.dispatched(PROGRAM, joined) == {"dense": 1}
    module = compiler.module(PROGRAM, joined, "preprocessing")
    assert "somebody.was.here" in module.operation.attributes
    report = check_spec(FOREIGN)
    assert report.is_preprocessing
    assert not report.ours
    assert report.entries == ()


def test_convolutions_and_kernels_are_shown(compiler: Compiler, dense: str) -> None:
    convolution = """
    func.func @main(%x: tensor<1x8x8x8xf32>, %w: tensor<1x1x8x8xf32>) -> tensor<1x8x8x8xf32> {
      %zero = arith.constant 0.0 : f32
      %e = tensor.empty() : tensor<1x8x8x8xf32>
      %f = linalg.fill ins(%zero : f32) outs(%e : tensor<1x8x8x8xf32>) -> tensor<1x8x8x8xf32>
      %y = linalg.conv_2d_nhwc_hwcf {dilations = dense<1> : vector<2xi64>,
        strides = dense<1> : vector<2xi64>}
        ins(%x, %w : tensor<1x8x8x8xf32>, tensor<1x1x8x8xf32>)
        outs(%f : tensor<1x8x8x8xf32>) -> tensor<1x8x8x8xf32>
      return %y : tensor<1x8x8x8xf32>
    }"""
    (site,) = conv_sites(compiler.module(convolution, None, PHASE))
    joined = join_specs([write_im2col_spec([site]), dense]).text
    assert applied_sites(compiler.module(convolution, joined, PHASE)) == {site.key: 1}
    report = check_spec(joined)
    assert report.ours
    assert dict(report.header) == {"target": TARGET.key}
    first, second = report.entries
    assert (first.name, first.pipeline) == (site.key, "im2col")
    assert (second.name, second.pipeline, second.configuration) == (
        "dense",
        "kernel by-hand",
        "width 8",
    )
    assert second.matches == "matmul, generic: 24x16xf32, 16x32xf32, 32xf32 -> 24x32xf32"
    (kernel,) = report.kernels
    assert "parallel" in kernel["loops"]
    assert "def schedule(s):" in kernel["python"]


def test_what_is_shown_rebuilds_the_schedule(dense: str) -> None:
    (kernel,) = check_spec(dense).kernels
    arguments = product_kernel().arguments
    schedule = te.Trace.from_python(kernel["python"]).apply(arguments[-1])
    assert str(te.lower(schedule, arguments)) == kernel["loops"]


def test_specs_of_two_sorts_are_not_merged(dense: str) -> None:
    with pytest.raises(UserError, match="a is a preprocessing spec and b a tuning spec"):
        merge_any([("b", write_spec([])), ("a", dense)])
    assert merge_any([("a", dense)]).entries == ("dense",)
    assert merge_any([("b", write_spec([]))]).entries == ()
    with pytest.raises(UserError, match="spec 1: not a preprocessing spec"):
        join_specs([write_spec([])])


# -- processors ------------------------------------------------------------------------------------


WIDE = parse_target("cpu:znver4").with_vectors("znver4", "+avx512f,+avx512vnni,+avx2", 64)
NARROW = parse_target("cpu:haswell")
BYTES = """
    util.func public @main(%x: tensor<8x16xi8>, %w: tensor<16x16xi8>) -> tensor<8x16xi32> {
      %zero = arith.constant 0 : i32
      %e = tensor.empty() : tensor<8x16xi32>
      %f = linalg.fill ins(%zero : i32) outs(%e : tensor<8x16xi32>) -> tensor<8x16xi32>
      %y = linalg.matmul ins(%x, %w : tensor<8x16xi8>, tensor<16x16xi8>)
        outs(%f : tensor<8x16xi32>) -> tensor<8x16xi32>
      util.return %y : tensor<8x16xi32>
    }"""


def byte_kernel() -> SketchedKernel:
    """A product of bytes by the instruction for it."""
    x, w = te.placeholder((8, 16), "i8", name="x"), te.placeholder((4, 16, 4), "i8", name="w")
    g, e = te.reduce_axis(4, "g"), te.reduce_axis(4, "e")

    def products(i: te.Expr, j: te.Expr) -> te.Expr:
        return te.cast("i32", x[i, 4 * g + e]) * te.cast("i32", w[g, j, e])

    y = te.compute((8, 16), lambda i, j: te.sum(products(i, j), axis=[g, e]), name="y")
    schedule = te.create_schedule(y)
    i, j = y.op.axis
    schedule[y].reorder(i, g, j, e)
    schedule[y].tensorize(j, te.intrinsics.byte_dot(16))
    return SketchedKernel(schedule, (x, w, y), {1: Packing((0, 0), ((4, 4), (16,)), (0, 2, 1))})


def refused(spec: str, path: Path) -> str:
    path.write_text(spec)
    check_code(path, parse_target("cpu:znver4"))
    with pytest.raises(UserError) as info:
        check_code(path, NARROW)
    assert "\n" not in str(info.value)
    return str(info.value)


def test_a_kernel_for_wider_vectors_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "wide.mlir"
    said = refused(spec_of(spec_kernel("dense", PRODUCT, product_kernel(), WIDE)), path)
    assert said.startswith(f"{path}: kernel 'dense' was made for llvm-cpu/znver4/")
    assert "vectors of 64 bytes, those of cpu:haswell have 32" in said
    narrow = NARROW.with_vectors("haswell", "+avx2", 32)
    path.write_text(spec_of(spec_kernel("dense", PRODUCT, product_kernel(), narrow)))
    check_code(path, parse_target("cpu:znver4"))


def test_a_kernel_of_instructions_that_are_not_there_is_refused(tmp_path: Path) -> None:
    spec = spec_of(spec_kernel("bytes", BYTES, byte_kernel(), WIDE))
    said = refused(spec, tmp_path / "bytes.mlir")
    assert "kernel 'bytes'" in said
    assert "needs avx512vnni, which cpu:haswell does not have" in said
    program = tmp_path / "program.mlir"
    program.write_text(BYTES)
    with pytest.raises(UserError, match="needs avx512vnni"):
        apply(program, tmp_path / "bytes.mlir", target="cpu:haswell")
    # Plain iree-compile makes nothing of it either.
    flag = f"{PREPROCESSING_FLAG}={tmp_path / 'bytes.mlir'}"
    for target, is_made in ((NARROW, False), (parse_target("cpu:znver4"), True)):
        made = Toolchain().compile(program, tmp_path / "o", (*target.flags, flag), timeout_s=60.0)
        assert made.ok == is_made, made.error
