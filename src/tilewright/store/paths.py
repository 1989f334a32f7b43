"""Where the database is when the user does not say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tilewright.user_folders import user_folder_file


def default_path(environment: Mapping[str, str] | None = None, platform: str | None = None) -> Path:
    """The database file: `$TILEWRIGHT_DB`, else `tilewright.db` in the user's data folder.

    Args:
        environment: instead of this process's.
        platform: instead of this one's, as `sys.platform` names it.
    """
    named = (os.environ if environment is None else environment).get("TILEWRIGHT_DB")
    if named:
        return Path(named).expanduser()
    return user_folder_file("data", "tilewright.db", environment, platform)
