"""Numbers of configurations, as matrices for models."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.space.arrays import FloatArray
from tilewright.space.descriptors import PRIOR
from tilewright.space.interface import Space
from tilewright.trial import Configuration

Compute = Callable[[Sequence[Configuration]], FloatArray]


class FeatureTable:
    """Rows of numbers, computed once for each configuration and all missing ones together."""

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._rows: dict[Configuration, FloatArray] = {}
        self._width = compute([]).shape[1]

    def __call__(self, configs: Sequence[Configuration]) -> FloatArray:
        """Shape (configurations, numbers)."""
        missing = list(dict.fromkeys(c for c in configs if c not in self._rows))
        if missing:
            self._rows.update(zip(missing, self._compute(missing), strict=True))
        rows = [self._rows[c] for c in configs]
        return np.array(rows, dtype=np.float64).reshape(len(configs), self._width)


def encoding_and_prior(space: Space, use_prior: bool) -> Compute:
    """The encoding, and in the last column the prior (0 where there is none to be used)."""

    def compute(configs: Sequence[Configuration]) -> FloatArray:
        prior = space.prior_many(configs) if use_prior else np.zeros(len(configs))
        return np.column_stack([space.encode_many(configs), prior])

    return compute


def description(space: Space, use_prior: bool) -> Compute:
    """The descriptors, and in the last column the prior if there is one to be used."""
    names = space.descriptor_names
    order = [i for i, name in enumerate(names) if name != PRIOR]
    with_prior = use_prior and space.has_prior
    if with_prior and PRIOR in names:
        order.append(names.index(PRIOR))

    def compute(configs: Sequence[Configuration]) -> FloatArray:
        values = space.describe_many(configs)[:, order]
        if with_prior and PRIOR not in names:
            values = np.column_stack([values, space.prior_many(configs)])
        return values

    return compute


def scaling(features: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Offset and width of each feature over a sample, so that scaled ones span about 0 to 1."""
    if len(features) == 0:
        return np.zeros(features.shape[1]), np.ones(features.shape[1])
    low, high = features.min(0), features.max(0)
    return low, np.where(high > low, high - low, 1.0)


def squared_distances(a: FloatArray, b: FloatArray) -> FloatArray:
    """Squared Euclidean distances between rows, shape (rows of a, rows of b)."""
    squares = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2 * a @ b.T
    return np.asarray(np.maximum(squares, 0.0))


def spread(
    scores: FloatArray, features: FloatArray, count: int, strength: float, length: float
) -> list[int]:
    """High scores that differ from each other.

    Greedy: what is chosen takes from the score of every other candidate `strength` standard
    deviations of the scores times its similarity, exp(-(distance / length)^2 / 2).

    Args:
        scores: of the candidates, shape (candidates,).
        features: their scaled features, shape (candidates, features).
        count: how many are wanted.
        strength: of the penalty for being alike, 0 for none.
        length: the distance at which candidates are alike, in units of the features.

    Returns:
        Positions of up to `count` candidates, the highest score first.
    """
    left = scores.astype(np.float64).copy()
    penalty = strength * float(scores.std()) if len(scores) else 0.0
    chosen: list[int] = []
    taken = np.zeros(len(scores), dtype=np.float64)
    for _ in range(min(count, len(scores))):
        at = int(np.argmax(left - penalty * taken))
        chosen.append(at)
        left[at] = -np.inf
        distance = squared_distances(features[at : at + 1], features)[0]
        taken = np.maximum(taken, np.exp(-0.5 * distance / length**2))
    return chosen
