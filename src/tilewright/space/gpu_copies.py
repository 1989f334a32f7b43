"""How the threads of a workgroup share the copy of an operand's tile into shared memory.

The compiler derives it from the tile and the number of threads (`deriveThreadTileSizes` and
`getDerivedThreadLayout` of IREE 3.13), and VectorDistribute refuses a tile that it finds no way
for: its constraints do not say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.space.terms import either, least, where

_COPIED_BITS = 128


def is_shared_out(shape: Sequence[Any], threads: Any, bits: int) -> Any:
    """Whether a number of threads can copy a tile, each the same number of whole vectors.

    Args:
        shape: the tile, outermost loop first: numbers, arrays of them or terms.
        threads: of the workgroup.
        bits: of an element.
    """
    vectors = _vectors(shape, threads, max(1, _COPIED_BITS // bits))
    good: Any = True
    left = threads
    for size, vector in zip(reversed(shape), reversed(vectors), strict=True):
        pieces = size // vector
        divides, divided = left % pieces == 0, pieces % left == 0
        good = (size % vector == 0) & either(divides, divided) & good
        left = where(divides, left // pieces, 1)
    return good


def is_whole(shape: Sequence[Any], threads: Any, bits: int) -> Any:
    """Whether every thread copies the same number of full vectors of a tile, as prefetching it in
    three stages or more takes: IREE 3.13 makes IR that is not valid where some threads have less.

    Args:
        shape: the tile: numbers, arrays of them or terms.
        threads: of the workgroup.
        bits: of an element.
    """
    points: Any = 1
    for size in shape:
        points = points * size
    return points % (threads * max(1, _COPIED_BITS // bits)) == 0


def _vectors(shape: Sequence[Any], threads: Any, widest: int) -> list[Any]:
    """What one thread copies at once along each loop."""
    points: Any = 1
    for size in shape:
        points = points * size
    even = points % threads == 0
    # At most so many that no thread is left without work.
    room = least(widest, points // threads)
    room = where(room < 1, 1, room)
    *outer, last = shape
    fits = either(last % room == 0, room % last == 0)
    inner = where(even, where(fits, least(last, room), 1), least(last, widest))
    # What is left of a vector that is longer than the innermost loop goes on along the next ones,
    # while these are whole.
    rest = where(even & fits & (last < room), room // last, 1)
    vectors = [inner]
    for size in reversed(outer):
        whole = (rest > 1) & (rest % size == 0)
        vectors.append(where(whole, size, 1))
        rest = where(whole, rest // size, 1)
    return vectors[::-1]
