"""Programs compiled once for all tests of this folder."""

import measured_programs
import pytest

from tilewright.ir.session import CompilerSession


@pytest.fixture(scope="session")
def compiler():
    return CompilerSession(measured_programs.CPU_FLAGS)


@pytest.fixture(scope="session")
def vmfb(compiler, tmp_path_factory):
    """Paths of compiled programs by name."""
    folder = tmp_path_factory.mktemp("vmfb")
    names = ("ADD", "OTHER_BENCH", "SUBTRACT", "MIXED", "SPIN", "WEIGHTS")
    sources = {name.lower(): getattr(measured_programs, name) for name in names}
    for name, source in sources.items():
        (folder / f"{name}.vmfb").write_bytes(compiler.compile(source))
    return {name: str(folder / f"{name}.vmfb") for name in sources}
