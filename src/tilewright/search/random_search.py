"""Random search: uniform over the valid set, without repeats."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.search.interface import Strategy
from tilewright.search.registry import register
from tilewright.search.strategy_options import Option
from tilewright.search.unseen import UnseenSampler, by_pipeline
from tilewright.trial import Configuration


@register("random", aliases=("RandomTuner",))
class RandomSearch(Strategy):
    """Uniform over the members that were not tried yet.

    Of several pipelines the one with more members gets more of the trials, in proportion. With
    `by_pipeline` a pipeline is drawn first, each as likely as the others, then one of its members.
    """

    summary = "uniform over the valid configurations, without repeats"
    options_table = (
        Option("by_pipeline", False, "draw the pipeline first, each as likely as the others"),
    )

    def _start(self) -> None:
        spaces = by_pipeline(self.space) if self.options["by_pipeline"] else [self.space]
        self._samplers = [UnseenSampler(space, self.rng) for space in spaces]

    def _propose(self, n: int) -> Sequence[Configuration]:
        found: list[Configuration] = []
        samplers = self._samplers
        while samplers and len(found) < n:
            missing = n - len(found)
            shares = self.rng.multinomial(missing, [1 / len(samplers)] * len(samplers))
            left = []
            for sampler, share in zip(samplers, shares.tolist(), strict=True):
                drawn = sampler.draw(share, self.seen.union(found))
                found += drawn
                if len(drawn) == share:
                    left.append(sampler)
            # A pipeline that ran out leaves its share to the others.
            samplers = left
        return [found[i] for i in self.rng.permutation(len(found))]
