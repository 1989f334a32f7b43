"""Grid search: even steps through the space's own order, then finer and finer ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest

from tilewright.search.interface import Strategy
from tilewright.search.registry import register
from tilewright.search.strategy_options import Option
from tilewright.search.unseen import by_pipeline
from tilewright.space.interface import Space
from tilewright.trial import Configuration

_PIECE = 256
# Ranks looked at in a row for a valid one, before a grid point is given up.
_MAX_SCAN = 4096


@register("grid", aliases=("GridSearchTuner", "GridTuner"))
class GridSearch(Strategy):
    """Covers the valid set evenly: `steps` members at equal distances in the order of the space,
    the first and the last among them. Each further round halves the distance, until every member
    has had its turn. The seed has no influence.

    Of several pipelines each gets an equal part of the steps, whatever its size, and is covered
    from its first member to its last; the pipelines take turns.
    """

    summary = "even steps through the order of the space, first and last included; then finer"
    options_table = (
        Option("steps", 64, "members in the first round; set it to the number of trials", low=2),
    )

    def _start(self) -> None:
        spaces = by_pipeline(self.space)
        steps, more = divmod(self.count("steps"), len(spaces))
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
