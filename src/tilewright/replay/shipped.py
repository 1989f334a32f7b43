"""The recorded spaces that come with tilewright, and files of the user's own."""

from __future__ import annotations

from pathlib import Path

from tilewright.errors import UnknownNameError, UserError
from tilewright.replay.recording_file import SUFFIX

_DATA = Path(__file__).parent / "data"


def shipped() -> dict[str, Path]:
    """The files of the recorded spaces that are part of the package, by name, in its order."""
    return {path.stem: path for path in sorted(_DATA.glob(f"*{SUFFIX}"))}


def find(text: str, where: str = "SPACE") -> Path:
    """A shipped space by its name, or a file by its path (one with a suffix or a separator).

    UserError with the names there are.
    """
    found = shipped()
    if text in found:
        return found[text]
    path = Path(text)
    if path.is_file():
        return path
    if path.suffix == SUFFIX or len(path.parts) > 1:
        raise UserError(f"{where} {text}: there is no such file")
    raise UnknownNameError("recorded space", text, found, where)


def find_all(texts: tuple[str, ...]) -> list[Path]:
    """The spaces named, or all that are shipped; UserError when there is none."""
    if texts:
        return [find(text) for text in dict.fromkeys(texts)]
    paths = list(shipped().values())
    if not paths:
        raise UserError("SPACE: no recorded spaces come with this installation; name a file")
    return paths
