"""Which come first among many elements, by counting how many come before each.

IREE 3.13 orders elements by exchanging neighbours, one by one on one core, and makes of a top-k an
order of all: the largest hundred of 8,400 took 124 ms. Counted, each element's rank is the sum of
its comparisons with all others, which vectors and all cores do; the element of rank r is the r-th.
Where few of many are asked for, pieces of the elements give their first ones, and these are
compared with each other. A graph says it in operations that any program has (`ir/onnx_orders`,
`ir/torch_orders`).
"""

from __future__ import annotations

from functools import cache

_SMALLEST_PIECE = 32
# What another stage costs in comparisons, by its dispatches: some 50 us.
_STAGE = 300_000
# A stage must leave fewer elements than these shares.
_LEFT = 3, 4


def pieces(count: int, first: int, rows: int = 1) -> list[int]:
    """The stages by which the first of many are found in the fewest comparisons.

    Args:
        count: how many elements a row has.
        first: how many of them are asked for.
        rows: how many rows there are.

    Returns:
        The sizes of the pieces that each stage but the last takes, of which each gives its first
        ones (all of it where `first` is as many) to the next; the last compares all that are left.
    """
    # Of no rows there may be as many pieces as of one.
    return list(_cheapest(count, first, max(rows, 1))[1])


@cache
def _cheapest(count: int, first: int, rows: int) -> tuple[float, tuple[int, ...]]:
    best: tuple[float, tuple[int, ...]] = float(count) * (count + first), ()
    size = _SMALLEST_PIECE
    while size < count:
        number, kept = -(-count // size), min(first, size)
        if number * kept * _LEFT[1] < count * _LEFT[0]:
            rest, later = _cheapest(number * kept, first, rows)
            cost = _STAGE / rows + float(number) * size * (size + kept) + rest
            best = min(best, (cost, (size, *later)))
        size *= 2
    return best
