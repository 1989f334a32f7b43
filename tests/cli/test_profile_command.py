"""`tilewright profile` from the command line."""

from __future__ import annotations

import csv
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tilewright.cli.main import commands
from tilewright.profiler import ProfileOutcome, RunOptions, Selected

SIZES = ("--problem-m=16", "--problem-n=24", "--problem-k=8")
NAME = "matmul_16x24x8_f32t_f32t_f32t"


@pytest.fixture(autouse=True)
def peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peak that is known: measuring it takes longer than these tests."""
    from tilewright.profiler import peaks

    class Peaks:
        def __init__(self, threads: int) -> None:
            pass

        def gflops(self, types: object, seen: float, verified: bool) -> float:
            return 4 * seen

    monkeypatch.setattr(peaks, "Peaks", Peaks)


def run(folder: Path, command: str, *args: str) -> Result:
    line = ["profile", command, "--generated-dir", str(folder), *args]
    return CliRunner().invoke(commands, line, prog_name="tilewright")


def ok(result: Result) -> str:
    assert result.exit_code == 0, result.stdout + result.stderr
    return result.stdout


def generate(folder: Path, *args: str) -> str:
    return ok(run(folder, "generate", "--kind", "matmul", "--types", "f32", *SIZES, *args))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One operation in two configurations, compiled; to be read only."""
    folder = tmp_path_factory.mktemp("sweep")
    text = generate(folder, "--configs", "default,sample:1")
    assert "1 operation (1 written), 2 dispatches (2 new)" in text
    text = ok(run(folder, "compile", "--jobs", "1"))
    assert "2 dispatches: 2 compiled, 0 up to date, 0 failed" in text
    return folder


@pytest.fixture
def folder(sweep: Path, tmp_path: Path) -> Path:
    """A copy of it that is a test's own."""
    shutil.copytree(sweep / "generated", tmp_path / "generated")
    return tmp_path


def test_from_shapes_to_numbers(folder: Path) -> None:
    text = ok(run(folder, "compile", "--jobs", "1"))
    assert "2 dispatches: 0 compiled, 2 up to date, 0 failed" in text
    out = folder / "data.csv"
    line = (
        "--threads",
        "1",
        "--repetitions",
        "3",
        "--dispatches",
        "default$",
        "--output",
        str(out),
    )
    text = ok(run(folder, "run", *line, "--tags", "cpu:here"))
    assert f"Dispatch      : {NAME}_tile_config_default" in text
    assert "OpKind        : OperationKind.Matmul\n" in text
    assert "Arguments     : --batch_count=1 --m=" in text
    assert "--split_k_mode=N/A --split_k_slices=N/A\n" in text
    assert "Verification  : SUCCESS" in text
    assert "3 samples" in text
    assert "25.0% of" in text
    assert "1 dispatch: 1 SUCCESS" in text
    assert f"{out}: 1 row" in text
    spelled = [word.replace("--dispatches", "--dispatch") for word in line]
    spelled += ["--verification-enabled=false", "--profiling-enabled=false"]
    ok(run(folder, "run", *spelled, "--append", "--tags", "cpu:there"))
    with out.open() as file:
        first, second = csv.DictReader(file)
    assert (first["cpu"], first["Operation"], first["Samples"]) == ("here", NAME, "3")
    assert (second["cpu"], second["Operation"], second["Samples"]) == ("there", NAME, "")
    assert (first["Verification"], second["Verification"]) == ("SUCCESS", "Not verified")


def test_a_table_for_many(tmp_path: Path) -> None:
    sizes = ("--problem-m=4,5,12", "--problem-n=4,5", "--problem-k=8")
    ok(run(tmp_path, "generate", "--kind", "matmul", "--types", "f32", *sizes))
    ok(run(tmp_path, "compile", "--dispatches", "_4x|_5x"))
    result = run(tmp_path, "run", "--no-profile", "--threads", "1")
    text = ok(result)
    assert "Dispatch" in text.splitlines()[0]
    shown = [line.split()[0] for line in text.splitlines()[1:7]]
    sizes = [(m, n) for m in (4, 5, 12) for n in (4, 5)]
    assert shown == [f"matmul_{m}x{n}x8_f32t_f32t_f32t_tile_config_default" for m, n in sizes]
    assert text.count("SUCCESS") == 5
    assert "4 SUCCESS, 2 Not verified" in text
    assert "matmul_12x5x8_f32t_f32t_f32t_tile_config_default: not compiled" in text
    assert "[6/6]" in result.stderr


def test_nothing_compiled_is_a_mistake(tmp_path: Path) -> None:
    generate(tmp_path)
    result = run(tmp_path, "run")
    assert result.exit_code == 2
    assert "none of the 1 dispatches is compiled; run `tilewright profile compile`" in result.stderr


def test_a_wrong_result_is_shown_and_makes_the_exit_status(folder: Path) -> None:
    (program,) = folder.rglob(f"{NAME}.mlir")
    text = program.read_text()
    # Another constant to begin the sums with.
    program.write_text(text.replace("0.000000e+00", "5.000000e-01"))
    ok(run(folder, "compile", "--dispatches", "default"))
    result = run(folder, "run", "--no-profile", "--threads", "1", "--dispatches", "default")
    assert result.exit_code == 3
    shown = " ".join(result.stdout.split())
    assert "Verification : FAILED" in shown
    assert "384 of 384 elements are out of tolerance; worst at [" in shown
    assert "is expected (off by 0.5" in shown


def test_what_was_done_before_an_interrupt_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilewright.profiler import running

    def interrupted(selected: list[Selected], options: RunOptions) -> Iterator[ProfileOutcome]:
        yield next(run_dispatches(selected, options))
        raise KeyboardInterrupt

    run_dispatches = running.run_dispatches
    monkeypatch.setattr(running, "run_dispatches", interrupted)
    out = folder / "data.csv"
    result = run(folder, "run", "--no-profile", "--threads", "1", "--output", str(out))
    assert result.exit_code == 130
    assert "1 dispatch: 1 SUCCESS" in result.stdout
    assert result.stderr.endswith("interrupted\n")
    assert len(list(csv.DictReader(out.open()))) == 1


def test_dry_run(folder: Path) -> None:
    text = ok(run(folder, "run", "--dry-run", "--threads", "1", "--dispatches", "default$"))
    comment, compile_, run_, time_ = text.splitlines()
    assert comment == f"# {NAME}_tile_config_default"
    assert shlex.split(compile_)[0] == "iree-compile"
    assert "--compile-from=executable-configurations" in compile_
    assert shlex.split(run_)[0] == "iree-run-module"
    assert shlex.split(time_)[0] == "iree-benchmark-module"
    assert not list(folder.rglob("input_*")), "nothing was run"


def test_saved_commands_come_with_their_inputs(folder: Path) -> None:
    script = folder / "commands.sh"
    text = ok(run(folder, "run", "--dry-run", "--threads", "1", "--save-commands", str(script)))
    saved = [line for line in script.read_text().splitlines()[1:] if line]
    assert saved == text.splitlines()
    for line in saved:
        for word in shlex.split(line):
            if word.startswith("--input=@"):
                assert Path(word.removeprefix("--input=@")).is_file()


def test_commands_of_what_is_not_compiled(tmp_path: Path) -> None:
    generate(tmp_path, "--configs", "default,sample:1")
    text = ok(run(tmp_path, "run", "--dry-run", "--threads", "1"))
    default, compile_, run_, time_, sampled, remark = text.splitlines()
    assert default.endswith("_tile_config_default")
    assert "--compile-from" not in compile_, "from the program itself"
    assert "--function=main" in run_
    assert "--function=main" in time_
    assert sampled.startswith(f"# {NAME}_tile_config_")
    assert remark.startswith("# not compiled: `tilewright profile compile`")


@pytest.mark.slow
def test_the_saved_commands_do_what_the_profiler_does(tmp_path: Path) -> None:
    ok(run(tmp_path, "generate", "--kind", "matmul", "--types", "f32,bf16-f32", *SIZES))
    ok(run(tmp_path, "compile"))
    script = tmp_path / "commands.sh"
    ok(run(tmp_path, "run", "--threads", "1", "--no-profile", "--save-commands", str(script)))
    for vmfb in tmp_path.rglob("*.vmfb"):
        vmfb.unlink()
    tools = str(Path(sys.executable).parent)
    subprocess.run(
        ["sh", "-e", script], env={"PATH": f"{tools}:/usr/bin:/bin"}, check=True,
        capture_output=True, timeout=300,
    )  # fmt: skip
    results = [p for p in tmp_path.rglob("*.npy") if p.name.startswith("matmul")]
    assert len(results) == 2
    for result in results:
        with np.load(result.parent / "reference" / "expected.npz") as expected:
            np.testing.assert_allclose(np.load(result), expected["output_0"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("command", "args", "message"),
    [
        ("generate", ("--kind", "matmull"), "did you mean 'matmul'?"),
        ("generate", ("--problem-m=8x8",), "--problem-m: '8x8' has no size '8x8'"),
        ("generate", ("--problem-m=64:8:8",), "ends before it begins"),
        ("generate", ("--problem-q=8",), "No such option"),
        ("generate", ("--kind", "softmax", "--types", "i8"), "unknown element type 'i8'"),
        ("generate", ("--configs", "some"), "--configs: unknown choice"),
        ("generate", ("--shapes", "none.json"), "cannot read the shape file"),
        ("generate", ("--target", "cuda:sm_81"), "unknown target 'cuda:sm_81'"),
        ("generate", ("--configs", "tile_config_8"), "'tile_config_8' names no configuration"),
        ("generate", ("--split-k-mode", "serial"), "--split-k-mode: unknown mode 'serial'"),
        (
            "generate",
            ("--kind", "softmax", "--split-k-slices", "2"),
            "--split-k-slices: softmax cannot be split along k (allowed: matmul, batch_matmul)",
        ),
        ("generate", ("--jobs", "0"), "--jobs: '0' is not a whole number"),
        ("compile", (), "no generated dispatches; run `tilewright profile generate"),
        ("run", (), "no generated dispatches"),
        ("run", ("--tags", "x", "--output", "x.csv"), "--tags: 'x' is not key:value"),
        ("run", ("--tags", "x:y"), "--tags: is for a CSV file; name it with --output"),
        ("run", ("--append",), "--append: is for a CSV file; name it with --output"),
        ("run", ("--output", "none/data.csv"), "--output: there is no directory"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, command: str, args: tuple[str, ...], message: str
) -> None:
    result = run(tmp_path, command, *args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--dispatches", "softmax"), "'softmax' matches none of the 2 dispatches"),
        (("--dispatches", "matmul("), "is no regular expression"),
        (("--kind", "softmax"), "no generated dispatch is of the kinds"),
        (("--problem-m=99",), "no generated dispatch is of the kinds and sizes"),
        (("--repetitions", "0"), "--repetitions"),
        (("--threads", "x"), "--threads"),
    ],
)
def test_mistakes_about_what_is_there(sweep: Path, args: tuple[str, ...], message: str) -> None:
    result = run(sweep, "run", *args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_tools_of_another_version_are_refused_with_both(tmp_path: Path) -> None:
    tool = tmp_path / "tools" / "iree-compile"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho IREE compiler version 2.1.0\n")
    tool.chmod(0o755)
    for command in ("generate", "compile", "run"):
        for option, place in (("--iree-bin", tool.parent), ("--build-dir", tmp_path)):
            refused = run(tmp_path, command, option, str(place))
            assert refused.exit_code == 2
            assert f"{option} {place}: {tool} is IREE compiler version 2.1.0" in refused.stderr
            assert "the installed package is IREE compiler version 3.13" in refused.stderr


@pytest.mark.parametrize("pattern", [f"{NAME}_*_default", "*_default"])
def test_a_shell_pattern_is_noted(folder: Path, pattern: str) -> None:
    result = run(folder, "compile", "--dispatches", pattern)
    ok(result)
    assert "note: --dispatches:" in result.stderr


def test_options_restrict_what_is_compiled(tmp_path: Path) -> None:
    ok(run(tmp_path, "generate", "--kind", "matmul,softmax", "--types", "f32",
           "--problem-m=4,5", "--problem-n=6", "--problem-k=8"))  # fmt: skip
    text = ok(run(tmp_path, "compile", "--problem-m=4", "--kind", "softmax"))
    assert "1 dispatch: 1 compiled" in text
    assert "softmax_4x6" in text
