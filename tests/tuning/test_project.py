"""What a project's own file says of runs, and what goes before it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tilewright.cli.main import commands
from tilewright.errors import UserError
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.project import ProjectFile, find_project, read_project
from tilewright.tuning.request import make_request


def write(folder: Path, table: str) -> Path:
    path = folder / "pyproject.toml"
    path.write_text(f'[project]\nname = "x"\n\n{table}\n')
    return path


def options(folder: Path, given: dict[str, object] | None = None) -> TuneOptions:
    return make_request("m.mlir", given or {}, find_project(folder)).options


def test_options_as_on_the_command_line(tmp_path: Path) -> None:
    write(
        tmp_path,
        """[tool.tilewright]
effort = "quick"
time-limit = "1h30m"
max_trials = 7
variants = ["default", "mine=--y"]
iree-flag = ["--a", "--b"]
input = "4xf32=1"
fresh = true
db = "runs/t.db"
output = "/elsewhere/out" """,
    )
    (tmp_path / "a" / "b").mkdir(parents=True)
    found = options(tmp_path / "a" / "b")
    assert (found.effort, found.time_limit_s, found.max_trials) == ("quick", 5400.0, 7)
    assert [str(one) for one in found.variants or ()] == ["default", "mine=--y"]
    assert (found.iree_flags, found.inputs, found.fresh) == (("--a", "--b"), ("4xf32=1",), True)
    # Beside the file, wherever the command is given.
    assert (found.db, found.output) == (tmp_path / "runs" / "t.db", Path("/elsewhere/out"))


def test_the_command_line_goes_before_and_a_configuration_file_too(tmp_path: Path) -> None:
    write(tmp_path, '[tool.tilewright]\neffort = "quick"\nmax-trials = 7\nstrategy = "random"')
    assert options(tmp_path, {"effort": "thorough"}).effort == "thorough"
    config = tmp_path / "a.cfg"
    config.write_text("[SearchStrategy]\ntuner = GridTuner\nn_trial = 3\n")
    found = options(tmp_path, {"config": str(config)})
    assert (found.strategy_name, found.max_trials, found.effort) == ("grid", 3, "quick")
    asked = options(tmp_path, {"config": str(config), "max_trials": "5"})
    assert asked.max_trials == 5


def test_a_file_without_the_table_and_no_file_say_nothing(tmp_path: Path) -> None:
    write(tmp_path, "[tool.other]\nx = 1")
    assert find_project(tmp_path) == ProjectFile()
    assert options(tmp_path) == TuneOptions()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('[tool.tilewright]\neffrt = "quick"', r"unknown option 'effrt'; did you mean 'effort'"),
        ('[tool.tilewright]\neffort = "lazy"', r"lazy"),
        ('[tool.tilewright]\nfresh = "yes"', r"fresh: 'yes' is not true or false"),
        ("[tool.tilewright]\nmax-trials = true", r"max-trials: True is not a text or a number"),
        ('[tool.tilewright]\nmax-trials = "few"', r"--max-trials: 'few' is not a whole number"),
        ("[tool.tilewright]\niree-flag = [[1]]", r"iree-flag: \[1\] is not a text"),
        ("[tool]\ntilewright = 3", r"\[tool.tilewright\] is not a table"),
        ("[tool.tilewright", r"cannot read it"),
    ],
)
def test_mistakes_name_the_file(tmp_path: Path, table: str, message: str) -> None:
    path = write(tmp_path, table)
    with pytest.raises(UserError, match=message) as error:
        options(tmp_path)
    assert str(error.value).startswith(str(path))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="cannot read it"):
        read_project(tmp_path / "pyproject.toml")


def test_config_show_says_what_is_from_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, '[tool.tilewright]\ntime-limit = "5m"\nfresh = true')
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke(commands, ["config", "show", "--json"])
    told = {one["option"]: (one["value"], one["from"]) for one in json.loads(run.stdout)}
    assert told["--time-limit"] == ("5m", str(path))
    assert told["--fresh"] == ("yes", str(path))
    assert told["--effort"] == ("standard", "default")
    shown = CliRunner().invoke(commands, ["config", "show"]).stdout
    assert ["--time-limit", "5m", str(path)] in [line.split() for line in shown.splitlines()]
    write(tmp_path, '[tool.tilewright]\ntime-limit = "soon"')
    wrong = CliRunner().invoke(commands, ["config", "show"])
    assert (wrong.exit_code, "soon" in wrong.stderr) == (2, True)
