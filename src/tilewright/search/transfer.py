"""What the trials of other shapes say about a new one of the same kind.

Times of different shapes cannot be compared; what makes a configuration faster than others of its
shape can. Nor do equal descriptors mean the same in two shapes: 64 columns are a whole row here and
a sliver there. So each descriptor is taken relative to its range in its own space. A Gaussian
process over these learns from the other shapes how far times lie from what the analytic prior
expects, each shape about its own level; in the new shape this corrects the prior before the first
trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.search.surrogate import CovarianceKernel, informative, log_times
from tilewright.space.arrays import FloatArray
from tilewright.space.descriptors import PRIOR, aligned

# Descriptors that tell shapes apart but not configurations of one shape.
_OF_SHAPES = ("extent_",)
# Trials of all shapes together: the cost of the model grows with their cube.
_MOST = 1024


@dataclass(frozen=True)
class Experience:
    """The trials of one shape.

    names: what its descriptors are called. descriptors: shape (trials, names), the prior among
    them. times: seconds, NaN for a failure. ranges: the lowest and the highest value of each
    descriptor in the shape's space, or in a sample of it, shape (2, names).
    """

    names: tuple[str, ...]
    descriptors: FloatArray
    times: FloatArray
    ranges: FloatArray


def ranges(descriptors: FloatArray) -> FloatArray:
    """The `ranges` of an experience from the descriptors of a space, or of a sample of it."""
    return np.array([descriptors.min(axis=0), descriptors.max(axis=0)], dtype=np.float64)


class Transfer:
    """Corrections of the prior, learned from other shapes.

    names, ranges: the descriptors of the new shape's space, and their ranges in it. use_prior:
    whether what is corrected is the prior, or nothing.
    """

    def __init__(
        self,
        experience: Sequence[Experience],
        names: Sequence[str],
        ranges: FloatArray,
        kernel: CovarianceKernel,
        use_prior: bool,
    ) -> None:
        wanted = [n for n in names if n != PRIOR and not n.startswith(_OF_SHAPES)]
        self._at = [list(names).index(n) for n in wanted]
        self._ranges = ranges[:, self._at]
        self._kernel = kernel
        each = _MOST // max(1, len(experience))
        rows, levels = [], []
        for one in experience:
            kept = informative(one.times, each)
            described = one.descriptors[kept]
            y = log_times(one.times[kept])
            if use_prior and PRIOR in one.names:
                y = y + described[:, one.names.index(PRIOR)]
            own = aligned(one.ranges, one.names, wanted)
            rows.append(_relative(aligned(described, one.names, wanted), own))
            levels.append(y - np.median(y))
        self._x = np.concatenate(rows)
        residual = np.concatenate(levels)
        self._mean = float(residual.mean())
        gram = kernel(self._x, self._x) + kernel.noise**2 * np.eye(len(self._x))
        self._weights = np.linalg.solve(gram, residual - self._mean)

    def correction(self, descriptors: FloatArray) -> FloatArray:
        """What to add to minus the prior, as a log time; descriptors of shape (configurations,
        the new space's descriptors)."""
        x = _relative(descriptors[:, self._at], self._ranges)
        return np.asarray(self._mean + self._kernel(x, self._x) @ self._weights)


def _relative(values: FloatArray, ranges: FloatArray) -> FloatArray:
    """Values within their ranges, 0 to 1; 0 where a range is a single value."""
    low, width = ranges[0], ranges[1] - ranges[0]
    relative = np.where(width > 0, (values - low) / np.where(width > 0, width, 1.0), 0.0)
    # Far outside, distances say nothing that the nearest edge does not.
    return np.asarray(np.clip(relative, -0.5, 1.5))
