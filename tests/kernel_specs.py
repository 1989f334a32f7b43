"""Sites with kernels for them, the specs that have both, and programs compiled with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import iree.runtime as rt
import numpy as np
from iree.compiler import ir
from numpy.typing import NDArray

from tilewright import te
from tilewright.ir.walk import walk
from tilewright.schedule.tensor import ComputeOp, Tensor
from tilewright.site import KernelChoice
from tilewright.sketch.interface import SketchedKernel
from tilewright.sketch.packing import Packing
from tilewright.sketch.spec import SpecKernel, write_kernel_spec
from tilewright.spec import library
from tilewright.spec.kernels import executables_of
from tilewright.target import Target, parse_target
from tilewright.toolchain import Toolchain
from tilewright.trial import Configuration
from tilewright.tuning.variants import PREPROCESSING_FLAG

TARGET: Target = parse_target("cpu", 2)

IDENTITY = "affine_map<(i, j) -> (i, j)>"
PARALLEL = 'iterator_types = ["parallel", "parallel"]'


def pointwise(name: str, source: str, body: str, shape: str = "24x32", inputs: int = 1) -> str:
    """A `linalg.generic` of `source`, given `inputs` times; body of %p (and %q) gives %r."""
    type_ = f"tensor<{shape}xf32>"
    maps = ", ".join([IDENTITY] * (inputs + 1))
    arguments = ", ".join(f"%{name}: f32" for name in "pq"[:inputs])
    return f"""
      %{name}_e = tensor.empty() : {type_}
      %{name} = linalg.generic {{indexing_maps = [{maps}], {PARALLEL}}}
        ins({", ".join([source] * inputs)} : {", ".join([type_] * inputs)})
        outs(%{name}_e : {type_}) {{
      ^bb0({arguments}, %o: f32):
        {body}
        linalg.yield %r : f32
      }} -> {type_}"""


def add(name: str, left: str, right: str) -> str:
    """The sum of two tensors."""
    type_ = "tensor<24x32xf32>"
    return f"""
      %{name} = arith.addf {left}, {right} : {type_}"""


def product(
    name: str, left: str, right: str, bias: str, top: str = "%zero", swapped: bool = False
) -> str:
    """max(left * right + bias, top), of 24x16 and 16x32; bias + ... where it is swapped."""
    terms = "%q, %p" if swapped else "%p, %q"
    return f"""
      %{name}_e = tensor.empty() : tensor<24x32xf32>
      %{name}_f = linalg.fill ins(%zero : f32) outs(%{name}_e : tensor<24x32xf32>)
        -> tensor<24x32xf32>
      %{name}_p = linalg.matmul ins({left}, {right} : tensor<24x16xf32>, tensor<16x32xf32>)
        outs(%{name}_f : tensor<24x32xf32>) -> tensor<24x32xf32>
      %{name} = linalg.generic {{
          indexing_maps = [{IDENTITY}, affine_map<(i, j) -> (j)>, {IDENTITY}], {PARALLEL}}}
        ins(%{name}_p, {bias} : tensor<24x32xf32>, tensor<32xf32>)
        outs(%{name}_e : tensor<24x32xf32>) {{
      ^bb0(%p: f32, %q: f32, %o: f32):
        %s = arith.addf {terms} : f32
        %r = arith.maximumf %s, {top} : f32
        linalg.yield %r : f32
      }} -> tensor<24x32xf32>"""


ZERO = "%zero = arith.constant 0.0 : f32"


def function(inputs: str, result: str, type_: str, *body: str) -> str:
    """The module of a site."""
    return f"""
    util.func public @main({inputs}) -> {type_} {{
      {ZERO}{"".join(body)}
      util.return {result} : {type_}
    }}"""


PRODUCT = function(
    "%x: tensor<24x16xf32>, %w: tensor<16x32xf32>, %b: tensor<32xf32>",
    "%y",
    "tensor<24x32xf32>",
    product("y", "%x", "%w", "%b"),
)


def product_kernel(
    packed: bool = True,
    top: float = 0.0,
    factor: float = 1.0,
    inside: bool = False,
    split: bool = False,
) -> SketchedKernel:
    """max(x * w + b, top) * factor, with the columns of w in panels of 8 where it is packed: ahead,
    or inside, by a dispatch of its own; or in three parts of bf16."""
    x, b = te.placeholder((24, 16), "f32", name="x"), te.placeholder((32,), "f32", name="b")
    k = te.reduce_axis(16, "k")
    if split:
        packing = {1: Packing((0, 0), ((16,), (4, 8)), (1, 0, 2), terms=(3, 1))}
        w = te.placeholder((4, 3, 16, 8), "bf16", name="w")
        weight = lambda k, j: sum(  # noqa: E731
            w[j // 8, n, k, j % 8].astype("f32") for n in (2, 1, 0)
        )
    elif inside:
        packing = {}
        w = te.placeholder((16, 32), "f32", name="w")
        panels = te.compute((4, 16, 8), lambda o, k, j: w[k, 8 * o + j], name="panels")
        weight = lambda k, j: panels[j // 8, k, j % 8]  # noqa: E731
    elif packed:
        packing = {1: Packing((0, 0), ((16,), (4, 8)), (1, 0, 2))}
        w = te.placeholder((4, 16, 8), "f32", name="w")
        weight = lambda k, j: w[j // 8, k, j % 8]  # noqa: E731
    else:
        packing = {}
        w = te.placeholder((16, 32), "f32", name="w")
        weight = lambda k, j: w[k, j]  # noqa: E731
    p = te.compute((24, 32), lambda i, j: te.sum(x[i, k] * weight(k, j), axis=k), name="p")
    y = te.compute((24, 32), lambda i, j: te.maximum(p[i, j] + b[j], top) * factor, name="y")
    schedule = te.create_schedule(y)
    outer, inner = schedule[y].split(y.op.axis[1], 8)
    schedule[y].reorder(outer, y.op.axis[0], inner)
    schedule[p].compute_at(schedule[y], y.op.axis[0])
    schedule[y].parallel(outer)
    schedule[y].vectorize(inner)
    return SketchedKernel(schedule, (x, w, b, y), packing)


def plain_kernel(*arguments: Tensor) -> SketchedKernel:
    """The expression as it is: one parallel loop."""
    output = arguments[-1]
    schedule = te.create_schedule(output)
    for stage in schedule.stages:
        if isinstance(stage.op, ComputeOp) and stage is not schedule[output]:
            stage.compute_inline()
    schedule[output].parallel(output.op.axis[0])
    return SketchedKernel(schedule, arguments)


def spec_kernel(
    name: str, site: str, kernel: SketchedKernel, target: Target = TARGET
) -> SpecKernel:
    """The kernel with a choice that says nothing."""
    choice = KernelChoice("by-hand", Configuration.of({"width": 8}))
    return SpecKernel(name, site.encode(), kernel, choice, target)


def spec_of(*kernels: SpecKernel) -> str:
    """A spec of kernels."""
    return write_kernel_spec(kernels, {"target": TARGET.key})


@dataclass
class Compiler:
    """The native compiler, with a spec or without."""

    folder: Path
    flags: tuple[str, ...] = ()

    def compiled(self, program: str | Path, spec: str | None, phase: str = "") -> bytes:
        path, source = self.folder / "out", self.folder / "program.mlir"
        if isinstance(program, str):
            source.write_text(program)
        flags = [*TARGET.flags, *self.flags]
        if spec is not None:
            (self.folder / "spec.mlir").write_text(spec)
            flags.append(f"{PREPROCESSING_FLAG}={self.folder / 'spec.mlir'}")
        if phase:
            flags.append(f"--compile-to={phase}")
        given = source if isinstance(program, str) else program
        outcome = Toolchain().compile(given, path, tuple(flags), timeout_s=120.0)
        assert outcome.ok, outcome.log
        return path.read_bytes()

    def module(self, program: str | Path, spec: str | None, phase: str) -> ir.Module:
        """The program at a phase."""
        context = library.new_context()
        return ir.Module.parse(self.compiled(program, spec, phase), context)

    def dispatched(self, program: str | Path, spec: str | None) -> Counter[str]:
        """How often each kernel of ours is dispatched, by its name in the spec."""
        module = self.module(program, spec, "flow")
        names = executables_of(module.operation)
        entries = [
            library.text(ir.ArrayAttr(op.attributes["entry_points"])[0]).partition("::")[0]
            for op in walk(module.operation)
            if op.name == "flow.dispatch"
        ]
        return Counter(name for one in entries for name in names.get(one, ()))

    def run(
        self,
        program: str | Path,
        spec: str | None,
        *inputs: NDArray[np.generic],
        main: Sequence[str] = ("main",),
        archive: Path | None = None,
    ) -> list[NDArray[np.generic]]:
        """What functions of the program compute of the inputs."""
        config = rt.Config("local-sync")
        module = rt.VmModule.copy_buffer(config.vm_instance, self.compiled(program, spec))
        modules = [module]
        if archive is not None:
            index = rt.ParameterIndex()
            index.load(str(archive))
            provider = index.create_provider("model")
            modules.insert(0, rt.create_io_parameters_module(config.vm_instance, provider))
        context = rt.SystemContext(vm_modules=modules, config=config)
        functions = context.modules.module
        return [np.asarray(functions[name](*inputs).to_host()) for name in main]


def random(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def same(found: NDArray[np.generic], wanted: NDArray[np.generic], epsilon: float = 1e-5) -> None:
    """Assert that both are the same but for rounding."""
    np.testing.assert_allclose(found, wanted, rtol=epsilon, atol=epsilon)


def programs(body: Sequence[str], inputs: str, result: str, type_: str, name: str = "main") -> str:
    """A function of a program."""
    return f"""
    func.func @{name}({inputs}) -> {type_} {{
      {ZERO}{"".join(body)}
      return {result} : {type_}
    }}"""
