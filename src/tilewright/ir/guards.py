"""Guards: what shows that a program writes behind its results.

A program may have a function `guarded`, which does what `main` does and returns each result flat,
with some more elements behind it whose bytes all had a certain value before. They must still have
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

GUARDED = "guarded"

#: Elements behind each result: a few cache lines more than any vector has.
GUARD_ELEMENTS = 1024

#: What all their bytes are: a number other than 0 in every type.
GUARD_BYTE = 0xC2


class WroteOutside(Exception):
    """A program has written where it must not; says where."""


def without_guards(
    results: Sequence[NDArray[Any]], shapes: Sequence[tuple[int, ...]]
) -> list[NDArray[Any]]:
    """The results of a guarded run as `main` would have given them.

    Args:
        results: flat, each with its guard.
        shapes: of the results.

    Raises:
        WroteOutside: a guard was written to.
    """
    made = []
    for number, (result, shape) in enumerate(zip(results, shapes, strict=True)):
        size = result.size - GUARD_ELEMENTS
        guard = result[size:].view(np.uint8).reshape(GUARD_ELEMENTS, -1)
        written = np.flatnonzero((guard != GUARD_BYTE).any(axis=1))
        if written.size:
            raise WroteOutside(
                f"result {number}: {written.size} elements behind its {size} are written to, the "
                f"first at {size + int(written[0])}"
            )
        made.append(result[:size].reshape(shape))
    return made
