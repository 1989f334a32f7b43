"""How many of the candidates that are drawn from GPU spaces compile: the table of docs/gpu.md.

    python benchmarks/gpu_compile_rates.py [--quick] [--targets cuda:sm_80,rocm:gfx942]
        [--only REGEX] [--shapes 10] [--samples 64] [--seed 0] [--keep FOLDER]

runs `tilewright tune --compile-only` for products, batched products, convolutions and attention in
f16, bf16, f32 and i8, ten shapes each, on CUDA, ROCm and Vulkan. It needs no GPU. A row is one
dispatch; its last column names what falls short: a rate below 97%, fewer than half of the programs
different, an intrinsic on offer that was not drawn, a candidate whose workgroup's size is not in
its code, a tuning spec that is not applied. A dispatch without a space says why. Sums for each
target, operation and type come last. The exit status is 1 if any rate is below 97%.

The whole table is 600 runs of 64 candidates, a day on two cores; `--quick` takes one shape of each
and 8 candidates.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.toolchain import versions

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


def compiled(row: Row, options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """summary.json of the run, or its `error`."""
    stem = re.sub(r"\W+", "_", f"{row.target}_{row.name}")
    program, output = work / f"{stem}.mlir", work / stem
    program.write_text(row.program)
    command = [
        *(sys.executable, "-m", "tilewright", "tune", str(program), "--target", row.target),
        *("--compile-only", "--max-trials", str(options.samples), "--seed", str(options.seed)),
        *("--output", str(output)),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["failed"])[-1]}
    summary: dict[str, Any] = json.loads((output / "summary.json").read_text())
    return summary


def shortcomings(dispatch: dict[str, Any]) -> list[str]:
    found = []
    rate = dispatch["compile_rate"] or 0.0
    if rate < LEAST_RATE:
        found.append(f"{rate:.1%} compile")
    if dispatch["distinct"] < LEAST_DISTINCT * dispatch["sampled"]:
        found.append(f"{dispatch['distinct']} different")
    for knob, counts in dispatch["choices"].items():
        left = [name for name, count in counts.items() if not count]
        if left and knob in INTRINSICS:
            found.append(f"never drawn: {', '.join(left)}")
    if dispatch["sizes_found"] != dispatch["compiled"]:
        found.append("sizes not found")
    if dispatch["applied"]:
        found.append(f"not applied: {dispatch['applied']}")
    return found


def cells(row: Row, dispatch: dict[str, Any]) -> list[str]:
    spaces = ", ".join(f"{name} {points:.0f}" for name, points in dispatch["spaces"].items())
    counts = [dispatch["choices"].get(knob, {}) for knob in INTRINSICS]
    drawn = sum(bool(count) for one in counts for count in one.values())
    offered = sum(len(one) for one in counts)
    errors = [f"{count} x {reason}" for reason, count in dispatch["errors"].items()]
    return [
        f"`{row.target}`",
        row.name,
        spaces,
        f"{dispatch['compiled']} of {dispatch['sampled']}",
        str(dispatch["distinct"]),
        str(dispatch["sizes_found"]),
        f"{drawn} of {offered}" if offered else "-",
        "yes" if dispatch["applied"] == "" else "-",
        "; ".join([*shortcomings(dispatch), *errors]),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--only", default="", help="rows whose target and name have this in them")
    parser.add_argument("--quick", action="store_true", help="one shape of each, 8 candidates")
    parser.add_argument("--shapes", type=int, help="how many of the ten of each operation")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder for the programs and results")
    options = parser.parse_args()
    options.samples = options.samples or (8 if options.quick else 64)
    shapes = options.shapes or (1 if options.quick else 10)
    installed = ", ".join(f"{name} {version}" for name, version in versions().items() if version)
    print(f"{datetime.date.today()}, {options.samples} candidates each: {installed}\n")
    print(
        "| target | dispatch | space | compiled | different | size in the code | intrinsics drawn "
        "| applied | what falls short |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    sums: dict[tuple[str, str, str], Counter[str]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        work = options.keep or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        for row in rows(options.targets.split(","), shapes):
            if not re.search(options.only, f"{row.target} {row.name}"):
                continue
            count = sums.setdefault((row.target, row.operation, row.kind), Counter())
            summary = compiled(row, options, work)
            if "error" in summary:
                count["without"] += 1
                print(
                    f"| `{row.target}` | {row.name} | - | | | | | | {summary['error']} |",
                    flush=True,
                )
            for dispatch in summary.get("dispatches", []):
                count["sampled"] += dispatch["sampled"]
                count["compiled"] += dispatch["compiled"]
                count["below"] += (dispatch["compile_rate"] or 0.0) < LEAST_RATE
                print("| " + " | ".join(cells(row, dispatch)) + " |", flush=True)
    print("\n| target | operation | type | compiled | shapes below 97% | shapes without a space |")
    print("| --- | --- | --- | --- | --- | --- |")
    for (target, operation, kind), count in sums.items():
        rate = f"{count['compiled']} of {count['sampled']}"
        fields = (f"`{target}`", operation, kind, rate, count["below"], count["without"])
        print("| " + " | ".join(map(str, fields)) + " |")
    return int(any(count["below"] for count in sums.values()))


if __name__ == "__main__":
    sys.exit(main())
