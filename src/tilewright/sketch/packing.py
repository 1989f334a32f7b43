"""Packing: an operand in the order in which a kernel reads it.

A packed operand is the original padded with zeros, each of its dimensions split, and the parts
permuted: `B[k, n]` in panels of 16 columns is `Packing((0, pad), ((K,), (N / 16, 16)), (1, 0, 2))`.
Constant operands are packed outside the kernel, so that it happens when a program is compiled or
loaded; what is said here once is done in three ways: with NumPy (for trials), in linalg (for what
ships) and as a tensor expression (in a kernel).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Packing:
    """How an operand is packed.

    pad: zeros added behind the last element of each dimension. split: for each padded dimension the
        extents that it is split into, outermost first; their product is its size. order: for each
        dimension of the result, which of all the parts (counted over all dimensions) it is.
    """

    pad: tuple[int, ...]
    split: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]

    def __post_init__(self) -> None:
        parts = sum(map(len, self.split))
        if len(self.pad) != len(self.split) or sorted(self.order) != list(range(parts)):
            raise ValueError(f"{self}: parts and dimensions do not agree")

    @property
    def parts(self) -> tuple[int, ...]:
        """All extents that dimensions are split into, in the order of the dimensions."""
        return tuple(extent for part in self.split for extent in part)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the packed operand."""
        return tuple(self.parts[one] for one in self.order)

    def of(self, array: NDArray[Any]) -> NDArray[Any]:
        """An array, packed.

        Args:
            array: of the shape that the packing is for.

        Returns:
            A new array of shape `shape`.

        Raises:
            ValueError: the array has another shape.
        """
        wanted = tuple(prod(part) - pad for part, pad in zip(self.split, self.pad, strict=True))
        if array.shape != wanted:
            raise ValueError(f"shape {array.shape} instead of {wanted}")
        padded = np.pad(array, [(0, pad) for pad in self.pad])
        return np.ascontiguousarray(padded.reshape(self.parts).transpose(self.order))
