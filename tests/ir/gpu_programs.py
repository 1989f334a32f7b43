"""Small programs with one dispatch each, for tests of what IREE makes of them on GPUs."""

from __future__ import annotations

from iree.compiler import ir
from iree.compiler.dialects import iree_codegen

from tilewright.ir.gpu_constraints import constraint_ops


def to_smtlib(function: ir.Operation, ordinal: int) -> str:
    """A dispatch's constraints as SMT-LIB text, by the compiler's own conversion."""
    return str(iree_codegen.convert_constraints_op_to_smtlib(constraint_ops(function)[ordinal]))


def contraction(a: str, c: str, m: int, n: int, k: int, batch: int = 0) -> str:
    """A product of [m x k] and [k x n] of type `a`, summed in `c`; `batch`: that many of them."""
    lead = f"{batch}x" if batch else ""
    name = "batch_matmul" if batch else "matmul"
    lhs, rhs = f"tensor<{lead}{m}x{k}x{a}>", f"tensor<{lead}{k}x{n}x{a}>"
    return _filled(
        f"%a: {lhs}, %b: {rhs}",
        f"tensor<{lead}{m}x{n}x{c}>",
        c,
        f"linalg.{name} ins(%a, %b : {lhs}, {rhs})",
    )


def convolution(a: str, c: str, size: int = 34, channels: int = 32, filters: int = 64) -> str:
    """A 3x3 convolution of two NHWC images."""
    image, window = (
        f"tensor<2x{size}x{size}x{channels}x{a}>",
        f"tensor<3x3x{channels}x{filters}x{a}>",
    )
    return _filled(
        f"%a: {image}, %b: {window}",
        f"tensor<2x{size - 2}x{size - 2}x{filters}x{c}>",
        c,
        "linalg.conv_2d_nhwc_hwcf {dilations = dense<1> : tensor<2xi64>, "
        f"strides = dense<1> : tensor<2xi64>}} ins(%a, %b : {image}, {window})",
    )


def row_sum(rows: int, columns: int) -> str:
    """The sums of the rows of a matrix."""
    source, result = f"tensor<{rows}x{columns}xf32>", f"tensor<{rows}xf32>"
    return f"""
func.func @main(%a: {source}) -> {result} {{
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : {result}
  %f = linalg.fill ins(%z : f32) outs(%e : {result}) -> {result}
  %r = linalg.reduce ins(%a : {source}) outs(%f : {result}) dimensions = [1]
    (%in: f32, %sum: f32) {{
      %s = arith.addf %in, %sum : f32
      linalg.yield %s : f32
    }}
  return %r : {result}
}}
"""


def attention(t: str, heads: int = 4, m: int = 128, k1: int = 64, k2: int = 128) -> str:
    """Attention of `heads` heads, with keys and values of `k1` elements."""
    query, key, result = (f"tensor<{heads}x{size}x{k1}x{t}>" for size in (m, k2, m))
    maps = ", ".join(
        f"affine_map<(b, m, n, k1, k2) -> ({dims})>"
        for dims in ("b, m, k1", "b, k2, k1", "b, k2, n", "", "b, m, n")
    )
    return f"""
func.func @main(%q: {query}, %k: {key}, %v: {key}) -> {result} {{
  %s = arith.constant 0.125 : {t}
  %e = tensor.empty() : {result}
  %r = iree_linalg_ext.attention <indexing_maps = [{maps}]>
    ins(%q, %k, %v, %s : {query}, {key}, {key}, {t}) outs(%e : {result}) {{
  ^bb0(%score: f32):
    iree_linalg_ext.yield %score : f32
  }} -> {result}
  return %r : {result}
}}
"""


def _filled(arguments: str, result: str, element: str, op: str) -> str:
    zero = "0.0" if element.startswith(("f", "b")) else "0"
    return f"""
func.func @main({arguments}) -> {result} {{
  %z = arith.constant {zero} : {element}
  %e = tensor.empty() : {result}
  %f = linalg.fill ins(%z : {element}) outs(%e : {result}) -> {result}
  %r = {op} outs(%f : {result}) -> {result}
  return %r : {result}
}}
"""
