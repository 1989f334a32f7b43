"""Fill the library of specs that comes with tilewright: python benchmarks/own_library.py

Tunes a few products and convolutions that many networks have, alone, on this machine, and pushes
what beat the compiler's default beyond the noise into `src/tilewright/specs`. What is there stays:
each machine that this is run on adds its own. Entries say which machine they are of; they are first
trials for others of its family, and nothing for any other.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tilewright import tune
from tilewright.files import read_text
from tilewright.sketch.spec_tasks import report_on
from tilewright.tuning.outputs import PREPROCESSING, SPEC, read_manifest
from tilewright.tuning.spec_library import push

LIBRARY = Path(__file__).resolve().parents[1] / "src" / "tilewright" / "specs"
# Of MobileBERT, of a small GPT, and squares: [m, n, k].
PRODUCTS = ((384, 128, 128), (384, 512, 128), (384, 128, 512), (128, 768, 768), (512, 512, 512))
# Of a ResNet-50, channels last: image, channels, filters, window.
CONVOLUTIONS = ((56, 64, 64, 3), (28, 128, 128, 3), (14, 256, 256, 3))


def product(m: int, n: int, k: int) -> str:
    """A program of one f32 product of `m` rows, `n` columns and depth `k`."""
    return f"""
func.func @main(%a: tensor<{m}x{k}xf32>, %b: tensor<{k}x{n}xf32>) -> tensor<{m}x{n}xf32> {{
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<{m}x{n}xf32>
  %fill = linalg.fill ins(%zero : f32) outs(%empty : tensor<{m}x{n}xf32>) -> tensor<{m}x{n}xf32>
  %c = linalg.matmul ins(%a, %b : tensor<{m}x{k}xf32>, tensor<{k}x{n}xf32>)
      outs(%fill : tensor<{m}x{n}xf32>) -> tensor<{m}x{n}xf32>
  return %c : tensor<{m}x{n}xf32>
}}
"""


def convolution(size: int, channels: int, filters: int, window: int) -> str:
    """A program of one f32 convolution, channels last, of an image that has been padded."""
    padded = size + window - 1
    image = f"tensor<1x{padded}x{padded}x{channels}xf32>"
    weights = f"tensor<{window}x{window}x{channels}x{filters}xf32>"
    result = f"tensor<1x{size}x{size}x{filters}xf32>"
    return f"""
func.func @main(%x: {image}, %w: {weights}) -> {result} {{
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : {result}
  %fill = linalg.fill ins(%zero : f32) outs(%empty : {result}) -> {result}
  %y = linalg.conv_2d_nhwc_hwcf {{dilations = dense<1> : tensor<2xi64>,
      strides = dense<1> : tensor<2xi64>}} ins(%x, %w : {image}, {weights})
      outs(%fill : {result}) -> {result}
  return %y : {result}
}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=Path, default=LIBRARY)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the programs")
    given = parser.parse_args()
    programs = [product(*one) for one in PRODUCTS] + [convolution(*one) for one in CONVOLUTIONS]
    for number, text in enumerate(programs):
        if given.only is not None and number not in given.only:
            continue
        with tempfile.TemporaryDirectory() as work:
            path, output = Path(work) / "program.mlir", Path(work) / "out"
            path.write_text(text)
            result = tune(
                path,
                output=output,
                effort="quick",
                max_trials=given.trials,
                threads=given.threads,
                variants="default",
                db=Path(work) / "trials.db",
            )
            digest = str(read_manifest(output)["program"]["digest"])
            found = []
            for file in (output / SPEC, output / PREPROCESSING):
                if file.is_file() and (report := report_on(file)).evidence:
                    found.append((read_text(file, "spec").encode(), report, digest))
            new = push(given.library, found) if found else []
            print(f"{number}: {result.program.speedup:.2f}x, {len(new)} new", flush=True)
            for note in () if new else result.notes:
                print(f"  {note}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
