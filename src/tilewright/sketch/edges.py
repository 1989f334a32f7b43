"""Edges of an image that add nothing to the sums of its windows, which can leave them out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.schedule.expr import Const, Expr, Select, substitute
from tilewright.schedule.functions import conjuncts
from tilewright.schedule.tensor import ComputeOp, IterVar, TensorRead
from tilewright.sketch.sliding import ImageDim, SlidingReduction
from tilewright.sketch.structure import axes_of, extent, factors, source_read, values_along


@dataclass(frozen=True)
class Edges:
    """An image that is something within bounds, and beyond them what is nothing to a reduction.

    op: computes the image. within: its elements.
    """

    op: ComputeOp
    within: Select

    def value(self, read: TensorRead) -> Expr:
        """What an element of the image is within the bounds.

        Args:
            read: of the image.
        """
        return substitute(self.within.a, self._at(read))

    def holds(self, read: TensorRead) -> Expr:
        """The condition under which an element is within the bounds.

        Args:
            read: of the image.
        """
        return substitute(self.within.condition, self._at(read))

    def _at(self, read: TensorRead) -> dict[Expr, Expr]:
        return dict(zip(self.op.axis, read.indices, strict=True))

    def shares_within(self, dims: Sequence[ImageDim]) -> list[float]:
        """For each dimension the part of the elements of all windows that is within its bounds.

        Args:
            dims: how the dimensions of the image are read.
        """
        return [self._share(dim, axis) for dim, axis in zip(dims, self.op.axis, strict=True)]

    def innermost(self, dims: Sequence[ImageDim]) -> ImageDim | None:
        """The dimension whose elements lie side by side where they are read in place; None where it
        is not known.

        Args:
            dims: how the dimensions of the image are read.
        """
        if not isinstance(self.within.a, TensorRead):
            return None
        last = set(axes_of(self.within.a.indices[-1], self.op.axis))
        read = [dim for dim, axis in zip(dims, self.op.axis, strict=True) if axis in last]
        return read[0] if len(read) == 1 else None

    def _share(self, dim: ImageDim, axis: IterVar) -> float:
        if dim.data is None or dim.reduced is None:
            return 1.0
        parts = [c for c in conjuncts(self.within.condition) if axes_of(c, self.op.axis) == (axis,)]
        inside = np.ones(extent(axis), dtype=bool)
        for values in (values_along(part, axis) for part in parts):
            inside &= False if values is None else values
        first, taps = np.arange(extent(dim.data))[:, None], np.arange(extent(dim.reduced))
        places = first * dim.stride + taps * dim.dilation
        known = places < len(inside)
        return float(np.mean(known & inside[np.where(known, places, 0)]))


def edges_of(found: SlidingReduction) -> Edges | None:
    """The edges of an image where what is beyond them is nothing to the reduction: zeros that are
    multiplied and added up, or what is no more than a maximum starts from.

    Args:
        found: the reduction.

    Returns:
        None where the image has none, or what is there counts.
    """
    op, body = found.image.tensor.op, found.body
    if not isinstance(op, ComputeOp) or len(body.sources) > 1:
        return None
    (within,), (source,), (start,) = op.body, body.sources, body.init or body.combiner.identity
    if not (isinstance(within, Select) and within.guarded and isinstance(within.b, Const)):
        return None
    beyond = within.b.value
    image = found.image.tensor
    if isinstance(source, TensorRead) and source.tensor is image:
        first = start.value if isinstance(start, Const) else math.nan
        harmless = {"sum": beyond == 0, "max": beyond <= first, "min": beyond >= first}
        nothing = harmless.get(body.combiner.name, False)
    else:
        # A factor that is zero.
        read = [source_read(factor) for factor in factors(body)]
        nothing = beyond == 0 and any(one is not None and one.tensor is image for one in read)
    return Edges(op, within) if nothing else None
