"""The example programs and scripts do what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tilewright
from tilewright.tuning.request import make_request
from warm_start import run_warm

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(script: str, *arguments: str, cwd: Path) -> str:
    environment = {**os.environ, "TILEWRIGHT_DB": str(cwd / "trials.db")}
    done = run_warm(arguments, script=EXAMPLES / script, folder=cwd, environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("program", "dispatches", "tasks"),
    [
        ("matmul.mlir", 1, 1),
        ("mlp.mlir", 3, 3),
        ("mlp_weights.mlir", 3, 3),
        ("convnet.mlir", 6, 6),
        ("bottleneck.mlir", 3, 3),
    ],
)
def test_the_programs_have_dispatches_to_tune(program: str, dispatches: int, tasks: int) -> None:
    (variant,) = tilewright.inspect(EXAMPLES / program, kernels="off").variants
    assert sum(d.count for d in variant.dispatches) == dispatches
    assert len(variant.dispatches) == tasks
    assert not variant.skipped


def test_the_configuration_file_names_the_program_and_restricts_it() -> None:
    request = make_request(None, {"config": EXAMPLES / "auto-scheduler.cfg"})
    assert request.program == EXAMPLES / "matmul.mlir"
    assert request.options.trial_limit == 16
    assert request.options.config is not None
    assert request.options.config.restrictions_for("any")["tile_m"] == (28, 49, 98, 196)


def test_api_tune(tmp_path: Path) -> None:
    out = run("api_tune.py", "--max-trials", "2", "--output", "tuned", cwd=tmp_path)
    assert re.search(r"\d ms before, \S+ ms after", out)
    assert "iree-compile" in out
    assert (tmp_path / "tuned" / "program.vmfb").exists()


def test_api_tune_reports_a_mistake_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.mlir").write_text("func.func @f( {")
    done = subprocess.run(
        [sys.executable, EXAMPLES / "api_tune.py", "bad.mlir", "--db", "t.db"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_custom_stages_goes_on_where_it_ended(tmp_path: Path) -> None:
    first = run("custom_stages.py", "--trials", "3", "--db", "flags.db", cwd=tmp_path)
    again = run("custom_stages.py", "--trials", "5", "--db", "flags.db", cwd=tmp_path)
    assert "has 0 trials already" in first
    assert "has 3 trials already" in again
    trial = re.compile(r"^\d\S* ms (.*)$", re.MULTILINE)
    tried = trial.findall(first) + trial.findall(again)
    assert len(tried) == len(set(tried)) == 5
    assert "finalist: " in again


@pytest.mark.slow
def test_session_stages(tmp_path: Path) -> None:
    out = run("session_stages.py", "--max-trials", "2", "--output", "tuned", cwd=tmp_path)
    assert re.search(r"_196x1024x256_f32: 2 trials, \d failed, (tuned|default kept)", out)
    assert re.search(r"the program is \d+\.\d\d times as fast", out)
    assert (tmp_path / "tuned" / "program.vmfb").exists()


def test_space_alone(tmp_path: Path) -> None:
    out = run("space_alone.py", cwd=tmp_path)
    assert "rejected by registers: 16x64 needs 69 of 32 registers" in out
    assert "restricted: " in out
    assert "5 is not allowed" in out


def test_own_pipeline(tmp_path: Path) -> None:
    out = run("own_pipeline.py", "16", cwd=tmp_path)
    assert "3 rules as SMT-LIB" in out
    found, right = re.search(r"(\d+) trials, (\d+) with the right numbers", out).groups()
    assert found == right
    assert re.search(r"default \S+ ms, best \S+ ms", out)


def test_measure_alone(tmp_path: Path) -> None:
    out = run("measure_alone.py", cwd=tmp_path)
    assert "outputs agree" in out
    assert re.search(r"default: \S+ ms, 1.00 times", out)
    assert re.search(r"data tiling: .*: (faster|slower|same)$", out, re.MULTILINE)
