"""A suite that is generated and compiled once for all tests of the profiler."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from profiled import OTHER, SQUARE, VERIFY, compiled, make

from tilewright.profiler import GeneratedFolder
from tilewright.profiler.running import make_references


@pytest.fixture(scope="session")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A matrix product and a softmax, compiled, with their references."""
    folder = tmp_path_factory.mktemp("ready")
    make_references(compiled(make(folder, SQUARE, OTHER)), VERIFY)
    return folder


@pytest.fixture
def pair(ready: Path, tmp_path: Path) -> GeneratedFolder:
    """The two, to be tampered with."""
    shutil.copytree(ready / "generated", tmp_path / "generated")
    return GeneratedFolder(tmp_path)
