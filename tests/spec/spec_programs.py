"""Small programs, one for each kind of dispatch, and an in-process compiler for them."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass, field

from iree.compiler import ir
from iree.compiler.api import Output, Session, Source, ctypes_dl

from tilewright.ir.configuring import DispatchAttributes
from tilewright.ir.template import compute_ops, configured_functions
from tilewright.ir.walk import string_attribute
from tilewright.spec.library import MARKER
from tilewright.spec.library import new_context as new_context
from tilewright.spec.write import SpecEntry

# A fixed CPU, so that the compiler's choices and the golden files are the same on every machine.
TARGET = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-triple=x86_64-unknown-linux-gnu",
    "--iree-llvmcpu-target-cpu=znver4",
)

_begin_behind = ctypes_dl._dylib.ireeCompilerInvocationSetCompileFromPhase
_end_behind = ctypes_dl._dylib.ireeCompilerInvocationSetCompileToPhase
for _function in (_begin_behind, _end_behind):
    _function.restype = None
    _function.argtypes = [ctypes.c_void_p, ctypes.c_char_p]

# Specs are read behind it: what comes before is done once for a program, not for each spec.
SOURCES = "executable-sources"


def compile_to(phase: str, program: str, flags: tuple[str, ...] = (), spec: str = "") -> str:
    """`program` as `iree-compile --compile-to=PHASE` prints it; `spec` is a tuning spec's path."""
    return _compile(phase, program, flags, spec) if spec else _default(phase, program, flags)


@functools.cache
def _default(phase: str, program: str, flags: tuple[str, ...]) -> str:
    return _compile(phase, program, flags, "")


@functools.cache
def _sources(program: str, flags: tuple[str, ...]) -> bytes:
    return _taken("start", SOURCES, program.encode(), flags, "")


def _compile(phase: str, program: str, flags: tuple[str, ...], spec: str) -> str:
    return _taken(SOURCES, phase, _sources(program, flags), flags, spec).decode()


def _taken(begin: str, end: str, program: bytes, flags: tuple[str, ...], spec: str) -> bytes:
    """A program, printed, taken from behind one phase to behind another."""
    session = Session()
    # Flags outlive their session in a process, so the spec is always named, even if it is none.
    session.set_flags(*TARGET, f"--iree-codegen-tuning-spec-path={spec}", *flags)
    invocation = session.invocation()
    invocation.enable_console_diagnostics()
    _begin_behind(invocation._inv_p, begin.encode())
    _end_behind(invocation._inv_p, end.encode())
    source = Source.wrap_buffer(session, program + b"\0")
    assert invocation.parse_source(source)
    assert invocation.execute(), "does not compile"
    output = Output.open_membuffer()
    invocation.output_ir(output)
    text = bytes(output.map_memory())
    output.close()
    invocation.close()
    session.close()
    return text


def configured(program: str, flags: tuple[str, ...] = (), spec: str = "") -> str:
    return compile_to("executable-configurations", program, flags, spec)


def code(program: str, flags: tuple[str, ...] = (), spec: str = "") -> dict[str, str]:
    """The generated code (LLVM dialect) of every dispatch, without the marks that specs leave."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(compile_to("executable-targets", program, flags, spec))
        executables: dict[str, str] = {}

        def unmark(op: ir.Operation) -> ir.WalkResult:
            for name in [name for name in op.attributes if name.startswith("tilewright.")]:
                del op.attributes[name]
            return ir.WalkResult.ADVANCE

        for op in module.body.operations:
            if op.operation.name == "hal.executable":
                op.operation.walk(unmark)
                executables[str(op.attributes["sym_name"])] = op.operation.get_asm()
        assert executables
        return executables


def functions(module: ir.Module) -> list[ir.Operation]:
    """The configured dispatch functions of a module."""
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "func.func" and "translation_info" in op.attributes:
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def name_of(function: ir.Operation) -> str:
    return str(ir.StringAttr(function.attributes["sym_name"]).value)


@dataclass(frozen=True)
class SeenChange:
    """A dispatch that is configured differently with a spec; configurations as attribute text."""

    function: str
    entry: str
    before: str
    after: str


def _configurations(program: str) -> dict[str, tuple[str, str]]:
    """By the name of each dispatch function its configuration and the mark of an entry."""
    with new_context():
        module = ir.Module.parse(program)
        return {
            name: ("; ".join(found.configuration), string_attribute(found.function, MARKER))
            for name, found in configured_functions(module).items()
        }


def applied(program: str) -> dict[str, str]:
    """Which functions of a configured program an entry of ours applied to: name to entry."""
    return {name: entry for name, (_, entry) in _configurations(program).items() if entry}


def changed_configurations(before: str, after: str) -> list[SeenChange]:
    """The functions of two configured programs that are configured differently."""
    old = _configurations(before)
    return [
        SeenChange(name, entry, old[name][0], configuration)
        for name, (configuration, entry) in _configurations(after).items()
        if name in old and old[name][0] != configuration
    ]


def default_entry(function: ir.Operation, name: str = "") -> SpecEntry:
    """An entry that gives a dispatch the configuration that it has."""
    attributes = DispatchAttributes.read(function, compute_ops(function))
    return SpecEntry(name or name_of(function), function, attributes)


def default_entries(module: ir.Module, prefix: str = "") -> list[SpecEntry]:
    return [default_entry(f, prefix + name_of(f)) for f in functions(module)]


@dataclass(frozen=True)
class Kind:
    """A program of a kind of dispatch, and another configuration for one op of its dispatch.

    `op` is the position of that op, `-1` the last one.
    """

    program: str
    other: str
    op: int
    flags: tuple[str, ...] = field(default=())
    dispatch: int = 0


DATA_TILING = ("--iree-opt-data-tiling",)


def matmul(
    m: int = 64,
    n: int = 48,
    k: int = 32,
    a: str = "f32",
    c: str = "f32",
    maps: str = "",
    tail: str = "",
) -> str:
    """A matmul, with other layouts by `maps` (`ta`, `tb`) and ops after it by `tail`."""
    lhs = f"tensor<{k}x{m}x{a}>" if "ta" in maps else f"tensor<{m}x{k}x{a}>"
    rhs = f"tensor<{n}x{k}x{a}>" if "tb" in maps else f"tensor<{k}x{n}x{a}>"
    out = f"tensor<{m}x{n}x{c}>"
    zero = "0.0" if c.startswith(("f", "bf")) else "0"
    attribute = ""
    if maps:
        left = "(d2, d0)" if "ta" in maps else "(d0, d2)"
        right = "(d1, d2)" if "tb" in maps else "(d2, d1)"
        attribute = (
            f"indexing_maps = [affine_map<(d0, d1, d2) -> {left}>, "
            f"affine_map<(d0, d1, d2) -> {right}>, affine_map<(d0, d1, d2) -> (d0, d1)>]"
        )
    return f"""
func.func @main(%a: {lhs}, %b: {rhs}, %bias: tensor<{n}x{c}>, %x: {out}) -> {out} {{
  %zero = arith.constant {zero} : {c}
  %e = tensor.empty() : {out}
  %f = linalg.fill ins(%zero : {c}) outs(%e : {out}) -> {out}
  %r = linalg.matmul {attribute} ins(%a, %b : {lhs}, {rhs}) outs(%f : {out}) -> {out}
  {tail or f"return %r : {out}"}
}}"""


def bias_clamp(high: str = "6.0", op: str = "addf", m: int = 64, n: int = 48) -> str:
    """A tail for `matmul`: add a bias and clamp between 0 and `high`."""
    out = f"tensor<{m}x{n}xf32>"
    return f"""%high = arith.constant {high} : f32
  %g = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>,
      affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}}
      ins(%r, %bias : {out}, tensor<{n}xf32>) outs(%e : {out}) {{
    ^bb0(%p: f32, %q: f32, %o: f32):
      %s = arith.{op} %p, %q : f32
      %t = arith.maximumf %s, %zero : f32
      %u = arith.minimumf %t, %high : f32
      linalg.yield %u : f32
  }} -> {out}
  return %g : {out}"""


def subtract(swapped: bool) -> str:
    """A tail for `matmul`: its result minus `%x`, or the other way round."""
    out = "tensor<64x48xf32>"
    operands = "%x, %r" if swapped else "%r, %x"
    return f"""%g = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>,
      affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]}} ins({operands} : {out}, {out}) outs(%e : {out}) {{
    ^bb0(%p: f32, %q: f32, %o: f32):
      %s = arith.subf %p, %q : f32
      linalg.yield %s : f32
  }} -> {out}
  return %g : {out}"""


def conv(batch: int = 1, stride: int = 1, dilation: int = 1) -> str:
    size = 7 * stride + 2 * dilation + 1 - stride
    image, out = f"tensor<{batch}x{size}x{size}x8xf32>", f"tensor<{batch}x7x7x16xf32>"
    return f"""
func.func @main(%a: {image}, %b: tensor<3x3x8x16xf32>) -> {out} {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : {out}
  %f = linalg.fill ins(%zero : f32) outs(%e : {out}) -> {out}
  %r = linalg.conv_2d_nhwc_hwcf {{strides = dense<{stride}> : tensor<2xi64>,
      dilations = dense<{dilation}> : tensor<2xi64>}}
      ins(%a, %b : {image}, tensor<3x3x8x16xf32>) outs(%f : {out}) -> {out}
  return %r : {out}
}}"""


def window(op: str, body: str, filter_: str, initial: str) -> str:
    """A depthwise convolution or a pooling: a named op over 3x3 windows of a 9x9x16 image."""
    return f"""
func.func @main(%a: tensor<1x9x9x16xf32>, %w: {filter_}) -> tensor<1x7x7x16xf32> {{
  %init = arith.constant {initial} : f32
  %e = tensor.empty() : tensor<1x7x7x16xf32>
  %f = linalg.fill ins(%init : f32) outs(%e : tensor<1x7x7x16xf32>) -> tensor<1x7x7x16xf32>
  %w0 = {body}
  %r = linalg.{op} {{strides = dense<1> : tensor<2xi64>, dilations = dense<1> : tensor<2xi64>}}
      ins(%a, %w0 : tensor<1x9x9x16xf32>, {filter_}) outs(%f : tensor<1x7x7x16xf32>)
      -> tensor<1x7x7x16xf32>
  return %r : tensor<1x7x7x16xf32>
}}"""


POOL_FILTER = "tensor.empty() : tensor<3x3xf32>"


def pointwise_conv_bias(stride: int = 2) -> str:
    """A 1x1 convolution of the given stride, plus a bias."""
    image = f"tensor<1x{7 * stride}x{7 * stride}x16xf32>"
    out = "tensor<1x7x7x32xf32>"
    return f"""
func.func @main(%a: {image}, %b: tensor<1x1x16x32xf32>, %bias: tensor<32xf32>) -> {out} {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : {out}
  %f = linalg.fill ins(%zero : f32) outs(%e : {out}) -> {out}
  %r = linalg.conv_2d_nhwc_hwcf {{strides = dense<{stride}> : tensor<2xi64>,
      dilations = dense<1> : tensor<2xi64>}}
      ins(%a, %b : {image}, tensor<1x1x16x32xf32>) outs(%f : {out}) -> {out}
  %g = linalg.generic {{indexing_maps = [affine_map<(n, h, w, c) -> (n, h, w, c)>,
      affine_map<(n, h, w, c) -> (c)>, affine_map<(n, h, w, c) -> (n, h, w, c)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]}}
      ins(%r, %bias : {out}, tensor<32xf32>) outs(%e : {out}) {{
    ^bb0(%p: f32, %q: f32, %o: f32):
      %s = arith.addf %p, %q : f32
      linalg.yield %s : f32
  }} -> {out}
  return %g : {out}
}}"""


def batch_matmul(
    op: str = "batch_matmul", shapes: tuple[str, str, str] = ("4x16x32", "4x32x24", "4x16x24")
) -> str:
    lhs, rhs, out = (f"tensor<{s}xf32>" for s in shapes)
    return f"""
func.func @main(%a: {lhs}, %b: {rhs}) -> {out} {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : {out}
  %f = linalg.fill ins(%zero : f32) outs(%e : {out}) -> {out}
  %r = linalg.{op} ins(%a, %b : {lhs}, {rhs}) outs(%f : {out}) -> {out}
  return %r : {out}
}}"""


def reduction(op: str = "addf", initial: str = "0.0") -> str:
    return f"""
func.func @main(%a: tensor<64x128xf32>) -> tensor<64xf32> {{
  %init = arith.constant {initial} : f32
  %e = tensor.empty() : tensor<64xf32>
  %f = linalg.fill ins(%init : f32) outs(%e : tensor<64xf32>) -> tensor<64xf32>
  %r = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]}}
      ins(%a : tensor<64x128xf32>) outs(%f : tensor<64xf32>) {{
    ^bb0(%p: f32, %o: f32):
      %s = arith.{op} %o, %p : f32
      linalg.yield %s : f32
  }} -> tensor<64xf32>
  return %r : tensor<64xf32>
}}"""


SOFTMAX = """
func.func @main(%a: tensor<32x64xf32>) -> tensor<32x64xf32> {
  %e = tensor.empty() : tensor<32x64xf32>
  %r = linalg.softmax dimension(1) ins(%a : tensor<32x64xf32>) outs(%e : tensor<32x64xf32>)
      -> tensor<32x64xf32>
  return %r : tensor<32x64xf32>
}"""


def normalisation(epsilon: str = "1.0e-5") -> str:
    """The root mean square norm of each row: a reduction, and elementwise work on what it gives."""
    return f"""
func.func @main(%a: tensor<32x64xf32>) -> tensor<32x64xf32> {{
  %zero = arith.constant 0.0 : f32
  %eps = arith.constant {epsilon} : f32
  %n = arith.constant 64.0 : f32
  %e1 = tensor.empty() : tensor<32xf32>
  %e2 = tensor.empty() : tensor<32x64xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e1 : tensor<32xf32>) -> tensor<32xf32>
  %sum = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]}}
      ins(%a : tensor<32x64xf32>) outs(%f : tensor<32xf32>) {{
    ^bb0(%p: f32, %o: f32):
      %q = arith.mulf %p, %p : f32
      %s = arith.addf %o, %q : f32
      linalg.yield %s : f32
  }} -> tensor<32xf32>
  %r = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>,
      affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}}
      ins(%a, %sum : tensor<32x64xf32>, tensor<32xf32>) outs(%e2 : tensor<32x64xf32>) {{
    ^bb0(%p: f32, %v: f32, %o: f32):
      %mean = arith.divf %v, %n : f32
      %t = arith.addf %mean, %eps : f32
      %u = math.rsqrt %t : f32
      %w = arith.mulf %p, %u : f32
      linalg.yield %w : f32
  }} -> tensor<32x64xf32>
  return %r : tensor<32x64xf32>
}}"""


ATTENTION = """
func.func @main(%q: tensor<2x32x16xf32>, %k: tensor<2x64x16xf32>, %v: tensor<2x64x16xf32>)
    -> tensor<2x32x16xf32> {
  %scale = arith.constant 0.25 : f32
  %e = tensor.empty() : tensor<2x32x16xf32>
  %r = iree_linalg_ext.attention <indexing_maps = [affine_map<(b, m, k, l, n) -> (b, m, k)>,
      affine_map<(b, m, k, l, n) -> (b, l, k)>, affine_map<(b, m, k, l, n) -> (b, l, n)>,
      affine_map<(b, m, k, l, n) -> ()>, affine_map<(b, m, k, l, n) -> (b, m, n)>]>
      ins(%q, %k, %v, %scale : tensor<2x32x16xf32>, tensor<2x64x16xf32>, tensor<2x64x16xf32>, f32)
      outs(%e : tensor<2x32x16xf32>) {
    ^bb0(%s: f32):
      iree_linalg_ext.yield %s : f32
  } -> tensor<2x32x16xf32>
  return %r : tensor<2x32x16xf32>
}"""


def elementwise(high: str = "6.0", size: int = 4096, body: str = "") -> str:
    """Two inputs combined and clamped between captured constants, or `body` instead."""
    body = (
        body
        or """%s = arith.addf %p, %q : f32
      %t = arith.maximumf %s, %zero : f32
      %u = arith.minimumf %t, %high : f32"""
    )
    t = f"tensor<{size}xf32>"
    return f"""
func.func @main(%a: {t}, %b: {t}) -> {t} {{
  %zero = arith.constant 0.0 : f32
  %high = arith.constant {high} : f32
  %e = tensor.empty() : {t}
  %r = linalg.generic {{indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>,
      affine_map<(i) -> (i)>], iterator_types = ["parallel"]}}
      ins(%a, %b : {t}, {t}) outs(%e : {t}) {{
    ^bb0(%p: f32, %q: f32, %o: f32):
      {body}
      linalg.yield %u : f32
  }} -> {t}
  return %r : {t}
}}"""


def indexed(dim: int) -> str:
    """Elementwise work on the position along `dim`, with a captured constant."""
    return f"""
func.func @main(%a: tensor<32x32xf32>) -> tensor<32x32xf32> {{
  %c = arith.constant 3.0 : f32
  %e = tensor.empty() : tensor<32x32xf32>
  %r = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>,
      affine_map<(i, j) -> (j, i)>], iterator_types = ["parallel", "parallel"]}}
      ins(%a : tensor<32x32xf32>) outs(%e : tensor<32x32xf32>) {{
    ^bb0(%p: f32, %o: f32):
      %i = linalg.index {dim} : index
      %j = arith.index_cast %i : index to i32
      %f = arith.sitofp %j : i32 to f32
      %s = arith.mulf %f, %c : f32
      %t = arith.addf %s, %p : f32
      linalg.yield %t : f32
  }} -> tensor<32x32xf32>
  return %r : tensor<32x32xf32>
}}"""


TRANSPOSE = """
func.func @main(%a: tensor<64x48xf32>) -> tensor<48x64xf32> {
  %e = tensor.empty() : tensor<48x64xf32>
  %r = linalg.transpose ins(%a : tensor<64x48xf32>) outs(%e : tensor<48x64xf32>)
      permutation = [1, 0]
  return %r : tensor<48x64xf32>
}"""


def pack(padded: bool = False) -> str:
    """`linalg.pack` into tiles of 8x1, with a padding value if the size does not divide."""
    rows = 60 if padded else 64
    padding = "padding_value(%zero : f32)" if padded else ""
    return f"""
func.func @main(%a: tensor<{rows}x32xf32>) -> tensor<8x32x8x1xf32> {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8x32x8x1xf32>
  %r = linalg.pack %a {padding} inner_dims_pos = [0, 1] inner_tiles = [8, 1] into %e
      : tensor<{rows}x32xf32> -> tensor<8x32x8x1xf32>
  return %r : tensor<8x32x8x1xf32>
}}"""


UNPACK = """
func.func @main(%a: tensor<8x4x8x8xf32>) -> tensor<64x32xf32> {
  %e = tensor.empty() : tensor<64x32xf32>
  %r = linalg.unpack %a inner_dims_pos = [0, 1] inner_tiles = [8, 8] into %e
      : tensor<8x4x8x8xf32> -> tensor<64x32xf32>
  return %r : tensor<64x32xf32>
}"""


def _dte(other: str) -> str:
    return f"#iree_cpu.lowering_config<{other}>"


_CONV = "distribution = [1, 1, 7, 8, 0, 0, 0], vector_common_parallel = [1, 1, 7, 8, 0, 0, 0]"
_MATMUL = _dte(
    "distribution = [8, 16, 0], vector_common_parallel = [4, 16, 0], vector_reduction = [0, 0, 2]"
)

KINDS: dict[str, Kind] = {
    "matmul": Kind(matmul(), _MATMUL, 1),
    "matmul_ta": Kind(matmul(maps="ta"), _MATMUL, 1),
    "matmul_tb": Kind(matmul(maps="tb"), _MATMUL, 1),
    "matmul_i8": Kind(matmul(a="i8", c="i32"), _MATMUL, 1),
    "matmul_bf16": Kind(matmul(a="bf16"), _MATMUL, 1),
    "matmul_f16": Kind(matmul(a="f16", c="f16"), _MATMUL, 1),
    "matmul_bias_clamp": Kind(matmul(tail=bias_clamp()), _MATMUL, 1),
    "batch_matmul": Kind(
        batch_matmul(),
        _dte(
            "distribution = [1, 8, 8, 0], vector_common_parallel = [1, 4, 8, 0], "
            "vector_reduction = [0, 0, 0, 2]"
        ),
        1,
    ),
    "matvec": Kind(
        batch_matmul("matvec", ("64x32", "32", "64")),
        _dte("distribution = [16, 0], vector_common_parallel = [8, 0], vector_reduction = [0, 4]"),
        1,
    ),
    "conv_n1": Kind(conv(), _dte(_CONV + ", vector_reduction = [0, 0, 0, 0, 1, 1, 4]"), 1),
    "conv_n2": Kind(conv(2), _dte(_CONV + ", vector_reduction = [0, 0, 0, 0, 1, 1, 4]"), 1),
    "depthwise": Kind(
        window(
            "depthwise_conv_2d_nhwc_hwc",
            "tensor.cast %w : tensor<3x3x16xf32> to tensor<3x3x16xf32>",
            "tensor<3x3x16xf32>",
            "0.0",
        ),
        _dte(
            "distribution = [1, 7, 7, 8, 0, 0], vector_common_parallel = [1, 1, 7, 8, 0, 0], "
            "vector_reduction = [0, 0, 0, 0, 1, 3]"
        ),
        1,
    ),
    "pooling": Kind(
        window("pooling_nhwc_max", POOL_FILTER, "tensor<3x3xf32>", "0xFF800000"),
        _dte(
            "distribution = [1, 7, 7, 8, 0, 0], vector_common_parallel = [1, 1, 7, 8, 0, 0], "
            "vector_reduction = [0, 0, 0, 0, 1, 3]"
        ),
        1,
    ),
    "pointwise_conv_bias": Kind(
        pointwise_conv_bias(),
        _dte(
            "distribution = [7, 7, 16, 0], vector_common_parallel = [1, 7, 16, 0], "
            "vector_reduction = [0, 0, 0, 2]"
        ),
        1,
    ),
    "reduction": Kind(
        reduction(),
        _dte("distribution = [8, 0], vector_common_parallel = [4, 0], vector_reduction = [0, 8]"),
        1,
    ),
    "softmax": Kind(
        SOFTMAX,
        _dte("vector_common_parallel = [4, 0], vector_inner_parallel = [0, 8]"),
        -1,
    ),
    "normalisation": Kind(
        normalisation(),
        _dte("vector_common_parallel = [4, 0], vector_inner_parallel = [0, 8]"),
        -1,
    ),
    "attention": Kind(
        ATTENTION,
        _dte(
            "distribution = [1, 8, 0, 0, 16], vector_common_parallel = [1, 4, 0, 0, 16], "
            "vector_reduction = [0, 0, 0, 16, 0]"
        ),
        3,
    ),
    "elementwise": Kind(
        elementwise(), _dte("distribution = [512], vector_common_parallel = [8]"), 0
    ),
    "indexed": Kind(indexed(0), _dte("distribution = [8, 8], vector_common_parallel = [4, 4]"), 0),
    "transpose": Kind(
        TRANSPOSE, _dte("distribution = [16, 16], vector_common_parallel = [8, 8]"), 0
    ),
    "pack": Kind(pack(), _dte("distribution = [2, 8], vector_common_parallel = [1, 1]"), 0),
    "unpack": Kind(UNPACK, _dte("distribution = [16, 16], vector_common_parallel = [8, 8]"), 0),
    "data_tiled_mmt4d": Kind(
        matmul(),
        _dte(
            "distribution = [3, 1, 0, 0, 0, 0], vector_common_parallel = [1, 1, 0, 16, 16, 0], "
            "vector_reduction = [0, 0, 1, 0, 0, 1]"
        ),
        1,
        DATA_TILING,
    ),
    "data_tiled_pack": Kind(
        matmul(),
        _dte("distribution = [1, 16], vector_common_parallel = [1, 1]"),
        0,
        DATA_TILING,
        dispatch=1,
    ),
}
