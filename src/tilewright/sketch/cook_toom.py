"""Matrices of short convolutions with few multiplications.

Cook's and Toom's construction as Winograd uses it: `m` sums of `r` products of a filter g with
m + r - 1 neighbouring values d are `A' ((G g) * (B' d))`, with as many multiplications as there are
values (S. Winograd, "Arithmetic Complexity of Computations", 1980; A. Lavin and S. Gray, "Fast
Algorithms for Convolutional Neural Networks", 2016). The points decide how rounding errors grow
(B. Barabasz, A. Anderson, K. Soodhalter and D. Gregg, "Error Analysis and Improving the Accuracy of
Winograd Convolution for Deep Neural Networks", 2020): of those tried for four sums of three
products in two dimensions and 64 channels, 0, +-3/4, +-3/2 left 1.6 times the error of the plain
sums, 0, +-5/8, +-5/4 1.9 times, and the usual 0, +-1, +-2 12.5 times.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import prod

from tilewright.sketch.packing import Matrix

_POINTS: dict[int, tuple[Fraction, ...]] = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(3, 2), Fraction(-3, 2)),
}
#: Sums that are computed together along a dimension.
SIZES = tuple(_POINTS)
#: Products of each sum.
WINDOW = 3


@dataclass(frozen=True)
class ShortConvolution:
    """`result @ ((filter @ g) * (image @ d))`: sums of three products of g with neighbours in d.

    image, filter, result: matrices by rows, of m + 2 by m + 2, m + 2 by 3, m by m + 2 elements.
    """

    image: Matrix
    filter: Matrix
    result: Matrix


def short_convolution(size: int) -> ShortConvolution:
    """The matrices for `size` sums.

    Args:
        size: one of `SIZES`.
    """
    points = _POINTS[size]
    last = len(points)
    image, filters = [], []
    for point in points:
        others = [p for p in points if p != point]
        image.append([*_polynomial(others), Fraction(0)])
        scale = prod((point - p for p in others), start=Fraction(1))
        filters.append([point**power / scale for power in range(WINDOW)])
    # The point at infinity: what is left of the highest powers.
    image.append(_polynomial(points))
    filters.append([Fraction(power == WINDOW - 1) for power in range(WINDOW)])
    result = [
        [*(point**power for point in points), Fraction(power == size - 1)] for power in range(size)
    ]
    assert len(image) == last + 1
    return ShortConvolution(_floats(image), _floats(filters), _floats(result))


def _polynomial(roots: list[Fraction] | tuple[Fraction, ...]) -> list[Fraction]:
    """The coefficients of the product of (x - root), of the lowest power first."""
    found = [Fraction(1)]
    for root in roots:
        shifted, same = [Fraction(0), *found], [*found, Fraction(0)]
        found = [above - root * here for above, here in zip(shifted, same, strict=True)]
    return found


def _floats(rows: list[list[Fraction]]) -> Matrix:
    return tuple(tuple(float(one) for one in row) for row in rows)
