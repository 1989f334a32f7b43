"""What a cluster costs and gains, with processes of this machine.

    python benchmarks/cluster.py
    python benchmarks/cluster.py throughput overhead

- `throughput`: candidates compiled a second by one compile worker and by two, in turns.
- `overhead`: seconds of a trial (compiled, timed, checked) with one compile worker and one device
  worker of a cluster, over those with one of each in this process's pools, in turns.
- `result`: a run without a cluster, one with a scheduler, four compile workers and one device
  worker by TLS, and one of which a compile worker and the device worker are killed on the way
  (another device worker is there): times of the program, trials, what was found.

Times are of one machine and mean nothing beside other work; ratios are of rounds in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from tilewright.argument import ArgumentType
from tilewright.cluster.certificates import make_certificates
from tilewright.cluster.connecting import ClusterNeeds, open_cluster
from tilewright.cluster.dispatching import CPU
from tilewright.cluster.handing_out import ClusterBenchmark, ClusterPool
from tilewright.cluster.place import ClusterPlace
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.compile_worker import compile_pool
from tilewright.measure.inputs import InputSet, random_inputs
from tilewright.measure.jobs import JobRunner
from tilewright.measure.runtime import DeviceOptions
from tilewright.target import parse_target
from tilewright.tuning.opening import open_program
from tilewright.tuning.prepare import take_apart
from tilewright.tuning.session_stages import SEARCH_TIMING
from tilewright.tuning.stages import CompiledCandidate, DispatchCompiler
from tilewright.tuning.task import DispatchTask

PROGRAM = Path(__file__).resolve().parent.parent / "examples" / "matmul.mlir"
BATCH = 16


@contextmanager
def opened_task(work: Path) -> Iterator[tuple[DispatchTask, InputSet]]:
    """The example's dispatch with inputs."""
    with open_program(PROGRAM, parse_target("cpu", 1)) as opened:
        task = take_apart(opened).tasks[0]
        shapes = ((196, 256), (256, 1024), (1024,))
        types = [ArgumentType("f32", shape) for shape in shapes]
        yield task, random_inputs(work / "inputs", types)


class Candidates:
    """Batches of configurations of a task, none of them twice."""

    def __init__(self, task: DispatchTask, seed: int) -> None:
        self.task = task
        self.drawn = iter(task.restricted.sample(np.random.default_rng(seed), 4000))
        self.number = 0

    def compile(self, pool: JobRunner, count: int) -> tuple[list[CompiledCandidate], float]:
        """Compile the next ones; with the seconds that it took."""
        self.number += 1
        folder = self.task.folder / f"batch{self.number}"
        folder.mkdir(parents=True)
        task = replace(self.task, folder=folder)
        wanted = [next(self.drawn) for _ in range(count)]
        begin = time.perf_counter()
        made = DispatchCompiler(task, pool).compile(wanted)
        return made, time.perf_counter() - begin


def throughput(work: Path, rounds: int) -> None:
    """Candidates a second by one worker and by two."""
    with opened_task(work) as (task, _), ExitStack() as stack, compile_pool(1) as here:
        candidates = Candidates(task, 0)
        pools = {}
        for count in (1, 2):
            folder = work / f"cluster{count}"
            folder.mkdir()
            place = ClusterPlace("local", "", count)
            cluster = stack.enter_context(open_cluster(place, ClusterNeeds("", ()), folder))
            pools[count] = ClusterPool(here, cluster)
            candidates.compile(pools[count], BATCH)
        rates: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(rounds):
            for count, pool in pools.items():
                _, seconds = candidates.compile(pool, 2 * BATCH)
                rates[count].append(2 * BATCH / seconds)
    gains = [two / one for one, two in zip(rates[1], rates[2], strict=True)]
    for count, found in rates.items():
        print(
            f"compile workers {count}: {max(found):6.2f} candidates/s at best, "
            f"median {statistics.median(found):.2f}"
        )
    print(
        f"from one to two: {statistics.median(gains):.2f} times (median of {rounds} rounds; "
        f"best of two over best of one {max(rates[2]) / max(rates[1]):.2f})"
    )


def overhead(work: Path, rounds: int) -> None:
    """Seconds of a trial with a cluster over those without."""
    with opened_task(work) as (task, inputs), ExitStack() as stack:
        here = stack.enter_context(compile_pool(1))
        folder = work / "cluster"
        folder.mkdir()
        place, needs = ClusterPlace("local", "", 1), ClusterNeeds(CPU, ("local-sync",))
        cluster = stack.enter_context(open_cluster(place, needs, folder))
        local = Benchmark(DeviceOptions.cpu(1))
        stack.callback(local.close)
        ways: dict[str, tuple[JobRunner, Benchmark]] = {
            "here": (here, local),
            "cluster": (ClusterPool(here, cluster), ClusterBenchmark(cluster, CPU, 1)),
        }
        candidates = Candidates(task, 1)
        trials: dict[str, list[float]] = {name: [] for name in ways}
        parts: dict[str, list[float]] = {}
        for number in range(rounds + 1):
            for name, (pool, benchmark) in ways.items():
                made, compiling = candidates.compile(pool, BATCH)
                begin = time.perf_counter()
                if benchmark.round_size > 1:
                    with benchmark.ahead():
                        _measure(benchmark, made, inputs, task.repeats)
                _measure(benchmark, made, inputs, task.repeats)
                measuring = time.perf_counter() - begin
                if number:
                    trials[name].append((compiling + measuring) / BATCH)
                    parts.setdefault(f"{name}, compiling", []).append(compiling / BATCH)
                    parts.setdefault(f"{name}, measuring", []).append(measuring / BATCH)
    for name, found in parts.items():
        print(
            f"{name:<20} {min(found) * 1e3:7.1f} ms a trial at best, "
            f"median {statistics.median(found) * 1e3:.1f}"
        )
    ratio = min(trials["cluster"]) / min(trials["here"])
    pairs = [b / a for a, b in zip(trials["here"], trials["cluster"], strict=True)]
    print(
        f"overhead of a trial  {ratio - 1:+.1%} (best of {rounds} rounds each), "
        f"{statistics.median(pairs) - 1:+.1%} (median of pairs)"
    )


def _measure(
    benchmark: Benchmark, made: list[CompiledCandidate], inputs: InputSet, repeats: int
) -> None:
    for one in made:
        if one.artifact is not None and one.artifact.exists():
            benchmark.time(
                str(one.artifact), one.inputs or inputs, repeats=repeats, policy=SEARCH_TIMING
            )


def result(work: Path, trials: int) -> None:
    """Runs with and without a cluster, and with workers killed."""
    certs, log = work / "certs", work / "scheduler.log"
    make_certificates(certs)
    processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(name: str, *arguments: str) -> None:
        with (work / f"{name}.log").open("wb") as output:
            processes[name] = subprocess.Popen(
                [sys.executable, "-m", "tilewright", *arguments], stdout=output, stderr=output
            )

    def tune(name: str, *more: str) -> dict[str, object]:
        command = [sys.executable, "-m", "tilewright", "tune", str(PROGRAM), "--effort", "quick"]
        command += ["--max-trials", str(trials), "--db", str(work / f"{name}.db"), "--json"]
        begin = time.perf_counter()
        done = subprocess.run(
            [*command, "-o", str(work / name), *more], capture_output=True, text=True, check=True
        )
        data: dict[str, object] = json.loads(done.stdout)
        data["seconds"] = time.perf_counter() - begin
        return data

    try:
        start("scheduler", "cluster", "scheduler", "--port", "0", "--certs", str(certs))
        while "tls://" not in log.read_text():
            time.sleep(0.1)
        url = log.read_text().split()[-1]
        own = ("worker", "--scheduler", url, "--certs", str(certs), "--role")
        for n in range(4):
            start(f"compile{n}", *own, "compile")
        start("device0", *own, "device")
        cluster = ("--cluster", url, "--cluster-certs", str(certs))
        found = {"without": tune("without"), "with": tune("with", *cluster)}
        start("device1", *own, "device")

        def kill() -> None:
            for name in ("compile0", "device0"):
                os.kill(processes[name].pid, signal.SIGKILL)

        timer = threading.Timer(0.5 * float(str(found["with"]["seconds"])), kill)
        timer.start()
        found["killed"] = tune("killed", *cluster)
        timer.join()
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.wait()
    for name, data in found.items():
        program = data["program"]
        assert isinstance(program, dict)
        times = f"{program['default_ms']:8.3f} ms by default, {program['tuned_ms']:8.3f} tuned"
        spent = f"{data['trials_total']} trials, {data['seconds']:.0f} s"
        print(f"{name:<8} {times}, {program['speedup']:.2f}x, {spent}")


def main() -> None:
    """Measure what is asked for, and print it."""
    parts: dict[str, Callable[[Path, int], None]] = {
        "throughput": throughput,
        "overhead": overhead,
        "result": result,
    }
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=32, help="of each run")
    args = parser.parse_args()
    for name in args.parts or parts:
        with tempfile.TemporaryDirectory() as folder:
            parts[name](Path(folder), args.trials if name == "result" else args.rounds)


if __name__ == "__main__":
    main()
