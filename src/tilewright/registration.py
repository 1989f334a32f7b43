"""What is registered by the name of its module: kinds of kernels, providers, codegen pipelines."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from typing import Any


def registered(package: str, modules: Iterable[str], attribute: str) -> Iterator[Any]:
    """What the modules of a package offer, in their order.

    Args:
        package: its dotted name.
        modules: names of its modules, which are imported.
        attribute: the name of a tuple that each of them has.

    Yields:
        The members of those tuples.
    """
    for module in modules:
        yield from getattr(importlib.import_module(f"{package}.{module}"), attribute)
