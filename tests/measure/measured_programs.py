"""Sources of the programs that the tests of this folder compile and run."""

CPU_FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)

# `bench` runs what `main` does four times in one call.
ADD = """
func.func @main(%a: tensor<4x8xf32>, %b: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %r = arith.addf %a, %b : tensor<4x8xf32>
  return %r : tensor<4x8xf32>
}
func.func @bench(%a: tensor<4x8xf32>, %b: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %0 = arith.addf %a, %b : tensor<4x8xf32>
  %1 = arith.addf %0, %b : tensor<4x8xf32>
  %2 = arith.addf %1, %b : tensor<4x8xf32>
  %3 = arith.addf %2, %b : tensor<4x8xf32>
  return %3 : tensor<4x8xf32>
}
"""
SUBTRACT = """
func.func @main(%a: tensor<4x8xf32>, %b: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %r = arith.subf %a, %b : tensor<4x8xf32>
  return %r : tensor<4x8xf32>
}
"""
# A program of its own, whose `bench` takes twice as many arguments, of other types.
OTHER_BENCH = """
func.func @main(%a: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %r = arith.addf %a, %a : tensor<4x8xf32>
  return %r : tensor<4x8xf32>
}
func.func @bench(%a: tensor<3xf32>, %b: tensor<3xf32>) -> tensor<3xf32> {
  %r = arith.addf %a, %b : tensor<3xf32>
  return %r : tensor<3xf32>
}
"""
MIXED = """
func.func @main(%a: tensor<4xbf16>, %f: f32, %i: index, %n: tensor<f32>)
    -> (tensor<4xbf16>, f32, index, tensor<4xi1>, tensor<f32>) {
  %b = arith.addf %a, %a : tensor<4xbf16>
  %c = arith.cmpf ogt, %b, %a : tensor<4xbf16>
  return %b, %f, %i, %c, %n : tensor<4xbf16>, f32, index, tensor<4xi1>, tensor<f32>
}
"""
WEIGHTS = """
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<4xf32>
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %w = util.global.load @w : tensor<4xf32>
  %r = arith.addf %a, %w : tensor<4xf32>
  return %r : tensor<4xf32>
}
"""


def countdown(name: str) -> str:
    """A function that counts down from its argument: for -1 it takes longer than any test waits."""
    return f"""
func.func @{name}(%n: i64) -> i64 {{
  %zero = arith.constant 0 : i64
  %one = arith.constant 1 : i64
  %r = scf.while (%i = %n) : (i64) -> i64 {{
    %go = arith.cmpi ne, %i, %zero : i64
    scf.condition(%go) %i : i64
  }} do {{
  ^bb0(%i: i64):
    %next = arith.subi %i, %one : i64
    scf.yield %next : i64
  }}
  return %r : i64
}}
"""


SPIN = countdown("main")
