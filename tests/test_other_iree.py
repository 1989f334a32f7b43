"""Another version of IREE in a process of its own: how it is found, and that it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.errors import UserError
from tilewright.other_iree import other_iree
from tilewright.toolchain import IREE_PACKAGES, installed_version

# A folder of packages or an environment with another version than the installed one: CI makes one.
OTHER = os.environ.get("TILEWRIGHT_OTHER_IREE", "")


def environment(folder: Path, says: str, status: int = 0) -> Path:
    """An environment whose Python says what it is told to."""
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\nexit {status}\n")
    python.chmod(0o755)
    return folder


def test_an_environment_and_what_lies_in_it(capfd: pytest.CaptureFixture[str]) -> None:
    for place in (sys.executable, sys.prefix, f"{sys.prefix}/bin"):
        with other_iree(place) as found:
            assert found.version == installed_version(IREE_PACKAGES[0])
            names = {path.name for path in found.path.iterdir()}
            assert "iree" in names
            assert len(names) == 1 + len(IREE_PACKAGES)
            assert {"compiler", "runtime"} <= {
                path.name for path in (found.path / "iree").iterdir()
            }
            folder = found.path
        assert not folder.exists()
    with other_iree(sys.prefix) as found:
        assert found.run(["--version"]) == 0
        assert found.run(["no-such-command"]) == 2
    assert f"iree-base-compiler {found.version}" in capfd.readouterr().out


def test_what_is_no_iree_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no version, no Python environment and no folder"):
        other_iree("nowhere").__enter__()
    with pytest.raises(
        UserError, match=r"has no IREE that can be imported .*pip install iree-base"
    ):
        other_iree(str(environment(tmp_path / "empty", "", 1))).__enter__()
    other = '{"tag": "cpython-399", "versions": ["9.9", "9.9"], "packages": [], "metadata": []}'
    with pytest.raises(UserError, match="is an environment of cpython-399"):
        other_iree(str(environment(tmp_path / "newer", other))).__enter__()
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "iree-compile").write_text("")
    with pytest.raises(UserError, match="neither Python nor IREE's packages beside it"):
        other_iree(str(tmp_path / "build")).__enter__()


def test_a_version_is_installed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked: list[list[str]] = []

    def no_registry(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 1, "", "ERROR: no such version")

    monkeypatch.setattr(subprocess, "run", no_registry)
    with pytest.raises(UserError, match=r"pip does not install IREE 3\.99: ERROR: no such version"):
        other_iree("3.99").__enter__()
    assert asked[0][-2:] == ["iree-base-compiler==3.99.*", "iree-base-runtime==3.99.*"]
    assert list((tmp_path / "tilewright" / "iree").iterdir()) == []


@pytest.mark.skipif(not OTHER, reason="TILEWRIGHT_OTHER_IREE names no other version")
def test_results_hold_from_version_to_version(tmp_path: Path) -> None:
    program = Path(__file__).parents[1] / "examples" / "matmul.mlir"
    tune = ["tune", str(program), "--effort=quick", "--max-trials=2", "--variants=default"]
    tune += ["--kernels=only", "--threads=1", "--no-report", f"--db={tmp_path / 'trials.db'}"]
    check = ["ci", "check", "--compile-only"]
    ours = [sys.executable, "-m", "tilewright"]
    with other_iree(OTHER) as other:
        assert other.version != installed_version(IREE_PACKAGES[0])
        theirs = tmp_path / "theirs"
        assert other.run([*tune, "-o", str(theirs)]) == 0
        assert (theirs / "preprocessing_spec.mlir").is_file()
        assert subprocess.run([*ours, *check, str(theirs)], check=False).returncode == 0
        mine = tmp_path / "mine"
        subprocess.run([*ours, *tune, "-o", str(mine)], check=True)
    again = [*ours, *check, str(mine), f"--against={OTHER}"]
    assert subprocess.run(again, check=False).returncode == 0
