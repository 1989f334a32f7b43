"""Time what a trial of a kernel of our own is made of, as a search does them, in batches.

    python benchmarks/kernel_trials.py                             # matmul 512 and a convolution
    python benchmarks/kernel_trials.py --site matmul --size 512 --trials 32 --threads 2

Configurations are drawn uniformly from the spaces of the sketches that fit. A batch is compiled by
as many workers as there are cores, then each program is timed and checked. The table has medians in
milliseconds: of one trial's parts in its worker, of the time that one trial takes of the run, and
trials a second. Trials that failed are counted by their status.
"""

from __future__ import annotations

import argparse
import collections
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tilewright import te
from tilewright.argument import ArgumentType
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.compile_worker import compile_pool
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.inputs import load_arguments, random_inputs, write_outputs
from tilewright.measure.jobs import Job
from tilewright.site import KernelChoice
from tilewright.sketch.candidate import CompiledKernel, KernelRequest, stored
from tilewright.sketch.candidate_tasks import compile_kernel
from tilewright.sketch.generators import sketches
from tilewright.sketch.interface import SiteExpression
from tilewright.target import Target, parse_target
from tilewright.tuning.candidate_trial import CandidateTester, Reference
from tilewright.tuning.session_stages import SEARCH_TIMING
from tilewright.tuning.task import repeats_for

BATCH = 16


class Amount(NamedTuple):
    """How much a site does."""

    flops: int
    bytes: int


def matmul(size: int) -> SiteExpression:
    """C = A B, where B is a constant."""
    a = te.placeholder((size, size), "f32", name="A")
    b = te.placeholder((size, size), "f32", name="B")
    k = te.reduce_axis(size, "k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return SiteExpression((a, b), (False, True), c)


def convolution(size: int) -> SiteExpression:
    """A 3x3 convolution of `size` x `size` points and 256 channels in NHWC, with its border."""
    channels = 256
    x = te.placeholder((1, size, size, channels), "f32", name="x")
    w = te.placeholder((3, 3, channels, channels), "f32", name="w")
    padded = te.compute(
        (1, size + 2, size + 2, channels),
        lambda n, i, j, c: te.if_then_else(
            te.all(i >= 1, i < size + 1, j >= 1, j < size + 1), x[n, i - 1, j - 1, c], 0.0
        ),
        name="padded",
    )
    di, dj = te.reduce_axis(3, "di"), te.reduce_axis(3, "dj")
    c = te.reduce_axis(channels, "c")
    y = te.compute(
        (1, size, size, channels),
        lambda n, i, j, o: te.sum(padded[n, i + di, j + dj, c] * w[di, dj, c, o], axis=[di, dj, c]),
        name="y",
    )
    return SiteExpression((x, w), (False, True), y)


def expected(site: str, arrays: list[np.ndarray]) -> np.ndarray:
    """What a site makes of its inputs, in float64."""
    a, b = (np.asarray(one, np.float64) for one in arrays)
    if site == "matmul":
        return a @ b
    size = a.shape[1]
    padded = np.pad(a, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = [padded[:, i : i + size, j : j + size] @ b[i, j] for i in range(3) for j in range(3)]
    return np.sum(windows, axis=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--site", choices=("matmul", "convolution"))
    parser.add_argument("--size", type=int)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    target = parse_target("cpu", options.threads)
    for site, size in (("matmul", 512), ("convolution", 14)):
        if options.site in (None, site):
            run(site, options.size or size, options.trials, target, options.seed)


def run(name: str, size: int, trials: int, target: Target, seed: int) -> None:
    """Tries configurations of one site, and prints the table."""
    site = matmul(size) if name == "matmul" else convolution(size)
    flops = 2 * size**3 if name == "matmul" else 2 * size**2 * 9 * 256**2
    types = [ArgumentType(one.dtype, one.shape) for one in site.inputs]
    repeats = repeats_for(Amount(flops, 0), target.cores)
    choices = []
    generator = np.random.default_rng(seed)
    for sketch in sketches(site, target):
        drawn = [sketch.space.default, *sketch.space.sample(generator, trials - 1)]
        choices += [KernelChoice(sketch.name, one) for one in drawn]
    parts: dict[str, list[float]] = collections.defaultdict(list)
    statuses: collections.Counter[str] = collections.Counter()
    best = float("inf")
    with (
        tempfile.TemporaryDirectory() as place,
        compile_pool(target.cores, flags=(target.flags,)) as pool,
        Benchmark(DeviceOptions.cpu(target.cores), timeout_s=20) as benchmark,
    ):
        folder = Path(place)
        inputs = random_inputs(folder / "inputs", types)
        write_outputs(folder / "expected.npz", [expected(name, load_arguments(inputs))])
        reference = Reference(inputs, folder / "expected.npz", ("f32",), flops // size**2 // 2)
        expression = stored(site)

        def request(number: int, choice: KernelChoice) -> KernelRequest:
            return KernelRequest(
                expression,
                choice,
                target,
                target.flags,
                repeats,
                folder / f"{number}.vmfb",
                programs=folder / "programs",
                inputs=inputs,
                packed=folder / "packed",
            )

        # What is done once for a task: compilers, host code.
        pool.run([Job(compile_kernel, request(-n - 1, choices[0]), 60) for n in range(2)])
        (folder / "programs").rename(folder / "first")
        begin = time.perf_counter()
        compiling = 0.0
        for start in range(0, len(choices), BATCH):
            batch = list(enumerate(choices[start : start + BATCH], start))
            before = time.perf_counter()
            results = pool.run([Job(compile_kernel, request(*one), 60, one) for one in batch])
            compiling += time.perf_counter() - before
            for result in results:
                if result.failure is not None:
                    statuses[f"{result.failure.compile_status.value}"] += 1
                    continue
                made: CompiledKernel = result.value
                vmfb = folder / f"{result.job.tag[0]}.vmfb"
                if not vmfb.exists():
                    statuses["equal to another"] += 1
                    continue
                for part, seconds in made.phase_s.items():
                    parts[part].append(seconds)
                parts["worker"].append(result.seconds)
                tester = CandidateTester(
                    benchmark, replace(reference, inputs=made.inputs or inputs), repeats
                )
                before = time.perf_counter()
                timed = tester.time(vmfb, SEARCH_TIMING, best if best < 1 else None)
                parts["measure"].append(time.perf_counter() - before)
                before = time.perf_counter()
                checked = tester.check(vmfb) if timed.ok else timed
                parts["verify"].append(time.perf_counter() - before)
                statuses[checked.status.value] += 1
                if checked.ok and timed.measurement is not None:
                    best = min(best, timed.measurement.time_s)
                vmfb.unlink()
        total = time.perf_counter() - begin
    print(f"{name} {size}, {target.cores} threads, {repeats} executions in a submission")
    print("  " + ", ".join(f"{count} {status}" for status, count in statuses.most_common()))
    for part, seconds in parts.items():
        print(f"  {part:9} {statistics.median(seconds) * 1e3:8.1f} ms")
    done = len(choices)
    share = f"{compiling / done * 1e3:.1f} compiling"
    print(f"  a trial   {total / done * 1e3:8.1f} ms of the run ({share})")
    print(f"  {done / total:.1f} trials/s; best {flops / best / 1e9:.0f} GFLOP/s")


if __name__ == "__main__":
    main()
