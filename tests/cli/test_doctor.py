"""`tilewright doctor` and `tilewright completion`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tilewright.cli.main import commands
from tilewright.measure import doctor
from tilewright.measure.doctor import Finding, Health


def run(*arguments: str) -> Result:
    return CliRunner().invoke(commands, arguments, prog_name="tilewright")


@pytest.mark.parametrize(("health", "status"), [(Health.DOUBT, 0), (Health.BAD, 3)])
def test_each_check_has_a_line_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, health: Health, status: int
) -> None:
    asked = []

    def examine(machine: object, database: Path) -> list[Finding]:
        asked.append(database)
        return [Finding("one", Health.OK, "fine"), Finding("two", health, "hm", "mend it")]

    monkeypatch.setattr(doctor, "examine", examine)
    found = run("doctor", "--db", str(tmp_path / "t.db"))
    assert found.exit_code == status
    lines = [line.split() for line in found.stdout.splitlines()]
    assert lines == [["ok", "one", "fine"], [str(health), "two", "hm"], ["mend", "it"]]
    assert asked == [tmp_path / "t.db"]
    told = json.loads(run("doctor", "--json").stdout)
    assert [(one["name"], one["health"]) for one in told] == [("one", "ok"), ("two", str(health))]


def test_on_this_machine() -> None:
    found = run("doctor", "--json")
    assert found.exit_code == 0, found.output
    assert len({one["name"] for one in json.loads(found.stdout)}) == 9


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("shell", "place"),
    [
        ("bash", ".local/share/bash-completion/completions/tilewright"),
        ("zsh", ".zfunc/_tilewright"),
        ("fish", ".config/fish/completions/tilewright.fish"),
    ],
)
def test_the_script_is_where_the_shell_looks(
    home: Path, monkeypatch: pytest.MonkeyPatch, shell: str, place: str
) -> None:
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    found = run("completion", "--install")
    assert found.exit_code == 0, found.output
    assert found.stdout.startswith(f"{home / place}: written")
    assert (home / place).read_text() == run("completion", shell).stdout
    assert "_TILEWRIGHT_COMPLETE" in (home / place).read_text()


def test_an_unknown_shell_is_asked_for(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    found = run("completion")
    assert found.exit_code == 2
    assert "tcsh: say which one is meant (bash, zsh, fish)" in found.stderr
    monkeypatch.delenv("SHELL")
    assert "no shell" in run("completion", "--install").stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_and_options(home: Path) -> None:
    (home / "tilewright").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tilewright "$@"\n')
    (home / "tilewright").chmod(0o755)
    script = run("completion", "bash").stdout + (
        "\nCOMP_WORDS=(tilewright doc); COMP_CWORD=1; _tilewright_completion tilewright"
        '\necho "${COMPREPLY[@]}"'
        "\nCOMPREPLY=(); COMP_WORDS=(tilewright tune --max); COMP_CWORD=2"
        "\n_tilewright_completion tilewright"
        '\necho "${COMPREPLY[@]}"\n'
    )
    environment = {**os.environ, "PATH": f"{home}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.stdout.split() == ["doctor", "--max-trials"], done.stderr
