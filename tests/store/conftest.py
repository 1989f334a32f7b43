from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from postgresql_server import LocalServer, find_programs, local_server
from tilewright.store import Database

_NUMBERS = itertools.count()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.db"


@pytest.fixture(scope="session")
def server() -> Iterator[LocalServer]:
    """A PostgreSQL server of the system's packages, with none of the system's databases."""
    programs = find_programs()
    if isinstance(programs, str):
        pytest.skip(programs)
    with local_server(programs) as started:
        yield started


@pytest.fixture
def url(server: LocalServer) -> str:
    """An empty schema on the server."""
    return server.make(f"t{next(_NUMBERS)}")


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, path: Path) -> Path | str:
    """Where an empty database is, on either store."""
    return path if request.param == "sqlite" else request.getfixturevalue("url")


@pytest.fixture
def store(place: Path | str) -> Iterator[Database]:
    with Database.open(place) as opened:
        yield opened
