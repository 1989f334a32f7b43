"""Uniform sampling of a space without repeats, to the last member."""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from tilewright.space.interface import Space
from tilewright.space.union import UnionSpace
from tilewright.trial import Configuration

# Spaces with at most this many ranks are walked through when random draws hardly find new members.
_WALKED = 2**17
_ROUNDS = 16


def by_pipeline(space: Space) -> list[Space]:
    """The space held to each of its pipelines; itself where there is no choice of them."""
    return list(space.pipelines) if isinstance(space, UnionSpace) else [space]


class UnseenSampler:
    """Draws members not seen yet, uniform over those that are left.

    Random draws first; when fewer than one in eight draws is new, the space is listed once in a
    random order and walked, which finds every last member. A space too large to list never gets
    there, short of as many trials as a machine runs in days.
    """

    def __init__(self, space: Space, rng: np.random.Generator) -> None:
        self._space = space
        self._rng = rng
        self._walk: list[Configuration] | None = None

    def draw(self, n: int, seen: Set[Configuration]) -> list[Configuration]:
        """Up to `n` different members outside `seen`; fewer only when there are no more."""
        found: dict[Configuration, None] = {}
        rounds = 0
        while len(found) < n and self._walk is None:
            drawn = self._space.sample(self._rng, max(2 * (n - len(found)), 8))
            before = len(found)
            for config in drawn:
                if config not in seen:
                    found.setdefault(config)
            rounds += 1
            if len(drawn) == 0 or 8 * (len(found) - before) < len(drawn):
                if self._space.order_size <= _WALKED:
                    self._walk = self._list()
                elif rounds >= _ROUNDS:
                    break
        out = list(found)[:n]
        if self._walk is not None and len(out) < n:
            taken = set(out)
            self._walk = [c for c in self._walk if c not in seen]
            out += [c for c in self._walk if c not in taken][: n - len(out)]
        return out

    def _list(self) -> list[Configuration]:
        size = self._space.order_size
        members = [c for c in self._space.ordered(range(size)) if c is not None]
        return [members[i] for i in self._rng.permutation(len(members))]
