"""The page on what the originals do: it names what there is, and lacks nothing in silence."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "originals.md"


def _rows() -> list[list[str]]:
    """The cells of every row of the page's tables that have three columns."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if len(row) == 3 and row[0] not in ("feature", "---")]


def _mentioned() -> list[str]:
    """The tests, examples and benchmarks that the page names."""
    text = PAGE.read_text()
    return re.findall(r"(?:tests|examples|benchmarks)/[\w/]+\.(?:py|mlir|cfg)(?:::\w+)?", text)


def test_what_the_page_names_exists() -> None:
    names = _mentioned()
    assert len(names) > 80
    for name in names:
        file, _, test = name.partition("::")
        assert (ROOT / file).is_file(), name
        assert f"def {test}(" in (ROOT / file).read_text() if test else True, name


def test_every_feature_has_a_test_or_is_said_to_be_missing() -> None:
    rows = _rows()
    assert len(rows) > 90
    assert not [row[0] for row in rows if not row[2] and "missing" not in row[1]]
