"""Time a chain of matrix products on two workers, as a process like any other and as a batch one.

    python wait_preempts_worker.py [ROUNDS]

Prints the mean of a call in each, in turns. With `--batch` a thread that is woken does not take the
core of a running one, so that the worker that wakes the waiting thread can finish.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)
SIZE, PRODUCTS = 256, 16


def program() -> str:
    """Products of one matrix with itself, each of the one before."""
    t = f"tensor<{SIZE}x{SIZE}xf32>"
    lines = [f"func.func @main(%x: {t}) -> {t} {{", "  %z = arith.constant 0.0 : f32"]
    last = "%x"
    for i in range(PRODUCTS):
        lines += [
            f"  %e{i} = tensor.empty() : {t}",
            f"  %f{i} = linalg.fill ins(%z : f32) outs(%e{i} : {t}) -> {t}",
            f"  %r{i} = linalg.matmul ins({last}, %x : {t}, {t}) outs(%f{i} : {t}) -> {t}",
        ]
        last = f"%r{i}"
    return "\n".join([*lines, f"  return {last} : {t}", "}"])


def milliseconds(module: Path, *prefix: str) -> float:
    """Mean of a call."""
    ran = subprocess.run(
        [
            *prefix,
            "iree-benchmark-module",
            f"--module={module}",
            "--function=main",
            f"--input={SIZE}x{SIZE}xf32=0",
            "--device=local-task",
            f"--task_topology_group_count={len(os.sched_getaffinity(0))}",
            "--benchmark_format=json",
            "--benchmark_min_time=1s",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(ran.stdout)["benchmarks"][0]["real_time"]


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as folder:
        source, module = Path(folder, "chain.mlir"), Path(folder, "chain.vmfb")
        source.write_text(program())
        subprocess.run(["iree-compile", source, *FLAGS, "-o", module], check=True)
        times = [
            (milliseconds(module), milliseconds(module, "chrt", "--batch", "0"))
            for _ in range(rounds)
        ]
    plain, batch = (median(column) for column in zip(*times, strict=True))
    print(f"{plain:.2f} ms, as a batch process {batch:.2f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
