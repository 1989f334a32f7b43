"""The first of many: in as few comparisons as pieces allow, and never fewer than are asked for."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.ir.ranks import pieces


def by_pieces(row: np.ndarray, first: int) -> np.ndarray:
    """The largest ones by what `pieces` says, each stage by NumPy's sort."""
    for size in pieces(len(row), first):
        number = -(-len(row) // size)
        row = np.pad(row, (0, number * size - len(row)), constant_values=-np.inf)
        cut = np.sort(row.reshape(number, size))[:, ::-1]
        row = cut[:, :first].ravel()
    return np.sort(row)[::-1][:first]


@pytest.mark.parametrize(
    ("count", "first"), [(8400, 100), (50257, 50), (1000, 1), (333, 332), (33, 1), (7, 7), (1, 1)]
)
def test_pieces_keep_what_is_asked_for(count: int, first: int) -> None:
    row = np.random.default_rng(count).standard_normal(count)
    np.testing.assert_array_equal(by_pieces(row, first), np.sort(row)[::-1][:first])


def test_few_of_many_are_found_in_pieces() -> None:
    compared, left = 0, 8400
    for size in pieces(8400, 100):
        number = -(-left // size)
        compared += number * size * size
        left = number * min(size, 100)
    assert compared + left * left < 8400 * 8400 / 10


def test_an_order_of_all_is_one_stage() -> None:
    assert pieces(5000, 5000) == []


def test_many_rows_make_stages_worth_while() -> None:
    assert pieces(300, 5, rows=1) == []
    assert pieces(300, 5, rows=1000)


def test_no_rows_are_no_mistake() -> None:
    assert pieces(8400, 100, rows=0) == pieces(8400, 100)
