"""`tilewright compare` and `tilewright report`: their options reach the harness, their results are
shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from comparisons import M32, M64, row, run
from result_folders import make_result_folder

from tilewright.cli.compare import REGRESSED
from tilewright.cli.main import commands
from tilewright.compare import ComparisonRun, ProviderOutcome, read_runs, write_run

QUICK = ("--threads", "1", "--rounds", "6", "--no-peak")


def invoke(*args: object) -> Result:
    return CliRunner().invoke(commands, [*map(str, args)], prog_name="tilewright")


def write(path: Path, *runs: ComparisonRun) -> Path:
    for one in runs:
        write_run(path, one, append=True)
    return path


def test_a_comparison_from_shapes_to_tables(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    result = invoke(
        "compare", "matvec_16x24_f32t_f32t_f32t", "--matmul", "16x20x24",
        "--providers", "iree,numpy", "--base", "numpy", "--output", path, *QUICK,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "speed-ups over numpy" in result.stdout
    assert "geometric mean" in result.stdout
    (made,) = read_runs(path)
    assert made.providers == ["iree", "numpy"]
    assert [one.ok for one in made.rows] == [True] * 4
    assert made.threads == 1
    again = invoke(
        "compare", "--matmul", "16x20x24", "--providers", "numpy", "--json",
        "--output", path, "--append", *QUICK,
    )  # fmt: skip
    assert again.exit_code == 0, again.output
    assert len(read_runs(path)) == 2
    assert json.loads(again.stdout)["rows"][0]["provider"] == "numpy"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "Usage"),
        (("--matmul", "16x16"), "--matmul"),
        (("--matmul", "8x8x8", "--providers", "nump"), "numpy"),
        (("--matmul", "8x8x8", "--base", "torchh"), "--base"),
        (("--matmul", "8x8x8", "--rounds", "2"), "--rounds"),
        (("--matmul", "8x8x8", "--append"), "--output"),
        (("--matmul", "8x8x8", "--output", "a.txt"), ".json or .csv"),
        (("--matmul", "8x8x8", "--budget", "soon"), "--budget"),
        (("--matmul", "8x8x8", "--budget", "64,65"), "two of a kind"),
        (("--matmul", "8x8x8", "--device", "cuda://0"), "--target"),
        (("--matmul", "8x8x8", "--target", "cuda:sm_80", "--pin"), "is a GPU"),
        (("nothing",), "workload"),
        (("diff", "none.json", "none.json"), "none.json"),
    ],
)
def test_mistakes(args: tuple[str, ...], says: str) -> None:
    result = invoke("compare", *args)
    assert result.exit_code == 2
    assert says in result.output
    assert "Traceback" not in result.output


def test_the_providers_are_listed() -> None:
    result = invoke("compare", "run", "--list")
    assert result.exit_code == 0
    for name in ("iree-variant:NAME", "onnxruntime", "openvino", "tvm"):
        assert name in result.stdout


def test_diff_says_by_its_status_whether_anything_regressed(tmp_path: Path) -> None:
    old = write(tmp_path / "old.json", run(row(M64), row(M32, seed=1)))
    same = write(tmp_path / "same.json", run(row(M64, seed=2), row(M32, seed=3)))
    slower = write(tmp_path / "slower.json", run(row(M64, seconds=1.2e-3), row(M32)))
    broken = write(
        tmp_path / "broken.json", run(row(M64, outcome=ProviderOutcome.FAILED), row(M32))
    )
    result = invoke("compare", "diff", old, same)
    assert result.exit_code == 0
    assert "nothing regressed" in result.stdout
    for path, verdict in ((slower, "slower"), (broken, "broken")):
        result = invoke("compare", "diff", old, path)
        assert result.exit_code == REGRESSED
        # The worst comes first.
        assert result.stdout.splitlines()[1].startswith(verdict)
    assert invoke("compare", "diff", old, slower, "--margin", "30").exit_code == 0
    listed = json.loads(invoke("compare", "diff", old, slower, "--json").stdout)
    assert [one["verdict"] for one in listed] == ["slower", "same"]


def test_a_report_on_a_tuning_run(tmp_path: Path) -> None:
    folder = make_result_folder(tmp_path / "out")
    result = invoke("report", folder, "--no-peak")
    assert result.exit_code == 0, result.output
    assert (folder / "report.html").stat().st_size > 1_000_000
    result = invoke("report", tmp_path)
    assert result.exit_code == 2
    assert "not a result folder" in result.output


def test_a_report_on_a_comparison(tmp_path: Path) -> None:
    path = write(tmp_path / "results.json", run(row(M64, "iree"), row(M64, "numpy", 2e-3)))
    result = invoke("report", "--compare", path, "--output", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    assert "Comparison of iree, numpy" in (tmp_path / "page.html").read_text()
    result = invoke("report", "--compare", path, "--markdown")
    assert result.stdout.count("|") > 10
    assert "| workload | iree | numpy |" in result.stdout
    assert invoke("report").exit_code == 2
    assert invoke("report", tmp_path, "--markdown").exit_code == 2


@pytest.mark.parametrize(("done", "says"), [(True, "done are in"), (False, "nothing was kept")])
def test_an_interruption_says_what_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, done: bool, says: str
) -> None:
    def interrupted(
        *_: Any, on_workload: Callable[[ComparisonRun], object], **__: Any
    ) -> ComparisonRun:
        if done:
            on_workload(run(row(M64)))
        raise KeyboardInterrupt

    monkeypatch.setattr("tilewright.compare.harness.compare", interrupted)
    path = tmp_path / "results.json"
    result = invoke("compare", "--matmul", "8x8x8", "--providers", "numpy", "--output", path)
    assert result.exit_code == 130
    assert says in result.output
    assert path.exists() == done
