"""`run`, `bench` and `devices` from the command line: what they print, and their exit status."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from module_programs import write_modules

from tilewright.cli.main import commands
from tilewright.measure import peak as peaks
from tilewright.measure.peak import Peak
from tuned_samples import matmul, write_halved_spec


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_modules(tmp_path_factory.mktemp("commands"))
    (path / "matmul.mlir").write_text(matmul())
    write_halved_spec(matmul(), path / "spec.mlir")
    return path


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(commands, list(map(str, args)), prog_name="tilewright")


def words(result: Result) -> str:
    assert result.exit_code == 0, result.stderr
    return " ".join(result.stdout.split())


# -- run -------------------------------------------------------------------------------------------


def test_results_are_printed_in_the_syntax_of_inputs(folder: Path) -> None:
    result = run("run", folder / "many.vmfb", "--function", "two", "--input", "-5")
    assert result.exit_code == 0
    assert result.stdout == "result[0]: -5\nresult[1]: 2x2xi32=[-5 -5][-5 -5]\n"
    assert result.stderr == ""


def test_a_program_is_compiled_and_run(folder: Path) -> None:
    text = words(run("run", folder / "one.mlir", "--input", "2x2xf32=1,2,3,4"))
    assert text == "result[0]: 2x2xf32=[2 4][6 8]"


def test_results_are_cut(folder: Path) -> None:
    text = words(run("run", folder / "one.vmfb", "--input", "9x2xf32=1", "--max-elements", 3))
    assert text == "result[0]: 9x2xf32=[2 2][2 ...]"


def test_results_are_saved_and_compared(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "r.npy"
    call = ("run", folder / "many.vmfb", "--function", "constant")
    saved = run(*call, "-o", file)
    assert saved.exit_code == 0
    assert saved.stdout == ""
    assert np.load(file).tolist() == [1, 2, 3]
    assert words(run(*call, "--expected", file)) == "result[0]: as expected"
    different = run(*call, "--expected", "3xi64=1,2,9")
    assert different.exit_code == 3
    assert different.stdout.startswith(
        "result[0]: DIFFERENT: 1 of 3 elements differ; worst at [2]: 3 where 9 is expected (off by "
    )


def test_a_spec_is_proved_on_stderr(folder: Path) -> None:
    result = run("run", folder / "matmul.mlir", "--spec", folder / "spec.mlir", "--max-elements", 1)
    assert result.stdout.startswith("result[0]: 64x64xf32=[")
    assert "applied to 1 dispatch:" in result.stderr
    assert re.search(
        "before  DoubleTilingExpert( enable_loop_peeling)?: distribution", result.stderr
    )


def test_the_ir_after_a_phase_is_printed(folder: Path) -> None:
    for command in ("run", "bench"):
        result = run(command, folder / "matmul.mlir", "--compile-to", "flow")
        assert result.exit_code == 0
        assert "flow.executable" in result.stdout
        assert "result[" not in result.stdout


def test_files_that_were_written_are_named(folder: Path, tmp_path: Path) -> None:
    result = run(
        "run", folder / "one.mlir", "--input", "1x2xf32=1", "--dump-phases", tmp_path / "phases",
        "--save", tmp_path / "one.vmfb",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert result.stderr.count(": written") == len(list((tmp_path / "phases").iterdir())) > 3
    again = run("run", tmp_path / "one.vmfb", "--input", "1x2xf32=1")
    assert again.stdout == result.stdout


# -- bench -----------------------------------------------------------------------------------------


def test_the_report(folder: Path) -> None:
    result = run(
        "bench", folder / "many.vmfb", "--min-time", "1ms", "--repetitions", 3, "--threads", 1
    )
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert any(line.startswith("Run on ") for line in lines)
    assert any(line.startswith("Load Average: ") for line in lines)
    rows = [line.split() for line in lines if line.startswith("BM_")]
    assert [row[0] for row in rows] == [
        f"BM_{name}/process_time/real_time{tail}"
        for name in ("constant", "also")
        for tail in ("", "", "", "_mean", "_median", "_stddev", "_cv")
    ]
    assert all(row[2] in ("ns", "us", "ms", "s", "%") for row in rows)
    assert all(row[-1].endswith("/s") for row in rows if "cv" not in row[0])


def test_the_report_as_json(folder: Path) -> None:
    result = run("bench", folder / "many.vmfb", "--function", "add", "--min-time", "1ms", "--json")
    data = json.loads(result.stdout)
    assert data["context"]["module"] == str(folder / "many.vmfb")
    (row,) = data["benchmarks"]
    assert row["name"] == "BM_add/process_time/real_time"
    assert row["items_per_second"] > 0


def test_the_report_as_csv(folder: Path) -> None:
    result = run("bench", folder / "many.vmfb", "--function", "add", "--min-time", "1ms", "--csv")
    head, row = result.stdout.splitlines()
    assert head.startswith("name,iterations,real_time,cpu_time,time_unit")
    assert row.startswith("BM_add/process_time/real_time,")


def test_compiling_to_the_end_runs_nothing(folder: Path, tmp_path: Path) -> None:
    """As iree-compile's --compile-to=end."""
    whole = tmp_path / "one.vmfb"
    result = run("run", folder / "one.mlir", "--compile-to", "end", "--save", whole)
    assert (result.exit_code, result.stdout) == (0, ""), result.stderr
    assert run("run", whole, "--input", "1x2xf32=1").exit_code == 0
    result = run("run", folder / "one.mlir", "--compile-to", "end")
    assert result.exit_code == 2
    assert "--compile-to end: gives a compiled module; name its file with --save" in result.stderr


def test_a_trace_is_drawn(folder: Path, tmp_path: Path) -> None:
    picture = tmp_path / "trace.svg"
    result = run("trace", folder / "many.vmfb", "--function", "add", "-o", picture)
    assert result.exit_code == 0, result.stderr
    assert "add_dispatch_0" in result.stdout
    assert picture.read_text().startswith("<svg ")
    result = run("trace", folder / "many.vmfb", "--function", "add", "-o", tmp_path / "trace.png")
    assert result.exit_code == 2
    assert "is neither .svg nor .json; name one" in result.stderr


def test_a_crash_is_one_line_and_status_2(folder: Path) -> None:
    for command in ("run", "bench"):
        result = run(command, folder / "crash.vmfb", "--input", "0")
        assert result.exit_code == 2
        assert "'divide' crashed: the worker died of SIGFPE" in result.stderr
        errors = [line for line in result.stderr.splitlines() if not line.startswith("warning")]
        assert len(errors) == 1


# -- mistakes --------------------------------------------------------------------------------------


# What both commands have from `modules` and `module_options`; of `bench` one of each kind.
@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["{d}/none.mlir"], "none.mlir: cannot read the module (No such file or directory)"),
        (["{d}"], "is a directory; give a program or a .vmfb file"),
        (["{d}/text.vmfb"], "text.vmfb: not a compiled module"),
        (["{d}/broken.vmfb"], "broken.vmfb: not a compiled module"),
        (["{d}/old.mlir"], "no public function"),
        (["{d}/many.vmfb", "--function", "ad"], "did you mean 'add'? (allowed: add, two, "),
        (["{d}/many.vmfb", "--function", "add", "--input", "4xf32"], "takes 2 (4xf32, f32)"),
        (["{d}/many.vmfb", "--function", "two", "--input", "x"], "--input x"),
        (["{d}/many.vmfb", "--spec", "{d}/spec.mlir"], "--spec: {d}/many.vmfb is compiled already"),
        (["{d}/many.vmfb", "--compile-to", "flow"], "--compile-to: {d}/many.vmfb is compiled"),
        (["{d}/one.mlir", "--compile-to", "flaw"], "unknown phase 'flaw'; did you mean 'flow'?"),
        (["{d}/one.mlir", "--spec", "{d}/old.mlir"], "transform.named_sequence @__kernel_config"),
        (["{d}/one.mlir", "--device", "cuda"], "--device: a program is compiled for this CPU"),
        (["{d}/many.vmfb", "--device", "local-tsk"], "device 'local-tsk' cannot be opened"),
        (["{d}/many.vmfb", "--threads", "0"], "--threads: '0' is not a whole number"),
        (["{d}/many.vmfb", "--seed", "x"], "--seed: 'x' is not a whole number"),
        (["{d}/many.vmfb", "--parameters", "model={d}/none.irpa"], "cannot read the file"),
    ],
)
def test_mistakes(folder: Path, args: list[str], told: str) -> None:
    result = run("run", *(a.format(d=folder) for a in args))
    assert result.exit_code == 2
    assert told.format(d=folder) in result.stderr
    errors = [line for line in result.stderr.splitlines() if not line.startswith("warning")]
    assert len(errors) == 1
    assert errors[0].startswith("error: ")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["run", "{d}/many.vmfb"], "has 4 functions; name one with --function"),
        (["bench", "{d}/none.mlir"], "none.mlir: cannot read the module"),
        (["bench", "{d}/many.vmfb", "--function", "ad"], "did you mean 'add'?"),
        (["bench", "{d}/many.vmfb", "--function", "add", "--input", "4xf32"], "takes 2 (4xf32"),
        (["bench", "{d}/one.mlir", "--compile-to", "flaw"], "unknown phase 'flaw'"),
        (["bench", "{d}/many.vmfb", "--threads", "0"], "--threads: '0' is not a whole number"),
        (["run", "{d}/many.vmfb", "--rtol", "1"], "there is nothing to compare"),
        (["run", "{d}/many.vmfb", "-o", "{d}/r.txt"], "must be a .npy file"),
        (["run", "{d}/one.vmfb", "--max-elements", "-1"], "--max-elements: '-1'"),
        (["bench", "{d}/many.vmfb", "--repetitions", "0"], "--repetitions: '0'"),
        (["bench", "{d}/many.vmfb", "--min-time", "x"], "--min-time: 'x' is not a duration"),
        (["bench", "{d}/many.vmfb", "--batch-size", "1.5"], "--batch-size: '1.5'"),
        (["devices", "--threads", "0"], "--threads: '0'"),
    ],
)
def test_mistakes_of_one_command(folder: Path, args: list[str], told: str) -> None:
    result = run(*(a.format(d=folder) for a in args))
    assert result.exit_code == 2
    assert told in result.stderr


# -- devices ---------------------------------------------------------------------------------------


@pytest.fixture
def known_peak(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Measuring takes no time, and the cache is the test's own; how often it was measured."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    measured: list[int] = []

    def measure(threads: int) -> Peak:
        measured.append(threads)
        words = {"f32": "f32 fused multiply-add", "i8": "i8 dot product"}
        return Peak(threads, "cpu", {"i8": 400.0, "f32": 123.456}, {"copy": 9.5}, words, "m", 1e9)

    monkeypatch.setattr(peaks, "measure_peak", measure)
    return measured


def test_devices(known_peak: list[int]) -> None:
    result = run("devices", "--threads", "1")
    text = words(result)
    assert "local-sync local-sync (default)" in text
    assert "local-task local-task (default)" in text
    assert "llvm-cpu" in text
    assert "L1 data" in text
    assert "bits" in text
    assert "f32 123.5 GFLOP/s f32 fused multiply-add" in text
    assert "i8 400.0 Gop/s i8 dot product" in text
    assert "memory 9.50 GB/s copy 9.50" in text
    assert "measuring the peak" in result.stderr
    assert "measuring" not in run("devices", "--threads", "1").stderr
    assert known_peak == [1]
    run("devices", "--threads", "1", "--measure")
    assert known_peak == [1, 1]


def test_devices_as_json(known_peak: list[int]) -> None:
    data = json.loads(run("devices", "--json").stdout)
    drivers = {driver["name"]: driver for driver in data["drivers"]}
    assert drivers["local-task"]["devices"] == [{"uri": "local-task", "name": "default"}]
    # A driver whose library this machine does not have says so instead of ending the command.
    assert all(driver["devices"] or driver["error"] for driver in drivers.values())
    assert "llvm-cpu" in data["compiler"]["backends"]
    assert data["compiler"]["vector_bytes"] >= 16
    assert data["machine"]["threads"] >= 1
    assert data["peak"]["compute"]["f32"] == 123.456
