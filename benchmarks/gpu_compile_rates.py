"""How many of the candidates that are drawn from GPU spaces compile: the table of docs/gpu.md.

    python benchmarks/gpu_compile_rates.py [--quick] [--targets cuda:sm_80,rocm:gfx942]
        [--only REGEX] [--shapes 10] [--samples 64] [--seed 0] [--minutes M] [--proof]
        [--keep FOLDER] [--sums]

draws and compiles candidates as `tilewright tune --compile-only` does, of products, batched
products, convolutions and attention in f16, bf16, f32 and i8, ten shapes each, on CUDA, ROCm and
Vulkan. It needs no GPU. A row is one dispatch; its last column names what falls short: a rate below
97%, fewer than half of the programs different, an intrinsic on offer that was not drawn, a
candidate whose workgroup's size is not in its code, and with `--proof` a tuning spec that is not
applied. A dispatch without a space says why. Sums for each target, operation and type come last
(`--sums`: alone). The exit status is 1 if any rate is below 97%.

The whole table is 600 dispatches of 64 candidates, some eight hours of processor time. All of them
share the same warm compilers; every dispatch has its first few candidates before any has more, and
what is known is in `--keep FOLDER` (candidates.jsonl) as it comes: a run that was stopped, or ended
by `--minutes`, goes on where it was, and its table is of what there is. `--quick` takes one shape
of each and 8 candidates.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.measure.compile_worker import compile_pool
from tilewright.measure.jobs import Job, Result, WorkerFailure
from tilewright.measure.pool import WorkerPool
from tilewright.target import Target, parse_target
from tilewright.toolchain import Toolchain, versions
from tilewright.trial import Configuration, Status
from tilewright.tuning.compile_only import (
    choice_counts,
    compiled_alone,
    reason_of,
    sample,
    size_found,
    space_sizes,
    spec_applies,
)
from tilewright.tuning.extraction import extraction_job, learn
from tilewright.tuning.opening import OpenProgram, accepted_target
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.prepare import read_all_tasks
from tilewright.tuning.prepared_variant import PreparedVariant
from tilewright.tuning.stages import DispatchCompiler
from tilewright.tuning.task import DispatchTask
from tilewright.tuning.worker_tasks import LoadRequest, read_user_program

LEAST_RATE, LEAST_DISTINCT = 0.97, 0.5
INTRINSICS = ("mma_idx", "mma_kind", "qk_mma_idx", "pv_mma_idx")
TARGETS = ("cuda:sm_80", "cuda:sm_90", "rocm:gfx942", "vulkan:ampere")
TYPES = ("f16", "bf16", "f32", "i8")

# Rows, columns and depth; batch, rows, columns and depth; images, size, channels and filters;
# heads, queries, width and keys. The first is what networks have, then come sizes that are no
# multiples of an intrinsic's, small, long and thin ones.
SHAPES = {
    "product": (
        *((1024, 768, 512), (2048, 2048, 2048), (1000, 600, 300), (96, 1536, 384), (64, 64, 64)),
        *((768, 3072, 768), (4096, 128, 1024), (128, 4096, 256), (512, 512, 8192), (197, 768, 768)),
    ),
    "batch product": (
        *((16, 512, 512, 256), (12, 384, 384, 64), (8, 256, 256, 128), (4, 192, 192, 192)),
        *((2, 1024, 1024, 64), (32, 64, 64, 64), (12, 197, 197, 64), (6, 96, 384, 96)),
        *((3, 1000, 100, 60), (64, 128, 32, 128)),
    ),
    "convolution": (
        *((8, 64, 64, 128), (1, 32, 128, 256), (2, 56, 64, 64), (1, 28, 128, 256)),
        *((4, 16, 256, 512), (1, 14, 512, 512), (2, 128, 32, 32), (1, 7, 512, 512)),
        *((1, 112, 16, 48), (16, 8, 96, 96)),
    ),
    "attention": (
        *((16, 1024, 64, 1024), (12, 512, 64, 512), (8, 384, 96, 384), (4, 1000, 64, 1000)),
        *((8, 256, 128, 256), (12, 197, 64, 197), (32, 128, 32, 128), (2, 4096, 64, 4096)),
        *((16, 64, 64, 2048), (6, 768, 80, 768)),
    ),
}


@dataclass(frozen=True)
class Row:
    target: str
    operation: str
    kind: str
    shape: tuple[int, ...]
    program: str

    @property
    def name(self) -> str:
        return f"{self.kind} {self.operation} {'x'.join(map(str, self.shape))}"


SUMS = {"f16": "f32", "bf16": "f32", "f32": "f32", "i8": "i32"}


def filled(arguments: str, result: str, element: str, op: str) -> str:
    zero = "0" if element.startswith("i") else "0.0"
    return f"""
func.func @main({arguments}) -> {result} {{
  %z = arith.constant {zero} : {element}
  %e = tensor.empty() : {result}
  %f = linalg.fill ins(%z : {element}) outs(%e : {result}) -> {result}
  %r = {op} outs(%f : {result}) -> {result}
  return %r : {result}
}}
"""


def product(kind: str, m: int, n: int, k: int, batch: int = 0) -> str:
    """A product of `kind` elements with sums of 32 bits."""
    lead, name = (f"{batch}x", "batch_matmul") if batch else ("", "matmul")
    a, b = f"tensor<{lead}{m}x{k}x{kind}>", f"tensor<{lead}{k}x{n}x{kind}>"
    return filled(
        f"%a: {a}, %b: {b}",
        f"tensor<{lead}{m}x{n}x{SUMS[kind]}>",
        SUMS[kind],
        f"linalg.{name} ins(%a, %b : {a}, {b})",
    )


def convolution(kind: str, images: int, size: int, channels: int, filters: int) -> str:
    """A 3x3 convolution in NHWC to `size` x `size` points."""
    a = f"tensor<{images}x{size + 2}x{size + 2}x{channels}x{kind}>"
    b = f"tensor<3x3x{channels}x{filters}x{kind}>"
    return filled(
        f"%a: {a}, %b: {b}",
        f"tensor<{images}x{size}x{size}x{filters}x{SUMS[kind]}>",
        SUMS[kind],
        "linalg.conv_2d_nhwc_hwcf {dilations = dense<1> : tensor<2xi64>, "
        f"strides = dense<1> : tensor<2xi64>}} ins(%a, %b : {a}, {b})",
    )


def attention(kind: str, heads: int, rows: int, width: int, keys: int) -> str:
    """Attention of `rows` queries to `keys` keys, each of `width` elements."""
    query, key = (f"tensor<{heads}x{size}x{width}x{kind}>" for size in (rows, keys))
    maps = ", ".join(
        f"affine_map<(b, m, n, k1, k2) -> ({dims})>"
        for dims in ("b, m, k1", "b, k2, k1", "b, k2, n", "", "b, m, n")
    )
    return f"""
func.func @main(%q: {query}, %k: {key}, %v: {key}) -> {query} {{
  %s = arith.constant 0.125 : {kind}
  %e = tensor.empty() : {query}
  %r = iree_linalg_ext.attention <indexing_maps = [{maps}]>
    ins(%q, %k, %v, %s : {query}, {key}, {key}, {kind}) outs(%e : {query}) {{
  ^bb0(%score: f32):
    iree_linalg_ext.yield %score : f32
  }} -> {query}
  return %r : {query}
}}
"""


def program_of(operation: str, kind: str, shape: tuple[int, ...]) -> str:
    if operation == "product":
        m, n, k = shape
        return product(kind, m, n, k)
    if operation == "batch product":
        batch, m, n, k = shape
        return product(kind, m, n, k, batch)
    made = convolution if operation == "convolution" else attention
    first, second, third, fourth = shape
    return made(kind, first, second, third, fourth)


def rows(targets: list[str], shapes: int) -> Iterator[Row]:
    for target in targets:
        for operation, every in SHAPES.items():
            for kind in TYPES:
                # Attention is of floating-point numbers.
                if (operation, kind) == ("attention", "i8"):
                    continue
                for shape in every[:shapes]:
                    program = program_of(operation, kind, shape)
                    yield Row(target, operation, kind, shape, program)


# Every dispatch has so many candidates before any has more.
LEVELS = (4, 16, 32)
# Dispatches that the workers have at once.
TOGETHER = 8
TIMEOUT_S = 300.0


@dataclass
class Found:
    """What is known of a dispatch: its spaces by their sizes, the names that its knobs choose
    among, and of each candidate in the order that they are drawn what became of it."""

    spaces: dict[str, float]
    offered: dict[str, list[str]]
    applied: str | None = None
    drawn: int | None = None
    candidates: list[dict[str, Any]] = field(default_factory=list)

    @property
    def compiled(self) -> list[dict[str, Any]]:
        return [one for one in self.candidates if one["error"] is None]

    @property
    def configurations(self) -> set[Configuration]:
        return {
            Configuration.of(
                {k: tuple(v) if isinstance(v, list) else v for k, v in one["values"].items()}
            )
            for one in self.candidates
        }

    @property
    def rate(self) -> float:
        return len(self.compiled) / len(self.candidates) if self.candidates else 0.0


class Record:
    """What candidates became, in a file that grows: of rows, by target and name."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "candidates.jsonl"
        self.found: dict[tuple[str, str], Found] = {}
        self.without: dict[tuple[str, str], str] = {}
        if self._file.exists():
            for line in self._file.read_text().splitlines():
                self._take(json.loads(line))

    def add(self, **line: Any) -> None:
        self._take(dict(line))
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _take(self, line: dict[str, Any]) -> None:
        row = line.pop("target"), line.pop("row")
        if "spaces" in line:
            self.found[row] = Found(**line)
        elif "none" in line:
            self.without[row] = line["none"]
        elif "drawn" in line:
            self.found[row].drawn = line["drawn"]
        else:
            self.found[row].candidates.append(line)

    def left(self, row: Row, samples: int) -> bool:
        """Whether a row has not as many candidates yet, nor all that there are."""
        key = row.target, row.name
        known = self.found.get(key)
        if known is None:
            return key not in self.without
        return len(known.candidates) < min(samples, known.drawn or samples)


def read(rows: Sequence[Row], target: Target, pool: WorkerPool, work: Path) -> list[Any]:
    """The programs of the rows, opened, with their tasks; a message where there are none."""
    found: list[Any] = []
    opened: list[OpenProgram] = []
    options = TuneOptions(compile_only=True)
    for number, row in enumerate(rows):
        folder = work / str(number)
        folder.mkdir()
        source = folder / "program.mlir"
        source.write_text(row.program)
        request = LoadRequest(source, folder, None, None, target.declaration)
        program = pool.ask(read_user_program, request, TIMEOUT_S)
        if isinstance(program, WorkerFailure):
            found.append(program.message)
            continue
        one = OpenProgram(program, target, options, Toolchain(None), pool, folder)
        opened.append(one)
        found.append(one)
    extracted = []
    for result in pool.run([extraction_job(one) for one in opened]):
        if result.failure is None:
            extracted.append((result.job.tag, learn(result.job.tag, result.value)))
        else:
            found[found.index(result.job.tag)] = result.failure.message
    prepared = read_all_tasks(extracted) if extracted else []
    for (one, _), variant in zip(extracted, prepared, strict=True):
        found[found.index(one)] = (one, variant)
    return found


def compile_more(
    rows: Sequence[Row],
    record: Record,
    options: argparse.Namespace,
    samples: int,
    pool: WorkerPool,
    target: Target,
) -> None:
    """Bring rows of one target to so many candidates."""
    jobs: list[Job[Any, Any]] = []
    compilers: dict[int, tuple[Row, DispatchCompiler]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for row, what in zip(rows, read(rows, target, pool, Path(temporary)), strict=True):
            task = _task(row, what, record)
            if task is None:
                continue
            known = record.found.get((row.target, row.name))
            drawn = sample(task, options.samples, options.seed)
            if known is None:
                counts = choice_counts(task.restricted, drawn)
                offered = {knob: list(names) for knob, names in counts.items()}
                applied = spec_applies(what[0], task, drawn) if options.proof else None
                spaces = space_sizes(task)
                about = {"spaces": spaces, "offered": offered, "applied": applied}
                record.add(target=row.target, row=row.name, **about)
            if len(drawn) < samples:
                record.add(target=row.target, row=row.name, drawn=len(drawn))
            compiler = DispatchCompiler(task, pool, timeout_s=TIMEOUT_S)
            done = known.configurations if known is not None else set()
            for job in compiler.jobs([one for one in drawn[:samples] if one not in done]):
                compilers[id(job)] = row, compiler
                jobs.append(job)
        verdicts: dict[str, bool | None] = {}

        def keep(result: Result[Any]) -> None:
            row, compiler = compilers[id(result.job)]
            (one,) = compiler.compiled([result])
            if one.status is Status.OK and one.artifact.exists():
                verdicts[one.digest] = size_found(compiler.task, one)
            record.add(
                target=row.target,
                row=row.name,
                error=None if one.status is Status.OK else reason_of(one),
                digest=one.digest,
                size=verdicts.get(one.digest),
                values=dict(one.configuration.items),
                seconds=round(one.seconds, 3),
            )

        pool.run(jobs, keep)


def _task(row: Row, what: Any, record: Record) -> DispatchTask | None:
    """The one task of a row; None, and the reason recorded, where there is none."""
    if not isinstance(what, str):
        prepared: PreparedVariant = what[1]
        if len(prepared.tasks) == 1:
            return compiled_alone(prepared.tasks[0])
        what = "; ".join(one.reason for one in prepared.skipped) or f"{len(prepared.tasks)} tasks"
    record.add(target=row.target, row=row.name, none=what)
    return None


def shortcomings(known: Found) -> list[str]:
    found = []
    digests = {one["digest"] for one in known.compiled}
    if known.rate < LEAST_RATE:
        found.append(f"{known.rate:.1%} compile")
    if len(digests) < LEAST_DISTINCT * len(known.candidates):
        found.append(f"{len(digests)} different")
    for knob, names in known.offered.items():
        left = [name for name in names if not _drawn(known, knob, name)]
        if left and knob in INTRINSICS:
            found.append(f"never drawn: {', '.join(left)}")
    if any(one["size"] is False for one in known.compiled):
        found.append("sizes not found")
    if known.applied:
        found.append(f"not applied: {known.applied}")
    return found


def _drawn(known: Found, knob: str, name: str) -> bool:
    return any(one["values"].get(knob) == name for one in known.candidates)


def cells(row: Row, known: Found) -> list[str]:
    spaces = ", ".join(f"{name} {points:.0f}" for name, points in known.spaces.items())
    names = [(k, name) for k in INTRINSICS for name in known.offered.get(k, ())]
    drawn = sum(_drawn(known, knob, name) for knob, name in names)
    reasons = Counter(one["error"] for one in known.candidates if one["error"] is not None)
    return [
        f"`{row.target}`",
        row.name,
        spaces,
        f"{len(known.compiled)} of {len(known.candidates)}",
        str(len({one["digest"] for one in known.compiled})),
        str(sum(bool(one["size"]) for one in known.compiled)),
        f"{drawn} of {len(names)}" if names else "-",
        "yes" if known.applied == "" else "-",
        "; ".join([*shortcomings(known), *(f"{n} x {why}" for why, n in reasons.items())]),
    ]


def print_table(wanted: Sequence[Row], record: Record, sums_alone: bool) -> bool:
    """Print what there is; whether no rate falls short."""
    head = (
        "target | dispatch | space | compiled | different | size in the code | intrinsics drawn "
        "| applied | what falls short"
    )
    if not sums_alone:
        print(f"| {head} |\n|{' --- |' * 9}")
    sums: defaultdict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    for row in wanted:
        count, key = sums[row.target, row.operation, row.kind], (row.target, row.name)
        line = [f"`{row.target}`", row.name, "-", "", "", "", "", "", record.without.get(key, "")]
        if key in record.without:
            count["without"] += 1
        elif key in record.found:
            known = record.found[key]
            line = cells(row, known)
            count["shapes"] += bool(known.candidates)
            count["sampled"] += len(known.candidates)
            count["compiled"] += len(known.compiled)
            count["below"] += bool(known.candidates) and known.rate < LEAST_RATE
        else:
            continue
        if not sums_alone:
            print("| " + " | ".join(line) + " |")
    print(
        "\n| target | operation | type | shapes | compiled | shapes below 97% "
        "| shapes without a space |"
    )
    print("|" + " --- |" * 7)
    for (target, operation, kind), count in sums.items():
        rate = f"{count['compiled']} of {count['sampled']}"
        fields = (count["shapes"], rate, count["below"], count["without"])
        print(f"| `{target}` | {operation} | {kind} | " + " | ".join(map(str, fields)) + " |")
    return not any(count["below"] for count in sums.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--only", default="", help="rows whose target and name have this in them")
    parser.add_argument("--quick", action="store_true", help="one shape of each, 8 candidates")
    parser.add_argument("--shapes", type=int, help="how many of the ten of each operation")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder for what candidates became")
    parser.add_argument("--minutes", type=float, help="begin nothing new after so long")
    parser.add_argument("--proof", action="store_true", help="also try a tuning spec of each row")
    parser.add_argument("--sums", action="store_true", help="print the sums alone")
    options = parser.parse_args()
    options.samples = options.samples or (8 if options.quick else 64)
    shapes = options.shapes or (1 if options.quick else 10)
    wanted = [
        row
        for row in rows(options.targets.split(","), shapes)
        if re.search(options.only, f"{row.target} {row.name}")
    ]
    installed = ", ".join(f"{name} {version}" for name, version in versions().items() if version)
    print(f"{datetime.date.today()}, {options.samples} candidates each: {installed}\n", flush=True)
    end = time.monotonic() + 60 * options.minutes if options.minutes is not None else None
    with tempfile.TemporaryDirectory() as temporary:
        record = Record(options.keep or Path(temporary))
        cores = parse_target("cpu", None).cores
        with compile_pool(cores, timeout_s=TIMEOUT_S) as pool:
            accepted = {
                name: accepted_target(parse_target(name, None), pool)[0]
                for name in dict.fromkeys(row.target for row in wanted)
            }
            for samples in [*(n for n in LEVELS if n < options.samples), options.samples]:
                for position, name in itertools.product(range(shapes), accepted):
                    left = [
                        row
                        for row in wanted
                        if row.target == name
                        and row.shape == SHAPES[row.operation][position]
                        and record.left(row, samples)
                    ]
                    for first in range(0, len(left), TOGETHER):
                        some = left[first : first + TOGETHER]
                        if end is None or time.monotonic() < end:
                            compile_more(some, record, options, samples, pool, accepted[name])
        return int(not print_table(wanted, record, options.sums))


if __name__ == "__main__":
    sys.exit(main())
