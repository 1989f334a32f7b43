"""Tune every shape of a file and print default, tuned and peak side by side.

    python benchmarks/matmul.py                                # benchmarks/shapes/matmul.json
    python benchmarks/matmul.py --shapes my.json --only 2048 --effort quick --output results.json

Each shape is a program of one operation. `default` and `tuned` are the times of the whole program
in the same interleaved rounds, so their ratio is free of the machine's drift; `peak` is what the
machine reaches at most in f32, measured just before and after. The shape files have the
form of the ones in benchmarks/shapes: kinds `matmul`, `conv2d_nhwc_hwcf` and
`depthwise_conv2d_nhwc_hwc`.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

from tilewright.errors import UserError
from tilewright.measure.peak import measure_peak
from tilewright.target import usable_cores
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.result import TuneResult
from tilewright.tuning.session import TuningSession

SHAPES = Path(__file__).parent / "shapes" / "matmul.json"

MATMUL = """func.func @main(%a: tensor<{m}x{k}x{lhs}>, %b: tensor<{k}x{n}x{rhs}>)
    -> tensor<{m}x{n}x{out}> {{
  %z = arith.constant {zero} : {out}
  %e = tensor.empty() : tensor<{m}x{n}x{out}>
  %f = linalg.fill ins(%z : {out}) outs(%e : tensor<{m}x{n}x{out}>) -> tensor<{m}x{n}x{out}>
  %r = linalg.matmul ins(%a, %b : tensor<{m}x{k}x{lhs}>, tensor<{k}x{n}x{rhs}>)
    outs(%f : tensor<{m}x{n}x{out}>) -> tensor<{m}x{n}x{out}>
  return %r : tensor<{m}x{n}x{out}>
}}
"""

CONVOLUTION = """func.func @main(%a: tensor<{n}x{ih}x{iw}x{ci}x{lhs}>, %b: tensor<{filter}x{rhs}>)
    -> tensor<{n}x{oh}x{ow}x{co}x{out}> {{
  %z = arith.constant {zero} : {out}
  %e = tensor.empty() : tensor<{n}x{oh}x{ow}x{co}x{out}>
  %f = linalg.fill ins(%z : {out}) outs(%e : tensor<{n}x{oh}x{ow}x{co}x{out}>)
    -> tensor<{n}x{oh}x{ow}x{co}x{out}>
  %r = linalg.{op}
    {{dilations = dense<1> : tensor<2xi64>, strides = dense<{stride}> : tensor<2xi64>}}
    ins(%a, %b : tensor<{n}x{ih}x{iw}x{ci}x{lhs}>, tensor<{filter}x{rhs}>)
    outs(%f : tensor<{n}x{oh}x{ow}x{co}x{out}>) -> tensor<{n}x{oh}x{ow}x{co}x{out}>
  return %r : tensor<{n}x{oh}x{ow}x{co}x{out}>
}}
"""

CONVOLUTION_OPS = {
    "conv2d_nhwc_hwcf": "conv_2d_nhwc_hwcf",
    "depthwise_conv2d_nhwc_hwc": "depthwise_conv_2d_nhwc_hwc",
}


def name_of(shape: dict[str, Any]) -> str:
    if shape["kind"] == "matmul":
        return f"{shape['m']}x{shape['n']}x{shape['k']}"
    size = "x".join(str(shape[key]) for key in ("n", "h", "w", "ci", "co"))
    return f"{shape['kind'].split('_')[0]} {size} k{shape['kernel']} s{shape['stride']}"


def program_of(shape: dict[str, Any]) -> tuple[str, int]:
    """The MLIR of a shape, and its floating point operations."""
    lhs, rhs, out = shape["types"]
    types = {"lhs": lhs, "rhs": rhs, "out": out, "zero": "0" if out.startswith("i") else "0.0"}
    if shape["kind"] == "matmul":
        sizes = {key: shape[key] for key in ("m", "n", "k")}
        return MATMUL.format(**sizes, **types), 2 * math.prod(sizes.values())
    kernel, stride, pad = shape["kernel"], shape["stride"], shape["pad"]
    depthwise = shape["kind"].startswith("depthwise")
    oh = (shape["h"] + 2 * pad - kernel) // stride + 1
    ow = (shape["w"] + 2 * pad - kernel) // stride + 1
    weights = (kernel, kernel, shape["ci"], *(() if depthwise else (shape["co"],)))
    text = CONVOLUTION.format(
        n=shape["n"],
        ih=shape["h"] + 2 * pad,
        iw=shape["w"] + 2 * pad,
        ci=shape["ci"],
        co=shape["co"],
        oh=oh,
        ow=ow,
        filter="x".join(map(str, weights)),
        stride=stride,
        op=CONVOLUTION_OPS[shape["kind"]],
        **types,
    )
    per_output = kernel * kernel * (1 if depthwise else shape["ci"])
    return text, 2 * shape["n"] * oh * ow * shape["co"] * per_output


def tune_shape(shape: dict[str, Any], arguments: argparse.Namespace, folder: Path) -> TuneResult:
    text, _ = program_of(shape)
    program = folder / f"{name_of(shape).replace(' ', '_')}.mlir"
    program.write_text(text)
    options = TuneOptions(
        effort=arguments.effort,
        max_trials=arguments.max_trials,
        strategy=arguments.strategy,
        seed=arguments.seed,
        threads=arguments.threads,
        db=folder / "benchmark.db",
        output=folder / f"{program.stem}-out",
        fresh=True,
    )
    return TuningSession(program, options).run()


def row_of(shape: dict[str, Any], result: TuneResult) -> dict[str, Any]:
    _, flops = program_of(shape)
    program = result.program
    spaces = [d for d in result.dispatches if d.space_points]
    return {
        "shape": name_of(shape),
        "group": shape.get("group", ""),
        "default_ms": program.default_ms,
        "tuned_ms": program.tuned_ms,
        "speedup": program.speedup,
        "low": program.speedup_ci[0],
        "high": program.speedup_ci[1],
        "default_gflops": flops / program.default_ms / 1e6,
        "tuned_gflops": flops / program.tuned_ms / 1e6,
        "verified": program.verified,
        "variant": program.variant,
        "trials": result.trials_total,
        "space": sum(d.space_points for d in spaces),
        "tried_share": max((d.tried_share for d in spaces), default=0.0),
        "seconds": result.wall_s,
        "main_cpu_share": result.phase_s["main_process_cpu"] / result.wall_s,
        "trials_per_s": result.trials_total / max(result.phase_s.get("search", 0.0), 1e-9),
        "configuration": "; ".join(
            d.configuration for d in result.dispatches if d.status == "tuned"
        ),
    }


HEADER = (
    f"{'shape':>24} {'default ms':>10} {'tuned ms':>9} {'speed-up':>8} {'interval':>13} "
    f"{'GF/s':>6} {'tuned':>6} {'peak':>5} {'verified':>8} {'variant':>14} {'trials':>6} "
    f"{'space':>8} {'tried':>8} {'s':>5}"
)


def line_of(row: dict[str, Any], peak: float) -> str:
    return (
        f"{row['shape']:>24} {row['default_ms']:>10.4f} {row['tuned_ms']:>9.4f} "
        f"{row['speedup']:>8.3f} {row['low']:>6.3f}-{row['high']:<6.3f} "
        f"{row['default_gflops']:>6.0f} {row['tuned_gflops']:>6.0f} {peak:>5.0f} "
        f"{'yes' if row['verified'] else 'NO':>8} {row['variant']:>14} {row['trials']:>6} "
        f"{row['space']:>8.1e} {row['tried_share']:>8.1e} {row['seconds']:>5.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", type=Path, default=SHAPES)
    parser.add_argument("--only", default="", help="shapes whose name or group has this in it")
    parser.add_argument("--effort", default="standard")
    parser.add_argument("--max-trials", type=int, default=None)
    parser.add_argument("--strategy", default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--output", type=Path, help="write the rows as JSON")
    arguments = parser.parse_args()
    shapes = [
        shape
        for shape in json.loads(arguments.shapes.read_text())
        if arguments.only in name_of(shape) or arguments.only == shape.get("group")
    ]
    threads = arguments.threads or usable_cores()
    rows: list[dict[str, Any]] = []
    begin = time.time()
    before = measure_peak(threads)
    print(f"peak: {before.gflops:.0f} GFLOP/s, {before.gbytes_per_s:.0f} GB/s ({before.method})")
    print(HEADER, flush=True)
    with tempfile.TemporaryDirectory(prefix="tilewright-benchmark-") as scratch:
        for shape in shapes:
            try:
                result = tune_shape(shape, arguments, Path(scratch))
            except (UserError, RuntimeError) as error:
                print(f"{name_of(shape):>24} failed: {error}", flush=True)
                rows.append({"shape": name_of(shape), "error": str(error)})
                continue
            rows.append(row_of(shape, result))
            print(line_of(rows[-1], before.gflops), flush=True)
    after = measure_peak(threads)
    good = [row for row in rows if "speedup" in row]
    if good:
        mean = math.exp(sum(math.log(row["speedup"]) for row in good) / len(good))
        print(
            f"geometric mean speed-up {mean:.3f} over {len(good)} shapes, lowest "
            f"{min(row['speedup'] for row in good):.3f}, {len(rows) - len(good)} failed, "
            f"{time.time() - begin:.0f} s; peak after: {after.gflops:.0f} GFLOP/s"
        )
    if arguments.output:
        data = {"peak_gflops": [before.gflops, after.gflops], "rows": rows}
        arguments.output.write_text(json.dumps(data, indent=2) + "\n")


if __name__ == "__main__":
    main()
