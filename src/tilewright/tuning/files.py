"""Text files of the user's: read with a message that says what is wrong, written whole or not."""

from __future__ import annotations

import os
from pathlib import Path

from tilewright.errors import UserError


def read_text(path: Path, what: str) -> str:
    """The content of a UTF-8 file; UserError calls it `what`."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a {what}: byte {error.start} is not UTF-8 text") from error
    except OSError as error:
        raise UserError(f"{path}: cannot read the {what} ({error.strerror})") from error


def write_text(path: Path, text: str) -> None:
    """Write a file; it appears whole, or not at all with a UserError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot write it ({error.strerror})") from error


def check_writable_file(path: Path, option: str) -> None:
    """Raises UserError unless a file can be made there; asked before the work that it is for."""
    folder = path.absolute().parent
    if path.is_dir():
        raise UserError(f"{option}: {path} is a directory; name a file")
    if not folder.is_dir():
        raise UserError(f"{option}: there is no directory {folder}; make it first")
    if not os.access(folder, os.W_OK):
        raise UserError(f"{option}: cannot write to {folder} (permission denied)")
