"""IREE's default, what tilewright finds, and torch (cuBLAS), for square matrix products on a GPU.

    python benchmarks/gpu.py --target cuda:sm_80 [--device cuda://0] [--sizes 128,512,1024,4096]
                             [--types f32,f16] [--trials 64] [--runner dir:PATH]

prints the table of docs/gpu.md, with date and versions. torch is timed on the same card in the same
run where it is installed with CUDA. Without a device (and without --runner) nothing can be
measured: the spaces are compiled instead, and every row says so.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tilewright.measure.devices import drivers
from tilewright.target import parse_target
from tilewright.toolchain import versions

PROGRAM = """
func.func @main(%a: tensor<{n}x{n}x{a}>, %b: tensor<{n}x{n}x{a}>) -> tensor<{n}x{n}xf32> {{
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<{n}x{n}xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<{n}x{n}xf32>) -> tensor<{n}x{n}xf32>
  %r = linalg.matmul ins(%a, %b : tensor<{n}x{n}x{a}>, tensor<{n}x{n}x{a}>)
    outs(%f : tensor<{n}x{n}xf32>) -> tensor<{n}x{n}xf32>
  return %r : tensor<{n}x{n}xf32>
}}
"""


def has_device(target: str) -> bool:
    """Whether the runtime finds a device of the target's kind on this machine."""
    wanted = parse_target(target).device.partition(":")[0]
    return any(driver.name == wanted and driver.devices for driver in drivers())


def tilewright(arguments: list[str], output: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tilewright", "tune", *arguments, "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["failed"])[-1]}
    summary: dict[str, Any] = json.loads((output / "summary.json").read_text())
    return summary


def torch_ms(size: int, kind: str) -> float | str:
    """Milliseconds of torch.matmul, the median of 50 by CUDA events, or why there is none."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return "torch finds no device"
    dtype = {"f32": torch.float32, "f16": torch.float16}[kind]
    torch.backends.cuda.matmul.allow_tf32 = False
    a, b = (torch.randn(size, size, dtype=dtype, device="cuda") for _ in range(2))
    for _ in range(10):
        a @ b
    times = []
    for _ in range(50):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(10):
            a @ b
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 10)
    return sorted(times)[len(times) // 2]


def row(size: int, kind: str, options: argparse.Namespace, work: Path, device: bool) -> list[str]:
    program = work / f"matmul_{size}_{kind}.mlir"
    program.write_text(PROGRAM.format(n=size, a=kind))
    arguments = [str(program), "--target", options.target, "--fresh"]
    if not device and not options.runner:
        arguments += ["--compile-only", "--max-trials", str(min(8, options.trials))]
        found = tilewright(arguments, work / f"out_{size}_{kind}")
        if "error" in found:
            return [f"{size}", kind, "-", "-", "-", found["error"]]
        rate = found["compile_rate"] or 0.0
        return [f"{size}", kind, "-", "-", "-", f"not measured: no device; {rate:.0%} compile"]
    arguments += ["--max-trials", str(options.trials)]
    arguments += ["--device", options.device] if options.device else []
    arguments += ["--runner", options.runner] if options.runner else []
    found = tilewright(arguments, work / f"out_{size}_{kind}")
    if "error" in found:
        return [f"{size}", kind, "-", "-", "-", found["error"]]
    (dispatch,) = [d for d in found["dispatches"] if d["default_ms"] is not None][:1]
    peer = torch_ms(size, kind) if device else "torch is not timed with --runner"
    flops = 2 * size**3
    cells = [dispatch["default_ms"], dispatch["tuned_ms"], peer]
    shown = [
        f"{ms:.4g} ({flops / ms / 1e9:.1f})" if not isinstance(ms, str) else "-" for ms in cells
    ]
    return [f"{size}", kind, *shown, peer if isinstance(peer, str) else dispatch["status"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="cuda:sm_80")
    parser.add_argument("--device")
    parser.add_argument("--runner")
    parser.add_argument("--sizes", default="128,512,1024,4096")
    parser.add_argument("--types", default="f32,f16")
    parser.add_argument("--trials", type=int, default=64)
    options = parser.parse_args()
    device = has_device(options.target)
    installed = ", ".join(f"{name} {version}" for name, version in versions().items() if version)
    print(f"{datetime.date.today()}, target {options.target}: {installed}\n")
    print("| M=N=K | types | IREE default, ms (TFLOP/s) | tuned | torch | |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as work:
        for kind in options.types.split(","):
            for size in map(int, options.sizes.split(",")):
                print(
                    "| " + " | ".join(row(size, kind, options, Path(work), device)) + " |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
