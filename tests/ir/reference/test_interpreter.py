# ruff: noqa: E501  (the lines of MLIR are as long as MLIR is)
"""The interpreter against NumPy, and what it does with what it cannot run."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from reference_programs import PROGRAMS, elementwise, matmul
from reference_support import isolate_all, parsed, random_inputs, to_flow

from tilewright.errors import UserError
from tilewright.ir.reference import Unsupported, contraction, evaluate, structured

RNG = np.random.default_rng(7)


def run(text: str, *inputs: Any) -> list[np.ndarray]:
    with parsed(text) as module:
        return evaluate(module, "main", inputs)


def reduction(body: str, shape: str = "6x50", element: str = "f32") -> str:
    """A sum-like linalg.generic over the second dimension into a given initial value."""
    rows = shape.split("x")[0]
    return f"""
func.func @main(%a: tensor<{shape}x{element}>, %i: tensor<{rows}x{element}>) -> tensor<{rows}x{element}> {{
  %r = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]}}
      ins(%a : tensor<{shape}x{element}>) outs(%i : tensor<{rows}x{element}>) {{
  ^bb0(%x: {element}, %acc: {element}):
    {body}
    linalg.yield %r : {element}
  }} -> tensor<{rows}x{element}>
  return %r : tensor<{rows}x{element}>
}}"""


def test_matmul_is_exact_to_float64() -> None:
    a, b = RNG.standard_normal((37, 53), np.float32), RNG.standard_normal((53, 29), np.float32)
    (got,) = run(PROGRAMS["matmul_f32"], a, b)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, a.astype(float) @ b.astype(float), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("sums", ["%z", "%w"])
def test_what_is_repeated_takes_memory_once(sums: str) -> None:
    """A weight for each of many rows, as importers make it for a product of three dimensions: 5 GB
    in float64. A repeated tensor can be where sums begin, too."""
    rows, depth, columns, height = (20_000, 64, 512, 1) if sums == "%z" else (20, 64, 64, 64)
    left, many, out = (
        f"tensor<{rows}x{x}x{y}xf32>"
        for x, y in ((height, depth), (depth, columns), (height, columns))
    )
    text = f"""
func.func @main(%a: {left}, %b: tensor<{depth}x{columns}xf32>) -> {out} {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : {many}
  %w = linalg.generic {{indexing_maps = [affine_map<(i, j, k) -> (j, k)>, affine_map<(i, j, k) -> (i, j, k)>],
      iterator_types = ["parallel", "parallel", "parallel"]}}
      ins(%b : tensor<{depth}x{columns}xf32>) outs(%e : {many}) {{
  ^bb0(%x: f32, %o: f32):
    linalg.yield %x : f32
  }} -> {many}
  %o = tensor.empty() : {out}
  %z = linalg.fill ins(%zero : f32) outs(%o : {out}) -> {out}
  %r = linalg.batch_matmul ins(%a, %w : {left}, {many}) outs({sums} : {out}) -> {out}
  return %r : {out}
}}"""
    a = RNG.standard_normal((rows, height, depth), np.float32)
    b = RNG.standard_normal((depth, columns), np.float32)
    tracemalloc.start()
    (got,) = run(text, a, b)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    wanted = a.astype(float) @ b.astype(float) + (0.0 if sums == "%z" else b.astype(float))
    np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)
    assert most < 1e9


def test_narrow_integers_wrap() -> None:
    a, b = RNG.integers(-128, 128, (9, 50)), RNG.integers(-128, 128, (50, 7))
    (got,) = run(PROGRAMS["matmul_i8_wraps"], a, b)
    np.testing.assert_array_equal(got, (a @ b).astype(np.int8))


def test_products_beyond_float64_are_exact() -> None:
    """Products of 2**60 and more: a float64 matrix product would lose their low bits."""
    a = RNG.integers(-(2**31), 2**31, (5, 8), np.int64)
    b = RNG.integers(-(2**31), 2**31, (8, 3), np.int64)
    (got,) = run(matmul(5, 3, 8, "i64", "i64"), a, b)
    np.testing.assert_array_equal(got, a @ b)


def test_accumulator_keeps_its_initial_value() -> None:
    a, initial = RNG.standard_normal((6, 50)), RNG.standard_normal(6)
    (got,) = run(reduction("%r = arith.addf %acc, %x : f32"), a, initial)
    np.testing.assert_allclose(got, initial + a.sum(1))


def test_subtracting_and_multiplying_reductions() -> None:
    a, initial = RNG.uniform(0.9, 1.1, (6, 50)), RNG.standard_normal(6)
    (got,) = run(reduction("%r = arith.subf %acc, %x : f32"), a, initial)
    np.testing.assert_allclose(got, initial - a.sum(1))
    (got,) = run(reduction("%r = arith.mulf %x, %acc : f32"), a, initial)
    np.testing.assert_allclose(got, initial * a.prod(1))


def test_a_difference_from_the_term_is_not_taken_for_a_sum() -> None:
    """acc = x - acc alternates in sign: no ufunc reduces that."""
    a, want = RNG.standard_normal((6, 50)), np.zeros(6)
    for j in range(50):
        want = a[:, j] - want
    (got,) = run(reduction("%r = arith.subf %x, %acc : f32"), a, np.zeros(6))
    np.testing.assert_allclose(got, want)


def test_reduction_in_order_when_the_body_has_no_known_form() -> None:
    a, want = RNG.standard_normal((6, 50)), np.zeros(6)
    for j in range(50):
        want = want * 0.5 + a[:, j]
    body = """%h = arith.constant 0.5 : f32
    %d = arith.mulf %acc, %h : f32
    %r = arith.addf %d, %x : f32"""
    (got,) = run(reduction(body), a, np.zeros(6))
    np.testing.assert_allclose(got, want)


def test_unsigned_maximum() -> None:
    a = RNG.integers(-128, 128, (6, 50))
    (got,) = run(reduction("%r = arith.maxui %acc, %x : i8", element="i8"), a, np.zeros(6, int))
    np.testing.assert_array_equal(got, a.astype(np.uint8).max(1).astype(np.int8))


@pytest.mark.parametrize(
    "name",
    ["conv_nhwc_strided_dilated", "conv_grouped", "conv_depthwise", "pool_max", "pool_sum", "argmax",
     "sum_and_max", "matmul_f32", "mathematics", "attention"],
)  # fmt: skip
def test_cutting_into_boxes_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with parsed(PROGRAMS[name]) as module:
        inputs = random_inputs(module)
        whole = evaluate(module, "main", inputs)
        monkeypatch.setattr(structured, "_POINTS", 37)
        monkeypatch.setattr(contraction, "_PACKED", 11)
        monkeypatch.setattr("tilewright.ir.reference.attention._SCORES", 100)
        cut = evaluate(module, "main", inputs)
    assert whole
    for a, b in zip(whole, cut, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_program_rounding_is_honoured() -> None:
    x = RNG.standard_normal(97).astype(np.float32)
    (got,) = run(PROGRAMS["rounding_inside"], x)
    np.testing.assert_array_equal(got, x.astype(ml_dtypes.bfloat16).astype(float) * 1.5)


def test_arithmetic_is_not_rounded_to_its_type() -> None:
    x = RNG.standard_normal(97).astype(np.float16)
    (got,) = run(elementwise("%r = arith.mulf %x0, %x0 : f16", "f16", "f16"), x)
    np.testing.assert_array_equal(got, x.astype(float) ** 2)


def test_error_function_everywhere() -> None:
    # Abramowitz and Stegun, tables 7.1 and 7.3.
    x = np.array([0.0, 0.5, 1.0, 2.0, 3.0, 10.0, np.inf, np.nan] + [-1.0] * 89)
    (got,) = run(elementwise("%r = math.erf %x0 : f64", "f64", "f64"), x)
    known = [0.0, 0.5204998778, 0.8427007929, 0.9953222650, 0.9999779095, 1.0, 1.0, np.nan]
    np.testing.assert_allclose(got, known + [-0.8427007929] * 89, rtol=1e-9)
    (got,) = run(elementwise("%r = math.erfc %x0 : f64", "f64", "f64"), x)
    known = [1.0, 0.4795001222, 0.1572992071, 4.67773498e-3, 2.20904970e-5, 2.08848758e-45, 0.0]
    np.testing.assert_allclose(got, [*known, np.nan, *[1.8427007929] * 89], rtol=1e-8)


@pytest.mark.parametrize("predicate", ["oeq", "one", "ord", "ueq", "ugt", "ult", "une", "uno"])
def test_comparisons_with_nan(predicate: str) -> None:
    values = np.array([np.nan, 1.0, 2.0] + [0.0] * 94)
    others = np.array([1.0, 1.0, np.nan] + [-1.0] * 94)
    text = elementwise(f"%r = arith.cmpf {predicate}, %x0, %x1 : f32", "f32", "i1", operands=2)
    (got,) = run(text, values, others)
    unordered = np.isnan(values) | np.isnan(others)
    relation = {
        "eq": values == others, "ne": values != others, "gt": values > others, "lt": values < others,
    }.get(predicate[1:], np.ones(97, bool))  # fmt: skip
    if predicate in ("ord", "uno"):
        want = unordered if predicate == "uno" else ~unordered
    else:
        want = (relation | unordered) if predicate[0] == "u" else (relation & ~unordered)
    np.testing.assert_array_equal(got, want)


def test_division_rounds_toward_zero() -> None:
    x, y = RNG.integers(-128, 128, 97), RNG.choice([-7, -3, 3, 5, 7], 97)
    (got,) = run(elementwise("%r = arith.divsi %x0, %x1 : i8", "i8", "i8", operands=2), x, y)
    np.testing.assert_array_equal(got, np.trunc(x / y).astype(np.int8))
    (got,) = run(elementwise("%r = arith.remsi %x0, %x1 : i8", "i8", "i8", operands=2), x, y)
    np.testing.assert_array_equal(got, np.fmod(x, y))


def test_im2col_feeds_the_convolution() -> None:
    image = RNG.standard_normal((2, 10, 10, 4))
    (got,) = run(PROGRAMS["im2col"], image)
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), axis=(1, 2))
    want = windows.transpose(0, 1, 2, 4, 5, 3).reshape(2, 64, 36)
    np.testing.assert_array_equal(got, want)


def test_constants_of_formats_that_numpy_lacks() -> None:
    text = """
func.func @main() -> (tensor<3xbf16>, tensor<3xi4>, tensor<2xf8E4M3FN>, bf16) {
  %a = arith.constant dense<[1.5, -2.25, 3.0]> : tensor<3xbf16>
  %b = arith.constant dense<[1, -8, 7]> : tensor<3xi4>
  %c = arith.constant dense<[0.5, -448.0]> : tensor<2xf8E4M3FN>
  %d = arith.constant 2.5 : bf16
  return %a, %b, %c, %d : tensor<3xbf16>, tensor<3xi4>, tensor<2xf8E4M3FN>, bf16
}"""
    a, b, c, d = run(text)
    assert a.tolist() == [1.5, -2.25, 3.0]
    assert b.tolist() == [1, -8, 7]
    assert c.tolist() == [0.5, -448.0]
    assert d == 2.5


def test_control_flow_calls_and_dynamic_shapes() -> None:
    text = """
func.func private @twice(%a: tensor<?xf32>, %n: index) -> tensor<?xf32> {
  %e = tensor.empty(%n) : tensor<?xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
      iterator_types = ["parallel"]} ins(%a : tensor<?xf32>) outs(%e : tensor<?xf32>) {
  ^bb0(%x: f32, %o: f32):
    %y = arith.addf %x, %x : f32
    linalg.yield %y : f32
  } -> tensor<?xf32>
  return %r : tensor<?xf32>
}
func.func @main(%a: tensor<?xf32>, %go: i1) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %n = tensor.dim %a, %c0 : tensor<?xf32>
  %r = scf.if %go -> tensor<?xf32> {
    %l = scf.for %i = %c0 to %c3 step %c1 iter_args(%v = %a) -> tensor<?xf32> {
      %w = func.call @twice(%v, %n) : (tensor<?xf32>, index) -> tensor<?xf32>
      scf.yield %w : tensor<?xf32>
    }
    scf.yield %l : tensor<?xf32>
  } else {
    scf.yield %a : tensor<?xf32>
  }
  return %r : tensor<?xf32>
}"""
    x = RNG.standard_normal(5)
    np.testing.assert_array_equal(run(text, x, True)[0], 8 * x)
    np.testing.assert_array_equal(run(text, x, False)[0], x)


def test_reading_what_was_never_written_shows() -> None:
    text = """
func.func @main(%a: tensor<2xf32>) -> tensor<4xf32> {
  %e = tensor.empty() : tensor<4xf32>
  %r = tensor.insert_slice %a into %e[1] [2] [1] : tensor<2xf32> into tensor<4xf32>
  return %r : tensor<4xf32>
}"""
    (got,) = run(text, np.ones(2))
    np.testing.assert_array_equal(np.isnan(got), [True, False, False, True])


def test_a_read_out_of_bounds_shows_unless_it_is_not_taken() -> None:
    inputs: Sequence[Any] = (np.ones((16, 6)), np.array([0, 1, 99, 2, 3, 4, 5]))
    (got,) = run(PROGRAMS["gather_in_body"], *inputs)
    assert np.isnan(got[2]).all()
    assert np.isfinite(np.delete(got, 2, axis=0)).all()
    body = """%i = linalg.index 0 : index
    %n = arith.constant 9 : index
    %in = arith.cmpi ult, %i, %n : index
    %v = tensor.extract %t[%i] : tensor<9xf32>
    %r = arith.select %in, %v, %x0 : f32"""
    text = elementwise(body, "f32", "f32").replace(
        "%a0: tensor<97xf32>)", "%a0: tensor<97xf32>, %t: tensor<9xf32>)"
    )
    (got,) = run(text, np.zeros(97), np.ones(9))
    np.testing.assert_array_equal(got, [1.0] * 9 + [0.0] * 88)


def test_fully_masked_row_is_not_a_number() -> None:
    with parsed(PROGRAMS["attention"]) as module:
        inputs = random_inputs(module)
        inputs[3] = inputs[3].copy()
        inputs[3][0, 5] = -np.inf
        (got,) = evaluate(module, "main", inputs)
    assert np.isnan(got[0, 5]).all()
    assert np.isfinite(got[1]).all()


def test_dispatch_with_a_tied_operand_leaves_the_input_alone() -> None:
    flow = to_flow(PROGRAMS["tensor_ops"])
    ties = 0
    for program in isolate_all(flow):
        with parsed(program) as module:
            inputs = random_inputs(module)
            before = [np.array(x) for x in inputs]
            evaluate(module, "main", inputs)
            for a, b in zip(before, inputs, strict=True):
                np.testing.assert_array_equal(a, b)
            ties += "readwrite" in program
    assert ties


def test_whole_flow_module_agrees_with_its_source() -> None:
    text = PROGRAMS["conv_bias_relu"]
    with parsed(text) as module:
        inputs = random_inputs(module)
        (want,) = evaluate(module, "main", inputs)
    with parsed(to_flow(text, "--iree-opt-data-tiling")) as module:
        (got,) = evaluate(module, "main", inputs)
    np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (
            """func.func @main(%a: tensor<2xcomplex<f32>>) -> tensor<2xcomplex<f32>> {
  return %a : tensor<2xcomplex<f32>>
}""",
            "complex",
        ),
        (
            """func.func @main(%a: i1) -> i1 {
  cf.br ^next(%a : i1)
^next(%b: i1):
  return %b : i1
}""",
            "cf",
        ),
        (
            """func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {
  %c = bufferization.to_buffer %a : tensor<8xf32> to memref<8xf32>
  return %a : tensor<8xf32>
}""",
            "bufferization.to_buffer",
        ),
    ],
)
def test_unsupported_is_named(text: str, named: str) -> None:
    with parsed(text) as module:
        inputs = random_inputs(module) if named != "complex" else [np.zeros(2)]
        with pytest.raises(Unsupported, match=named):
            evaluate(module, "main", inputs)


# As an importer and the compiler's input passes leave it: called with fences, and with a wrapper
# that waits for them.
WHOLE = """
module attributes {stream.affinity.default = #hal.device.affinity<@dev>} {
  util.global private @dev : !hal.device
  util.global private @w = #flow.parameter.named<"model"::"a.w"> : tensor<2x3xf32>
  util.global private @n = #stream.parameter.named<"n"> : tensor<i16>
  util.func public @main$async(%v: !hal.buffer_view, %ready: !hal.fence, %done: !hal.fence) -> !hal.buffer_view {
    %x = hal.tensor.import wait(%ready) => %v "x" : !hal.buffer_view -> tensor<2x3xf32>
    %w = util.global.load immutable @w : tensor<2x3xf32>
    %n = util.global.load immutable @n : tensor<i16>
    %k = tensor.extract %n[] : tensor<i16>
    %f = arith.sitofp %k : i16 to f32
    %y = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
        iterator_types = ["parallel", "parallel"]}
        ins(%x, %w : tensor<2x3xf32>, tensor<2x3xf32>) outs(%x : tensor<2x3xf32>) {
    ^bb0(%p: f32, %q: f32, %o: f32):
      %r = arith.mulf %p, %q : f32
      %s = arith.addf %r, %f : f32
      linalg.yield %s : f32
    } -> tensor<2x3xf32>
    %z = hal.tensor.barrier join(%y : tensor<2x3xf32>) => %done : !hal.fence
    %out = hal.tensor.export %z "y" : tensor<2x3xf32> -> !hal.buffer_view
    util.return %out : !hal.buffer_view
  }
  util.func public @main(%v: !hal.buffer_view) -> !hal.buffer_view {
    %forever = arith.constant -1 : i32
    %c0 = arith.constant 0 : index
    %null = util.null : !hal.fence
    %device = hal.devices.get %c0 : !hal.device
    %fence = hal.fence.create device(%device : !hal.device) flags("None") : !hal.fence
    %r = util.call @main$async(%v, %null, %fence) : (!hal.buffer_view, !hal.fence, !hal.fence) -> !hal.buffer_view
    %status = hal.fence.await until([%fence]) timeout_millis(%forever) flags("None") : i32
    util.return %r : !hal.buffer_view
  }
}"""


def test_a_whole_program_with_its_parameters() -> None:
    x = RNG.standard_normal((2, 3), np.float32)
    w = RNG.standard_normal((2, 3), np.float32)
    stored = {("model", "a.w"): w.tobytes(), ("", "n"): np.int16(-3).tobytes()}
    with parsed(WHOLE) as module:
        (got,) = evaluate(module, "main", [x], lambda *place: stored[place])
        np.testing.assert_allclose(got, x.astype(float) * w - 3, rtol=1e-15)
        with pytest.raises(Unsupported, match="constant"):
            evaluate(module, "main", [x])


def test_what_is_not_read_again_takes_no_memory() -> None:
    kind = "tensor<1000x1000xf32>"
    steps = "\n".join(f"  %{at + 1} = arith.addf %{at}, %{at} : {kind}" for at in range(20))
    text = f"""
func.func @main(%x: {kind}) -> {kind} {{
  %0 = arith.addf %x, %x : {kind}
{steps}
  return %20 : {kind}
}}"""
    data = np.ones((1000, 1000), np.float32)
    tracemalloc.start()
    (got,) = run(text, data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (got == 2.0**21).all()
    assert peak < 8 * 8 * data.size


def test_inputs_that_do_not_fit() -> None:
    a, b = np.zeros((37, 53)), np.zeros((53, 29))
    with pytest.raises(UserError, match="takes 2 inputs, 1"):
        run(PROGRAMS["matmul_f32"], a)
    with pytest.raises(UserError, match=r"input 1 .* shape \[29, 53\]"):
        run(PROGRAMS["matmul_f32"], a, b.T)
    with pytest.raises(UserError, match="array of float64"):
        run(PROGRAMS["matmul_i8_i32"], np.zeros((19, 40)), np.zeros((40, 23)))
    with (
        parsed(PROGRAMS["matmul_f32"]) as module,
        pytest.raises(UserError, match=r"no function 'other'.*main"),
    ):
        evaluate(module, "other", [a, b])
