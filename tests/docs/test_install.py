"""A newcomer's way in: the README's two lines, the script behind them, CI, the wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from console import blocks

ROOT = Path(__file__).resolve().parents[2]
BOOTSTRAP = ROOT / "bootstrap.py"

# Stands in for pip: the environment of a test needs no network.
PIP = """
import pathlib, sys
if __name__ == "__main__":
    with open(pathlib.Path(sys.prefix) / "pip.log", "a") as log:
        print(*sys.argv[1:], file=log)
"""


def readme_lines() -> list[str]:
    return blocks(ROOT / "README.md", "sh")[0].splitlines()


def run(
    command: list[str | Path], cwd: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


# -- the README and CI -----------------------------------------------------------------------------


def test_the_readme_opens_with_a_sentence_and_two_lines() -> None:
    before, fence, _ = (ROOT / "README.md").read_text().partition("```sh\n")
    assert fence
    assert len([line for line in before.splitlines() if line]) == 2  # title, sentence
    tune, test = readme_lines()
    assert tune == "python3 bootstrap.py tilewright tune examples/bottleneck.mlir --effort quick"
    assert test == "python3 bootstrap.py --dev python -m pytest -n 2"


def test_ci_runs_the_second_line(tmp_path: Path) -> None:
    """CI in a checkout whose README says something else runs that."""
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    (tmp_path / "README.md").write_text(
        "```sh\nexit 9\necho 'bootstrap.py pytest'; echo '== 1 passed in 0.1s =='; exit 3\n```\n"
    )
    done = run([tmp_path / ".ci" / "run"], tmp_path)
    assert done.returncode == 1
    assert "tests: == 1 passed in 0.1s ==" in done.stdout
    assert "failed" in done.stdout.splitlines()[-1]


def test_ci_refuses_a_readme_without_that_line(tmp_path: Path) -> None:
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    (tmp_path / "README.md").write_text("```sh\ntrue\ntrue\n```\n")
    done = run([tmp_path / ".ci" / "run"], tmp_path)
    assert done.returncode == 1
    assert "README" in done.stderr


# -- bootstrap.py ----------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose .venv has a stand-in for pip, which only notes what it is asked for."""
    folder = tmp_path / "check out"
    folder.mkdir()
    shutil.copy(BOOTSTRAP, folder)
    (folder / "pyproject.toml").write_text("[project]\n")
    make_environment(folder)
    return folder


def make_environment(folder: Path) -> None:
    venv.create(folder / ".venv", with_pip=False, symlinks=True)
    (site,) = (folder / ".venv" / "lib").glob("python3.*/site-packages")
    (site / "pip.py").write_text(PIP)


def bootstrap(
    checkout: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(checkout), **variables}
    return run([sys.executable, "bootstrap.py", *arguments], checkout, environment)


def pip_calls(checkout: Path) -> list[str]:
    log = checkout / ".venv" / "pip.log"
    return log.read_text().splitlines() if log.exists() else []


def test_it_installs_once_and_runs_the_command(checkout: Path) -> None:
    for _ in range(2):
        done = bootstrap(checkout, "python", "-c", "import sys; print(sys.prefix)")
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == str(checkout / ".venv")
    (call,) = pip_calls(checkout)
    assert call.endswith(f"--editable {checkout}")


def test_the_exit_status_is_the_commands(checkout: Path) -> None:
    assert bootstrap(checkout, "python", "-c", "raise SystemExit(7)").returncode == 7


def test_development_tools_come_with_dev_and_serve_for_both(checkout: Path) -> None:
    bootstrap(checkout, "python", "-c", "")
    bootstrap(checkout, "--dev", "python", "-c", "")
    bootstrap(checkout, "python", "-c", "")
    calls = pip_calls(checkout)
    assert len(calls) == 2
    assert calls[1].endswith(f"{checkout}[dev]")


def test_new_dependencies_are_installed(checkout: Path) -> None:
    bootstrap(checkout, "python", "-c", "")
    (checkout / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    bootstrap(checkout, "python", "-c", "")
    assert len(pip_calls(checkout)) == 2


def test_python_variables_do_not_reach_the_command(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    done = bootstrap(
        checkout,
        "python",
        "-c",
        "import json, os; print([v for v in os.environ if v.startswith('PYTHON')])",
        PYTHONPATH=str(tmp_path),
        PYTHONDONTWRITEBYTECODE="1",
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_an_unknown_command_is_one_line(checkout: Path) -> None:
    done = bootstrap(checkout, "tilewrigth")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("bootstrap: there is no command 'tilewrigth'")


def test_a_folder_in_the_way_is_left_alone(tmp_path: Path) -> None:
    shutil.copy(BOOTSTRAP, tmp_path)
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "mine.txt").write_text("keep")
    done = bootstrap(tmp_path, "python")
    assert done.returncode == 1
    assert "is in the way" in done.stderr
    assert (tmp_path / ".venv" / "mine.txt").read_text() == "keep"


def test_an_old_python_looks_for_a_newer_one_or_says_so(checkout: Path) -> None:
    """`sys.version_info` is made old by a module that runs the script."""
    old = (
        "import runpy, sys; sys.version_info = (3, 9, 0); sys.argv = ['bootstrap.py', 'python'];"
        "runpy.run_path('bootstrap.py', run_name='__main__')"
    )
    none = {"PATH": str(checkout / "nothing")}
    done = run([sys.executable, "-c", old], checkout, none)
    assert done.returncode == 1
    assert "Python 3.11 or newer is needed; this is 3.9" in done.stderr
    assert len(done.stderr.splitlines()) == 1

    newer = checkout / "bin" / "python3.12"
    newer.parent.mkdir()
    newer.write_text('#!/bin/sh\nif [ "$1" = -c ]; then exit 0; fi\necho handed "$2"\n')
    newer.chmod(0o755)
    done = run([sys.executable, "-c", old], checkout, {"PATH": f"{newer.parent}:/usr/bin:/bin"})
    assert done.stdout.strip() == "handed python"


# -- the wheel -------------------------------------------------------------------------------------


def test_the_wheel_has_the_package_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=ignore)
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    done = run([sys.executable, "-c", build, tmp_path], source)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("tilewright-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        entry_points = next(n for n in names if n.endswith("entry_points.txt"))
        assert "tilewright = tilewright.__main__:main" in archive.read(entry_points).decode()
    assert "tilewright/py.typed" in names
    modules = {
        str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "tilewright").rglob("*.py")
    }
    assert {name for name in names if name.endswith(".py")} == modules
    spaces = {path.name for path in (ROOT / "src/tilewright/replay/data").glob("*.npz")}
    assert {Path(name).name for name in names if name.endswith(".npz")} == spaces
    assert all(n.startswith(("tilewright/", "tilewright-")) for n in names)
