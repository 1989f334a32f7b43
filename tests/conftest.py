from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import warm_start
from brief import be_brief
from tilewright.ir.session import set_global_options
from tilewright.measure.compile_worker import GLOBAL_OPTIONS
from tilewright.measure.device_lock import LOCKS_VARIABLE

TESTS = Path(__file__).parent
# A process is given whole files. Those that take longest begin first, so that none is left to one
# process while the others have ended.
LONGEST = (
    "docs/test_pages.py",
    "tuning/test_session.py",
    "examples/test_examples.py",
    "modules/test_compiling.py",
    "ir/test_splice.py",
    "compare/test_providers.py",
    "spec/test_write.py",
    "test_faults.py",
    "docs/test_contributing.py",
    "tuning/test_kernels.py",
    "ir/test_sites.py",
    "cli/test_module_commands.py",
    "tuning/test_entries.py",
    "compare/test_harness.py",
    "cli/test_compile_commands.py",
    "profiler/test_compiling.py",
    "profiler/test_running.py",
    "cli/test_profile_command.py",
    "space/test_generators.py",
    "tuning/test_apply.py",
    "tuning/test_compile_only.py",
    "sketch/test_spec.py",
    "sketch/test_tiles.py",
    "modules/test_running.py",
    "sketch/test_candidate.py",
    "ir/test_kinds.py",
    "measure/test_pool.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; the others stay in their order behind them."""
    places = {TESTS / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(scope="session", autouse=True)
def locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests do not wait for what else measures on this machine, another process of theirs say."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(LOCKS_VARIABLE, str(tmp_path_factory.mktemp("locks")))
        yield


@pytest.fixture(scope="session", autouse=True)
def brief() -> None:
    be_brief()


# What a pool does with its workers, from their start to their end, is tested there.
STARTED_ANEW = TESTS / "measure"


@pytest.fixture(scope="module", autouse=True)
def workers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Workers are forked from a process that has imported everything."""
    if STARTED_ANEW in request.path.parents or not warm_start.AVAILABLE:
        yield
        return
    with warm_start.warm_workers():
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden files anew instead of comparing with them",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Compile in this process as the workers do: without the compiler's own threads.

    With them a compile in a process of many sessions has been seen to wait for itself for good.
    """
    set_global_options(*GLOBAL_OPTIONS)
