# ruff: noqa: E501  (the lines of MLIR are as long as MLIR is)
"""Small programs of every kind of dispatch that is tuned, and their dispatches as templates.

`CASES` names each program with the kinds that its dispatches are to be read as; `dispatches` takes
one through the compiler once and for all tests.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from iree.compiler import ir

from tilewright.argument import ArgumentType
from tilewright.ir.candidate import make_candidate
from tilewright.ir.dispatches import DispatchSite, find_dispatches, isolate
from tilewright.ir.session import ISOLATED_PHASE, CompilerSession
from tilewright.ir.template import read_dispatch
from tilewright.target import Target
from tilewright.tiling import CompilationInfo, DispatchTemplate
from tilewright.workload import Workload

# A fixed processor: the compiler's choices are the same wherever the tests run.
FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-triple=x86_64-unknown-linux-gnu",
    "--iree-llvmcpu-target-cpu=znver4",
    "--iree-codegen-add-tuner-attributes",
)
TARGET = Target(
    name="cpu:znver4",
    cpu="znver4",
    cores=2,
    vector_bytes=64,
    vector_registers=32,
    l1_bytes=32 << 10,
    l2_bytes=1 << 20,
    l3_bytes=16 << 20,
    max_vector_bytes=32 << 10,
)
CONFIGURED = "executable-configurations"
DATA_TILING = ("--iree-opt-data-tiling",)
IM2COL = ("--iree-global-opt-use-im2col-for-convs",)
STABLEHLO = ("--iree-input-type=stablehlo",)


@dataclass(frozen=True)
class Case:
    """A program, the kinds of its dispatches in order, and the loop roles of the last one."""

    source: str
    kinds: tuple[str, ...]
    roles: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dispatch:
    """A dispatch of a program, alone, as the compiler configures it."""

    executable: str
    entry: str
    isolated: bytes
    configured: bytes
    arguments: tuple[ArgumentType, ...]
    encoded: bool
    template: DispatchTemplate
    workload: Workload
    session: CompilerSession

    def with_configuration(self, configuration: CompilationInfo | None) -> ir.Operation:
        """The configured dispatch with a configuration (None: the compiler's own)."""
        return make_candidate(
            self.configured, self.session.context, self.executable, self.entry, configuration
        ).operation


@functools.cache
def session(flags: tuple[str, ...] = ()) -> CompilerSession:
    """A warm compiler, one for each set of flags besides `FLAGS`."""
    return CompilerSession((*FLAGS, *flags))


def flow_module(source: str, flags: tuple[str, ...] = ()) -> ir.Module:
    """The program at the flow phase."""
    compiler = session(flags)
    text = compiler.compile(source, compile_to="flow")
    with compiler.context:
        return ir.Module.parse(text)


def read(module: ir.Module, site: DispatchSite, compiler: CompilerSession) -> Dispatch:
    """Isolates and configures one dispatch of a program, and reads it."""
    alone = isolate(compiler, module, site)
    isolated = alone.module.operation.get_asm().encode()
    configured = compiler.compile(isolated, ISOLATED_PHASE, CONFIGURED)
    with compiler.context:
        found = read_dispatch(ir.Module.parse(configured), site.executable, site.entry)
    return Dispatch(
        site.executable,
        site.entry,
        isolated,
        configured,
        alone.arguments,
        alone.encoded,
        found.template,
        found.workload,
        compiler,
    )


@functools.cache
def dispatches(name: str) -> tuple[Dispatch, ...]:
    """The dispatches of a case, in order of first call."""
    case = CASES[name]
    module = flow_module(case.source, case.flags)
    return tuple(read(module, site, session(case.flags)) for site in find_dispatches(module))


def last(name: str) -> Dispatch:
    """The last dispatch of a case: the one that the case is about."""
    return dispatches(name)[-1]


def _filled(result: str, zero: str) -> str:
    element = result.rsplit("x", 1)[1]
    return f"""%z = arith.constant {zero} : {element}
  %e = tensor.empty() : tensor<{result}>
  %f = linalg.fill ins(%z : {element}) outs(%e : tensor<{result}>) -> tensor<{result}>"""


def product(
    a: str, b: str, c: str, op: str = "linalg.matmul", after: str = "", more: str = ""
) -> str:
    zero = "0" if c.rsplit("x", 1)[1].startswith("i") else "0.0"
    return f"""
func.func @main(%a: tensor<{a}>, %b: tensor<{b}>{more}) -> tensor<{c}> {{
  {_filled(c, zero)}
  %p = {op} ins(%a, %b : tensor<{a}>, tensor<{b}>) outs(%f : tensor<{c}>) -> tensor<{c}>
  {after or f"%r = tensor.cast %p : tensor<{c}> to tensor<{c}>"}
  return %r : tensor<{c}>
}}"""


_LAYOUTS = {
    "nn": ("(m, n, k) -> (m, k)", "(m, n, k) -> (k, n)"),
    "nt": ("(m, n, k) -> (m, k)", "(m, n, k) -> (n, k)"),
    "tn": ("(m, n, k) -> (k, m)", "(m, n, k) -> (k, n)"),
    "tt": ("(m, n, k) -> (k, m)", "(m, n, k) -> (n, k)"),
}


def matmul(
    layout: str, source: str, result: str, m: int = 64, n: int = 96, k: int = 128, **kw: str
) -> str:
    maps = ", ".join(f"affine_map<{text}>" for text in (*_LAYOUTS[layout], "(m, n, k) -> (m, n)"))
    a = f"{k}x{m}" if layout[0] == "t" else f"{m}x{k}"
    b = f"{n}x{k}" if layout[1] == "t" else f"{k}x{n}"
    op = "linalg.matmul" + ("" if layout == "nn" else f" indexing_maps = [{maps}]")
    return product(f"{a}x{source}", f"{b}x{source}", f"{m}x{n}x{result}", op, **kw)


def _window(strides: int, dilations: int) -> str:
    return (
        f"{{strides = dense<{strides}> : vector<2xi64>, "
        f"dilations = dense<{dilations}> : vector<2xi64>}}"
    )


def conv(op: str, a: str, b: str, c: str, strides: int = 1, dilations: int = 1) -> str:
    return product(a, b, c, f"linalg.{op} {_window(strides, dilations)}")


def pooling(op: str, a: str, window: str, c: str, zero: str, strides: int = 1) -> str:
    return f"""
func.func @main(%a: tensor<{a}>) -> tensor<{c}> {{
  {_filled(c, zero)}
  %w = tensor.empty() : tensor<{window}>
  %r = linalg.{op} {_window(strides, 1)} ins(%a, %w : tensor<{a}>, tensor<{window}>) outs(%f : tensor<{c}>) -> tensor<{c}>
  return %r : tensor<{c}>
}}"""


def reduction(
    body: str, zero: str, a: str = "48x512xf32", c: str = "48xf32", maps: str = "(d0, d1) -> (d0)"
) -> str:
    kinds = '"parallel", "reduction"' if maps.endswith("(d0)") else '"reduction", "parallel"'
    return f"""
func.func @main(%a: tensor<{a}>) -> tensor<{c}> {{
  {_filled(c, zero)}
  %r = linalg.generic {{
      indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<{maps}>],
      iterator_types = [{kinds}]}}
      ins(%a : tensor<{a}>) outs(%f : tensor<{c}>) {{
  ^bb0(%x: f32, %acc: f32):
    %y = {body} : f32
    linalg.yield %y : f32
  }} -> tensor<{c}>
  return %r : tensor<{c}>
}}"""


def softmax(a: str) -> str:
    return f"""
func.func @main(%a: tensor<{a}>) -> tensor<{a}> {{
  %e = tensor.empty() : tensor<{a}>
  %r = linalg.softmax dimension(1) ins(%a : tensor<{a}>) outs(%e : tensor<{a}>) -> tensor<{a}>
  return %r : tensor<{a}>
}}"""


BIAS_RELU = """%o = tensor.empty() : tensor<64x96xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%p, %bias : tensor<64x96xf32>, tensor<96xf32>) outs(%o : tensor<64x96xf32>) {
  ^bb0(%x: f32, %y: f32, %out: f32):
    %zero = arith.constant 0.0 : f32
    %s = arith.addf %x, %y : f32
    %t = arith.maximumf %s, %zero : f32
    linalg.yield %t : f32
  } -> tensor<64x96xf32>"""

# A strided 1x1 convolution with a bias: IREE names its dispatch `reduction_…`.
STRIDED_1X1_BIAS = """%o = tensor.empty() : tensor<1x14x14x64xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(b, i, j, c) -> (b, i, j, c)>, affine_map<(b, i, j, c) -> (c)>, affine_map<(b, i, j, c) -> (b, i, j, c)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%p, %bias : tensor<1x14x14x64xf32>, tensor<64xf32>) outs(%o : tensor<1x14x14x64xf32>) {
  ^bb0(%x: f32, %y: f32, %out: f32):
    %s = arith.addf %x, %y : f32
    linalg.yield %s : f32
  } -> tensor<1x14x14x64xf32>"""

LAYERNORM = """
#full = affine_map<(i, j) -> (i, j)>
#row = affine_map<(i, j) -> (i)>
#col = affine_map<(i, j) -> (j)>
func.func @main(%a: tensor<32x384xf32>, %gamma: tensor<384xf32>, %beta: tensor<384xf32>) -> tensor<32x384xf32> {
  %zero = arith.constant 0.0 : f32
  %count = arith.constant 384.0 : f32
  %eps = arith.constant 1.0e-5 : f32
  %er = tensor.empty() : tensor<32xf32>
  %fr = linalg.fill ins(%zero : f32) outs(%er : tensor<32xf32>) -> tensor<32xf32>
  %sum = linalg.generic {indexing_maps = [#full, #row], iterator_types = ["parallel", "reduction"]}
      ins(%a : tensor<32x384xf32>) outs(%fr : tensor<32xf32>) {
  ^bb0(%x: f32, %acc: f32):
    %s = arith.addf %x, %acc : f32
    linalg.yield %s : f32
  } -> tensor<32xf32>
  %square = linalg.generic {indexing_maps = [#full, #row, #row], iterator_types = ["parallel", "reduction"]}
      ins(%a, %sum : tensor<32x384xf32>, tensor<32xf32>) outs(%fr : tensor<32xf32>) {
  ^bb0(%x: f32, %t: f32, %acc: f32):
    %mean = arith.divf %t, %count : f32
    %d = arith.subf %x, %mean : f32
    %dd = arith.mulf %d, %d : f32
    %s = arith.addf %dd, %acc : f32
    linalg.yield %s : f32
  } -> tensor<32xf32>
  %o = tensor.empty() : tensor<32x384xf32>
  %r = linalg.generic {indexing_maps = [#full, #row, #row, #col, #col, #full], iterator_types = ["parallel", "parallel"]}
      ins(%a, %sum, %square, %gamma, %beta : tensor<32x384xf32>, tensor<32xf32>, tensor<32xf32>, tensor<384xf32>, tensor<384xf32>)
      outs(%o : tensor<32x384xf32>) {
  ^bb0(%x: f32, %t: f32, %q: f32, %g: f32, %b: f32, %out: f32):
    %mean = arith.divf %t, %count : f32
    %d = arith.subf %x, %mean : f32
    %v = arith.divf %q, %count : f32
    %ve = arith.addf %v, %eps : f32
    %i = math.rsqrt %ve : f32
    %n = arith.mulf %d, %i : f32
    %ng = arith.mulf %n, %g : f32
    %nb = arith.addf %ng, %b : f32
    linalg.yield %nb : f32
  } -> tensor<32x384xf32>
  return %r : tensor<32x384xf32>
}"""

ARGMAX = """
func.func @main(%a: tensor<48x512xf32>) -> tensor<48xi32> {
  %zero = arith.constant 0 : i32
  %low = arith.constant 0xFF800000 : f32
  %ev = tensor.empty() : tensor<48xf32>
  %ei = tensor.empty() : tensor<48xi32>
  %fv = linalg.fill ins(%low : f32) outs(%ev : tensor<48xf32>) -> tensor<48xf32>
  %fi = linalg.fill ins(%zero : i32) outs(%ei : tensor<48xi32>) -> tensor<48xi32>
  %r:2 = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]}
      ins(%a : tensor<48x512xf32>) outs(%fv, %fi : tensor<48xf32>, tensor<48xi32>) {
  ^bb0(%x: f32, %best: f32, %at: i32):
    %j = linalg.index 1 : index
    %ji = arith.index_cast %j : index to i32
    %more = arith.cmpf ogt, %x, %best : f32
    %v = arith.select %more, %x, %best : f32
    %w = arith.select %more, %ji, %at : i32
    linalg.yield %v, %w : f32, i32
  } -> (tensor<48xf32>, tensor<48xi32>)
  return %r#1 : tensor<48xi32>
}"""

ADD_RELU = """
func.func @main(%a: tensor<32x384xf32>, %b: tensor<32x384xf32>) -> tensor<32x384xf32> {
  %o = tensor.empty() : tensor<32x384xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%a, %b : tensor<32x384xf32>, tensor<32x384xf32>) outs(%o : tensor<32x384xf32>) {
  ^bb0(%x: f32, %y: f32, %out: f32):
    %zero = arith.constant 0.0 : f32
    %s = arith.addf %x, %y : f32
    %t = arith.maximumf %s, %zero : f32
    linalg.yield %t : f32
  } -> tensor<32x384xf32>
  return %r : tensor<32x384xf32>
}"""

TRANSPOSE = """
func.func @main(%a: tensor<96x160xf32>) -> tensor<160x96xf32> {
  %o = tensor.empty() : tensor<160x96xf32>
  %r = linalg.transpose ins(%a : tensor<96x160xf32>) outs(%o : tensor<160x96xf32>) permutation = [1, 0]
  return %r : tensor<160x96xf32>
}"""

PACK = """
func.func @main(%a: tensor<100x130xf32>) -> tensor<13x17x8x8xf32> {
  %zero = arith.constant 0.0 : f32
  %o = tensor.empty() : tensor<13x17x8x8xf32>
  %r = linalg.pack %a padding_value(%zero : f32) inner_dims_pos = [0, 1] inner_tiles = [8, 8] into %o : tensor<100x130xf32> -> tensor<13x17x8x8xf32>
  return %r : tensor<13x17x8x8xf32>
}"""

UNPACK = """
func.func @main(%a: tensor<13x17x8x8xf32>) -> tensor<100x130xf32> {
  %o = tensor.empty() : tensor<100x130xf32>
  %r = linalg.unpack %a inner_dims_pos = [0, 1] inner_tiles = [8, 8] into %o : tensor<13x17x8x8xf32> -> tensor<100x130xf32>
  return %r : tensor<100x130xf32>
}"""

# In the generic form: IREE 3.12 writes this op with other brackets than 3.13.
ATTENTION = """
func.func @main(%q: tensor<4x128x64xf32>, %k: tensor<4x96x64xf32>, %v: tensor<4x96x32xf32>) -> tensor<4x128x32xf32> {
  %scale = arith.constant 0.125 : f32
  %o = tensor.empty() : tensor<4x128x32xf32>
  %r = "iree_linalg_ext.attention"(%q, %k, %v, %scale, %o) <{indexing_maps = [affine_map<(b, m, n, k1, k2) -> (b, m, k1)>, affine_map<(b, m, n, k1, k2) -> (b, k2, k1)>,
      affine_map<(b, m, n, k1, k2) -> (b, k2, n)>, affine_map<(b, m, n, k1, k2) -> ()>, affine_map<(b, m, n, k1, k2) -> (b, m, n)>]}> ({
  ^bb0(%s: f32):
    "iree_linalg_ext.yield"(%s) : (f32) -> ()
  }) : (tensor<4x128x64xf32>, tensor<4x96x64xf32>, tensor<4x96x32xf32>, f32, tensor<4x128x32xf32>) -> tensor<4x128x32xf32>
  return %r : tensor<4x128x32xf32>
}"""

X_TIMES_TRANSPOSE = """
func.func @main(%a: tensor<64x64xf32>, %bias: tensor<64xf32>) -> tensor<64x64xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<64x64xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<64x64xf32>) -> tensor<64x64xf32>
  %p = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>]
      ins(%a, %a : tensor<64x64xf32>, tensor<64x64xf32>) outs(%f : tensor<64x64xf32>) -> tensor<64x64xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%p, %bias : tensor<64x64xf32>, tensor<64xf32>) outs(%e : tensor<64x64xf32>) {
  ^bb0(%x: f32, %y: f32, %out: f32):
    %s = arith.addf %x, %y : f32
    linalg.yield %s : f32
  } -> tensor<64x64xf32>
  return %r : tensor<64x64xf32>
}"""

# Two products with a bias between: data-tiled, the first dispatch unpacks and packs again.
TWO_MATMULS = """
func.func @main(%a: tensor<100x130xf32>, %w: tensor<130x200xf32>, %bias: tensor<200xf32>, %w2: tensor<200x70xf32>) -> tensor<100x70xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<100x200xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<100x200xf32>) -> tensor<100x200xf32>
  %p = linalg.matmul ins(%a, %w : tensor<100x130xf32>, tensor<130x200xf32>) outs(%f : tensor<100x200xf32>) -> tensor<100x200xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%p, %bias : tensor<100x200xf32>, tensor<200xf32>) outs(%e : tensor<100x200xf32>) {
  ^bb0(%x: f32, %y: f32, %out: f32):
    %s = arith.addf %x, %y : f32
    linalg.yield %s : f32
  } -> tensor<100x200xf32>
  %e2 = tensor.empty() : tensor<100x70xf32>
  %f2 = linalg.fill ins(%z : f32) outs(%e2 : tensor<100x70xf32>) -> tensor<100x70xf32>
  %p2 = linalg.matmul ins(%r, %w2 : tensor<100x200xf32>, tensor<200x70xf32>) outs(%f2 : tensor<100x70xf32>) -> tensor<100x70xf32>
  return %p2 : tensor<100x70xf32>
}"""

# As a ResNet's shortcut comes from StableHLO: IREE names its dispatch `reduction_...`.
SHORTCUT = """
func.func @main(%a: tensor<1x14x14x128xf32>, %b: tensor<1x1x128x256xf32>, %c: tensor<256xf32>) -> tensor<1x7x7x256xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<1x14x14x128xf32>
  %a1 = stablehlo.maximum %a, %z : tensor<1x14x14x128xf32>
  %r = stablehlo.convolution(%a1, %b) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [2, 2], pad = [[0, 0], [0, 0]]}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x14x14x128xf32>, tensor<1x1x128x256xf32>) -> tensor<1x7x7x256xf32>
  %c1 = stablehlo.broadcast_in_dim %c, dims = [3] : (tensor<256xf32>) -> tensor<1x7x7x256xf32>
  %q = stablehlo.add %r, %c1 : tensor<1x7x7x256xf32>
  return %q : tensor<1x7x7x256xf32>
}"""

# A stride without a window, in the maps themselves.
STRIDED_MAPS = """
func.func @main(%a: tensor<63x48xf32>, %b: tensor<48x40xf32>) -> tensor<32x40xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<32x40xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<32x40xf32>) -> tensor<32x40xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m * 2, k)>, affine_map<(m, n, k) -> (k, n)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a, %b : tensor<63x48xf32>, tensor<48x40xf32>) outs(%f : tensor<32x40xf32>) {
  ^bb0(%x: f32, %y: f32, %acc: f32):
    %p = arith.mulf %x, %y : f32
    %s = arith.addf %acc, %p : f32
    linalg.yield %s : f32
  } -> tensor<32x40xf32>
  return %r : tensor<32x40xf32>
}"""

# Reads like a matrix-vector product, and is none: the accumulator is multiplied.
HORNER = """
func.func @main(%a: tensor<48x64xf32>, %b: tensor<64xf32>) -> tensor<48xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<48xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<48xf32>) -> tensor<48xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]}
      ins(%a, %b : tensor<48x64xf32>, tensor<64xf32>) outs(%f : tensor<48xf32>) {
  ^bb0(%x: f32, %y: f32, %acc: f32):
    %p = arith.mulf %acc, %y : f32
    %s = arith.addf %p, %x : f32
    linalg.yield %s : f32
  } -> tensor<48xf32>
  return %r : tensor<48xf32>
}"""

PAD = """
func.func @main(%a: tensor<62x126xf32>) -> tensor<64x128xf32> {
  %z = arith.constant 0.0 : f32
  %p = tensor.pad %a low[1, 1] high[1, 1] {
  ^bb0(%i: index, %j: index):
    tensor.yield %z : f32
  } : tensor<62x126xf32> to tensor<64x128xf32>
  return %p : tensor<64x128xf32>
}"""

SORT = """
func.func @main(%a: tensor<64x128xf32>) -> tensor<64x128xf32> {
  %r = iree_linalg_ext.sort dimension(1) outs(%a : tensor<64x128xf32>) {
  ^bb0(%x: f32, %y: f32):
    %c = arith.cmpf olt, %x, %y : f32
    iree_linalg_ext.yield %c : i1
  } -> tensor<64x128xf32>
  return %r : tensor<64x128xf32>
}"""

TOPK = """
func.func @main(%a: tensor<64x128xf32>) -> tensor<64x8xf32> {
  %ov = tensor.empty() : tensor<64x8xf32>
  %oi = tensor.empty() : tensor<64x8xi32>
  %low = arith.constant 0xFF800000 : f32
  %zero = arith.constant 0 : i32
  %fv = linalg.fill ins(%low : f32) outs(%ov : tensor<64x8xf32>) -> tensor<64x8xf32>
  %fi = linalg.fill ins(%zero : i32) outs(%oi : tensor<64x8xi32>) -> tensor<64x8xi32>
  %r:2 = iree_linalg_ext.topk dimension(1) ins(%a : tensor<64x128xf32>) outs(%fv, %fi : tensor<64x8xf32>, tensor<64x8xi32>) {
  ^bb0(%x: f32, %y: f32):
    %c = arith.cmpf ogt, %x, %y : f32
    iree_linalg_ext.yield %c : i1
  } -> tensor<64x8xf32>, tensor<64x8xi32>
  return %r#0 : tensor<64x8xf32>
}"""

SUM_ALL = """
func.func @main(%a: tensor<5xf32>) -> tensor<f32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<f32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<f32>) -> tensor<f32>
  %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> ()>], iterator_types = ["reduction"]}
      ins(%a : tensor<5xf32>) outs(%f : tensor<f32>) {
  ^bb0(%x: f32, %acc: f32):
    %s = arith.addf %x, %acc : f32
    linalg.yield %s : f32
  } -> tensor<f32>
  return %r : tensor<f32>
}"""

SCALAR = """
func.func @main(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %r = arith.addf %a, %b : tensor<f32>
  return %r : tensor<f32>
}"""

_C = "contraction"
_V = "convolution"
_MMT4D = "m n k m n k"
_NHWC = "batch image image channel window window k"
_NCHW = "batch channel image image k window window"


def _conv(
    op: str,
    a: str,
    b: str,
    c: str,
    roles: str,
    kind: str = _V,
    strides: int = 1,
    dilations: int = 1,
) -> Case:
    return Case(conv(op, a, b, c, strides, dilations), (kind,), roles)


def _grouped(op: str, a: str, b: str, c: str, roles: str) -> Case:
    return _conv(op, a, b, c, roles, "grouped_convolution")


def _depthwise(op: str, a: str, b: str, c: str, strides: int = 1) -> Case:
    roles = "batch image image group window window"
    return _conv(op, a, b, c, roles, "depthwise_convolution", strides)


_BATCH_MATMUL = product("6x32x48xf32", "6x48x40xf32", "6x32x40xf32", "linalg.batch_matmul")
_NHWC_CONV = ("conv_2d_nhwc_hwcf", "1x18x18x32xf32", "3x3x32x64xf32", "1x16x16x64xf32")
_NHWC_CONV_N2 = ("conv_2d_nhwc_hwcf", "2x18x18x32xf32", "3x3x32x64xf32", "2x16x16x64xf32")
_NCHW_CONV = ("conv_2d_nchw_fchw", "1x16x18x18xf32", "32x16x3x3xf32", "1x32x16x16xf32")
_1D = "{strides = dense<1> : vector<1xi64>, dilations = dense<1> : vector<1xi64>}"
_BIAS = ", %bias: tensor<96xf32>"

CASES: dict[str, Case] = {
    **{
        f"matmul_{layout}_{source}_{result}": Case(matmul(layout, source, result), (_C,), "m n k")
        for layout in _LAYOUTS
        for source, result in (("f32", "f32"), ("f16", "f32"), ("bf16", "f32"), ("i8", "i32"))
        # Each layout and each type, and the one that products of bytes ask for.
        if layout == "nn" or source == "f32" or (layout, source) == ("nt", "i8")
    },
    "matmul_f16_f16": Case(matmul("nn", "f16", "f16"), (_C,), "m n k"),
    "matmul_odd": Case(matmul("nn", "f32", "f32", 37, 29, 53), (_C,), "m n k"),
    "matmul_one_row": Case(matmul("nn", "f32", "f32", 1), (_C,), "m n k"),
    "matmul_bias_relu": Case(
        matmul("nn", "f32", "f32", after=BIAS_RELU, more=_BIAS), (_C,), "m n k"
    ),
    "x_times_transpose": Case(X_TIMES_TRANSPOSE, (_C,), "m n k"),
    "strided_maps": Case(STRIDED_MAPS, (_C,), "m n k"),
    "batch_matmul": Case(_BATCH_MATMUL, (_C,), "batch m n k"),
    "matvec": Case(product("160x256xf32", "256xf32", "160xf32", "linalg.matvec"), (_C,), "m k"),
    "vecmat": Case(product("256xf32", "256x160xf32", "160xf32", "linalg.vecmat"), (_C,), "n k"),
    "conv_nhwc": _conv(*_NHWC_CONV, _NHWC),
    "conv_nhwc_n2": _conv(*_NHWC_CONV_N2, _NHWC),
    "conv_nhwc_strided": _conv(
        "conv_2d_nhwc_hwcf", "1x17x17x16xf32", "3x3x16x24xf32", "1x8x8x24xf32", _NHWC, strides=2
    ),
    "conv_nhwc_dilated_n2": _conv(
        "conv_2d_nhwc_hwcf", "2x19x19x16xf32", "3x3x16x24xf32", "2x15x15x24xf32", _NHWC, dilations=2
    ),
    "conv_nchw": _conv(*_NCHW_CONV, _NCHW),
    "conv_nchw_strided_n2": _conv(
        "conv_2d_nchw_fchw", "2x16x17x17xf32", "32x16x3x3xf32", "2x32x8x8xf32", _NCHW, strides=2
    ),
    "conv_1d": Case(
        product("2x20x16xf32", "5x16x32xf32", "2x16x32xf32", f"linalg.conv_1d_nwc_wcf {_1D}"),
        (_V,),
        "batch image channel window k",
    ),
    "conv_i8": _conv("conv_2d_nhwc_hwcf", "1x18x18x32xi8", "3x3x32x64xi8", "1x16x16x64xi32", _NHWC),
    "conv_1x1": _conv(
        "conv_2d_nhwc_hwcf", "1x14x14x32xf32", "1x1x32x64xf32", "1x14x14x64xf32", "m n k", _C
    ),
    "conv_1x1_strided": _conv(
        "conv_2d_nhwc_hwcf", "1x27x27x32xf32", "1x1x32x64xf32", "1x14x14x64xf32", "m m n k", _C, 2
    ),
    "conv_1x1_strided_n2": _conv(
        "conv_2d_nhwc_hwcf", "2x27x27x32xf32", "1x1x32x64xf32", "2x14x14x64xf32", "m m m n k", _C, 2
    ),
    "conv_1x1_strided_bias": Case(
        product(
            "1x27x27x32xf32",
            "1x1x32x64xf32",
            "1x14x14x64xf32",
            f"linalg.conv_2d_nhwc_hwcf {_window(2, 1)}",
            STRIDED_1X1_BIAS,
            ", %bias: tensor<64xf32>",
        ),
        (_C,),
        "m m n k",
    ),
    "shortcut": Case(SHORTCUT, ("elementwise", _C), "m m n k", STABLEHLO),
    "conv_im2col": Case(conv(*_NHWC_CONV), ("elementwise", _C), "m n k", IM2COL),
    "conv_im2col_n2": Case(conv(*_NHWC_CONV_N2), ("elementwise", _C), "m n k", IM2COL),
    "conv_im2col_nchw": Case(conv(*_NCHW_CONV), ("elementwise", _C), "m n k", IM2COL),
    "depthwise": _depthwise(
        "depthwise_conv_2d_nhwc_hwc", "1x18x18x96xf32", "3x3x96xf32", "1x16x16x96xf32"
    ),
    "depthwise_strided_n2": _depthwise(
        "depthwise_conv_2d_nhwc_hwc", "2x17x17x96xf32", "3x3x96xf32", "2x8x8x96xf32", 2
    ),
    "depthwise_nchw": _depthwise(
        "depthwise_conv_2d_nchw_chw", "1x32x18x18xf32", "32x3x3xf32", "1x32x16x16xf32"
    ),
    "grouped_ngchw": _grouped(
        "conv_2d_ngchw_gfchw",
        "1x4x8x14x14xf32",
        "4x8x8x3x3xf32",
        "1x4x8x12x12xf32",
        "batch group channel image image k window window",
    ),
    "grouped_nhwgc": _grouped(
        "conv_2d_nhwgc_gfhwc",
        "1x14x14x4x8xf32",
        "4x8x3x3x8xf32",
        "1x12x12x4x8xf32",
        "batch image image group channel window window k",
    ),
    "pool_max": Case(
        pooling("pooling_nhwc_max", "1x33x33x64xf32", "3x3xf32", "1x16x16x64xf32", "0xFF800000", 2),
        ("pooling",),
        "batch image image channel window window",
    ),
    "pool_sum_nchw": Case(
        pooling("pooling_nchw_sum", "1x32x28x28xf32", "2x2xf32", "1x32x14x14xf32", "0.0", 2),
        ("pooling",),
        "batch channel image image window window",
    ),
    "softmax": Case(softmax("48x512xf32"), ("softmax",), "parallel reduction"),
    "softmax_one_row": Case(softmax("1x10xf32"), ("softmax",), "parallel reduction"),
    "softmax_f16": Case(softmax("48x512xf16"), ("softmax",), "parallel reduction"),
    "layernorm": Case(LAYERNORM, ("reduction", "reduction"), "parallel reduction"),
    "attention": Case(ATTENTION, ("attention",), "batch m n k1 k2"),
    "sum": Case(reduction("arith.addf %x, %acc", "0.0"), ("reduction",), "parallel reduction"),
    "max": Case(
        reduction("arith.maximumf %x, %acc", "0xFF800000"), ("reduction",), "parallel reduction"
    ),
    "sum_columns": Case(
        reduction("arith.addf %x, %acc", "0.0", c="512xf32", maps="(d0, d1) -> (d1)"),
        ("reduction",),
        "parallel reduction",
    ),
    "sum_all": Case(SUM_ALL, ("reduction",), "reduction"),
    "horner": Case(HORNER, ("reduction",), "parallel reduction"),
    "argmax": Case(ARGMAX, ("reduction",), "parallel reduction"),
    "add_relu": Case(ADD_RELU, ("elementwise",), "parallel"),
    "scalar": Case(SCALAR, ("elementwise",), ""),
    "pad": Case(PAD, ("elementwise",), "parallel parallel"),
    "transpose": Case(TRANSPOSE, ("transpose",), "parallel parallel"),
    "sort": Case(SORT, ("other",), "parallel reduction"),
    "topk": Case(TOPK, ("other",), "parallel reduction"),
    "pack": Case(PACK, ("pack",), "parallel parallel"),
    "unpack": Case(UNPACK, ("unpack",), "parallel parallel"),
    "mmt4d": Case(
        product("6x96x8x1xf32", "4x96x16x1xf32", "6x4x8x16xf32", "linalg.mmt4d"), ("mmt4d",), _MMT4D
    ),
    "batch_mmt4d": Case(
        product("3x6x96x8x1xf32", "3x4x96x16x1xf32", "3x6x4x8x16xf32", "linalg.batch_mmt4d"),
        ("mmt4d",),
        "batch m n k m n k",
    ),
    "matmul_data_tiled": Case(
        matmul("nn", "f32", "f32", 128, 192, 256), ("mmt4d",), _MMT4D, DATA_TILING
    ),
    "matmul_i8_data_tiled": Case(
        matmul("nn", "i8", "i32", 128, 192, 256), ("mmt4d",), _MMT4D, DATA_TILING
    ),
    "matmul_bias_data_tiled": Case(
        matmul("nn", "f32", "f32", after=BIAS_RELU, more=_BIAS), ("mmt4d",), _MMT4D, DATA_TILING
    ),
    "batch_matmul_data_tiled": Case(_BATCH_MATMUL, ("mmt4d",), "batch m n k m n k", DATA_TILING),
    "two_matmuls_data_tiled": Case(TWO_MATMULS, ("mmt4d", "mmt4d"), _MMT4D, DATA_TILING),
}
