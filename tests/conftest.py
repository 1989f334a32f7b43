from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import warm_start
from brief import be_brief
from tilewright.errors import TRACEBACK
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
    "test_faults.py",
    "spec/test_preprocessing.py",
    "measure/test_pool.py",
    "sketch/test_windows.py",
    "space/test_generators.py",
    "tuning/test_entries.py",
    "sketch/test_spec.py",
    "cluster/test_cluster.py",
    "tuning/test_check_result.py",
    "ir/test_sites.py",
    "docs/test_contributing.py",
    "schedule/test_tvm_programs.py",
    "spec/test_write.py",
    "ir/test_splice.py",
    "modules/test_compiling.py",
    "tuning/test_kernels.py",
    "ir/test_gpu.py",
    "tuning/test_apply.py",
    "tuning/test_suggestions.py",
    "sketch/test_candidate.py",
    "report/test_browser.py",
    "compare/test_providers.py",
    "search/test_contract.py",
    "sketch/test_tiles.py",
    "profiler/test_running.py",
    "schedule/test_intrinsics.py",
    "spec/test_channels_last.py",
    "tuning/test_session_stages.py",
    "cli/test_compile_commands.py",
    "ir/test_kinds.py",
    "schedule/test_codegen.py",
    "profiler/test_compiling.py",
    "space/test_search_space.py",
    "tuning/test_extract_tasks.py",
    "cli/test_tune_command.py",
    "store/test_damage.py",
    "tuning/test_compile_only.py",
    "cli/test_module_commands.py",
    "test_toolchain.py",
    "spec/test_blocking.py",
    "cli/test_profile_command.py",
    "spec/test_merge.py",
    "tuning/test_template_search.py",
    "schedule/test_gpu.py",
    "tuning/test_gpu_run.py",
    "tuning/test_portable_tasks.py",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest files first; the others stay in their order behind them."""
    if share := config.getoption("--share"):
        part, parts = map(int, share.split("/"))
        slow = sorted(item.nodeid for item in items if item.get_closest_marker("slow"))
        kept = set(slow[part % parts :: parts])
        config.hook.pytest_deselected(items=[i for i in items if i.nodeid not in kept])
        items[:] = [item for item in items if item.nodeid in kept]
    places = {TESTS / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(scope="session", autouse=True)
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests do not wait for what else measures on this machine, another process of theirs say, and
    a fault of tilewright ends a run, which would else go on without what failed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(LOCKS_VARIABLE, str(tmp_path_factory.mktemp("locks")))
        patch.setenv(TRACEBACK, "1")
        yield


@pytest.fixture(scope="session", autouse=True)
def brief() -> None:
    be_brief()


# What a pool does with its workers, from their start to their end, is tested there.
STARTED_ANEW = TESTS / "measure"


@pytest.fixture(scope="session", autouse=True)
def threads_as_given() -> Iterator[None]:
    """Whether a short program is tuned for one thread hangs on times, on which no test must."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tilewright.tuning.session.leave_workers_out", lambda *given: given[2])
        yield


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
        "--share",
        default="",
        metavar="PART/PARTS",
        help="of the slow tests the PARTSth part, from the PARTth on: `-m slow --share 3/16`",
    )
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
