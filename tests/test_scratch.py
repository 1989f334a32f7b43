"""Temporary folders: gone with their process, however that ended; never one that is in use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tilewright import scratch

MAKE = """
import sys, time
from tilewright import scratch
print(scratch.create(), flush=True)
time.sleep(60)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def age(folder: Path) -> None:
    long_ago = time.time() - 3600
    os.utime(folder / ".lock", (long_ago, long_ago))


def other_process(place: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", MAKE],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(place)},
    )
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    age(folder)
    return process, folder


def test_a_folder_for_the_length_of_a_with(place: Path):
    with scratch.folder() as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "file").write_text("x")
        assert folder.parent == place
    assert not folder.exists()


def test_what_a_killed_process_leaves_is_removed(place: Path):
    process, folder = other_process(place)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert folder.exists()
    with scratch.folder():
        assert not folder.exists()


def test_what_another_process_uses_is_left_alone(place: Path):
    process, folder = other_process(place)
    try:
        with scratch.folder():
            assert folder.exists()
    finally:
        process.kill()
        process.wait()


def test_what_is_being_made_is_left_alone(place: Path):
    young = place / "tilewright-young"
    young.mkdir()
    (young / ".lock").touch()
    with scratch.folder():
        assert young.exists()


def test_folders_of_others_are_left_alone(place: Path):
    (place / "tilewright-mine").mkdir()
    (place / "else").mkdir()
    with scratch.folder():
        pass
    assert sorted(p.name for p in place.iterdir()) == ["else", "tilewright-mine"]
