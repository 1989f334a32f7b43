"""Programs that the tests of modules compile and run."""

from __future__ import annotations

from pathlib import Path

from measured_programs import WEIGHTS, countdown

from tilewright.ir.session import CompilerSession
from tilewright.target import parse_target

FLAGS = parse_target("cpu", 1).flags

# Functions of all kinds of arguments, two of which take none.
MANY = """
func.func @add(%a: tensor<4xf32>, %b: tensor<f32>) -> tensor<4xf32> {
  %e = tensor.empty() : tensor<4xf32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> ()>, affine_map<(i) -> (i)>],
      iterator_types = ["parallel"]} ins(%a, %b : tensor<4xf32>, tensor<f32>)
      outs(%e : tensor<4xf32>) {
    ^bb0(%x: f32, %y: f32, %o: f32):
      %s = arith.addf %x, %y : f32
      linalg.yield %s : f32
  } -> tensor<4xf32>
  return %r : tensor<4xf32>
}
func.func @two(%n: i32) -> (i32, tensor<2x2xi32>) {
  %e = tensor.empty() : tensor<2x2xi32>
  %t = linalg.fill ins(%n : i32) outs(%e : tensor<2x2xi32>) -> tensor<2x2xi32>
  return %n, %t : i32, tensor<2x2xi32>
}
func.func @constant() -> tensor<3xi64> {
  %r = arith.constant dense<[1, 2, 3]> : tensor<3xi64>
  return %r : tensor<3xi64>
}
func.func @also() -> tensor<2xf32> {
  %r = arith.constant dense<[0.5, -1.5]> : tensor<2xf32>
  return %r : tensor<2xf32>
}
"""
ONE = """
func.func @double(%a: tensor<?x2xf32>) -> tensor<?x2xf32> {
  %r = arith.addf %a, %a : tensor<?x2xf32>
  return %r : tensor<?x2xf32>
}
"""
NARROW = """
func.func @narrow(%a: tensor<4xbf16>, %c: tensor<2xcomplex<f32>>)
    -> (tensor<4xbf16>, tensor<2xcomplex<f32>>, tensor<4xi1>, f32) {
  %b = arith.addf %a, %a : tensor<4xbf16>
  %l = arith.cmpf ogt, %b, %a : tensor<4xbf16>
  %f = arith.constant 0.1 : f32
  return %b, %c, %l, %f : tensor<4xbf16>, tensor<2xcomplex<f32>>, tensor<4xi1>, f32
}
"""
SPIN = countdown("spin")
# Divides the whole number by the argument: by 0 the processor stops the process.
CRASH = """
func.func @divide(%n: i64) -> i64 {
  %one = arith.constant 1000 : i64
  %r = arith.divsi %one, %n : i64
  return %r : i64
}
"""
# Looks rows of a small table up: random numbers for indices would read outside.
GATHER = """
func.func @look_up(%i: tensor<64xi32>) -> tensor<64xf32> {
  %table = arith.constant dense<[1.0, 2.0, 4.0]> : tensor<3xf32>
  %e = tensor.empty() : tensor<64xf32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
      iterator_types = ["parallel"]} ins(%i : tensor<64xi32>) outs(%e : tensor<64xf32>) {
    ^bb0(%x: i32, %o: f32):
      %n = arith.index_cast %x : i32 to index
      %v = tensor.extract %table[%n] : tensor<3xf32>
      linalg.yield %v : f32
  } -> tensor<64xf32>
  return %r : tensor<64xf32>
}
"""
# A script in the form that the compiler took until 2023.
OLD_SCRIPT = """
transform.sequence failures(propagate) {
^bb0(%variant: !transform.any_op):
  %0 = transform.structured.match ops{["linalg.matmul"]} in %variant
      : (!transform.any_op) -> !transform.any_op
}
"""
# As such scripts were really written: names and types of that time, which no longer parse.
OLDER_SCRIPT = """
transform.structured.canonicalized_sequence failures(propagate) {
^bb1(%variant_op: !pdl.operation):
  %matmul = transform.structured.match ops{["linalg.matmul"]} in %variant_op
  %foreach_thread, %tiled = transform.structured.tile_to_foreach_thread_op %matmul tile_sizes [2]
}
"""
NO_ENTRY = """
module attributes {transform.with_named_sequence} {
  transform.named_sequence @something(%root: !transform.any_op {transform.readonly}) {
    transform.yield
  }
}
"""


def write_modules(folder: Path) -> Path:
    """Every program in a folder, as `many.mlir` and compiled as `many.vmfb`, and files that are
    none."""
    compiler = CompilerSession(FLAGS)
    programs = {
        "many": MANY,
        "one": ONE,
        "narrow": NARROW,
        "spin": SPIN,
        "crash": CRASH,
        "gather": GATHER,
        "weights": WEIGHTS,
    }
    for name, source in programs.items():
        (folder / f"{name}.mlir").write_text(source)
        (folder / f"{name}.vmfb").write_bytes(compiler.compile(source))
    (folder / "broken.vmfb").write_bytes((folder / "many.vmfb").read_bytes()[:200])
    (folder / "text.vmfb").write_text(MANY)
    (folder / "old.mlir").write_text(OLD_SCRIPT)
    (folder / "older.mlir").write_text(OLDER_SCRIPT)
    (folder / "no_entry.mlir").write_text(NO_ENTRY)
    return folder
