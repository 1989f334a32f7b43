"""Where the database is when the user does not say."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def default_path(environment: Mapping[str, str] | None = None, platform: str | None = None) -> Path:
    """The database file: `$TILEWRIGHT_DB`, else `tilewright.db` in the user's data directory.

    The data directory is `$XDG_DATA_HOME/tilewright` where that variable holds an absolute path
    (the XDG base directory specification has relative ones ignored), else the platform's own:
    `~/Library/Application Support` on macOS, `%LOCALAPPDATA%` on Windows, `~/.local/share`.
    """
    env = os.environ if environment is None else environment
    system = sys.platform if platform is None else platform
    if named := env.get("TILEWRIGHT_DB"):
        return Path(named).expanduser()
    xdg = Path(env.get("XDG_DATA_HOME", ""))
    if xdg.is_absolute():
        base = xdg
    elif system == "darwin":
        base = Path.home() / "Library" / "Application Support"
    elif system == "win32":
        base = Path(env.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path.home() / ".local" / "share"
    return base / "tilewright" / "tilewright.db"
