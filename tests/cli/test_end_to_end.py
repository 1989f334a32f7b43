"""`tilewright tune` for real, as a user runs it: a process of its own on a small program."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tuned_samples import matmul

pytestmark = pytest.mark.slow

FILES = (
    "command.txt",
    "manifest.json",
    "report.html",
    "program.vmfb",
    "run.log",
    "summary.json",
    "trials.csv",
    "tuning_spec.mlir",
)


def command(*args: str | Path) -> list[str]:
    return [sys.executable, "-m", "tilewright", *map(str, args)]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "matmul.mlir"
    path.write_text(matmul(128, 128, 128))
    return path


def quick(program: Path, *args: str | Path) -> list[str]:
    return command(
        "tune", program, "--effort", "quick", "--variants", "default", "--max-trials", "6",
        "--db", program.parent / "t.db", *args,
    )  # fmt: skip


def test_tune_then_apply(program: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = subprocess.run(quick(program, "-o", out), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in out.iterdir()) == sorted(FILES)
    assert "search" in done.stderr
    assert "Program: " in done.stdout
    assert "Outputs equal those of the untuned program." in done.stdout
    line, *ways = (out / "command.txt").read_text().splitlines()
    assert line in done.stdout
    assert "iree-compile" in shlex.split(line)[0]
    summary = json.loads((out / "summary.json").read_text())
    assert len(ways) == len(summary["runs"])
    assert [one["command"] in done.stdout for one in summary["runs"]] == [
        one["advised"] for one in summary["runs"]
    ]
    assert summary["trials_total"] == 6
    applied = subprocess.run(
        command("apply", program, out, "-o", tmp_path / "again.vmfb"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert applied.returncode == 0, applied.stderr
    assert (tmp_path / "again.vmfb").exists()
    assert set(tmp_path.iterdir()) >= {out, program}
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")], "nothing half-written"


def test_json_is_the_summary_that_is_written(program: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = subprocess.run(
        quick(program, "-o", out, "--json"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((out / "summary.json").read_text())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_abort_leaves_nothing_half_written(program: Path, tmp_path: Path, number: int) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen(
        quick(program, "-o", out, "--max-trials", "500"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "new best" in line or line.rstrip().endswith("search"):
            break
    process.send_signal(number)
    if number == signal.SIGINT:
        process.send_signal(number)
    stdout, stderr = process.communicate(timeout=30)
    if process.returncode == 0:
        # Two signals that come as one are one Ctrl-C: stopped, and written out.
        assert number == signal.SIGINT
        assert "Stopped early by Ctrl-C" in stdout
        return
    assert process.returncode == 130, stderr
    assert "no results were written" in stderr
    assert "Traceback" not in stderr
    assert not [p for p in tmp_path.iterdir() if "out" in p.name], "nothing half-written"


@pytest.mark.parametrize(
    ("text", "args", "told"),
    [
        ("func.func @main( {", [], "matmul.mlir:1:"),
        (None, ["--input", "3xf32=1"], "--input"),
        (None, ["--function", "mian"], "did you mean 'main'?"),
        (None, ["--only", "nothing-like-it"], "no tunable dispatch has 'nothing-like-it' in"),
        (None, ["--iree-flag=--no-such-flag"], "--no-such-flag"),
        (None, ["-o", "{d}/matmul.mlir"], "--output"),
        (None, ["-o", "{d}/matmul.mlir/out"], "--output"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(
    program: Path, tmp_path: Path, text: str | None, args: list[str], told: str
) -> None:
    if text is not None:
        program.write_text(text)
    given = [a.format(d=tmp_path) for a in args]
    if "-o" not in given:
        given += ["-o", str(tmp_path / "out")]
    done = subprocess.run(quick(program, *given), capture_output=True, text=True, check=False)
    errors = [line for line in done.stderr.splitlines() if not line.startswith("[")]
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (error,) = [line for line in errors if line.startswith("error: ")]
    assert told in error
    assert "Traceback" not in done.stderr
    assert {p.name for p in tmp_path.iterdir()} <= {program.name, "t.db", "t.db-wal", "t.db-shm"}
