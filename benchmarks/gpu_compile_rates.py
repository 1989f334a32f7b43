"""How many of the candidates that are drawn from GPU spaces compile: the table of docs/gpu.md.

    python benchmarks/gpu_compile_rates.py [--targets cuda:sm_80,rocm:gfx942] [--only REGEX]
                                           [--samples 64] [--seed 0] [--keep FOLDER]

runs `tilewright tune --compile-only` for products, batched products, convolutions and attention in
f16 and f32 on CUDA and ROCm, and for an f32 product on Vulkan. It needs no GPU. A row is one
dispatch; its last column names what fails: a rate below 95%, fewer than 32 different programs of
64, an intrinsic on offer that was not drawn, a candidate whose workgroup's size is not in its code,
a tuning spec that is not applied. The exit status is 1 if any row has one.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.toolchain import versions

LEAST_RATE, LEAST_DISTINCT = 0.95, 0.5
INTRINSICS = ("mma_idx", "mma_kind", "qk_mma_idx", "pv_mma_idx")
GPUS = ("cuda:sm_80", "rocm:gfx942")


@dataclass(frozen=True)
class Row:
    target: str
    name: str
    program: str


def filled(arguments: str, result: str, element: str, op: str) -> str:
    return f"""
func.func @main({arguments}) -> {result} {{
  %z = arith.constant 0.0 : {element}
  %e = tensor.empty() : {result}
  %f = linalg.fill ins(%z : {element}) outs(%e : {result}) -> {result}
  %r = {op} outs(%f : {result}) -> {result}
  return %r : {result}
}}
"""


def product(kind: str, m: int, n: int, k: int, batch: int = 0) -> str:
    """A product of `kind` elements with f32 sums."""
    lead, name = (f"{batch}x", "batch_matmul") if batch else ("", "matmul")
    a, b = f"tensor<{lead}{m}x{k}x{kind}>", f"tensor<{lead}{k}x{n}x{kind}>"
    return filled(
        f"%a: {a}, %b: {b}",
        f"tensor<{lead}{m}x{n}xf32>",
        "f32",
        f"linalg.{name} ins(%a, %b : {a}, {b})",
    )


def convolution(kind: str, images: int, size: int, channels: int, filters: int) -> str:
    """A 3x3 convolution in NHWC to `size` x `size` points."""
    a = f"tensor<{images}x{size + 2}x{size + 2}x{channels}x{kind}>"
    b = f"tensor<3x3x{channels}x{filters}x{kind}>"
    return filled(
        f"%a: {a}, %b: {b}",
        f"tensor<{images}x{size}x{size}x{filters}xf32>",
        "f32",
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


def rows(targets: list[str]) -> Iterator[Row]:
    for target in targets:
        kinds = ("f16", "f32") if not target.startswith("vulkan") else ("f32",)
        for kind in kinds:
            yield Row(target, f"{kind} product 2048x2048x2048", product(kind, 2048, 2048, 2048))
            if target.startswith("vulkan"):
                continue
            yield Row(
                target,
                f"{kind} batch product 16x512x512x256",
                product(kind, 512, 512, 256, batch=16),
            )
            yield Row(
                target,
                f"{kind} convolution 3x3, 8x64x64, 64 to 128",
                convolution(kind, 8, 64, 64, 128),
            )
            yield Row(
                target,
                f"{kind} attention, 16 heads, 1024x64x1024x64",
                attention(kind, 16, 1024, 64, 1024),
            )


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
    parser.add_argument("--targets", default=",".join((*GPUS, "vulkan:ampere")))
    parser.add_argument("--only", default="", help="rows whose target and name have this in them")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder for the programs and results")
    options = parser.parse_args()
    installed = ", ".join(f"{name} {version}" for name, version in versions().items() if version)
    print(f"{datetime.date.today()}, {options.samples} candidates each: {installed}\n")
    print(
        "| target | dispatch | space | compiled | different | size in the code | intrinsics drawn "
        "| applied | what fails |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    short = False
    with tempfile.TemporaryDirectory() as temporary:
        work = options.keep or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        for row in rows(options.targets.split(",")):
            if not re.search(options.only, f"{row.target} {row.name}"):
                continue
            summary = compiled(row, options, work)
            if "error" in summary:
                short = True
                print(f"| `{row.target}` | {row.name} | | | | | | | {summary['error']} |")
            for dispatch in summary.get("dispatches", []):
                short |= bool(shortcomings(dispatch))
                print("| " + " | ".join(cells(row, dispatch)) + " |", flush=True)
    return int(short)


if __name__ == "__main__":
    sys.exit(main())
