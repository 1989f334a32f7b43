"""What several tests of the profiler share: small suites, and kernels broken on purpose."""

from __future__ import annotations

from pathlib import Path

from tilewright.kernels import parse_operation
from tilewright.profiler import (
    CompileOptions,
    GeneratedFolder,
    GenerateOptions,
    RunOptions,
    Selected,
    compile_dispatches,
    generate,
    parse_configs,
)
from tilewright.target import parse_target

TARGET = parse_target("cpu", 1)
COMPILE = CompileOptions(TARGET)
VERIFY = RunOptions(profile=False)

SQUARE = "matmul_24x24x24_f32t_f32t_f32t"
OTHER = "softmax_16x32_f32t_f32t"

# A product of two square matrices; the tests put other steps around it.
_PROGRAM = """
func.func @main(%a: tensor<{n}x{n}xf32>, %b: tensor<{n}x{n}xf32>) -> tensor<{n}x{n}xf32> {{
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<{n}x{n}xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<{n}x{n}xf32>) -> tensor<{n}x{n}xf32>
  %p = linalg.matmul ins({operands} : tensor<{n}x{n}xf32>, tensor<{n}x{n}xf32>)
    outs(%f : tensor<{n}x{n}xf32>) -> tensor<{n}x{n}xf32>
  {after}
}}
"""
_RETURN = "return %p : tensor<{n}x{n}xf32>"

# An 8x8 tile that comes out with the other sign.
_WRONG_TILE = """
  %t = tensor.extract_slice %p[8, 16] [8, 8] [1, 1] : tensor<{n}x{n}xf32> to tensor<8x8xf32>
  %m = arith.negf %t : tensor<8x8xf32>
  %r = tensor.insert_slice %m into %p[8, 16] [8, 8] [1, 1]
    : tensor<8x8xf32> into tensor<{n}x{n}xf32>
  return %r : tensor<{n}x{n}xf32>"""

# A row that keeps what the buffer was filled with.
_UNWRITTEN_ROW = """
  %t = tensor.extract_slice %f[23, 0] [1, {n}] [1, 1] : tensor<{n}x{n}xf32> to tensor<1x{n}xf32>
  %r = tensor.insert_slice %t into %p[23, 0] [1, {n}] [1, 1]
    : tensor<1x{n}xf32> into tensor<{n}x{n}xf32>
  return %r : tensor<{n}x{n}xf32>"""

# Waits for itself: no value of the loop ends it.
_HANG = """
  %zero = arith.constant 0 : i64
  %one = arith.constant 1 : i64
  %minus = arith.constant -1 : i64
  %w = scf.while (%i = %minus) : (i64) -> i64 {{
    %go = arith.cmpi ne, %i, %zero : i64
    scf.condition(%go) %i : i64
  }} do {{
  ^bb0(%i: i64):
    %next = arith.subi %i, %one : i64
    %opaque = util.optimization_barrier %next : i64
    scf.yield %opaque : i64
  }}
  %k = arith.index_cast %w : i64 to index
  %s = arith.sitofp %w : i64 to f32
  %r = tensor.insert %s into %p[%k, %k] : tensor<{n}x{n}xf32>
  return %r : tensor<{n}x{n}xf32>"""

# Takes one matrix only, so that it cannot be called with two.
_OTHER_SIGNATURE = """
func.func @main(%a: tensor<{n}x{n}xf32>) -> tensor<{n}x{n}xf32> {{
  %r = arith.addf %a, %a : tensor<{n}x{n}xf32>
  return %r : tensor<{n}x{n}xf32>
}}
"""


def square(n: int) -> str:
    """The operation whose place the programs below can take."""
    return f"matmul_{n}x{n}x{n}_f32t_f32t_f32t"


def _program(n: int, operands: str = "%a, %b", after: str = _RETURN) -> str:
    return _PROGRAM.format(n=n, operands=operands, after=after.format(n=n))


HANGS = _program(24, after=_HANG)
# Programs for square matrices of this size, by what is wrong with them.
FAULTS = {
    "nothing": (26, _program(26)),
    "operands swapped": (28, _program(28, "%b, %a")),
    "one wrong tile": (30, _program(30, after=_WRONG_TILE)),
    "one unwritten row": (32, _program(32, after=_UNWRITTEN_ROW)),
    "another signature": (34, _OTHER_SIGNATURE.format(n=34)),
}
NO_PROGRAM = "func.func @main( {"


def make(folder: Path, *names: str, configs: str = "default", jobs: int = 1) -> GeneratedFolder:
    """Generate operations by name."""
    operations = [parse_operation(name) for name in names]
    options = GenerateOptions(TARGET, parse_configs(configs), jobs=jobs)
    generate(folder, operations, options)
    return GeneratedFolder(folder)


def dispatches(generated: GeneratedFolder) -> list[Selected]:
    """Everything that has been generated, read anew."""
    return [Selected(f, name) for f in generated.operations() for name in f.dispatches]


def compiled(generated: GeneratedFolder) -> list[Selected]:
    """Everything that has been generated, compiled."""
    found = dispatches(generated)
    compile_dispatches(generated, found, COMPILE)
    return found


def sabotage(generated: GeneratedFolder, name: str, program: str) -> None:
    """Put another program in the place of an operation's own."""
    (folder,) = (f for f in generated.operations() if f.operation.name == name)
    folder.program.write_text(program)
