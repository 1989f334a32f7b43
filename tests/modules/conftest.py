"""Programs compiled once for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from module_programs import write_modules


@pytest.fixture(scope="session")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_modules(tmp_path_factory.mktemp("modules"))
