"""A site's result in the dimensions of its reduction, where these are one dimension of the result.

A grouped convolution has groups and channels of a group, its result in a program channels alone,
which what is added to it counts through. Apart again, they are loops of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.schedule.arith import Arithmetic
from tilewright.schedule.expr import Expr
from tilewright.schedule.tensor import ComputeOp, Tensor, reads
from tilewright.sketch.fusion import moved, taken_apart
from tilewright.sketch.structure import extent


def in_dimensions_of(output: Tensor, sums: Tensor, body: Expr) -> Tensor:
    """The same elements in the same order, with each dimension apart that `sums` has.

    Args:
        output: of the site, elementwise of `sums`.
        sums: the reduction's result.
        body: an element of the output, which reads `sums` itself.

    Returns:
        `output` where it has no other dimensions.
    """
    op = output.op
    assert isinstance(op, ComputeOp)
    if op.num_outputs > 1:
        return output
    arithmetic = Arithmetic({a: (0, extent(a) - 1) for a in op.axis})
    indices = [i for read in reads(body) if read.tensor is sums for i in read.indices]
    axes, places = taken_apart(op.axis, indices, arithmetic)
    if not places:
        return output
    made = Tensor(output.name, tuple(map(extent, axes)), output.dtype)
    element = moved(body, places, arithmetic)
    made.op = ComputeOp(op.name, (made,), tuple(axes), (element,), op.tag, op.attrs)
    return made


def splits(whole: Sequence[int], parts: Sequence[int]) -> bool:
    """Whether a shape is another one with dimensions taken apart.

    Args:
        whole: the shape.
        parts: the one with more dimensions, in their order.
    """
    left = list(reversed(parts))
    for size in whole:
        reached = 1
        while left and reached * left[-1] <= size and (reached < size or left[-1] == 1):
            reached *= left.pop()
        if reached != size:
            return False
    return not left
