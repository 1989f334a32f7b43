"""Numbers of f32, or of fewer bits, as sums of a few of bf16: what they are split into, and which
products count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tilewright.schedule.expr import Cast, Expr, Select, const

#: Elements of a row that are multiplied at once, and those of a column that lie beside each other.
GROUP, PAIR = 32, 2
#: By the number of parts, the pairs of parts that are multiplied, ordered so that few are loaded
#: twice.
PRODUCTS: dict[int, tuple[tuple[int, int], ...]] = {
    1: ((0, 0),),
    2: ((0, 1), (0, 0), (1, 0)),
    3: ((0, 2), (0, 1), (1, 1), (1, 0), (2, 0), (0, 0)),
}


def products(parts: int, every: bool = False) -> tuple[tuple[int, int], ...]:
    """The pairs of parts that are multiplied.

    >>> products(2, every=True)
    ((0, 1), (0, 0), (1, 0), (1, 1))

    Args:
        parts: that each number is split into.
        every: whether all of them, which makes products of numbers exact.

    Returns:
        In an order in which few parts are loaded twice.
    """
    if not every:
        return PRODUCTS[parts]
    up = range(parts)
    return tuple((mine, its) for mine in up for its in (up if mine % 2 else reversed(up)))


# The largest number of bf16: what is larger would become infinite.
LARGEST = float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)  # type: ignore[no-untyped-call]


def split(value: Expr, parts: int) -> list[Expr]:
    """The parts of a number, the largest first; their sum is the number, rounded to 8 bits each.

    What is infinite is so in its last part alone: products with the first one of another number,
    which is 0 only if that is, are what they are for f32.

    Args:
        value: of f32.
        parts: how many.
    """
    made: list[Expr] = []
    for number in range(parts):
        held = value
        if number < parts - 1:
            most, least = const(LARGEST, "f32"), const(-LARGEST, "f32")
            held = Select(value > most, most, Select(value < least, least, value, False), False)
        made.append(Cast("bf16", held))
        value = value - Cast("f32", made[-1])
    return made


def part_of(value: Expr, parts: int, number: Expr) -> Expr:
    """One of a number's parts.

    Args:
        value: of f32.
        parts: that it is split into.
        number: which, from 0 on.
    """
    *some, made = split(value, parts)
    for place, one in reversed([*enumerate(some)]):
        made = Select(number.equal(place), one, made, False)
    return made


def split_array(array: NDArray[Any], parts: int) -> NDArray[Any]:
    """The parts of numbers.

    Args:
        array: of f32, or of floats that it has.
        parts: how many.

    Returns:
        An array of bf16 with one dimension more in front, of the parts.
    """
    made, array = [], array.astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for number in range(parts):
            held = np.clip(array, -LARGEST, LARGEST) if number < parts - 1 else array
            made.append(held.astype(ml_dtypes.bfloat16))
            array = array - made[-1].astype(np.float32)
    return np.stack(made)


@dataclass(frozen=True)
class Taps:
    """The taps of a window along one dimension of an image whose points are rows of an operand.

    count, dilation, stride: of the window. step: how many rows the next point is further on, of
    those of the same phase: the points with the same rest by the stride. phase: how many the next
    phase is.
    """

    count: int
    dilation: int = 1
    stride: int = 1
    step: int = 1
    phase: int = 0

    @property
    def reach(self) -> int:
        """Points of a phase that the last tap is further on than the first, at most."""
        return (self.count - 1) * self.dilation // self.stride

    @property
    def phases(self) -> int:
        """How many phases there are."""
        return min(self.stride, (self.count - 1) * self.dilation + 1)

    @property
    def most(self) -> int:
        """A bound of all offsets."""
        return (self.phases - 1) * self.phase + self.reach * self.step

    def offset(self, tap: Any) -> Any:
        """How many rows a tap is further on than the first.

        Args:
            tap: a number, or an index.
        """
        if self.stride == 1:
            return tap * (self.dilation * self.step)
        place = tap * self.dilation
        return place % self.stride * self.phase + place // self.stride * self.step
