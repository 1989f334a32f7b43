"""A newcomer's lines in the README, the page on frameworks and the notebooks run as they stand."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from console import blocks

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
FRAMEWORKS = ("torch", "jax", "onnx")


def needed(code: str) -> None:
    """Skip what needs a framework that is not installed."""
    for name in FRAMEWORKS:
        used = any(word in code for word in (f"import {name}", f".{name}"))
        if used and importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed: pip install 'tilewright[{name}]'")


def run(code: str, folder: Path) -> str:
    environment = {
        **os.environ,
        "TILEWRIGHT_DB": str(folder / "trials.db"),
        "XDG_DATA_HOME": str(folder / "data"),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def write_model(path: Path) -> None:
    """A model of ONNX as the README's lines call one: of a picture, with weights."""
    import numpy as np
    import onnx

    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    weights = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["y"]),
        ],
        "model",
        [helper.make_tensor_value_info("x", kind, [1, 3, 64, 64])],
        [helper.make_tensor_value_info("y", kind, [1, 8, 64, 64])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)


def first_lines(framework: str) -> str:
    """The README's block that begins with the line that installs a framework."""
    (found,) = (
        one
        for one in blocks(ROOT / "README.md", "python")
        if one.startswith(f"# pip install '.[{framework}]'")
    )
    return found


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_newcomers_lines_are_five_at_most(framework: str) -> None:
    lines = [line for line in first_lines(framework).splitlines() if line]
    assert 3 <= len(lines) <= 5
    assert all(len(line) <= 100 for line in lines)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_newcomers_lines_lead_to_a_tuned_callable(framework: str, tmp_path: Path) -> None:
    code = first_lines(framework)
    needed(f"import {framework}")
    if framework == "onnx":
        write_model(tmp_path / "model.onnx")
    shape, _, speedup = run(code, tmp_path).strip().splitlines()[-1].rpartition(" ")
    assert "64" in shape
    assert float(speedup) >= 1.0


@pytest.mark.parametrize("title", ["PyTorch", "JAX", "ONNX, and any other program"])
def test_the_page_on_frameworks_runs(title: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "frameworks.md").read_text()
    section = tmp_path / "section.md"
    section.write_text(page.partition(f"\n## {title}\n")[2].partition("\n## ")[0])
    code = "\n".join(blocks(section, "python"))
    assert code
    if "model.onnx" in code:
        needed("import onnx")
        write_model(tmp_path / "model.onnx")
    needed(code)
    # Nobody waits here for a better result.
    run(
        code.replace('effort="quick"', 'effort="quick", max_trials=1, variants="default"'), tmp_path
    )


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) >= 3


# The stage of CI for frameworks runs slow ones, too.
@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    cells = json.loads(notebook.read_text())["cells"]
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell.get("outputs") for cell in cells)
    needed("\n".join(codes))
    shutil.copy(ROOT / "examples" / "matmul.mlir", tmp_path)
    code = "\n".join(codes).replace("max_trials=8", 'max_trials=1, variants="default"')
    run(code, tmp_path)
