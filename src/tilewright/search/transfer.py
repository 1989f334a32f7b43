"""What the trials of other shapes say about a new one of the same kind.

Times of different shapes cannot be compared; what makes a configuration faster than others of its
shape can. A Gaussian process over the descriptors, which mean the same in every shape, learns from
the other shapes how far times lie from what the analytic prior expects, each shape about its own
level; in the new shape this corrects the prior before the first trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.search.features import scaling
from tilewright.search.ranking import informative, log_times
from tilewright.search.surrogate import Kernel
from tilewright.space.descriptors import PRIOR, aligned
from tilewright.space.interface import FloatArray

# Descriptors that tell shapes apart but not configurations of one shape.
_OF_SHAPES = ("extent_",)
# Trials of all shapes together: the cost of the model grows with their cube.
_MOST = 1024


@dataclass(frozen=True)
class Experience:
    """The trials of one shape.

    names: what its descriptors are called. descriptors: shape (trials, names), the prior among
    them. times: seconds, NaN for a failure.
    """

    names: tuple[str, ...]
    descriptors: FloatArray
    times: FloatArray


class Transfer:
    """Corrections of the prior, learned from other shapes.

    names: the descriptors of the new shape's space. use_prior: whether what is corrected is the
    prior, or nothing.
    """

    def __init__(
        self,
        experience: Sequence[Experience],
        names: Sequence[str],
        kernel: Kernel,
        use_prior: bool,
    ) -> None:
        self._wanted = [n for n in names if n != PRIOR and not n.startswith(_OF_SHAPES)]
        self._at = [i for i, n in enumerate(names) if n in set(self._wanted)]
        self._kernel = kernel
        each = _MOST // max(1, len(experience))
        rows, levels = [], []
        for one in experience:
            kept = informative(one.times, each)
            described = one.descriptors[kept]
            y = log_times(one.times[kept])
            if use_prior and PRIOR in one.names:
                y = y + described[:, one.names.index(PRIOR)]
            rows.append(aligned(described, one.names, self._wanted))
            levels.append(y - np.median(y))
        x = np.concatenate(rows)
        residual = np.concatenate(levels)
        self._low, self._width = scaling(x)
        self._x = (x - self._low) / self._width
        self._mean = float(residual.mean())
        gram = kernel(self._x, self._x) + kernel.noise**2 * np.eye(len(x))
        self._weights = np.linalg.solve(gram, residual - self._mean)

    def correction(self, descriptors: FloatArray) -> FloatArray:
        """What to add to minus the prior, as a log time; descriptors of shape (configurations,
        the new space's descriptors)."""
        x = (descriptors[:, self._at] - self._low) / self._width
        # Far outside what was seen, distances say nothing that the nearest edge does not.
        x = np.clip(x, -0.5, 1.5)
        return np.asarray(self._mean + self._kernel(x, self._x) @ self._weights)
