"""Compile a program of forty dispatches with a tuning spec until iree-compile stands still.

    python tuning_spec_deadlock.py [ATTEMPTS]

Prints the attempt that stopped; `--mlir-disable-threading` never does. The spec does nothing. The
more sequences it has, the more of its verification is handed to other threads.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=generic",
    "--compile-to=executable-configurations",
)
LIMIT_S = 60.0


def program(dispatches: int) -> str:
    """As many matrix products, each of a size of its own."""
    results = [f"tensor<{m}x16xf32>" for m in range(2, dispatches + 2)]
    body = "".join(
        f"""
  %a{m} = util.unfoldable_constant dense<1.0> : {t}
  %e{m} = tensor.empty() : {t}
  %f{m} = linalg.fill ins(%z : f32) outs(%e{m} : {t}) -> {t}
  %r{m} = linalg.matmul ins(%a{m}, %x : {t}, tensor<16x16xf32>) outs(%f{m} : {t}) -> {t}"""
        for m, t in enumerate(results)
    )
    names = ", ".join(f"%r{m}" for m in range(dispatches))
    return (
        f"func.func @main(%x: tensor<16x16xf32>) -> ({', '.join(results)}) {{\n"
        f"  %z = arith.constant 0.0 : f32{body}\n  return {names} : {', '.join(results)}\n}}\n"
    )


def spec(sequences: int) -> str:
    """A tuning spec that changes nothing, with sequences that nothing uses."""
    argument = "%op: !transform.any_op {transform.readonly}"
    unused = "".join(
        f"  transform.named_sequence @unused_{n}({argument}) {{ transform.yield }}\n"
        for n in range(sequences)
    )
    return (
        f"module attributes {{transform.with_named_sequence}} {{\n{unused}"
        f"  transform.named_sequence @__kernel_config({argument}) -> !transform.any_op\n"
        "      attributes {iree_codegen.tuning_spec_entrypoint} {\n"
        "    transform.yield %op : !transform.any_op\n  }\n}\n"
    )


def attempt(folder: Path, *flags: str) -> bool:
    """Whether iree-compile came to an end."""
    (folder / "program.mlir").write_text(program(40))
    (folder / "spec.mlir").write_text(spec(64))
    named = f"--iree-codegen-tuning-spec-path={folder / 'spec.mlir'}"
    command = ["iree-compile", str(folder / "program.mlir"), *FLAGS, named, *flags]
    try:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return False
    return True


if __name__ == "__main__":
    attempts = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1, attempts + 1):
            if not attempt(Path(folder)):
                print(f"attempt {number} stood still")
                break
        else:
            print(f"none of {attempts} attempts stood still")
