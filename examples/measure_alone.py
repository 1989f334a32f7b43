"""`tilewright.measure` alone: compile two programs, check that they agree, compare their speed.

Compares the matmul of this folder compiled by default with the same under data tiling. Both run in
a worker process: a crash or a hang would be a value here, not the end of this program.

python examples/measure_alone.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TypeVar

from tilewright.argument import ArgumentType
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.benchmark_worker import VerifyRequest
from tilewright.measure.comparison import ComparisonPolicy, Finalist
from tilewright.measure.compile_worker import CompileRequest, compile_pool, compile_source
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.inputs import random_inputs
from tilewright.measure.pool import Job, WorkerFailure
from tilewright.target import parse_target

PROGRAM = Path(__file__).resolve().parent / "matmul.mlir"
FUNCTION = "matmul"
ARGUMENTS = (ArgumentType("f32", (196, 256)), ArgumentType("f32", (256, 1024)))
T = TypeVar("T")
VARIANTS = {"default": (), "data tiling": ("--iree-opt-data-tiling",)}


def compile_variants(folder: Path, flags: tuple[str, ...]) -> list[str]:
    """Paths of the compiled programs, one for each variant, compiled side by side."""
    jobs = [
        Job(
            compile_source,
            CompileRequest(PROGRAM, (*flags, *extra), destination=folder / f"{i}.vmfb"),
        )
        for i, extra in enumerate(VARIANTS.values())
    ]
    with compile_pool(len(jobs)) as pool:
        results = pool.run(jobs)
    for result in results:
        if result.failure is not None:
            sys.exit(f"does not compile: {result.failure.message}")
    return [str(result.value) for result in results]


def value(answer: T | WorkerFailure) -> T:
    """What the worker found, or the end of this program with the reason."""
    if isinstance(answer, WorkerFailure):
        sys.exit(f"does not run: {answer.message}")
    return answer


def main(rounds: int = 30) -> list[Finalist]:
    target = parse_target("cpu")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        programs = compile_variants(folder, target.flags)
        inputs = random_inputs(folder, ARGUMENTS, seed=1)
        with Benchmark(DeviceOptions.cpu(target.cores)) as bench:
            # The first program's outputs are the reference that the second one is held against.
            reference = folder / "expected.npz"
            value(bench.run(programs[0], inputs, reference, function=FUNCTION))
            (verdict,) = value(
                bench.verify(
                    VerifyRequest(
                        programs[1], inputs, str(reference), reduction_length=256, function=FUNCTION
                    )
                )
            )
            print("outputs agree" if verdict.ok else f"outputs differ: {verdict}")

            policy = ComparisonPolicy(rounds=rounds, max_s=20.0)
            judged = value(
                bench.compare_interleaved(programs, inputs, policy=policy, function=FUNCTION)
            )
    for name, one in zip(VARIANTS, judged, strict=True):
        ratio = one.speedup
        print(
            f"{name}: {one.measurement.median_s * 1e3:.3f} ms, {ratio.value:.2f} times the "
            f"default's speed ({ratio.low:.2f} to {ratio.high:.2f}): {one.verdict}"
        )
    return judged


if __name__ == "__main__":
    main()
