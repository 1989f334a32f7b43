from __future__ import annotations

import pytest

from tilewright.ir.session import set_global_options
from tilewright.measure.compile_worker import GLOBAL_OPTIONS


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
