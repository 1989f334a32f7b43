"""What a cluster costs and gains, with a scheduler and workers as processes of this machine by TLS.

    python benchmarks/cluster.py --keep measured
    python benchmarks/cluster.py --keep measured throughput overhead
    python benchmarks/cluster.py --keep measured result --trials 32

- `throughput`: candidates compiled a second by a cluster with one compile worker and by one with
  two, in turns; and by pools of one and two of this process, which is what the machine can do.
- `overhead`: seconds of a trial (compiled, timed, checked) by one compile worker and one device
  worker of a cluster over those by one of each in this process's pools, in turns.
- `result`: runs without a cluster, with a scheduler, four compile workers and one device worker,
  and with a compile worker and the device worker killed on the way (another device worker is
  there); afterwards the programs that they found, compared in interleaved rounds.

What is measured is kept in the folder of `--keep` and not measured again: each call goes on, for
`--seconds` at most, and prints what there is. Times are of one machine and mean nothing beside
other work; ratios are of rounds in turns.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil

from cluster_processes import ClusterProcesses, cluster_processes
from tilewright.argument import ArgumentType
from tilewright.cluster.connecting import ClusterNeeds, open_cluster
from tilewright.cluster.dispatching import COMPILE, CPU, DEVICE
from tilewright.cluster.handing_out import ClusterBenchmark, ClusterPool
from tilewright.cluster.place import parse_place
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.comparison import ComparisonPolicy
from tilewright.measure.compile_worker import compile_pool
from tilewright.measure.device_lock import LOCKS_VARIABLE
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.inputs import random_inputs
from tilewright.measure.jobs import JobRunner, WorkerFailure
from tilewright.store.steady import open_database
from tilewright.target import parse_target
from tilewright.trial import Configuration, Trial
from tilewright.tuning.context import RunContext
from tilewright.tuning.defaults import measure_defaults
from tilewright.tuning.opening import open_program
from tilewright.tuning.outputs import VMFB
from tilewright.tuning.prepare import take_apart
from tilewright.tuning.search_loop import SearchLoop
from tilewright.tuning.session_stages import CompileCandidates, MeasureCandidates
from tilewright.tuning.stages import Stages, discard
from tilewright.tuning.task import DispatchTask

PROGRAM = Path(__file__).resolve().parent.parent / "examples" / "matmul.mlir"
BATCH, COMPILED = 16, 48
DEVICE_WORKER = ("--role", DEVICE, "--device", "local-sync")
COMPILE_WORKER = ("--role", COMPILE)


class Kept:
    """Rows of measurements in a file: as many as are wanted are made, in as many calls as it takes.

    Attributes:
        end: seconds of the clock after which no other is begun.
    """

    def __init__(self, folder: Path, end: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "cluster.jsonl"
        self.folder = folder
        self.end = end

    def rows(self, part: str) -> list[dict[str, Any]]:
        """What was measured of a part."""
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        return [one for one in map(json.loads, lines) if one["part"] == part]

    def add(self, part: str, row: dict[str, Any]) -> None:
        """Keep what was measured."""
        with self._file.open("a") as file:
            file.write(json.dumps({"part": part, **row}) + "\n")

    @property
    def has_time(self) -> bool:
        """Whether another may be begun."""
        return time.monotonic() < self.end


@contextmanager
def measured_task(work: Path) -> Iterator[tuple[RunContext, DispatchTask]]:
    """The example's dispatch with all that a search needs, with one compile worker and the
    processor of this process's."""
    with (
        open_program(PROGRAM, parse_target("cpu", 1)) as opened,
        open_database(work / "trials.db") as store,
        closing(Benchmark(DeviceOptions.cpu(1))) as benchmark,
    ):
        context = RunContext(**vars(opened), benchmark=benchmark, store=store)
        context.begin("benchmark", "run")
        (task,) = (prepared := take_apart(context)).tasks
        measure_defaults(context, prepared, 1e-3)
        task.store_id = store.task_id(task.key, task.default_s)
        yield context, task


class Given:
    """A source of given configurations, which learns nothing."""

    def __init__(self, configurations: Sequence[Configuration]) -> None:
        self._left = list(configurations)

    def ask(self, n: int) -> list[Configuration]:
        """The next ones."""
        asked, self._left = self._left[:n], self._left[n:]
        return asked

    def tell(self, trials: Sequence[Trial]) -> None:
        """Nothing is learned."""


def drawn(task: DispatchTask, batches: int, size: int) -> Iterator[list[Configuration]]:
    """Batches of configurations of a task, none of them twice; after so many that were drawn in
    earlier calls. Of the pipelines': a kernel can take twenty times as long to compile as another,
    so that the last of a batch says more of its luck than of those who compiled it."""
    sampled = task.restricted.sample(np.random.default_rng(0), 4000)
    configurations = (one for one in sampled if task.kernel(one) is None)
    for number in itertools.count():
        batch = list(itertools.islice(configurations, size))
        if number >= batches:
            yield batch


@contextmanager
def farm(folder: Path, workers: dict[str, tuple[str, ...]]) -> Iterator[ClusterProcesses]:
    """A scheduler and workers, which are there."""
    folder.mkdir(parents=True)
    with cluster_processes(folder) as made:
        for name, options in workers.items():
            made.worker(name, *options)
        for name in workers:
            made.said(name, "(connected)")
        yield made


def processor_s(made: ClusterProcesses | None) -> dict[str, float]:
    """Seconds of processor time so far: of this process (`tuner`), of a cluster's scheduler and
    workers, and of the compilers that the workers, or here this process, have started; and how long
    these `wait` for a processor that others have."""
    tuner, *others = (psutil.Process(pid) for pid in (None, *_pids(made)))
    groups = {"tuner": [tuner], "scheduler": others[:1], "workers": others[1:]}
    groups["compilers"] = [child for one in others[1:] or [tuner] for child in one.children()]
    used = {name: sum(map(_used, group)) for name, group in groups.items()}
    return {**used, "wait": sum(map(_waited, groups["compilers"]))}


def _pids(made: ClusterProcesses | None) -> list[int]:
    return [process.pid for process in made.processes] if made else []


def _used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def _waited(process: psutil.Process) -> float:
    return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[1]) / 1e9


def throughput(kept: Kept, rounds: int) -> None:
    """Candidates a second by one worker and by two."""
    part = "throughput"
    if len(kept.rows(part)) < rounds:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            work = Path(folder)
            context, task = stack.enter_context(measured_task(work))
            # A run of somebody else that measures on this processor would hold compilers up.
            locks = patch.dict(os.environ, {LOCKS_VARIABLE: str(work)})
            stack.enter_context(locks)
            pools: dict[str, JobRunner] = {}
            farms: dict[str, ClusterProcesses] = {}
            for count in (1, 2):
                here = stack.enter_context(compile_pool(count))
                workers = {f"compile{n}": COMPILE_WORKER for n in range(count)}
                workers["device"] = DEVICE_WORKER
                made = stack.enter_context(farm(work / f"farm{count}", workers))
                cluster = stack.enter_context(
                    open_cluster(
                        parse_place(made.url),
                        ClusterNeeds(CPU, ()),
                        work / f"run{count}",
                        print,
                        certs=made.certs,
                    )
                )
                pools[f"here {count}"] = here
                pools[f"cluster {count}"] = ClusterPool(here, cluster)
                farms[f"cluster {count}"] = made
            compilers = {
                # One that is given up in one way and not in another is not the same work.
                name: CompileCandidates(timeout_s=60.0).compiler(
                    replace(context, compilers=pool), _apart(task, work / name)
                )
                for name, pool in pools.items()
            }
            for compiler in compilers.values():
                compiler.compile(next(drawn(task, 0, 4)))
            for batch in drawn(task, len(kept.rows(part)), COMPILED):
                if len(kept.rows(part)) >= rounds or not kept.has_time:
                    break
                row: dict[str, Any] = {}
                for name, compiler in compilers.items():
                    before = processor_s(farms.get(name))
                    begin = time.perf_counter()
                    for one in compiler.compile(batch):
                        discard(one)
                    row[name] = len(batch) / (time.perf_counter() - begin)
                    after = processor_s(farms.get(name))
                    row[f"{name} used"] = {k: (after[k] - before[k]) / len(batch) for k in after}
                kept.add(part, row)
    found = kept.rows(part)
    if not found:
        return
    columns = ("tuner", "scheduler", "workers", "compilers", "wait")
    print(
        f"\n| compile workers | candidates/s, median | best | CPU ms each: {' | '.join(columns)} |"
    )
    print("| --- |" + " --: |" * (2 + len(columns)))
    for name in ("here 1", "here 2", "cluster 1", "cluster 2"):
        rates = [row[name] for row in found]
        used = (statistics.median(row[f"{name} used"][one] for row in found) for one in columns)
        cells = [
            *(f"{one:.2f}" for one in (statistics.median(rates), max(rates))),
            *(f"{1e3 * one:.0f}" for one in used),
        ]
        print(f"| {name} | {' | '.join(cells)} |")
    for name in ("here", "cluster"):
        gains = [row[f"{name} 2"] / row[f"{name} 1"] for row in found]
        best = max(row[f"{name} 2"] for row in found) / max(row[f"{name} 1"] for row in found)
        print(
            f"{name}, from one to two: {statistics.median(gains):.2f} times "
            f"(median of {len(gains)} rounds; best over best {best:.2f})"
        )


def overhead(kept: Kept, rounds: int) -> None:
    """Seconds of a trial with a cluster over those without."""
    part = "overhead"
    if len(kept.rows(part)) < rounds:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            work = Path(folder)
            context, task = stack.enter_context(measured_task(work))
            workers = {"compile": COMPILE_WORKER, "device": DEVICE_WORKER}
            made = stack.enter_context(farm(work / "farm", workers))
            cluster = stack.enter_context(
                open_cluster(
                    parse_place(made.url),
                    ClusterNeeds(CPU, ()),
                    work / "run",
                    print,
                    certs=made.certs,
                )
            )
            contexts = {
                "here": context,
                "cluster": replace(
                    context,
                    compilers=ClusterPool(context.compilers, cluster),
                    benchmark=ClusterBenchmark(cluster, CPU, 1),
                ),
            }
            warm = False
            for batch in drawn(task, 1 + len(kept.rows(part)), BATCH):
                if len(kept.rows(part)) >= rounds or not kept.has_time:
                    break
                row = {}
                for name, own in contexts.items():
                    loop = _search(own, _apart(task, work / name), Given(batch))
                    begin = time.perf_counter()
                    while loop.batch(max(8, own.benchmark.round_size)):
                        pass
                    row[f"{name} whole"] = (time.perf_counter() - begin) / len(batch)
                    for phase in ("compile", "measure"):
                        row[f"{name} {phase}"] = loop.seconds[phase] / len(batch)
                if warm:
                    kept.add(part, row)
                warm = True
    found = kept.rows(part)
    if not found:
        return
    print("\n| ms a trial | here, median | cluster, median | ratio (median of pairs) |")
    print("| --- | --: | --: | --: |")
    for name in ("compile", "measure", "whole"):
        times = {way: [row[f"{way} {name}"] for row in found] for way in ("here", "cluster")}
        pairs = [b / a for a, b in zip(times["here"], times["cluster"], strict=True)]
        a, b = (1e3 * statistics.median(times[way]) for way in ("here", "cluster"))
        print(f"| {name} | {a:.1f} | {b:.1f} | {statistics.median(pairs):.3f} |")
    print(f"{len(found)} rounds of {BATCH} candidates each")


def _apart(task: DispatchTask, folder: Path) -> DispatchTask:
    """The task with a folder of its own: programs that others have compiled are not known there."""
    file = folder / "dispatch.mlir"
    file.with_suffix("").mkdir(parents=True, exist_ok=True)
    apart = replace(task.dispatch, isolated=file)
    shutil.copyfile(task.dispatch.configured, apart.configured)
    return replace(task, dispatch=apart, trials=[])


def _search(context: RunContext, task: DispatchTask, source: Given) -> SearchLoop:
    """A search as a run has it, with trials that are stored."""
    assert task.baseline is not None
    # As `measure_defaults` leaves it.
    every = 0 if context.benchmark.round_size > 1 else task.baseline.every
    own = replace(task, baseline=replace(task.baseline, every=every))
    compiler = CompileCandidates().compiler(context, own)
    measurer = MeasureCandidates().measurer(context, own)
    return SearchLoop(
        Stages(source, compiler, measurer),
        lambda trial: context.store.record_trial(context.run_id, task.store_id, trial),
        discard=discard,
    )


RUNS = ("without", "with", "killed")


def result(kept: Kept, trials: int) -> None:
    """Runs with and without a cluster, and with workers killed."""
    part = "result"
    done = {row["run"] for row in kept.rows(part)}
    if done < set(RUNS):
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            workers = {f"compile{n}": COMPILE_WORKER for n in range(4)} | {"device": DEVICE_WORKER}
            with farm(work / "farm", workers) as made:
                for name in RUNS:
                    if name not in done and kept.has_time:
                        kept.add(part, {"run": name, **_tune(kept, made, name, trials)})
    done = {row["run"] for row in kept.rows(part)}
    if done >= set(RUNS) and not kept.rows("compared") and kept.has_time:
        with tempfile.TemporaryDirectory() as folder:
            kept.add("compared", _compared(kept, Path(folder)))
    print("\n| run | default ms | tuned ms | trials | s | said of workers |")
    print("| --- | --: | --: | --: | --: | --- |")
    for row in kept.rows(part):
        print(
            f"| {row['run']} | {row['default_ms']:.3f} | {row['tuned_ms']:.3f} | {row['trials']} "
            f"| {row['seconds']:.0f} | {'; '.join(row['said'])} |"
        )
    for row in kept.rows("compared"):
        print("\nThe programs found, in interleaved rounds, over that of the run without:")
        for name in RUNS:
            low, value, high = row[name]
            print(f"{name}: {value:.3f} ({low:.3f} to {high:.3f})")


def _tune(kept: Kept, made: ClusterProcesses, name: str, trials: int) -> dict[str, Any]:
    """A run of `tilewright tune`."""
    command = [sys.executable, "-m", "tilewright", "tune", str(PROGRAM), "--effort", "quick"]
    command += ["--max-trials", str(trials), "--db", str(kept.folder / f"{name}.db"), "--json"]
    command += ["-o", str(kept.folder / name), "--threads", "1", "--seed", "0"]
    if name != "without":
        command += ["--cluster", made.url, "--cluster-certs", str(made.certs)]
    timer = None
    if name == "killed":
        taken = [row["seconds"] for row in kept.rows("result") if row["run"] == "with"]
        made.worker("spare", *DEVICE_WORKER)
        made.said("spare", "(connected)")
        doomed = [made.processes[position] for position in (1, 5)]
        timer = threading.Timer(
            0.5 * taken[0], lambda: [os.kill(one.pid, signal.SIGKILL) for one in doomed]
        )
        timer.start()
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise RuntimeError(done.stderr)
    if timer is not None:
        timer.join()
    data = json.loads(done.stdout)
    said = [line.strip() for line in done.stderr.splitlines() if "lost a" in line]
    times = {key: data["program"][key] for key in ("default_ms", "tuned_ms")}
    return {**times, "trials": data["trials_total"], "seconds": seconds, "said": said}


def _compared(kept: Kept, work: Path) -> dict[str, Any]:
    """The programs that the runs found against each other."""
    shapes = ((196, 256), (256, 1024))
    inputs = random_inputs(work / "inputs", [ArgumentType("f32", shape) for shape in shapes])
    with closing(Benchmark(DeviceOptions.cpu(1))) as benchmark:
        judged = benchmark.compare_interleaved(
            [str(kept.folder / name / VMFB) for name in RUNS],
            inputs,
            policy=ComparisonPolicy(rounds=51, max_s=20.0),
            function="matmul",
        )
    if isinstance(judged, WorkerFailure):
        raise RuntimeError(judged.message)
    ratios = [one.ratio for one in judged]
    return {n: [r.low, r.value, r.high] for n, r in zip(RUNS, ratios, strict=True)}


def main() -> None:
    """Measure what is asked for, and print it."""
    parts: dict[str, Callable[[Kept, int], None]] = {
        "throughput": throughput,
        "overhead": overhead,
        "result": result,
    }
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)}")
    parser.add_argument("--keep", type=Path, required=True, metavar="DIR")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--trials", type=int, default=32, help="of each run")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which none is begun")
    args = parser.parse_args()
    kept = Kept(args.keep, time.monotonic() + args.seconds)
    for name in args.parts or parts:
        parts[name](kept, args.trials if name == "result" else args.rounds)


if __name__ == "__main__":
    main()
