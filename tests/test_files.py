"""Files appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.errors import UserError
from tilewright.files import parse_json, user_file, whole_file, write_text, write_whole


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    assert write_whole(path, b"new") == path
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_what_fails_on_the_way_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")

    def write_half() -> None:
        with whole_file(path) as partial:
            partial.write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_the_user_named_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write it"):
        write_text(tmp_path / "no such folder" / "x", "text")
    with user_file(tmp_path / "y") as partial:
        partial.write_text("text")
    assert (tmp_path / "y").read_text() == "text"


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 200_000, "9" * 10_000, "[1", b"\xff"])
def test_json_that_cannot_be_read_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_json_is_read() -> None:
    assert parse_json('{"a": [1, null]}') == {"a": [1, None]}
