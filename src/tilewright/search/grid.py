"""Searches that learn nothing from trials: even steps through the space's order, uniform draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest

from tilewright.search.interface import Strategy, register
from tilewright.search.pool import UnseenSampler, by_pipeline
from tilewright.search.strategy_options import Option
from tilewright.space.interface import Space
from tilewright.trial import Configuration

_PIECE = 256
# Members in the first round where nobody knows how many trials there will be.
_STEPS = 64
# Ranks looked at in a row for a valid one, before a grid point is given up.
_MAX_SCAN = 4096


@register("grid", aliases=("GridSearchTuner", "GridTuner"))
class GridSearch(Strategy):
    """Covers the valid set evenly: `steps` members at equal distances in the order of the space,
    the first and the last among them; as many as the search has trials, unless it is told
    otherwise. Each further round halves the distance, until every member has had its turn. The seed
    has no influence.

    Of several pipelines each gets an equal part of the steps, whatever its size, and is covered
    from its first member to its last; the pipelines take turns.
    """

    summary = "even steps through the order of the space, first and last included; then finer"
    options_table = (
        Option("steps", 0, "members in the first round; 0: as many as the search has trials", 0),
    )

    def _start(self) -> None:
        spaces = by_pipeline(self.space)
        wanted = self.count("steps") or self.trials or _STEPS
        steps, more = divmod(wanted, len(spaces))
        walks = [_walk(s, max(2, steps + (i < more))) for i, s in enumerate(spaces)]
        turns = chain.from_iterable(zip_longest(*walks))
        self._points = (config for config in turns if config is not None)

    def _propose(self, n: int) -> Sequence[Configuration]:
        out: list[Configuration] = []
        taken: set[Configuration] = set()
        for config in self._points:
            if config not in self.seen and config not in taken:
                taken.add(config)
                out.append(config)
                if len(out) == n:
                    break
        return out


def _walk(space: Space, steps: int) -> Iterator[Configuration]:
    """The members of a space in rounds, each finer than the one before, at last all of them."""
    last = space.order_size - 1
    if last < 0:
        return
    intervals = steps - 1
    first_round = True
    while intervals < last:
        # Even multiples were visited in the round before.
        stride = 1 if first_round else 2
        for i in range(0 if first_round else 1, intervals + 1, stride):
            rank = (i * last) // intervals
            found = _valid_near(space, rank, backward=rank == last)
            if found is not None:
                yield found
        intervals *= 2
        first_round = False
    for first in range(0, last + 1, _PIECE):
        ranks = range(first, min(first + _PIECE, last + 1))
        yield from (c for c in space.ordered(ranks) if c is not None)


def _valid_near(space: Space, rank: int, backward: bool) -> Configuration | None:
    """The first valid member from a rank on (or back from it)."""
    step = 1
    looked = 0
    while looked < _MAX_SCAN:
        ranks = [rank - looked - i if backward else rank + looked + i for i in range(step)]
        ranks = [r for r in ranks if 0 <= r < space.order_size]
        for config in space.ordered(ranks):
            if config is not None:
                return config
        if len(ranks) < step:
            return None
        looked += step
        step = min(4 * step, _PIECE)
    return None


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
