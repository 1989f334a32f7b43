"""What CONTRIBUTING.md shows works: each file, put into a copy of the source with its line, is used
by its name."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "CONTRIBUTING.md"

ELEMENTWISE = """
func.func @main(%a: tensor<512x1024xf32>, %b: tensor<512x1024xf32>) -> tensor<512x1024xf32> {
  %sum = arith.addf %a, %b : tensor<512x1024xf32>
  return %sum : tensor<512x1024xf32>
}
"""

PRIMITIVE = """
from tilewright import te

A = te.placeholder((96,), name="A")
B = te.compute((96,), lambda i: A[i] * 2, name="B")
s = te.create_schedule(B)
s[B].blocks(B.op.axis[0], (4, 8))
print(te.lower(s, [A, B]))
print("primitives:", [step.primitive for step in s.trace().steps])
"""

KIND = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from tilewright.ir.reference import evaluate
from tilewright.ir.session import CompilerSession
from tilewright.kernels.kinds import parse_operation
from tilewright.kernels.worker_tasks import build_program
from tilewright.measure.inputs import random_array

operation = parse_operation("squared_norm_5x12_f32t_f32t")
(values,) = (random_array(a, 1, i) for i, a in enumerate(operation.arguments))
expected = operation.kind.reference(operation, [values.astype(np.float64)])
(computed,) = evaluate(build_program(operation, CompilerSession().context), "main", [values])
np.testing.assert_allclose(computed, expected, rtol=1e-6)
print("computed")
"""


@dataclass(frozen=True)
class Shown:
    """A section of the page: a file with its text, and the change that registers it."""

    path: str
    text: str
    diff: str


def shown(title: str) -> Shown:
    section = PAGE.read_text().partition(f"### {title}\n")[2].partition("\n### ")[0]
    (path,) = re.findall(r"^`(src/[a-z_/]+\.py)`:$", section, re.MULTILINE)
    (text,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (diff,) = re.findall(r"```diff\n(.*?)```", section, re.DOTALL)
    return Shown(path, text, diff)


def apply(root: Path, change: Shown) -> None:
    """Write the file, and change the one that the diff names: each hunk stands there once."""
    new = root / change.path
    assert not new.exists()
    new.write_text(change.text)
    head, *hunks = re.split(r"^@@\n", change.diff, flags=re.MULTILINE)
    path = root / head.splitlines()[1].removeprefix("+++ b/")
    text = path.read_text()
    for hunk in hunks:
        lines = hunk.splitlines()
        before = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
        after = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
        assert text.count(before) == 1, f"{path}: {before}"
        text = text.replace(before, after)
    path.write_text(text)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    # With what Python has compiled of it: the times of its files go along.
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    return tmp_path


def run(root: Path, *arguments: str) -> str:
    """What a command of the changed copy prints."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(root / "src"),
        "TILEWRIGHT_DB": str(root / "trials.db"),
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tilewright(root: Path, *arguments: str) -> str:
    return run(root, "-m", "tilewright", *arguments)


def test_the_strategy(copied: Path) -> None:
    apply(copied, shown("A search strategy"))
    space = "matmul_384x128x512"
    given = ("--strategy", "climb", "--runs", "2", "--jobs", "1")
    assert "climb" in tilewright(copied, "replay", "score", space, *given)


@pytest.mark.slow
def test_the_pipeline(copied: Path) -> None:
    apply(copied, shown("A codegen pipeline"))
    program = copied / "sum.mlir"
    program.write_text(ELEMENTWISE)
    assert "Default: " in tilewright(copied, "inspect", str(program))
    given = ("--effort", "quick", "--max-trials", "4", "--kernels", "off", "-o", "out")
    given = (*given, "--variants", "default")
    either = ("--strategy", "random", "--strategy-option", "by_pipeline=true")
    tilewright(copied, "tune", str(program), *given, *either)
    with open(copied / "out" / "trials.csv") as file:
        trials = list(csv.DictReader(file))
    made = [t["status"] for t in trials if t["configuration"].startswith("Default: ")]
    assert "ok" in made


def test_the_kind_of_kernel(copied: Path) -> None:
    apply(copied, shown("A kind of kernel"))
    assert run(copied, "-c", KIND, str(copied / "src")) == "computed\n"


def test_the_provider(copied: Path) -> None:
    apply(copied, shown("A provider of comparisons"))
    given = ("--providers", "loops,numpy", "--rounds", "6", "--no-peak", "--threads", "1")
    results = copied / "results.csv"
    tilewright(copied, "compare", "--matmul", "8x4x6:f32", *given, "--output", str(results))
    (row,) = (line for line in results.read_text().splitlines() if "loops" in line)
    assert "ok" in row


def test_the_primitive(copied: Path) -> None:
    apply(copied, shown("A primitive of schedules"))
    printed = run(copied, "-c", PRIMITIVE)
    assert "in range(3)" in printed
    assert "in range(4)" in printed
    assert "in range(8)" in printed
    assert printed.endswith("primitives: ['blocks']\n")
