"""Records dispatches as IREE configures them for GPUs, for tests that need no compiler.

    python tests/space/record_gpu.py

writes `recorded/*.json`: the template with the constraints, the workload, and the constraints as
SMT-LIB. Run it again when the compiler changes.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "ir"))

from gpu_programs import attention, contraction, convolution, row_sum, to_smtlib
from iree.compiler import ir

from tilewright.ir.gpu_constraints import EMIT_CONSTRAINTS
from tilewright.ir.session import CompilerSession, set_global_options
from tilewright.ir.template import dispatch_functions, read_dispatch
from tilewright.target import parse_target

FOLDER = Path(__file__).parent / "recorded"

CASES = {
    "matmul_f16_sm_80": (contraction("f16", "f32", 256, 192, 128), "cuda:sm_80"),
    "matmul_f16_gfx942": (contraction("f16", "f32", 256, 256, 128), "rocm:gfx942"),
    "matmul_4096_f16_sm_80": (contraction("f16", "f32", 4096, 4096, 4096), "cuda:sm_80"),
    "conv_f16_gfx942": (convolution("f16", "f32"), "rocm:gfx942"),
    "attention_f16_gfx942": (attention("f16"), "rocm:gfx942"),
    "batch_matmul_f16_gfx942": (contraction("f16", "f32", 128, 256, 128, 8), "rocm:gfx942"),
    "matmul_f32_sm_80": (contraction("f32", "f32", 256, 192, 128), "cuda:sm_80"),
    "attention_f16_sm_80": (attention("f16"), "cuda:sm_80"),
    "attention_f32_sm_80": (attention("f32"), "cuda:sm_80"),
    "row_sum_sm_80": (row_sum(512, 4096), "cuda:sm_80"),
    "matmul_f32_ampere": (contraction("f32", "f32", 256, 192, 128), "vulkan:ampere"),
    "matmul_f16_ampere": (contraction("f16", "f32", 256, 192, 128), "vulkan:ampere"),
    "row_sum_ampere": (row_sum(512, 4096), "vulkan:ampere"),
    # Tiles that do not divide the loops; what the constraints leave nothing of.
    "conv_padded_f16_gfx942": (convolution("f16", "f32", 30), "rocm:gfx942"),
    "batch_matmul_padded_f32_gfx942": (
        contraction("f32", "f32", 192, 192, 192, 4),
        "rocm:gfx942",
    ),
    "attention_width_96_f32_gfx942": (attention("f32", 8, 384, 96, 384), "rocm:gfx942"),
    "conv_f32_ampere": (convolution("f32", "f32"), "vulkan:ampere"),
    "batch_matmul_f16_ampere": (contraction("f16", "f32", 128, 256, 128, 8), "vulkan:ampere"),
}


def record(program: str, target_name: str) -> dict[str, object]:
    target = parse_target(target_name)
    # IREE 3.13 crashes where it is to state the constraints of a batched product.
    stated = () if "batch_matmul" in program else (EMIT_CONSTRAINTS,)
    flags = (*target.flags, "--iree-codegen-add-tuner-attributes", *stated)
    session = CompilerSession(flags)
    text = session.compile(program, compile_to="executable-configurations")
    with session.context:
        module = ir.Module.parse(text)
        (name,) = dispatch_functions(module)
        executable, entry = name.split("/")
        found = read_dispatch(module, executable, entry)
        smtlib = [to_smtlib(found.function, p.ordinal) for p in found.template.programs]
        return {
            "target": target_name,
            "template": found.template.to_json(),
            "workload": found.workload.to_json(),
            "smtlib": smtlib,
        }


def write(name: str) -> int:
    """Record a case to its file; its size."""
    set_global_options("--mlir-disable-threading")
    data = json.dumps(record(*CASES[name]), separators=(",", ":"))
    (FOLDER / f"{name}.json").write_text(data + "\n")
    return len(data)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    # A process for each: a compiler that goes away takes what was read from it along.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name, size in zip(CASES, pool.imap(write, CASES), strict=True):
            print(name, size)
