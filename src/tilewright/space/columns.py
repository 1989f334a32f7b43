"""Many values of a knob as one array, which constraints can be checked on at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.trial import Value


def as_column(values: Sequence[Value]) -> npt.NDArray[Any]:
    """A 1-d array: of numbers, booleans or texts where all values are of one such type, else of
    objects (a permutation stays one value)."""
    kinds = {type(v) for v in values}
    if len(kinds) == 1 and kinds <= {bool, int, str}:
        return np.array(values)
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column
