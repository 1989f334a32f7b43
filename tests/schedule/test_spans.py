"""Regions: no less than what is read, and no more where that is known."""

from __future__ import annotations

import pytest

from tilewright.schedule.arith import FAR, Arithmetic
from tilewright.schedule.expr import Expr, Var, index
from tilewright.schedule.nest import Buffer, Load
from tilewright.schedule.spans import Span, clipped, span_of, union

I, J, F = Var("i"), Var("j"), Var("f")  # noqa: E741
LARGE = 1 << 20


def known() -> Arithmetic:
    return Arithmetic({I: (0, 3), J: (0, 7), F: (0, 100)})


def region(exprs: list[Expr], fixed: set[Var], size: int = LARGE) -> tuple[str, int]:
    """Where the values of indices begin while variables stand still, and how many there are."""
    arithmetic = known()
    spans = [span_of(arithmetic.linear(e), fixed, arithmetic) for e in exprs]
    low, extent = clipped(union(spans), size, arithmetic)
    return str(low), extent


@pytest.mark.parametrize(
    ("expr", "fixed", "low", "extent"),
    [
        (I * 8 + J, {I}, "i*8", 8),
        (I * 8 + J, set(), "0", 32),
        (I * 8 + J, {I, J}, "i*8 + j", 1),
        (I * 8 + J, {J}, "j", 25),
        (I * 8 + J + 5, {I}, "i*8 + 5", 8),
        (I - J, {I}, "i - 7", 8),
        (I * 3 - J * 2, set(), "-14", 24),
        # Quotients: of a step that divides, of none that stands still, of one that does not.
        ((F * 8 + J) // 4, {F}, "f*2", 2),
        ((F * 8 + J) // 8, {F}, "f", 1),
        (J // 2, set(), "0", 4),
        ((J + 1) // 2, set(), "0", 5),
        (F // 6, {F}, "f//6", 1),
        ((F + J) // 4, {F}, "f//4", 3),
        ((F + J + 3) // 4, {F}, "(f + 3)//4", 3),
        # Remainders: within one turn, over the end of it, of what stands still.
        ((F * 8 + J) % 8, {F}, "0", 8),
        ((F * 8 + J) % 4, {F}, "0", 4),
        ((F * 16 + I + 2) % 16, {F}, "2", 4),
        (F % 6, {F}, "f%6", 1),
        ((F + J) % 6, {F}, "0", 6),
        (F % 6 + J, {F}, "f%6", 8),
    ],
)
def test_one_index(expr: Expr, fixed: set[Var], low: str, extent: int) -> None:
    assert region([expr], fixed) == (low, extent)


def test_what_is_in_memory_may_be_anything() -> None:
    table = Buffer("T", (16,), "index")
    entry = Load(table, (I,))
    arithmetic = known()
    span = span_of(arithmetic.linear(entry), {I}, arithmetic)
    assert span.high - span.low >= FAR
    assert region([entry], {I}, 40) == ("0", 40)


@pytest.mark.parametrize(
    ("exprs", "low", "extent"),
    [
        ([I + J, I + J + 3], "i", 11),
        ([I + J + 3, I + J], "i", 11),
        ([I + 2, I - 1], "i - 1", 4),
        # Starts that are apart by something that is known but for its range.
        ([I, I * 2], "i", 4),
        ([I * 2, I], "i*2 - 3", 4),
        ([index(5), I], "0", 6),
    ],
)
def test_several_indices(exprs: list[Expr], low: str, extent: int) -> None:
    assert region(exprs, {I}) == (low, extent)


@pytest.mark.parametrize(("size", "found"), [(9, ("i*8", 8)), (8, ("0", 8)), (5, ("0", 5))])
def test_never_more_than_the_tensor_has(size: int, found: tuple[str, int]) -> None:
    assert region([I * 8 + J], {I}, size) == found


def test_far_away_is_all_of_the_tensor() -> None:
    arithmetic = known()
    start = arithmetic.linear(I)
    low, extent = clipped(Span(start, 0, FAR), FAR * 4, arithmetic)
    assert (str(low), extent) == ("0", FAR * 4)
    low, extent = clipped(Span(start, 1, FAR), FAR * 4, arithmetic)
    assert (str(low), extent) == ("i + 1", FAR)
