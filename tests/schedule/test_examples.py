"""examples/schedule: right at other shapes too, and shown on their page as they are."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tilewright import te

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "schedule"
PAGE = ROOT / "docs" / "schedule-examples.md"

# Small shapes that blocks and tiles do not divide.
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("softmax", "softmax", {"rows": 11, "columns": 101, "block": 4}),
    ("layer_norm", "layer_norm", {"rows": 7, "columns": 130, "block": 3}),
    (
        "depthwise_convolution",
        "depthwise_convolution",
        {"height": 9, "width": 11, "channels": 20, "rows": 4, "tile": (4, 16)},
    ),
    (
        "convolution",
        "convolution",
        {"height": 5, "width": 9, "channels": 3, "outputs": 20, "rows": 2, "tile": (4, 16)},
    ),
    (
        "matmul_bias_gelu",
        "matmul_bias_gelu",
        {"rows": 13, "columns": 37, "depth": 19, "tile": (4, 16)},
    ),
]


@pytest.fixture
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An example, imported as a script that is run from its folder imports others."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module(request.param)


@pytest.mark.parametrize(
    ("module", "function", "shape"), CASES, ids=[c[0] for c in CASES], indirect=["module"]
)
def test_an_example_is_right_at_other_shapes(
    module: Any, function: str, shape: dict[str, Any]
) -> None:
    f = te.build(*getattr(module, function)(**shape), threads=1)
    (comparison,) = f.verify(module.reference)
    assert comparison.ok


@pytest.mark.parametrize(
    ("module", "function"), [c[:2] for c in CASES], ids=[c[0] for c in CASES], indirect=["module"]
)
def test_an_example_is_one_kernel_with_little_memory(module: Any, function: str) -> None:
    """At its own shape, everything is computed in one dispatch, next to where it is needed."""
    schedule, tensors = getattr(module, function)()
    program = te.lower(schedule, tensors).program
    assert len(program.kernels) == 1
    assert not program.temporaries


def test_the_page_shows_the_examples_as_they_are() -> None:
    sources = [file.read_text() for file in FOLDER.glob("*.py")]
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        shown = textwrap.indent(block, "    ")
        assert any(shown in source for source in sources), block


@pytest.mark.slow
def test_the_benchmark_prints_a_row_for_each_number_of_threads() -> None:
    script = ROOT / "benchmarks" / "schedule_examples.py"
    options = ["--only", "depthwise", "--threads", "1", "2", "--rounds", "1"]
    done = subprocess.run(
        [sys.executable, script, *options], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    header, *rows = done.stdout.splitlines()
    assert header.split()[0] == "expression"
    assert [row.split()[3] for row in rows] == ["1", "2"]
