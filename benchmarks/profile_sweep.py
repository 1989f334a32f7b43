"""Sweeps of the dispatch profiler over everything it has.

    python benchmarks/profile_sweep.py verify                 # every kind, element type and layout
    python benchmarks/profile_sweep.py verify --kind conv2d --report failures.md
    python benchmarks/profile_sweep.py speed                  # how compiling scales with workers
    python benchmarks/profile_sweep.py speed --dispatches 200 --workers 1,2 --rounds 2

`verify` generates, compiles and verifies on this CPU: one dispatch for each kind, variant, element
type and layout in each predefined shape. It prints how many were verified and lists those that IREE
does not compile, with its message; the exit status is 3 when a result was wrong. `speed` compiles
the same dispatches anew with each number of workers, every compiler with a single thread.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tilewright.kernels import make_selection, make_suite, parse_operation
from tilewright.profiler import (
    CompileOptions,
    GeneratedFolder,
    GenerateOptions,
    ProfileOutcome,
    RunOptions,
    Selected,
    Verification,
    compile_dispatches,
    generate,
    run_dispatches,
)
from tilewright.target import parse_target, usable_cores


def verify(arguments: argparse.Namespace, folder: Path) -> int:
    suite = make_suite(make_selection(arguments.kind, {}, layouts="all"))
    target = parse_target("cpu")
    begin = time.perf_counter()
    generate(folder, suite.operations, GenerateOptions(target, jobs=arguments.jobs))
    print(f"{len(suite.operations)} operations generated in {time.perf_counter() - begin:.0f} s")
    begin = time.perf_counter()
    generated = GeneratedFolder(folder)
    wanted = {operation.name for operation in suite.operations}
    folders = [f for f in generated.operations() if f.operation.name in wanted]
    selected = [Selected(folder, name) for folder in folders for name in folder.dispatches]
    options = CompileOptions(target, jobs=arguments.jobs, timeout_s=300.0)
    summary = compile_dispatches(generated, selected, options)
    seconds = time.perf_counter() - begin
    print(f"{summary.compiled} compiled in {seconds:.0f} s, {summary.failed} failed")
    begin = time.perf_counter()
    run = RunOptions(threads=target.cores, profile=False, jobs=arguments.jobs)
    outcomes = list(run_dispatches(selected, run))
    print(f"{len(outcomes)} looked at in {time.perf_counter() - begin:.0f} s")
    return report(outcomes, arguments.report)


def report(outcomes: list[ProfileOutcome], path: Path | None) -> int:
    verified = [o for o in outcomes if o.verification is Verification.SUCCESS]
    rest = [o for o in outcomes if o.verification is not Verification.SUCCESS]
    kinds = Counter(o.dispatch.folder.operation.kind.name for o in outcomes)
    right = Counter(o.dispatch.folder.operation.kind.name for o in verified)
    lines = [f"{kind}: {right[kind]} of {number} verified" for kind, number in kinds.items()]
    lines.append(f"\n{len(verified)} of {len(outcomes)} dispatches verified\n")
    if rest:
        lines += ["| dispatch | what became of it | message |", "| --- | --- | --- |"]
    for outcome in rest:
        message = outcome.message.replace("|", "\\|")
        lines.append(
            f"| `{outcome.dispatch.folder.operation.name}` | {outcome.status} | {message} |"
        )
    print("\n".join(lines))
    if path is not None:
        path.write_text("\n".join(lines) + "\n")
    return 3 if any(outcome.is_fault for outcome in outcomes) else 0


def speed(arguments: argparse.Namespace, folder: Path) -> int:
    target = parse_target("cpu")
    sizes = [(16 + i % 20, 16 + i // 20, 32) for i in range(arguments.dispatches)]
    operations = [parse_operation(f"matmul_{m}x{n}x{k}_f32t_f32t_f32t") for m, n, k in sizes]
    generate(folder, operations, GenerateOptions(target, jobs=usable_cores()))
    generated = GeneratedFolder(folder)
    best: dict[int, float] = {}
    for _ in range(arguments.rounds):
        for workers in arguments.workers:
            selected = [Selected(f, name) for f in generated.operations() for name in f.dispatches]
            options = CompileOptions(target, jobs=workers, force=True)
            begin = time.perf_counter()
            summary = compile_dispatches(generated, selected, options)
            seconds = time.perf_counter() - begin
            print(f"{summary.compiled} dispatches, {workers} workers: {seconds:.1f} s", flush=True)
            best[workers] = min(seconds, best.get(workers, seconds))
    first = best[arguments.workers[0]]
    for workers, seconds in best.items():
        print(f"{workers} workers: {seconds:.1f} s, {first / seconds:.2f} times as fast")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Sweeps of the dispatch profiler.")
    commands = parser.add_subparsers(dest="command", required=True)
    sweep = commands.add_parser("verify", help="every kind, element type and layout")
    sweep.add_argument("--kind", help="only these kinds, separated by commas")
    sweep.add_argument("--jobs", type=int, default=usable_cores())
    sweep.add_argument("--report", type=Path, help="write the result as Markdown, too")
    scaling = commands.add_parser("speed", help="how compiling scales with workers")
    scaling.add_argument("--dispatches", type=int, default=200)
    scaling.add_argument("--rounds", type=int, default=2)
    scaling.add_argument(
        "--workers", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2]
    )
    for one in (sweep, scaling):
        one.add_argument("--folder", type=Path, help="keep the generated dispatches here")
    arguments = parser.parse_args()
    command = verify if arguments.command == "verify" else speed
    if arguments.folder is not None:
        return command(arguments, arguments.folder)
    with tempfile.TemporaryDirectory(prefix="tilewright-sweep-") as folder:
        return command(arguments, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
