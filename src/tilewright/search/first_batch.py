"""The first trials of a search, before there is anything to learn from, and what strategies that
begin with them have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence, Set
from itertools import islice

import numpy as np

from tilewright.search.features import scaling, spread
from tilewright.search.interface import Strategy
from tilewright.search.pool import Pool, UnseenSampler
from tilewright.search.strategy_options import Option
from tilewright.space.interface import Space
from tilewright.trial import Configuration


def start_options(use_prior: bool) -> tuple[Option, Option]:
    """The options of an opening; `use_prior` is the default of one of them."""
    return (
        Option("use_default", True, "begin with the compiler's own choice"),
        Option("use_prior", use_prior, "be guided by the analytic prior where a space has one"),
    )


class Opening:
    """Proposes the compiler's own choice, then by turns what the prior likes best and uniform
    draws (only these where there is no prior, or it is not to be used).

    The prior's favourites are chosen to differ from each other: what it is wrong about, it is
    wrong about for all that look alike.
    """

    def __init__(
        self, space: Space, sampler: UnseenSampler, *, use_default: bool, use_prior: bool
    ) -> None:
        self._space = space
        self._sampler = sampler
        self._use_default = use_default
        self._use_prior = use_prior and space.has_prior

    def propose(
        self, n: int, seen: Set[Configuration], candidates: Sequence[Configuration]
    ) -> list[Configuration]:
        """Up to `n` members outside `seen`; the prior chooses from `candidates`."""
        chosen: dict[Configuration, None] = {}
        if self._use_default and self._space.default_is_member:
            chosen.update(dict.fromkeys({self._space.default} - seen))
        guided = 0
        if self._use_prior:
            # Turns are counted over the whole opening, so that batches of one alternate too.
            turns = range(len(seen) + len(chosen), len(seen) + n)
            guided = sum(turn % 2 for turn in turns)
        for config in self._favourites([c for c in candidates if c not in chosen], guided):
            chosen[config] = None
        for config in self._sampler.draw(n - len(chosen), seen | chosen.keys()):
            chosen[config] = None
        return list(chosen)[:n]

    def _favourites(self, candidates: Sequence[Configuration], n: int) -> list[Configuration]:
        if n < 1 or not candidates:
            return []
        prior = self._space.prior_many(candidates)
        best = np.argsort(-prior, kind="stable")[: max(8 * n, 64)]
        features = self._space.encode_many([candidates[i] for i in best])
        low, width = scaling(features)
        length = 0.25 * np.sqrt(max(1, features.shape[1]))
        at = spread(prior[best], (features - low) / width, n, 1.0, float(length))
        return [candidates[best[i]] for i in at]


class SampledStrategy(Strategy):
    """A strategy that chooses from a pool of candidates and fills its batches with uniform draws.

    A subclass has the options of :func:`start_options` and implements `_choose`.
    """

    def _start(self) -> None:
        self._with_prior = bool(self.options["use_prior"]) and self.space.has_prior
        self._sampler = UnseenSampler(self.space, self.rng)
        self._pool = Pool(self.space, self.rng, *self._pool_options())
        self._opening = Opening(
            self.space,
            self._sampler,
            use_default=bool(self.options["use_default"]),
            use_prior=self._with_prior,
        )

    def _pool_options(self) -> tuple[int, float]:
        """How large a sample of a large space is, and the share of it near the default."""
        return 1024, 0.5 if self._with_prior else 0.0

    def _propose(self, n: int) -> Sequence[Configuration]:
        chosen: dict[Configuration, None] = {}
        self._choose(n, chosen)
        for config in self._sampler.draw(n - len(chosen), self.seen | chosen.keys()):
            chosen[config] = None
        return list(chosen)

    @abstractmethod
    def _choose(self, n: int, chosen: dict[Configuration, None]) -> None:
        """Add up to `n` candidates, best first; uniform draws make up for those missing."""

    def _whole(self, exact: float) -> int:
        """A number of trials, the fraction decided by chance."""
        return int(exact) + int(self.rng.random() < exact - int(exact))

    def _near_best(self, elites: int, reaches: Sequence[int], steps: int) -> list[Configuration]:
        """Up to `steps` neighbours at each reach of each of the best trials, or of the compiler's
        choice while there are none."""
        centres = [t.configuration for t in self.history.best(elites)]
        if not centres and self.options["use_default"]:
            centres = [self.space.default]
        found: list[Configuration] = []
        for centre in centres:
            for reach in reaches:
                near = self.space.neighbours(centre, self.rng, reach)
                found += islice((c for c in near if c not in self.seen), steps)
        return found
