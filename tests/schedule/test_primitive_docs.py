"""The examples in the docstrings of the primitives: the nests that they show are the nests."""

from __future__ import annotations

import doctest
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

import tilewright.schedule
from tilewright import te

PRIMITIVES = {
    "Schedule": ("cache_read", "cache_write", "rfactor", "create_group"),
    "Stage": (
        *("split", "fuse", "reorder", "tile", "unroll"),
        *("vectorize", "parallel", "bind"),
        *("compute_at", "compute_inline", "compute_root"),
        *("set_scope", "storage_align", "align_extent"),
        *("pragma", "prefetch", "tensorize", "set_store_predicate"),
    ),
}
METHODS: dict[str, Callable[..., Any]] = {
    name: getattr(getattr(te, owner), name) for owner, names in PRIMITIVES.items() for name in names
}


def start() -> dict[str, Any]:
    """The tensors that the examples start from, as the package's docstring gives them."""
    text = tilewright.schedule.__doc__ or ""
    source = "\n".join(line for line in text.splitlines() if line.startswith("    "))
    names: dict[str, Any] = {"te": te}
    exec(textwrap.dedent(source), names)
    return names


def test_there_are_the_twenty_one_of_tvm_and_one_of_halide() -> None:
    assert len(METHODS) == 21 + 1


@pytest.mark.parametrize("name", METHODS)
def test_the_docstring_shows_what_happens(name: str) -> None:
    method = METHODS[name]
    test = doctest.DocTestParser().get_doctest(method.__doc__ or "", start(), name, None, None)
    assert any("te.lower" in e.source and e.want for e in test.examples)
    output: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    assert runner.run(test, out=output.append).failed == 0, "".join(output)
