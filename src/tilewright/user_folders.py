"""Where the user's data and caches are on this platform."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

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
