"""Packing: an operand in the order in which a kernel reads it.

A packed operand is the original padded with zeros, each of its dimensions split, and the parts
permuted: `B[k, n]` in panels of 16 columns is `Packing((0, pad), ((K,), (N / 16, 16)), (1, 0, 2))`.
Before all that, dimensions may be multiplied by matrices, and after it numbers split (`terms`).
Constant operands are packed outside the kernel, so that it happens when a program is compiled or
loaded; what is said here once is done in three ways: with NumPy (for trials), in linalg (for what
ships) and as a tensor expression (in a kernel).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.schedule.expr import Expr, index
from tilewright.schedule.functions import conjunction, if_then_else
from tilewright.schedule.splitting import split_array
from tilewright.schedule.tensor import Tensor, TensorRead, compute, placeholder
from tilewright.schedule.types import bits

#: By rows.
Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Packing:
    """How an operand is packed.

    pad: zeros added behind the last element of each dimension. split: for each padded dimension the
        extents that it is split into, outermost first; their product is its size. order: for each
        dimension of the result, which of all the parts (counted over all dimensions) it is.
    terms: of floats that are split into parts of bf16 whose sum they are, how many, and in which
        dimension of the result they are, one more then.
    matrices: for each dimension the matrix, by rows, that its elements are multiplied by first, of
        as many columns as there are elements, and rows as the packed operand has; None for none.
        Empty: for no dimension.
    """

    pad: tuple[int, ...]
    split: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    matrices: tuple[Matrix | None, ...] = ()
    joined: tuple[int, ...] = ()
    terms: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        parts = sum(map(len, self.split))
        if len(self.pad) != len(self.split) or sorted(self.order) != list(range(parts)):
            raise ValueError(f"{self}: parts and dimensions do not agree")
        if self.matrices and len(self.matrices) != len(self.split):
            raise ValueError(f"{self}: matrices and dimensions do not agree")
        if self.joined and sum(self.joined) != parts:
            raise ValueError(f"{self}: joined parts are not all that there are")

    @property
    def parts(self) -> tuple[int, ...]:
        """All extents that dimensions are split into, in the order of the dimensions."""
        return tuple(extent for part in self.split for extent in part)

    @property
    def moves(self) -> bool:
        """Whether elements move, so that the packed operand is another tensor."""
        changed = any(self.pad) or any(self.matrices) or self.terms is not None
        return changed or list(self.order) != sorted(self.order)

    def added(self, own: str) -> int:
        """Bytes of the packed operand that the original does not have.

        Args:
            own: the operand's element type.
        """
        packed = prod(self.shape) * bits(self.dtype(own))
        return (packed - prod(self.unpacked_shape) * bits(own)) // 8

    def dtype(self, own: str) -> str:
        """The packed operand's element type.

        Args:
            own: the operand's.
        """
        return own if self.terms is None else "bf16"

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """For each dimension of the packed operand the extents of the parts that it is made of."""
        left = [self.parts[one] for one in self.order]
        counts = self.joined or (1,) * len(left)
        return tuple(tuple(left.pop(0) for _ in range(count)) for count in counts)

    @property
    def joined_shape(self) -> tuple[int, ...]:
        """The shape of the packed operand before its numbers are split."""
        return tuple(map(prod, self.groups))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the packed operand."""
        shape = list(self.joined_shape)
        if self.terms is not None:
            count, place = self.terms
            shape.insert(place, count)
        return tuple(shape)

    def of(self, array: NDArray[Any]) -> NDArray[Any]:
        """An array, packed.

        Args:
            array: of the shape that the packing is for.

        Returns:
            A new array of shape `shape`.

        Raises:
            ValueError: the array has another shape.
        """
        if array.shape != self.unpacked_shape:
            raise ValueError(f"shape {array.shape} instead of {self.unpacked_shape}")
        made = array
        for dim, matrix in enumerate(self.matrices):
            if matrix is not None:
                by = np.asarray(matrix, np.float64)
                made = np.moveaxis(np.tensordot(by, made, (1, dim)), 0, dim)
        padded = np.pad(made.astype(array.dtype), [(0, pad) for pad in self.pad])
        moved = padded.reshape(self.parts).transpose(self.order)
        if self.terms is None:
            return np.ascontiguousarray(moved).reshape(self.shape)
        count, place = self.terms
        pieces = split_array(moved.reshape(self.joined_shape), count)
        return np.ascontiguousarray(np.moveaxis(pieces, 0, place))

    @property
    def unpacked_shape(self) -> tuple[int, ...]:
        """The shape of the operand that the packing is for."""
        multiplied = self.multiplied_shape
        matrices = self.matrices or (None,) * len(multiplied)
        return tuple(
            size if matrix is None else len(matrix[0])
            for size, matrix in zip(multiplied, matrices, strict=True)
        )

    @property
    def multiplied_shape(self) -> tuple[int, ...]:
        """The shape of the operand once its dimensions are multiplied by their matrices."""
        return tuple(prod(part) - pad for part, pad in zip(self.split, self.pad, strict=True))

    def placeholder(self, tensor: Tensor) -> Tensor:
        """What stands for an operand that is packed outside of the kernel.

        Args:
            tensor: the operand.
        """
        return placeholder(self.shape, self.dtype(tensor.dtype), f"{tensor.name}.packed")

    def stage(self, tensor: Tensor) -> Tensor:
        """A computation that packs an operand in the kernel.

        Args:
            tensor: the operand, of any computation.

        Raises:
            ValueError: it is multiplied by matrices, or its numbers are split, which is done
                outside the kernel only.
        """
        if any(self.matrices) or self.terms is not None:
            raise ValueError(f"{self}: matrices and terms are for operands that are known ahead")

        def packed(*axes: Expr) -> Expr:
            apart = [
                part
                for axis, group in zip(axes, self.groups, strict=True)
                for part in _split(axis, group)
            ]
            parts = dict(zip(self.order, apart, strict=True))
            indices, held, first = [], [], 0
            for split, size, pad in zip(self.split, tensor.shape, self.pad, strict=True):
                place: Expr = index(0)
                for number in range(first, first + len(split)):
                    place = place * split[number - first] + parts[number]
                first += len(split)
                indices.append(place)
                if pad:
                    held.append(place < index(size))
            read = TensorRead(tensor, tuple(indices))
            return if_then_else(conjunction(held), read, 0) if held else read

        made: Tensor = compute(self.shape, packed, name=f"{tensor.name}.packed")
        return made

    def read(self, packed: Tensor, indices: Sequence[Expr]) -> TensorRead:
        """Where an element of the operand is in the packed one.

        Args:
            packed: what :meth:`placeholder` or :meth:`stage` made.
            indices: of the element in the operand.
        """
        parts = [
            part
            for place, split in zip(indices, self.split, strict=True)
            for part in _split(place, split)
        ]
        moved = iter([parts[one] for one in self.order])
        made = []
        for group in self.groups:
            place = next(moved)
            for size in group[1:]:
                place = place * size + next(moved)
            made.append(place)
        return TensorRead(packed, tuple(made))


def _split(place: Expr, extents: Sequence[int]) -> list[Expr]:
    """The index of each part of a dimension, outermost first."""
    parts = []
    for number, size in enumerate(extents):
        inner = prod(extents[number + 1 :])
        part = place // inner if inner > 1 else place
        parts.append(part % size if number else part)
    return parts


@dataclass(frozen=True)
class SplitDimensions:
    """How the dimensions of an operand that axes run along are split: `pad` and `split` as of
    `Packing`; by the axis of a dimension the number of its first part; parts of dimensions of one
    element."""

    pad: tuple[int, ...]
    split: tuple[tuple[int, ...], ...]
    first: Mapping[Expr, int]
    ones: tuple[int, ...]


def split_dimensions(
    read: TensorRead, parts: Mapping[Expr, tuple[int, ...]]
) -> SplitDimensions | None:
    """Split the dimensions of an operand by the axes that run along them.

    Args:
        read: of the operand.
        parts: for each axis the extents that its dimension is split into, padded to their product.

    Returns:
        None where a dimension of several elements is along none of these axes alone, or an axis
        along none or several.
    """
    split: list[tuple[int, ...]] = []
    pad, ones, first = list[int](), list[int](), dict[Expr, int]()
    for place, size in zip(read.indices, read.tensor.shape, strict=True):
        at = sum(map(len, split))
        if place in parts and place not in first:
            first[place] = at
        elif size == 1:
            ones.append(at)
        else:
            return None
        split.append(parts.get(place, (1,)))
        pad.append(prod(split[-1]) - size)
    if len(first) < len(parts) or min(pad) < 0:
        return None
    return SplitDimensions(tuple(pad), tuple(split), first, tuple(ones))
