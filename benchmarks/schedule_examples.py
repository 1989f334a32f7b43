"""The examples of the schedule language against IREE's own code for the same expressions, f32.

    python benchmarks/schedule_examples.py
    python benchmarks/schedule_examples.py --only softmax --threads 1 --rounds 40
    python benchmarks/schedule_examples.py --flag=--iree-opt-data-tiling --flag=--iree-opt-level=O3

IREE is given each expression as StableHLO and compiles it with its default flags (`--flag` adds
some). Both results are verified against NumPy in float64, and both programs run on one device and
the same data, in rounds in random order: `local-sync` for one thread, else `local-task`. What is
printed are medians, and the ratio over the rounds with its 95% interval (above 1: the schedule is
faster).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples" / "schedule"))

import convolution
import depthwise_convolution
import layer_norm
import matmul_bias_gelu
import softmax

from stablehlo_programs import CONVOLUTION, LAYER_NORM, MATMUL_BIAS_GELU, SOFTMAX, tensor
from tilewright import te
from tilewright.measure.comparison import ComparisonPolicy, interleave, judge_all
from tilewright.measure.compile_worker import CompileRequest, compile_pool, compile_source
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.pool import WorkerFailure, WorkerPool
from tilewright.measure.runtime import Device
from tilewright.measure.verify import compare
from tilewright.schedule.counting import reduction_terms
from tilewright.target import parse_target


@dataclass(frozen=True)
class Example:
    """schedule: makes the schedule and its tensors. program: IREE's, as StableHLO. flops: of one
    run, additions and multiplications; 0 where other functions take most of the time."""

    name: str
    shape: str
    schedule: Callable[[], tuple[te.Schedule, list[te.Tensor]]]
    reference: Callable[..., Any]
    program: str
    flops: int = 0


@dataclass(frozen=True)
class Row:
    """Medians in seconds; ratio: IREE's time over the schedule's, with its interval."""

    example: Example
    threads: int
    schedule_s: float
    iree_s: float
    ratio: float
    low: float
    high: float


def examples() -> list[Example]:
    m, n = softmax.ROWS, softmax.COLUMNS
    p, q = layer_norm.ROWS, layer_norm.COLUMNS
    d, c, g = depthwise_convolution, convolution, matmul_bias_gelu
    inner = (d.HEIGHT, d.WIDTH, d.CHANNELS)
    image = (c.HEIGHT, c.WIDTH)
    return [
        Example(
            "softmax",
            f"{m}x{n}",
            softmax.softmax,
            softmax.reference,
            SOFTMAX.format(matrix=tensor(m, n), rows=tensor(m)),
        ),
        Example(
            "layer norm",
            f"{p}x{q}",
            layer_norm.layer_norm,
            layer_norm.reference,
            LAYER_NORM.format(
                matrix=tensor(p, q),
                rows=tensor(p),
                columns=tensor(q),
                count=float(q),
                epsilon=layer_norm.EPSILON,
            ),
        ),
        Example(
            "depthwise 3x3",
            "x".join(map(str, inner)),
            d.depthwise_convolution,
            d.reference,
            CONVOLUTION.format(
                image=tensor(1, *inner),
                filter=tensor(3, 3, d.CHANNELS),
                shaped=tensor(3, 3, 1, d.CHANNELS),
                result=tensor(1, *inner),
                groups=d.CHANNELS,
            ),
            2 * 9 * d.HEIGHT * d.WIDTH * d.CHANNELS,
        ),
        Example(
            "direct 3x3",
            "x".join(map(str, (*image, c.CHANNELS, c.OUTPUTS))),
            c.convolution,
            c.reference,
            CONVOLUTION.format(
                image=tensor(1, *image, c.CHANNELS),
                filter=tensor(3, 3, c.CHANNELS, c.OUTPUTS),
                shaped=tensor(3, 3, c.CHANNELS, c.OUTPUTS),
                result=tensor(1, *image, c.OUTPUTS),
                groups=1,
            ),
            2 * 9 * c.HEIGHT * c.WIDTH * c.CHANNELS * c.OUTPUTS,
        ),
        Example(
            "matmul+bias+gelu",
            f"{g.ROWS}x{g.COLUMNS}x{g.DEPTH}",
            g.matmul_bias_gelu,
            g.reference,
            MATMUL_BIAS_GELU.format(
                a=tensor(g.ROWS, g.DEPTH),
                b=tensor(g.DEPTH, g.COLUMNS),
                bias=tensor(g.COLUMNS),
                result=tensor(g.ROWS, g.COLUMNS),
            ),
            2 * g.ROWS * g.COLUMNS * g.DEPTH,
        ),
    ]


def compiled(program: str, pool: WorkerPool, flags: tuple[str, ...]) -> bytes:
    """IREE's code for a program, for this machine."""
    request = CompileRequest(program, (*parse_target("cpu").flags, *flags), name="expression")
    vmfb = pool.ask(compile_source, request, 120.0)
    if isinstance(vmfb, WorkerFailure):
        raise SystemExit(f"IREE does not compile this:\n{program}\n{vmfb.message}")
    assert isinstance(vmfb, bytes)
    return vmfb


def measured(
    example: Example, vmfb: bytes, devices: dict[int, Device], policy: ComparisonPolicy
) -> list[Row]:
    """One row for each number of threads."""
    f = te.build(*example.schedule())
    arrays = f.random()
    expected = example.reference(*(a.astype("float64") for a in arrays))
    f.verify(expected, *arrays)
    rows = []
    for threads, device in devices.items():
        programs = [device.load(code) for code in (vmfb, f.vmfb)]
        on_device = [device.upload(a) for a in arrays]
        calls = [program.bind("main", on_device) for program in programs]
        (result,) = programs[0].outputs(calls[0]())
        right = compare(result, expected, "f32", reduction_terms(f.lowered))
        if not right.ok:
            raise SystemExit(f"{example.name}: IREE's result is wrong: {right.reason}")
        found = interleave(calls, policy, executions=[1, 1])
        _, judged = judge_all(found, policy)
        faster = judged.speedup
        rows.append(
            Row(
                example,
                threads,
                statistics.median(found[1].samples),
                statistics.median(found[0].samples),
                faster.value,
                faster.low,
                faster.high,
            )
        )
    return rows


HEADER = (
    f"{'expression':<17} {'shape':<14} {'threads':>7} {'IREE ms':>9} {'schedule ms':>12} "
    f"{'ratio':>6} {'interval':>13} {'IREE GF/s':>10} {'schedule':>9}"
)


def shown(row: Row) -> str:
    flops = row.example.flops
    rates = [f"{flops / s / 1e9:.0f}" if flops else "-" for s in (row.iree_s, row.schedule_s)]
    return (
        f"{row.example.name:<17} {row.example.shape:<14} {row.threads:>7} {row.iree_s * 1e3:>9.3f} "
        f"{row.schedule_s * 1e3:>12.3f} {row.ratio:>6.2f} {f'{row.low:.2f} to {row.high:.2f}':>13} "
        f"{rates[0]:>10} {rates[1]:>9}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="examples whose name contains this")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--max-s", type=float, default=10.0, help="seconds for each row")
    parser.add_argument("--flag", action="append", default=[], help="for IREE's compiler")
    parser.add_argument("--output", type=Path, help="also write the table as JSON")
    args = parser.parse_args()
    chosen = [e for e in examples() if args.only in e.name]
    policy = ComparisonPolicy(rounds=args.rounds, max_s=args.max_s)
    devices = {threads: Device(DeviceOptions.cpu(threads)) for threads in args.threads}
    print(HEADER)
    rows = []
    with compile_pool(1, timeout_s=120.0) as pool:
        codes = [compiled(e.program, pool, tuple(args.flag)) for e in chosen]
    for example, code in zip(chosen, codes, strict=True):
        for row in measured(example, code, devices, policy):
            rows.append(row)
            print(shown(row), flush=True)
    if args.output:
        data = [
            {
                "expression": row.example.name,
                "shape": row.example.shape,
                "threads": row.threads,
                "iree_s": row.iree_s,
                "schedule_s": row.schedule_s,
                "ratio": row.ratio,
                "interval": [row.low, row.high],
            }
            for row in rows
        ]
        args.output.write_text(json.dumps(data, indent=2) + "\n")


if __name__ == "__main__":
    main()
