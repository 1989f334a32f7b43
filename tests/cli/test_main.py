"""The command as a whole: help, versions, and what becomes of errors."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner, Result

from tilewright.cli import main as cli
from tilewright.errors import UserError

COMMANDS = (
    "tune",
    "inspect",
    "apply",
    "spec",
    "run",
    "bench",
    "devices",
    "profile",
    "compare",
    "report",
    "db",
    "replay",
    "watch",
    "config",
    "doctor",
    "completion",
)
ALL = [
    *([name] for name in COMMANDS),
    *(["spec", name] for name in ("merge", "check", "show")),
    ["config", "show"],
    *(["profile", name] for name in ("generate", "compile", "run")),
    *(["compare", name] for name in ("run", "diff")),
    *(["db", name] for name in ("list", "export", "import", "prune")),
    *(["replay", name] for name in ("record", "score", "list", "show", "export", "import")),
]


def run(*args: str) -> Result:
    return CliRunner().invoke(cli.commands, list(args), prog_name="tilewright")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], Result]:
    """Runs a command that raises."""

    def invoke(error: BaseException) -> Result:
        @click.command()
        def command() -> None:
            raise error

        monkeypatch.setattr(cli.Commands, "get_command", lambda *_: command)
        return run("tune")

    return invoke


@pytest.mark.parametrize("command", ALL, ids=" ".join)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_every_command_has_help(command: list[str], flag: str) -> None:
    result = run(*command, flag)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: tilewright {' '.join(command)}")
    assert result.stderr == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_has_examples_of_it(command: str) -> None:
    text = run(command, "--help").stdout
    assert f"\n    tilewright {command} " in text.replace("\n  tilewright", "\n    tilewright")


def test_help_lists_the_commands() -> None:
    text = run("--help").stdout
    for command in COMMANDS:
        assert f"\n  {command} " in text


@pytest.mark.parametrize("args", [[], ["db"], ["spec"], ["replay"]])
def test_no_command_shows_the_help_and_is_a_mistake(args: list[str]) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert "Commands:" in result.stderr
    assert result.stdout == ""


def test_version_names_iree_too() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("tilewright ")
    assert "iree-base-compiler 3." in result.stdout


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["tnue"], "unknown command 'tnue'; did you mean 'tune'? (allowed: apply, "),
        (["db", "lits"], "lits"),
        (["tune", "--efort", "quick"], "--effort"),
        (["tune", "--effort"], "--effort"),
        (["tune", "a.mlir", "b.mlir"], "b.mlir"),
        (["tune"], "PROGRAM is missing: give an MLIR, .onnx or .pt2 file"),
        (["tune", "a.mlir", "--effort", "fast"], "allowed: quick, standard, thorough"),
        (["tune", "a.mlir", "--max-trials", "ten"], "--max-trials: 'ten' is not a whole number"),
        (["tune", "a.mlir", "--seed", "-1"], "--seed: '-1'"),
        (["tune", "a.mlir", "--time-limit", "soon"], "--time-limit: 'soon'"),
        (["tune", "a.mlir", "--only", "("], "--only: '(' is not a regular expression"),
        (["tune", "a.mlir", "--iree-flag", "O3"], "--iree-flag: 'O3' is not a flag"),
        (["tune", "a.mlir", "--parameters", "w"], "--parameters: 'w' must be SCOPE=FILE"),
        (["tune", "a.mlir", "--variants", "data-tilling"], "did you mean 'data-tiling'?"),
        (["tune", "a.mlir", "--config", "nowhere.cfg"], "nowhere.cfg: there is no such"),
        (["tune", "a.mlir", "--strategy", "guess"], "unknown strategy 'guess'"),
        (["tune", "a.mlir", "--target", "gpu"], "--target: unknown target 'gpu'"),
        (["apply", "a.mlir", "b.mlir"], "either -o FILE.vmfb or --emit-mlir FILE.mlir"),
        (["apply", "a.mlir", "nowhere", "-o", "x.vmfb"], "nowhere: there is no such"),
        (["spec", "show", "nowhere.mlir"], "nowhere.mlir: cannot read the tuning spec"),
        (["spec", "merge", "-o", "x.mlir"], "SPEC"),
        (["db", "list", "--db", "nowhere.db"], "nowhere.db: there is no such file"),
        (["db", "prune", "--db", "nowhere.db"], "nowhere.db: there is no such file"),
        (["db", "list", "--newer-than", "7y"], "--newer-than: '7y'"),
        (["inspect"], "PROGRAM"),
    ],
    ids=" ".join,
)
def test_a_mistake_is_one_line_and_status_2(
    args: list[str], told: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    monkeypatch.setenv("TILEWRIGHT_DB", "nowhere.db")
    result = run(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert told in result.stderr


def test_a_message_of_several_lines_becomes_one(failing: Callable[..., Result]) -> None:
    result = failing(UserError("first\n\n  second\nthird"))
    assert (result.exit_code, result.stderr) == (2, "error: first second third\n")


def test_a_message_that_quotes_a_whole_file_is_cut(failing: Callable[..., Result]) -> None:
    result = failing(UserError(f"unknown section '{'x' * 500_000}'; known: Search"))
    assert len(result.stderr) < 3000
    assert result.stderr.startswith("error: unknown section 'xxx")
    assert result.stderr.endswith("x'; known: Search\n")


@pytest.mark.parametrize("named", ["trials.csv", None])
def test_a_full_disk_is_no_fault_of_ours(
    failing: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, named: str | None
) -> None:
    monkeypatch.delenv(cli.TRACEBACK)
    result = failing(OSError(errno.ENOSPC, "No space left on device", named))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: a disk is full: {named or 'that of temporary files'}")
    assert result.stderr.count("\n") == 1


def test_a_fault_of_ours_is_one_line_and_status_1(
    failing: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(cli.TRACEBACK, raising=False)
    result = failing(ZeroDivisionError("by what"))
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "internal error: ZeroDivisionError: by what" in result.stderr
    assert "TILEWRIGHT_TRACEBACK=1" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_traceback_of_a_fault_of_ours(
    failing: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cli.TRACEBACK, "1")
    result = failing(RuntimeError("broken"))
    assert result.exit_code == 1
    assert "Traceback (most recent call last)" in result.stderr


def test_a_users_mistake_has_no_traceback_even_then(
    failing: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cli.TRACEBACK, "1")
    assert failing(UserError("mend it")).stderr == "error: mend it\n"


def test_an_interrupt_is_status_130(failing: Callable[..., Result]) -> None:
    result = failing(KeyboardInterrupt())
    assert result.exit_code == 130
    assert result.stderr.strip() == "interrupted"


def test_a_reader_that_goes_away_is_no_error() -> None:
    """As in `tilewright tune --help | head -1`."""
    code = "from tilewright.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "tune", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 1


def test_starting_is_light() -> None:
    """The command line itself must not load the compiler or NumPy; only `measure` reads its options
    where the device is."""
    lines = [["--help"], ["--version"]]
    light = set(cli.commands.list_commands(None)) - {"measure"}  # type: ignore[arg-type]
    lines += [[name, "--help"] for name in sorted(light)]
    code = (
        "import sys; from tilewright.cli.main import commands\n"
        f"for args in {lines}:\n"
        "    try: commands.main(args)\n"
        "    except SystemExit: pass\n"
        "heavy = [m for m in ('numpy', 'iree', 'rich.live') if m in sys.modules]\n"
        "print('loaded:', heavy)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("loaded: []\n")


@pytest.mark.parametrize("group", ["spec", "profile", "compare", "db", "replay"])
def test_overviews_have_whole_lines(group: str) -> None:
    listed = run(group, "--help").output.partition("Commands:")[2].partition("Examples:")[0]
    assert listed.strip()
    assert "..." not in listed
