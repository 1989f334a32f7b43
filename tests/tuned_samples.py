"""Small programs, and tuning specs that give their dispatches other tile sizes."""

from __future__ import annotations

import json
from pathlib import Path

from iree.compiler import ir

from tilewright.ir.configuring import DispatchAttributes
from tilewright.ir.session import CompilerSession
from tilewright.ir.template import dispatch_functions, read_dispatch
from tilewright.spec.write import SpecEntry, write_spec
from tilewright.tiling import Tiling
from tilewright.toolchain import installed_version

HOST = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)


def matmul(m: int = 64, n: int = 64, k: int = 64) -> str:
    """A program of one f32 matmul."""
    return f"""
func.func @main(%a: tensor<{m}x{k}xf32>, %b: tensor<{k}x{n}xf32>) -> tensor<{m}x{n}xf32> {{
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<{m}x{n}xf32>
  %fill = linalg.fill ins(%zero : f32) outs(%empty : tensor<{m}x{n}xf32>) -> tensor<{m}x{n}xf32>
  %c = linalg.matmul ins(%a, %b : tensor<{m}x{k}xf32>, tensor<{k}x{n}xf32>)
      outs(%fill : tensor<{m}x{n}xf32>) -> tensor<{m}x{n}xf32>
  return %c : tensor<{m}x{n}xf32>
}}
"""


# A batch-1 convolution loses an attribute on its op, a matmul keeps it.
MATMUL_AND_CONVOLUTION = """
func.func @main(%a: tensor<64x64xf32>, %b: tensor<64x64xf32>, %x: tensor<1x18x18x16xf32>,
    %w: tensor<3x3x16x32xf32>) -> (tensor<64x64xf32>, tensor<1x16x16x32xf32>) {
  %zero = arith.constant 0.0 : f32
  %e0 = tensor.empty() : tensor<64x64xf32>
  %f0 = linalg.fill ins(%zero : f32) outs(%e0 : tensor<64x64xf32>) -> tensor<64x64xf32>
  %c = linalg.matmul ins(%a, %b : tensor<64x64xf32>, tensor<64x64xf32>)
      outs(%f0 : tensor<64x64xf32>) -> tensor<64x64xf32>
  %e1 = tensor.empty() : tensor<1x16x16x32xf32>
  %f1 = linalg.fill ins(%zero : f32) outs(%e1 : tensor<1x16x16x32xf32>) -> tensor<1x16x16x32xf32>
  %y = linalg.conv_2d_nhwc_hwcf {dilations = dense<1> : tensor<2xi64>,
      strides = dense<1> : tensor<2xi64>}
      ins(%x, %w : tensor<1x18x18x16xf32>, tensor<3x3x16x32xf32>)
      outs(%f1 : tensor<1x16x16x32xf32>) -> tensor<1x16x16x32xf32>
  return %c, %y : tensor<64x64xf32>, tensor<1x16x16x32xf32>
}
"""


def write_halved_spec(
    program: str,
    path: Path,
    header: dict[str, str] | None = None,
    levels_halved: tuple[str, ...] = ("distribution",),
) -> Path:
    """A spec that halves tiles of every dispatch of a program, at the levels that these have."""
    session = CompilerSession([*HOST, "--iree-codegen-add-tuner-attributes"])
    text = session.compile(program, compile_to="executable-configurations")
    entries = []
    with session.context:
        module = ir.Module.parse(text)
        for place in dispatch_functions(module):
            found = read_dispatch(module, *place.split("/"))
            template = found.template
            assert template.root_op.tiling is not None
            levels = dict(template.root_op.tiling.levels)
            # Which levels there are depends on the processor.
            for name in levels.keys() & set(levels_halved):
                levels[name] = tuple(-(-size // 2) for size in levels[name])
            configuration = template.configure(Tiling.of(levels), template.translation)
            attributes = DispatchAttributes.of(found.function, configuration)
            entries.append(SpecEntry(f"halved_{len(entries)}", found.function, attributes))
        path.write_text(write_spec(entries, header=header or {}))
    return path


def result_folder(path: Path, spec: str, **changes: object) -> Path:
    """A result folder of `tilewright tune`, as far as applying it reads it."""
    path.mkdir()
    (path / "tuning_spec.mlir").write_text(spec)
    manifest = {
        "compiler": installed_version("iree-base-compiler"),
        "options": {"target": "cpu", "iree_flags": ["--iree-opt-level=O2"]},
        "variant": "data-tiling",
        "variant_flags": ["--iree-opt-data-tiling"],
        **changes,
    }
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def recorded_folder(
    folder: Path,
    spec: str,
    program: str = MATMUL_AND_CONVOLUTION,
    speedup: float = 1.0,
    entries: tuple[str, ...] = ("halved_0", "halved_1"),
    **changes: object,
) -> Path:
    """A result folder with all that a check reads; its program lies beside it."""
    source = folder.parent / "program.mlir"
    source.write_text(program)
    manifest = {
        "options": {"target": "cpu", "iree_flags": [], "threads": 1, "effort": "quick"},
        "variant": "default",
        "variant_flags": [],
        "target": "llvm-cpu/pentium/8B/1t",
        "machine": {"cpu": "another"},
        "date": "2026-01-01T00:00:00+0000",
        # Where it was on the machine that it was tuned on.
        "program": {"path": "/nowhere/program.mlir", "digest": "d", "runtime_parameters": []},
        **changes,
    }
    made = result_folder(folder, spec, **manifest)
    summary = {
        "program": {
            "default_ms": 2.0,
            "tuned_ms": 2.0 / speedup,
            "speedup": speedup,
            "speedup_ci": [speedup, speedup],
        },
        "dispatches": [{"entry": name} for name in entries] + [{"entry": ""}],
    }
    (made / "summary.json").write_text(json.dumps(summary))
    return made
