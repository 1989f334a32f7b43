"""Random search: uniform over the valid set, without repeats."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.search.interface import Strategy
from tilewright.search.registry import register
from tilewright.search.unseen import UnseenSampler
from tilewright.trial import Configuration


@register("random", aliases=("RandomTuner",))
class RandomSearch(Strategy):
    """Uniform over the members that were not tried yet."""

    summary = "uniform over the valid configurations, without repeats"

    def _start(self) -> None:
        self._sampler = UnseenSampler(self.space, self.rng)

    def _propose(self, n: int) -> Sequence[Configuration]:
        return self._sampler.draw(n, self.seen)
