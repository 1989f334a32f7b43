"""A finished folder in the place of an earlier one: old or new, never something between."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tilewright.tuning import install
from tilewright.tuning.install import install_folder


@pytest.fixture(params=["in one step", "by renaming"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "by renaming":
        monkeypatch.setattr(install, "_exchange", lambda one, other: False)


def staged(folder: Path, content: str) -> Path:
    staging = folder / f".new.{content}"
    staging.mkdir()
    for name in ("manifest.json", "spec"):
        (staging / name).write_text(content)
    return staging


def test_a_new_place(tmp_path: Path) -> None:
    output = tmp_path / "deep" / "output"
    install_folder(staged(tmp_path, "a"), output)
    assert (output / "spec").read_text() == "a"
    assert output.stat().st_mode & 0o777 == 0o755


@pytest.mark.usefixtures("way")
def test_an_earlier_result_is_replaced_and_what_else_is_there_stays(tmp_path: Path) -> None:
    output = tmp_path / "output"
    install_folder(staged(tmp_path, "a"), output)
    (output / "old_spec").write_text("of before")
    (output / "notes.txt").write_text("the user's")
    (output / "more").mkdir()
    (output / "more" / "data").write_text("the user's, too")
    (output / "link").symlink_to("notes.txt")
    install_folder(staged(tmp_path, "b"), output, stale=["old_spec", "never_there"])
    assert {p.name for p in output.iterdir()} == {
        "manifest.json", "spec", "notes.txt", "more", "link"
    }  # fmt: skip
    assert (output / "spec").read_text() == "b"
    assert (output / "notes.txt").read_text() == "the user's"
    assert (output / "more" / "data").read_text() == "the user's, too"
    assert os.readlink(output / "link") == "notes.txt"
    assert [p.name for p in tmp_path.iterdir()] == ["output"], "nothing is left beside it"


@pytest.mark.usefixtures("way")
def test_a_folder_that_is_a_link_stays_one(tmp_path: Path) -> None:
    real, output = tmp_path / "real", tmp_path / "output"
    install_folder(staged(tmp_path, "a"), real)
    output.symlink_to(real)
    install_folder(staged(tmp_path, "b"), output)
    assert output.is_symlink()
    assert (real / "spec").read_text() == "b"


def test_when_it_fails_everything_is_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "output"
    install_folder(staged(tmp_path, "a"), output)
    monkeypatch.setattr(install, "_exchange", lambda one, other: False)
    rename, calls = os.rename, 0

    def second_fails(*names: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError("disk on fire")
        rename(*names)

    monkeypatch.setattr(os, "rename", second_fails)
    with pytest.raises(OSError, match="on fire"):
        install_folder(staged(tmp_path, "b"), output)
    assert (output / "spec").read_text() == "a"


def test_no_reader_sees_half_of_it(tmp_path: Path) -> None:
    """Whatever is read by name meanwhile is whole, the old or the new."""
    output = tmp_path / "output"
    install_folder(staged(tmp_path, "0"), output)
    probe = staged(tmp_path, "probe")
    if not install._exchange(probe, output):
        pytest.skip("this file system cannot exchange folders")
    install._exchange(probe, output)
    seen: list[set[str]] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            folder = os.open(output, os.O_RDONLY)
            try:
                texts = set()
                for name in ("manifest.json", "spec"):
                    file = os.open(name, os.O_RDONLY, dir_fd=folder)
                    texts.add(os.read(file, 10).decode())
                    os.close(file)
                seen.append(texts)
            except FileNotFoundError:
                pass  # That folder was replaced, and deleted, after it was opened.
            finally:
                os.close(folder)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, 100):
        install_folder(staged(tmp_path, str(number)), output)
    stop.set()
    reader.join()
    assert seen
    assert all(len(texts) == 1 for texts in seen)
