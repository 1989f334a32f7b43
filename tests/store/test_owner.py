"""A run belongs to one process, and to no later one that has its number."""

from __future__ import annotations

import os

import pytest

from tilewright.store.owner import is_alive, pid_of, this_process


def test_this_process_is_alive_and_named() -> None:
    assert is_alive(this_process())
    assert pid_of(this_process()) == str(os.getpid())


def test_a_process_that_started_at_another_time_is_another() -> None:
    host, pid, start = this_process().split("/")
    assert not is_alive(f"{host}/{pid}/{float(start) - 60:.2f}")
    assert not is_alive(f"elsewhere{host}/{pid}/{start}")


@pytest.mark.parametrize("token", ["", "a/b", "a/b/c", "///"])
def test_what_is_no_token_is_no_process(token: str) -> None:
    assert not is_alive(token)
