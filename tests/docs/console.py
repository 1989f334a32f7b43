"""Reads the commands of a Markdown page: the lines that begin with `$ ` in its console blocks."""

from __future__ import annotations

import re
from pathlib import Path

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    """The contents of the page's fenced blocks in a language."""
    return [text for name, text in _BLOCK.findall(page.read_text()) if name == language]


def commands(page: Path) -> list[str]:
    found = []
    for block in blocks(page, "console"):
        found += [line[2:] for line in block.splitlines() if line.startswith("$ ")]
    return found
