from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.store import Database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.db"


@pytest.fixture
def store(path: Path) -> Iterator[Database]:
    with Database.open(path) as opened:
        yield opened
