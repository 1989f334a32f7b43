"""Types of arrays, and many values of a knob as one, on which constraints are checked at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.trial import Value

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


def as_column(values: Sequence[Value]) -> npt.NDArray[Any]:
    """A 1-d array: of numbers, booleans or texts where all values are of one such type, else of
    objects (a permutation stays one value)."""
    kinds = {type(v) for v in values}
    if len(kinds) == 1 and kinds <= {bool, int, str}:
        return np.array(values)
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column
