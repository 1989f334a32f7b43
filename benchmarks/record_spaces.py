"""Record the spaces that tilewright ships: `src/tilewright/replay/data`.

    python benchmarks/record_spaces.py                        # all that are not there yet
    python benchmarks/record_spaces.py matmul_49x2048x512     # one of them
    python benchmarks/record_spaces.py --list
    python benchmarks/record_spaces.py --resume matmul_49x2048x512

Each space is the full product of hand-chosen values around what is known to be good: the tiles that
workgroups take, and the vector tiles with the steps of the reduction. Blocking for caches, inner
parallel tiles and peeling keep the compiler's choice. The machine must have nothing else to do: a
space takes from five to fifteen minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matmul import program_of
from tilewright.errors import UserError
from tilewright.replay.record import RecordProgress, RecordRequest, RecordSession
from tilewright.tuning.options import TuneOptions

DATA = Path(__file__).parent.parent / "src" / "tilewright" / "replay" / "data"
F32 = ("f32", "f32", "f32")

BATCH_MATMUL = """func.func @main(%a: tensor<{b}x{m}x{k}xf32>, %b: tensor<{b}x{k}x{n}xf32>)
    -> tensor<{b}x{m}x{n}xf32> {{
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<{b}x{m}x{n}xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<{b}x{m}x{n}xf32>) -> tensor<{b}x{m}x{n}xf32>
  %r = linalg.batch_matmul ins(%a, %b : tensor<{b}x{m}x{k}xf32>, tensor<{b}x{k}x{n}xf32>)
    outs(%f : tensor<{b}x{m}x{n}xf32>) -> tensor<{b}x{m}x{n}xf32>
  return %r : tensor<{b}x{m}x{n}xf32>
}}
"""

# Sums of the rows of a matrix.
ROW_SUMS = """func.func @main(%a: tensor<{p}x{r}xf32>) -> tensor<{p}xf32> {{
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<{p}xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<{p}xf32>) -> tensor<{p}xf32>
  %s = linalg.reduce ins(%a : tensor<{p}x{r}xf32>) outs(%f : tensor<{p}xf32>) dimensions = [1]
    (%x: f32, %y: f32) {{
      %t = arith.addf %x, %y : f32
      linalg.yield %t : f32
    }}
  return %s : tensor<{p}xf32>
}}
"""


def matmul(m: int, n: int, k: int) -> str:
    return program_of({"kind": "matmul", "m": m, "n": n, "k": k, "types": F32})[0]


def convolution(size: int, channels: int, stride: int, depthwise: bool = False) -> str:
    """A 3x3 convolution of a square image, as many channels out as in."""
    kind = "depthwise_conv2d_nhwc_hwc" if depthwise else "conv2d_nhwc_hwcf"
    shape = {"n": 1, "h": size, "w": size, "ci": channels, "co": channels}
    shape |= {"kernel": 3, "stride": stride, "pad": 1}
    return program_of({"kind": kind, "types": F32, **shape})[0]


@dataclass(frozen=True)
class Space:
    """A program of one dispatch, and the values of its knobs, as texts of `--knob`."""

    program: str
    knobs: Mapping[str, str]


def tiles(**lists: str) -> dict[str, str]:
    """Lists of values with short names: `dm` for `distribution_m`, `vm` for the vector tile of m
    (`vector_common_parallel_m`), `rk` for the step of the reduction (`vector_reduction_k`), `ck`
    for its cache blocks (`cache_reduction_k`)."""
    levels = {
        "d": "distribution",
        "v": "vector_common_parallel",
        "r": "vector_reduction",
        "c": "cache_reduction",
    }
    return {f"{levels[name[0]]}_{name[1:]}": values for name, values in lists.items()}


PEELING = {"enable_loop_peeling": "false,true"}

# Vector tiles are as large as the compiler's limit on vectors lets the largest of each be together,
# so that every combination is valid.
SPACES = {
    "matmul_768x768x768": Space(
        matmul(768, 768, 768),
        tiles(
            dm="32,64,128,256",
            dn="64,128,256,512",
            vm="4,6,8,10,12,14",
            vn="16,32",
            rk="1,2,16",
        ),
    ),
    "matmul_12544x64x147": Space(
        matmul(12544, 64, 147),
        tiles(dm="32,64,112,196,448,896", vm="4,7,8,12,14", vn="16,32,64", rk="1,3,7") | PEELING,
    ),
    "matmul_49x2048x512": Space(
        matmul(49, 2048, 512),
        tiles(dm="7,14,49", dn="64,128,256,512", vm="1,3,5,7", vn="16,32,64", rk="1,2,4,16"),
    ),
    "matmul_384x128x512": Space(
        matmul(384, 128, 512),
        tiles(
            dm="24,32,48,64,96",
            dn="32,64,128",
            vm="4,6,8,12",
            vn="16,32",
            rk="1,2,4,8,16",
        ),
    ),
    "batch_matmul_12x384x384x64": Space(
        BATCH_MATMUL.format(b=12, m=384, n=384, k=64),
        tiles(
            db="1,2",
            dm="48,64,96,128",
            dn="64,128,192",
            vm="4,6,8,12",
            vn="16,32",
            rk="1,4,16",
        ),
    ),
    "conv_56x56x64_s1": Space(
        convolution(56, 64, 1),
        tiles(
            doh="1,2,4,7,14",
            dow="14,28,56",
            vow="4,7,8,14",
            voc="16,32,64",
            ric="1,4,8",
        ),
    ),
    "conv_56x56x128_s2": Space(
        convolution(56, 128, 2),
        tiles(
            doh="2,4,7,14",
            dow="14,28",
            doc="64,128",
            vow="2,4,7,14",
            voc="16,32,64",
            ric="1,4,8",
        ),
    ),
    "depthwise_112x112x32_s1": Space(
        convolution(112, 32, 1, depthwise=True),
        tiles(
            doh="2,4,8,16,28,56",
            dow="28,56,112",
            vow="1,2,4,7,14",
            vg="8,16,32",
            rkw="1,3",
        ),
    ),
    "row_sums_1024x4096": Space(
        ROW_SUMS.format(p=1024, r=4096),
        tiles(
            dp="32,64,128,512",
            vp="1,2,4,8,16,32",
            rr="1,4,8,16,32,64,128",
            cr="0,512,1024",
        ),
    ),
}


def record(name: str, space: Space, output: Path, options: Mapping[str, Any]) -> None:
    with tempfile.TemporaryDirectory(prefix="tilewright-record-") as scratch:
        program = Path(scratch) / f"{name}.mlir"
        program.write_text(space.program)
        request = RecordRequest(
            program, TuneOptions(**options), output, knobs=space.knobs, name=name
        )
        recording = RecordSession(request, say, show).run()
    if recording is not None:
        failed = len(recording) - int(recording.ok.sum())
        say(f"{output}: {len(recording)} configurations, {failed} failed")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def show(progress: RecordProgress) -> None:
    if progress.done % 50 == 0 and progress.best_s is not None:
        say(
            f"  {progress.done} of {progress.total}, {progress.failed} failed, best "
            f"{progress.best_s * 1e3:.4f} ms, default {progress.default_s * 1e3:.4f} ms"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("spaces", nargs="*", metavar="SPACE", help="by name (default: all)")
    parser.add_argument("--list", action="store_true", help="only say which there are")
    parser.add_argument("--resume", action="store_true", help="go on with what was interrupted")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=DATA, help="where the files go")
    parser.add_argument("--db", type=Path, help="the database (default: beside the files)")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.spaces if name not in SPACES]
    if unknown:
        parser.error(f"no space {unknown[0]} (there are: {', '.join(SPACES)})")
    if arguments.list:
        for name, space in SPACES.items():
            print(name, *(f"{knob}={values}" for knob, values in space.knobs.items()))
        return
    arguments.output.mkdir(parents=True, exist_ok=True)
    options = {
        "threads": arguments.threads,
        "seed": arguments.seed,
        "resume": arguments.resume,
        "db": arguments.db or arguments.output / "recording.db",
    }
    for name in arguments.spaces or SPACES:
        output = arguments.output / f"{name}.npz"
        if output.exists() and not arguments.spaces:
            say(f"{output}: there already")
            continue
        say(name)
        try:
            record(name, SPACES[name], output, options)
        except UserError as error:
            say(f"{name}: {error}")


if __name__ == "__main__":
    main()
