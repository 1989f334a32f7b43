"""Fill the library of specs that comes with tilewright: python benchmarks/own_library.py

Tunes operators that many networks have, alone, on this machine, and pushes what beat the compiler's
default beyond the noise into `src/tilewright/specs`. What is there stays: each machine that this is
run on adds its own, `--only` takes some of the programs. Entries say what they were measured on;
they are first trials there, hints for others of the family, and nothing for any other.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from kernels import programs
from stablehlo_programs import CONVOLUTION, MATMUL, tensor
from tilewright import tune
from tilewright.files import read_text
from tilewright.sketch.spec_tasks import report_on
from tilewright.spec.read import with_evidence
from tilewright.tuning.outputs import PREPROCESSING, SPEC, read_manifest
from tilewright.tuning.result import TuneResult
from tilewright.tuning.spec_library import push

LIBRARY = Path(__file__).resolve().parents[1] / "src" / "tilewright" / "specs"
# Of a BERT base and of MobileBERT, and squares: [m, n, k].
PRODUCTS = ((128, 768, 768), (128, 768, 3072), (384, 512, 128), (512, 512, 512), (1024, 1024, 1024))
# Of a ResNet-50, channels last: image, channels.
CONVOLUTIONS = ((56, 64), (28, 128), (14, 256))
NAMED = ("softmax", "layer_norm", "depthwise", "matmul_bias_gelu", "attention")


def texts() -> dict[str, str]:
    """The programs by name."""
    found = {
        f"matmul {m}x{n}x{k}": MATMUL.format(a=tensor(m, k), b=tensor(k, n), result=tensor(m, n))
        for m, n, k in PRODUCTS
    }
    for size, channels in CONVOLUTIONS:
        image, window = tensor(1, size, size, channels), tensor(3, 3, channels, channels)
        found[f"conv 3x3 {size}x{size}x{channels}"] = CONVOLUTION.format(
            image=image, filter=window, shaped=window, result=image, groups=1
        )
    known = programs()
    return found | {name: known[name] for name in NAMED}


def pushed(result: TuneResult, output: Path, library: Path) -> int:
    """Put the entries of a run into a library, each with the interval of its gain.

    A program of one operator that was judged as a whole is the judgement of its entry.
    """
    low, high = result.program.speedup_ci
    if low <= 1.0:
        return 0
    digest, found = str(read_manifest(output)["program"]["digest"]), []
    for file in (output / SPEC, output / PREPROCESSING):
        report = report_on(file) if file.is_file() else None
        if report is not None and report.evidence:
            evidence = {
                name: one if one.low else replace(one, low=f"{low:.4g}", high=f"{high:.4g}")
                for name, one in report.evidence.items()
            }
            text = with_evidence(read_text(file, "spec"), str(file), evidence)
            found.append((text.encode(), replace(report, evidence=evidence), digest))
    return len(push(library, found)) if found else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=Path, default=LIBRARY)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--threads", type=int, help="by default as many as there are processors")
    parser.add_argument("--only", nargs="*", choices=list(texts()), help="some of the programs")
    given = parser.parse_args()
    for name, text in texts().items():
        if given.only is not None and name not in given.only:
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
            new, (low, high) = pushed(result, output, given.library), result.program.speedup_ci
            print(
                f"{name}: {result.program.default_ms:.3g} to {result.program.tuned_ms:.3g} ms, "
                f"{result.program.speedup:.2f}x ({low:.2f} to {high:.2f}), {new} new",
                flush=True,
            )
            for note in () if new else result.notes:
                print(f"  {note}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
