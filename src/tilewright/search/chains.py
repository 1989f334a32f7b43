"""Simulated annealing over a model's score, many chains at once.

S. Kirkpatrick, C. D. Gelatt and M. P. Vecchi, "Optimization by Simulated Annealing", Science 220,
1983; over a cost model and in parallel as in T. Chen et al., "Learning to Optimize Tensor
Programs", NeurIPS 2018.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

import numpy as np

from tilewright.space.arrays import FloatArray
from tilewright.space.interface import Space
from tilewright.trial import Configuration


@dataclass(frozen=True)
class Cooling:
    """How long chains run, and how freely.

    A step that lowers the score by `temperature` standard deviations of the first scores is taken
    with probability 1/e at first; the temperature falls linearly to 0 over the iterations. The
    chains stop early when for `early_stop` iterations none of the best found has changed.
    """

    iterations: int
    temperature: float
    early_stop: int


def anneal(
    space: Space,
    score: Callable[[Sequence[Configuration]], FloatArray],
    starts: Sequence[Configuration],
    rng: np.random.Generator,
    cooling: Cooling,
    count: int,
    seen: Set[Configuration],
) -> tuple[list[Configuration], FloatArray]:
    """Annealing over a score, one chain from each start.

    Args:
        space: what the chains walk through.
        score: higher is better, of many members at once, shape (configurations,).
        starts: members at which the chains begin; without any nothing is found.
        rng: decides the steps, and which worse ones are taken.
        cooling: how long the chains run, and how freely.
        count: how many members are wanted at most.
        seen: members that do not count.

    Returns:
        The up to `count` best-scored members outside `seen` that the chains came across, the best
        first, and their scores.
    """
    states = list(starts)
    if not states:
        return [], np.zeros(0)
    scores = score(states)
    width = max(float(scores.std()), 1e-9)
    best = _Best(count, seen)
    best.add(states, scores)
    changed = 0
    for i in range(cooling.iterations):
        if i - changed >= cooling.early_stop:
            break
        heat = cooling.temperature * (1 - i / cooling.iterations) * width
        moved = space.step_many(states, rng, 2 if 2 * i < cooling.iterations else 1)
        moved_scores = score(moved)
        if best.add(moved, moved_scores):
            changed = i
        gain = np.minimum((moved_scores - scores) / max(heat, 1e-12), 0.0)
        taken = rng.random(len(states)) < np.exp(gain)
        scores = np.where(taken, moved_scores, scores)
        states = [m if t else s for s, m, t in zip(states, moved, taken.tolist(), strict=True)]
    return best.found()


class _Best:
    """The best different configurations so far."""

    def __init__(self, count: int, seen: Set[Configuration]) -> None:
        self._count = count
        self._seen = seen
        self._known: set[Configuration] = set()
        # The worst on top; of equals the later one, so that the first found stays.
        self._heap: list[tuple[float, int, Configuration]] = []
        self._added = 0

    def add(self, configs: Sequence[Configuration], scores: FloatArray) -> bool:
        """Whether any of them is among the best now."""
        changed = False
        for config, score in zip(configs, scores.tolist(), strict=True):
            full = len(self._heap) >= self._count
            if (full and score <= self._heap[0][0]) or config in self._known:
                continue
            if config in self._seen:
                continue
            self._known.add(config)
            self._added += 1
            heapq.heappush(self._heap, (score, -self._added, config))
            if full:
                heapq.heappop(self._heap)
            changed = True
        return changed

    def found(self) -> tuple[list[Configuration], FloatArray]:
        ordered = sorted(self._heap, key=lambda entry: (-entry[0], -entry[1]))
        return [c for _, _, c in ordered], np.array([s for s, _, _ in ordered], dtype=np.float64)
