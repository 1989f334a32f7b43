"""Libraries that only some strategies need: loaded when such a strategy is made."""

from __future__ import annotations

import importlib
from typing import Any

from tilewright.errors import UserError


def load(module: str, needed_by: str) -> Any:
    """The module; UserError with the line that installs it, or why it cannot be loaded."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"{needed_by} needs the package {module.partition('.')[0]}, which is not installed;"
            " run: pip install 'tilewright[learn]'"
        ) from error
    except Exception as error:
        # A native library that does not load raises whatever it likes.
        raise UserError(
            f"{needed_by} needs the package {module.partition('.')[0]}, which cannot be loaded"
            f" ({' '.join(str(error).split())[:200]}); run:"
            " pip install --force-reinstall 'tilewright[learn]'"
        ) from error
