"""Descriptors: numbers that mean the same in every shape, for cost models that carry over.

The encoding of a configuration holds its knobs. A model trained on one shape can make little of
those of another: 64 columns are a whole row here and a sliver there. Descriptors say what the knobs
amount to. Their names are equal in all spaces of one kind, and :func:`aligned` reads those of one
space as those of another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.space.arrays import FloatArray
from tilewright.trial import Configuration

PRIOR = "prior"
"""The descriptor that is the analytic prior itself; a search without prior leaves it out."""


@dataclass(frozen=True)
class Descriptors:
    """What a space's configurations amount to.

    `describe` gives an array of shape (configurations, names); it is defined for every
    configuration that has the space's knobs.
    """

    names: tuple[str, ...]
    describe: Callable[[Sequence[Configuration]], FloatArray]


def aligned(values: FloatArray, names: Sequence[str], wanted: Sequence[str]) -> FloatArray:
    """Descriptors of one space as those of another.

    Args:
        values: shape (configurations, names).
        names: what the columns are.
        wanted: the names that the other space has.

    Returns:
        Shape (configurations, wanted); 0 for a descriptor that is not there.
    """
    at = {name: i for i, name in enumerate(names)}
    out = np.zeros((len(values), len(wanted)), dtype=np.float64)
    for column, name in enumerate(wanted):
        if name in at:
            out[:, column] = values[:, at[name]]
    return out
