"""`tilewright replay`: its options reach the bench, its results are shown."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from replay_support import recording, written

from tilewright.cli.main import commands
from tilewright.replay import recording as recorded_spaces
from tilewright.store import Database, RunRecord, TaskKey
from tilewright.trial import Configuration, Status, Trial
from tilewright.workload import Dim, Workload


def run(*args: object) -> Result:
    return CliRunner().invoke(commands, ["replay", *map(str, args)], prog_name="tilewright")


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("space"), recording(noise=0.2))


@pytest.fixture
def data(space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two spaces that come with the installation."""
    monkeypatch.setattr(recorded_spaces, "_DATA", tmp_path)
    (tmp_path / "first.npz").write_bytes(written(tmp_path, recording("first")).read_bytes())
    written(tmp_path, recording("second", noise=0.2))
    return tmp_path


def test_scores_as_json_have_exactly_this_form(space: Path) -> None:
    result = run(
        *("score", space, "--strategy", "random", "--strategy", "grid:steps=8"),
        *("--runs", 4, "--jobs", 1, "--json"),
    )
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    found = json.loads(result.stdout)
    assert list(found) == ["strategies"]
    assert list(found["strategies"]) == ["random", "grid:steps=8"]
    one = found["strategies"]["random"]
    assert isinstance(one["mean"], float)
    assert len(one["interval"]) == 2
    assert list(one["spaces"]) == ["made_up"]


def test_scores_as_a_table(space: Path) -> None:
    result = run("score", space, "--strategy", "random", "--runs", 4, "--jobs", 1, "--noisy")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["space", "random"]
    for word in ("made_up", "mean", "95% interval", "lost by exploring", "lost by selecting"):
        assert any(line.startswith(word) for line in lines)
    assert "[1 of 1] random on made_up:" in result.stderr


def test_no_space_named_is_all_that_are_shipped(data: Path) -> None:
    result = run("score", "--strategy", "random", "--runs", 2, "--jobs", 1, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert list(found["strategies"]["random"]["spaces"]) == ["first", "second"]


def test_a_shipped_space_by_its_name(data: Path) -> None:
    result = run("score", "second", "--strategy", "random", "--runs", 2, "--jobs", 1, "--json")
    assert list(json.loads(result.stdout)["strategies"]["random"]["spaces"]) == ["second"]


@pytest.mark.parametrize("flag", ["--no-prior", "--no-default", "--noisy"])
def test_conditions_change_the_score(space: Path, flag: str) -> None:
    common = ("score", space, "--strategy", "guided", "--runs", 3, "--jobs", 1, "--json")
    plain, changed = (json.loads(run(*common, *more).stdout) for more in ((), (flag,)))
    assert plain["strategies"]["guided"]["mean"] != changed["strategies"]["guided"]["mean"]


def test_the_list_and_one_space(data: Path) -> None:
    listed = run("list")
    assert listed.exit_code == 0, listed.stderr
    assert "first" in listed.stdout
    assert "2 recorded spaces" in listed.stdout
    found = json.loads(run("list", "--json").stdout)
    assert [one["name"] for one in found] == ["first", "second"]
    assert found[0]["kind"] == "contraction"
    assert (found[0]["configurations"], found[0]["ok"]) == (108, 102)
    assert found[0]["optimum_s"] < found[0]["median_s"] < found[0]["worst_s"]
    shown = run("show", "first")
    assert "6 compile_error" in shown.stdout
    assert "vector_reduction_k: 1, 2, 4" in shown.stdout
    assert "close 95% of the gap" in shown.stdout
    assert json.loads(run("show", data / "second.npz", "--json").stdout)["name"] == "second"


def test_t4_there_and_back(space: Path, tmp_path: Path) -> None:
    out = tmp_path / "t4.json"
    exported = run("export", space, "--t4", out)
    assert exported.stdout == f"{out}: 108 results\n"
    imported = run("import", out, "-o", tmp_path / "again.npz", "--name", "again")
    assert imported.exit_code == 0, imported.stderr
    scored = [
        json.loads(
            run("score", path, "--strategy", "random", "--runs", 3, "--jobs", 1, "--json").stdout
        )
        for path in (tmp_path / "again.npz",)
    ]
    assert "again" in scored[0]["strategies"]["random"]["spaces"]


@pytest.fixture
def database(tmp_path: Path) -> tuple[Path, int]:
    """A run with trials of two workloads."""
    path = tmp_path / "trials.db"
    with Database.open(path) as store:
        number = store.begin_run(RunRecord("p.mlir", "digest", "cpu", "3.13"))
        for size, count in ((64, 3), (128, 2)):
            dims = (Dim("m", size), Dim("n", size), Dim("k", size, True))
            workload = Workload("contraction", dims, ("f32",) * 3, ("",) * 3, "")
            task = store.task_id(TaskKey(workload, "cpu", "3.13"))
            for i in range(count):
                config = Configuration.of({"tile": 8 * (i + 1)})
                store.record_trial(number, task, Trial(config, Status.OK, 1e-3 * (i + 1), (1e-3,)))
    return path, number


def test_a_run_of_the_database_as_t4(database: tuple[Path, int], tmp_path: Path) -> None:
    path, number = database
    out = tmp_path / "t4.json"
    both = run("export", "--run", number, "--db", path, "--t4", out)
    assert both.exit_code == 2
    assert "several workloads; name one with --task" in both.stderr
    done = run("export", "--run", number, "--db", path, "--task", "64x64", "--t4", out)
    assert done.exit_code == 0, done.stderr
    assert len(json.loads(out.read_text())["results"]) == 3
    wrong = run("export", "--run", number, "--db", path, "--task", "512", "--t4", out)
    assert "unknown workload '512'" in wrong.stderr
    assert "there is no run 99" in run("export", "--run", 99, "--db", path, "--t4", out).stderr


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["score", "nowhere"], "unknown recorded space 'nowhere'"),
        (["score", "nowhere.npz"], "there is no such file"),
        (["score", "firts"], "did you mean 'first'?"),
        (["score", "--strategy", "simplex"], "unknown strategy 'simplex'"),
        (["score", "--strategy", "grid:stepps=4"], "did you mean 'steps'?"),
        (["score", "--strategy", "grid", "--strategy", "grid"], "given twice"),
        (["score", "--runs", "0"], "--runs: '0' is not a whole number of at least 1"),
        (["score", "--jobs", "none"], "--jobs: 'none'"),
        (["score", "--batch", "0"], "--batch: '0'"),
        (["score", "--per", "minute"], "--per"),
        (["show"], "SPACE"),
        (["show", "thrid"], "unknown recorded space"),
        (["export", "--t4", "x.json"], "give either a SPACE or --run N"),
        (["export", "first", "--run", "1", "--t4", "x.json"], "give either a SPACE or --run N"),
        (["export", "first", "--t4", "no/where.json"], "there is no directory"),
        (["export", "--run", "1", "--db", "nowhere.db", "--t4", "x.json"], "no such file"),
        (["import", "nowhere.json", "-o", "x.npz"], "cannot read the T4 results"),
        (["import", "nowhere.json"], "-o"),
        (["record", "p.mlir"], "-o"),
        (["record", "p.mlir", "-o", "x.npz", "--knob", "m"], "NAME=VALUE,VALUE"),
        (["record", "p.mlir", "-o", "x.npz", "--knob", "m=1", "--knob", "m=2"], "given twice"),
        (["record", "p.mlir", "-o", "x.npz", "--points", "one"], "--points: 'one'"),
        (["record", "p.mlir", "-o", "x.npz", "--dispatch", "("], "--dispatch: '('"),
        (["record", "p.mlir", "-o", "no/x.npz"], "there is no directory"),
    ],
    ids=" ".join,
)
def test_a_mistake_is_one_line_and_status_2(
    args: list[str], told: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data)
    result = run(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert told in result.stderr


def test_damaged_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04nothing")
    for command in (["score"], ["show"]):
        result = run(*command, tmp_path / "bad.npz")
        assert result.exit_code == 2
        assert "bad.npz: not a recorded space" in result.stderr


def test_without_matplotlib_a_plot_says_what_to_install(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., Any] = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    result = run("score", space, "--strategy", "random", "--plot", tmp_path / "a.png")
    assert result.exit_code == 2
    assert "pip install 'tilewright[plot]'" in result.stderr


def test_a_plot_is_a_picture(space: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "a.svg"
    common = ("score", space, "--strategy", "random", "--runs", 2, "--jobs", 1, "--plot")
    for per in ("evaluation", "second"):
        result = run(*common, path, "--per", per)
        assert result.exit_code == 0, result.stderr
        assert path.read_text().lstrip().startswith("<?xml")
    wrong = run(*common, tmp_path / "a.txt")
    assert "unknown kind of picture '.txt'" in wrong.stderr
