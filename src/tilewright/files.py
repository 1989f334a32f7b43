"""Files that appear whole or not at all; reading and writing those that the user names."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from tilewright.errors import UserError


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Have a file appear whole: no reader, and no later run, ever sees half of it.

    Args:
        path: the file; what is there stays until the block has ended, and where that raises.

    Yields:
        What to write instead, in the same folder; it takes the file's name when the block ends.

    Raises:
        OSError: it cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes) -> Path:
    """Write a file so that it appears whole.

    Args:
        path: the file.
        data: its content.

    Returns:
        The path.

    Raises:
        OSError: it cannot be written.
    """
    with whole_file(path) as partial:
        partial.write_bytes(data)
    return path


@contextlib.contextmanager
def user_file(path: Path) -> Iterator[Path]:
    """As `whole_file`, for a file that the user has named.

    Raises:
        UserError: it cannot be written.

    Args:
        path: the file.

    Yields:
        What to write instead; it takes the file's name when the block ends.

    Raises:
        UserError: it cannot be written.
    """
    try:
        with whole_file(path) as partial:
            yield partial
    except OSError as error:
        raise UserError(f"{path}: cannot write it ({error.strerror})") from error


def read_text(path: Path, what: str) -> str:
    """The content of a UTF-8 file.

    Args:
        path: the file.
        what: what a message calls it, such as `tuning spec`.

    Raises:
        UserError: it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a {what}: byte {error.start} is not UTF-8 text") from error
    except OSError as error:
        raise UserError(f"{path}: cannot read the {what} ({error.strerror})") from error


def parse_json(text: str | bytes) -> Any:
    """What JSON that others may have written says.

    Args:
        text: the JSON.

    Raises:
        json.JSONDecodeError: it is none, is nested deeper than can be followed, or has a number
            of thousands of digits.
        UnicodeDecodeError: it is no text.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", "", 0) from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError as error:
        raise json.JSONDecodeError(str(error), "", 0) from None


def write_text(path: Path, text: str) -> None:
    """Write a file; it appears whole.

    Args:
        path: the file.
        text: its content.

    Raises:
        UserError: it cannot be written.
    """
    write_file(path, text.encode())


def write_file(path: Path, content: bytes) -> None:
    """Write a file that the user has named; it appears whole.

    Args:
        path: the file.
        content: its bytes.

    Raises:
        UserError: it cannot be written.
    """
    with user_file(path) as partial:
        partial.write_bytes(content)


def check_writable_file(path: Path, option: str) -> None:
    """See whether a file can be made; asked before the work that it is for.

    Args:
        path: the file.
        option: the option that names it.

    Raises:
        UserError: it cannot be made there.
    """
    folder = path.absolute().parent
    if path.is_dir():
        raise UserError(f"{option}: {path} is a directory; name a file")
    if not folder.is_dir():
        raise UserError(f"{option}: there is no directory {folder}; make it first")
    if not os.access(folder, os.W_OK):
        raise UserError(f"{option}: cannot write to {folder} (permission denied)")


_MAC = {"data": "Library/Application Support", "cache": "Library/Caches"}
_OTHER = {"data": ".local/share", "cache": ".cache"}


def user_folder_file(
    kind: Literal["data", "cache"],
    name: str,
    environment: Mapping[str, str] | None = None,
    platform: str | None = None,
) -> Path:
    """A file of tilewright's in one of the user's folders.

    Args:
        kind: which folder: `$XDG_DATA_HOME` or `$XDG_CACHE_HOME` where that variable holds an
            absolute path (the XDG base directory specification has relative ones ignored), else the
            platform's own: `~/.local/share` or `~/.cache`, on macOS `~/Library/Application Support`
            or `~/Library/Caches`, on Windows `%LOCALAPPDATA%`.
        name: of the file.
        environment: instead of this process's.
        platform: instead of this one's, as `sys.platform` names it.

    Returns:
        The path, in a folder `tilewright`; nothing is made.
    """
    env = os.environ if environment is None else environment
    system = sys.platform if platform is None else platform
    xdg = Path(env.get(f"XDG_{kind.upper()}_HOME", ""))
    if xdg.is_absolute():
        base = xdg
    elif system == "darwin":
        base = Path.home() / _MAC[kind]
    elif system == "win32":
        base = Path(env.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path.home() / _OTHER[kind]
    return base / "tilewright" / name
