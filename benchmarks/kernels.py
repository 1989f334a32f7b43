"""Kernels of our own against IREE's configurations and against libraries: the tables of a run.

    python benchmarks/kernels.py                                    # every section
    python benchmarks/kernels.py products programs --threads 2 --trials 64 --output results.json
    python benchmarks/kernels.py shapes --shapes matmul.json --shapes conv.json --peers torch,tvm
    python benchmarks/kernels.py models --model transformer.onnx --model mobilenetv3.mlir
    python benchmarks/kernels.py shapes --part 2/8 --output results.json        # a share of them

`products`: f32 matrix products of 128 to 4096 cubed. `shapes`: those of files, by default
benchmarks/shapes. `programs`: softmax, layer norm, RMS norm, a depthwise 3x3 convolution, max
pooling, matmul with bias and gelu, attention, each a program of its own. `models`: whole programs.
`rate`: trials a second of runs with kernels.

`iree` is the compiler's default, `configured` what a run finds with `--kernels off`, `tuned` with
kernels, both with `--trials` for each operation (models: `--time-limit`) and a database of their
own, compiled by the command that the run hands out. All are timed in the same interleaved rounds,
every result is checked against float64. A ratio above 1 says that `tuned` is faster than the column
is named after; `of peak` is the share of the machine's peak, measured before and after; `s` are the
seconds that tuning took. With `--output` every workload is written when it is done, and those that
are in the file are not run again; the table has all of them.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from stablehlo_programs import (
    ATTENTION,
    CONVOLUTION,
    LAYER_NORM,
    MATMUL,
    MATMUL_BIAS_GELU,
    MAX_POOL,
    RMS_NORM,
    SOFTMAX,
    tensor,
)
from tilewright.compare import (
    Budget,
    ComparedWorkload,
    CompareOptions,
    ComparisonRow,
    ComparisonRun,
    compare,
    find_providers,
    find_workloads,
    read_runs,
    write_run,
)
from tilewright.errors import UserError
from tilewright.target import parse_target, usable_cores
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.parse import parse_duration, parse_parameters
from tilewright.tuning.session import TuningSession
from tilewright.tuning.variants import read_variants

T = TypeVar("T")
SHAPES = tuple((Path(__file__).parent / "shapes").glob("*.json"))
CUBES = (128, 256, 512, 1024, 2048, 4096)
TUNED, CONFIGURED, DEFAULT, TVM = "iree-tuned", "iree-configured", "iree", "tvm"
# Providers that search: what they take is part of the table.
SEARCHING = (CONFIGURED, TUNED, TVM)
# Layers of a ResNet-50 for the section `rate`: image, channels in, channels out.
RATED_LAYERS = ((56, 64, 64), (28, 128, 128), (14, 256, 256), (7, 512, 512))


@dataclass(frozen=True)
class Section:
    """workloads: what is compared; providers: by what; against: the ratios that are printed, each
    with the providers of which the faster counts."""

    name: str
    workloads: Callable[[argparse.Namespace, Path], list[ComparedWorkload]]
    providers: tuple[str, ...]
    against: tuple[tuple[str, ...], ...]


def programs() -> dict[str, str]:
    """StableHLO by name; the shapes are those of a BERT base, a ResNet-50 and a MobileNet."""
    rows, wide, hidden = 128, 768, 3072
    matrix = {"matrix": tensor(rows, wide), "rows": tensor(rows), "columns": tensor(wide)}
    norm = {**matrix, "count": float(wide), "epsilon": 1e-5}
    inner, pooled = (56, 56, 128), (112, 112, 64)
    return {
        "softmax": SOFTMAX.format(matrix=tensor(12 * rows, rows), rows=tensor(12 * rows)),
        "softmax_wide": SOFTMAX.format(matrix=tensor(64, 8192), rows=tensor(64)),
        "layer_norm": LAYER_NORM.format(**norm),
        "rms_norm": RMS_NORM.format(**norm),
        "depthwise": CONVOLUTION.format(
            image=tensor(1, *inner),
            filter=tensor(3, 3, inner[2]),
            shaped=tensor(3, 3, 1, inner[2]),
            result=tensor(1, *inner),
            groups=inner[2],
        ),
        "max_pool": MAX_POOL.format(image=tensor(1, *pooled), result=tensor(1, 56, 56, pooled[2])),
        "matmul_bias_gelu": MATMUL_BIAS_GELU.format(
            a=tensor(rows, wide),
            b=tensor(wide, hidden),
            bias=tensor(hidden),
            result=tensor(rows, hidden),
        ),
        "attention": ATTENTION.format(
            rows=tensor(12, rows, 64),
            scores=tensor(12, rows, rows),
            queries=tensor(12, rows),
            scale=0.125,
        ),
    }


def _products(arguments: argparse.Namespace, folder: Path) -> list[ComparedWorkload]:
    return find_workloads([], [f"{n}x{n}x{n}" for n in CUBES])


def _shapes(arguments: argparse.Namespace, folder: Path) -> list[ComparedWorkload]:
    return find_workloads([str(path) for path in arguments.shapes or SHAPES])


def _programs(arguments: argparse.Namespace, folder: Path) -> list[ComparedWorkload]:
    for name, text in programs().items():
        (folder / f"{name}.mlir").write_text(text)
    return find_workloads([str(folder / f"{name}.mlir") for name in programs()])


def _models(arguments: argparse.Namespace, folder: Path) -> list[ComparedWorkload]:
    if not arguments.models:
        raise UserError("section models: name at least one, as --model FILE.onnx")
    return find_workloads([str(path) for path in arguments.models])


SECTIONS = (
    Section(
        "products",
        _products,
        (DEFAULT, CONFIGURED, TUNED, "numpy", "torch"),
        ((DEFAULT,), (CONFIGURED,), ("numpy", "torch")),
    ),
    Section("shapes", _shapes, (DEFAULT, CONFIGURED, TUNED), ((DEFAULT,), (CONFIGURED,))),
    Section("programs", _programs, (DEFAULT, CONFIGURED, TUNED), ((DEFAULT,), (CONFIGURED,))),
    Section(
        "models",
        _models,
        (DEFAULT, CONFIGURED, TUNED, "onnxruntime", "openvino"),
        ((DEFAULT,), (CONFIGURED,), ("onnxruntime", "openvino")),
    ),
)
RATE = "rate"


def table(section: Section, peers: Sequence[str], runs: Sequence[ComparisonRun]) -> str:
    """The section's rows, and the geometric mean of every ratio."""
    against = [*section.against, *((peer,) for peer in peers)]
    libraries = [peer for peer in peers if peer != TVM]
    if libraries:
        against.append((CONFIGURED, *libraries))
    providers = [*section.providers, *peers]
    searching = [name for name in providers if name in SEARCHING]
    lines = [
        f"{'':44}"
        + "".join(f"{name:>16}" for name in providers)
        + f"{'of peak':>9}"
        + "".join(f"{'s ' + name:>18}" for name in searching)
        + "".join(f"{'/' + '|'.join(names):>24}" for names in against)
    ]
    ratios: dict[int, list[float]] = {}
    pairs = [(run, workload) for run in runs for workload in run.workloads]
    for run, workload in pairs:
        peak = run.state.gflops
        rows = {name: run.row(workload, name) for name in providers}
        cells = "".join(f"{_time(rows[name]):>16}" for name in providers)
        tuned = rows[TUNED]
        rate = tuned.gflops if tuned is not None else None
        cells += f"{rate.value / peak:>9.2f}" if rate is not None and peak else f"{'':>9}"
        for row in (rows[name] for name in searching):
            cells += f"{'' if row is None else f'{row.build_s:.1f}':>18}"
        for index, names in enumerate(against):
            ratio = _ratio(tuned, [rows[name] for name in names])
            cells += f"{'' if ratio is None else f'{ratio:.2f}':>24}"
            if ratio is not None:
                ratios.setdefault(index, []).append(ratio)
        lines.append(f"{workload[:43]:44}{cells}")
    means = [
        f"{math.exp(statistics.fmean(map(math.log, ratios[i]))):.2f}" if i in ratios else ""
        for i in range(len(against))
    ]
    width = 44 + 16 * len(providers) + 9 + 18 * len(searching)
    blank = " " * (width - len("geometric mean"))
    lines.append(f"geometric mean{blank}" + "".join(f"{mean:>24}" for mean in means))
    rows_of_all = [row for run in runs for row in run.rows]
    notes = [f"  {r.workload}: {r.provider}: {r.note or r.reason}" for r in rows_of_all]
    return "\n".join([*lines, *(note for note in notes if not note.endswith(": "))])


def _time(row: ComparisonRow | None) -> str:
    if row is None:
        return ""
    return f"{1e3 * row.time.value:.4g} ms" if row.ok else str(row.outcome)


def _ratio(tuned: ComparisonRow | None, others: Sequence[ComparisonRow | None]) -> float | None:
    """The fastest of the others over `tuned`; None where any of it is missing."""
    times = [other.time.value for other in others if other is not None and other.ok]
    if tuned is None or not tuned.ok or not times:
        return None
    return min(times) / tuned.time.value


def rated() -> dict[str, str]:
    """Programs of the section `rate`."""
    found = {
        "matmul 512": MATMUL.format(a=tensor(512, 512), b=tensor(512, 512), result=tensor(512, 512))
    }
    for size, inputs, outputs in RATED_LAYERS:
        window = tensor(3, 3, inputs, outputs)
        found[f"conv 3x3 {size}x{size}x{inputs} to {outputs}"] = CONVOLUTION.format(
            image=tensor(1, size, size, inputs),
            filter=window,
            shaped=window,
            result=tensor(1, size, size, outputs),
            groups=1,
        )
    return found


def measured(
    workloads: Sequence[ComparedWorkload],
    providers: Sequence[str],
    options: CompareOptions,
    output: Path | None,
) -> list[ComparisonRun]:
    """Each workload compared by itself, and written; what is in the file already is read."""
    runs = []
    for workload in workloads:
        done = read_runs(output) if output is not None and output.exists() else []
        known = [r for r in done if all(r.row(workload.name, name) for name in providers)]
        if known:
            runs.append(replace(known[-1], rows=_rows(known[-1], workload.name)))
            continue
        run = compare(
            [workload],
            find_providers(",".join(providers)),
            options,
            say=lambda line: print(f"# {line}", file=sys.stderr, flush=True),
        )
        if output is not None:
            write_run(output, run, append=output.exists())
        runs.append(run)
    return runs


def _rows(run: ComparisonRun, workload: str) -> tuple[ComparisonRow, ...]:
    return tuple(row for row in run.rows if row.workload == workload)


def rates(arguments: argparse.Namespace, folder: Path) -> None:
    """Prints trials a second of searches among kernels alone, how many of them failed, and what a
    trial takes in milliseconds: compiling (as many at a time as there are cores), measuring with
    checking, and the search itself."""
    parts = ("compile", "measure", "search")
    head = "".join(f"{f'ms {part}':>12}" for part in parts)
    print(f"{'':44}{'trials':>8}{'failed':>8}{'seconds':>9}{'a second':>10}{head}", flush=True)
    chosen = [(n, text) for n, text in rated().items() if arguments.only in n]
    for index, (name, text) in enumerate(arguments.part.of(chosen)):
        program = folder / f"rate{index}.mlir"
        program.write_text(text)
        options = TuneOptions(
            threads=arguments.threads,
            kernels="only",
            variants=read_variants("default", "--variants"),
            max_trials=arguments.trials,
            seed=arguments.seed,
            db=folder / f"rate{index}.db",
            output=folder / f"rate{index}",
        )
        result = TuningSession(program, options).run()
        seconds = sum(s for phase, s in result.phase_s.items() if phase.startswith("search."))
        failed = sum(one.failed_trials for one in result.dispatches)
        tried = max(1, result.trials_total)
        print(
            f"{name:44}{result.trials_total:>8}{failed:>8}{seconds:>9.1f}"
            f"{result.trials_total / seconds:>10.2f}"
            + "".join(
                f"{1e3 * result.phase_s.get(f'search.{p}', 0.0) / tried:>12.1f}" for p in parts
            ),
            flush=True,
        )


@dataclass(frozen=True)
class Part:
    """One of so many shares, counted from 1."""

    number: int
    count: int

    def of(self, things: Sequence[T]) -> Sequence[T]:
        """Every `count`th of them."""
        return things[self.number - 1 :: self.count]


def _part(text: str) -> Part:
    number, _, count = text.partition("/")
    part = Part(int(number), int(count))
    if not 1 <= part.number <= part.count:
        raise ValueError(text)
    return part


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*(section.name for section in SECTIONS), RATE]
    parser.add_argument("sections", nargs="*", help=f"of: {', '.join(names)} (default: all)")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--time-limit", default="10m", help="of tuning a model (default: 10m)")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--peers", default="", help="more providers, such as torch,tvm")
    parser.add_argument("--only", default="", help="workloads whose names have this in them")
    parser.add_argument("--part", type=_part, default=Part(1, 1), metavar="I/N", help="a share")
    parser.add_argument("--shapes", action="append", type=Path, help="a file of shapes")
    parser.add_argument("--model", dest="models", action="append", type=Path)
    parser.add_argument("--parameters", action="append", default=[], metavar="SCOPE=FILE")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="JSON that is gone on with")
    arguments = parser.parse_args()
    unknown = set(arguments.sections) - set(names)
    if unknown:
        parser.error(f"no section is called {', '.join(sorted(unknown))}; there are: {names}")
    wanted = arguments.sections or [n for n in names if n != "models" or arguments.models]
    peers = [peer for peer in arguments.peers.split(",") if peer]
    options = CompareOptions(
        parse_target("cpu", arguments.threads),
        rounds=arguments.rounds,
        seed=arguments.seed,
        parameters=tuple(parse_parameters(one) for one in arguments.parameters),
    )
    with tempfile.TemporaryDirectory(prefix="tilewright-kernels-") as scratch:
        folder = Path(scratch)
        for section in SECTIONS:
            if section.name not in wanted:
                continue
            budget = Budget(trials=arguments.trials)
            if section.name == "models":
                budget = Budget(seconds=parse_duration(arguments.time_limit))
            workloads = [
                w for w in section.workloads(arguments, folder) if arguments.only in w.name
            ]
            runs = measured(
                arguments.part.of(workloads),
                [*section.providers, *peers],
                replace(options, budget=budget, db=folder / f"{section.name}.db"),
                arguments.output,
            )
            print(f"\n{section.name}, {arguments.threads} threads\n", flush=True)
            print(table(section, peers, runs), flush=True)
        if RATE in wanted:
            print(f"\n{RATE}, {arguments.threads} threads\n", flush=True)
            rates(arguments, folder)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
