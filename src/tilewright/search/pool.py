"""Candidates: members not tried yet, to choose from or drawn uniformly, to the last one."""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np

from tilewright.space.interface import Space
from tilewright.space.union import UnionSpace
from tilewright.trial import Configuration

LISTED = 8192
"""A space of at most this many members is looked at as a whole."""


def all_members(space: Space, most: int = LISTED) -> list[Configuration] | None:
    """Every member, in the order of the space; None when there may be more than `most`."""
    if space.order_size > most:
        return None
    return [c for c in space.ordered(range(space.order_size)) if c is not None]


class Pool:
    """Members not tried yet.

    Of a small space all of them. Of a larger one a sample of `size`, a fifth of it new each time:
    uniform members, a share of which (`anchored`) take most of their values from the compiler's own
    choice, or from another anchor of the space, which in a space of many knobs a uniform sample
    never comes near.
    """

    def __init__(
        self, space: Space, rng: np.random.Generator, size: int, anchored: float = 0.0
    ) -> None:
        self._space = space
        self._rng = rng
        self._size = size
        self._anchored = anchored
        self._all = all_members(space)
        self._held: list[Configuration] = []

    @property
    def is_complete(self) -> bool:
        """Whether it holds all members that were not tried."""
        return self._all is not None

    def members(self, seen: Set[Configuration]) -> list[Configuration]:
        """The candidates now; draws from the generator only where the space is not small."""
        if self._all is not None:
            return [c for c in self._all if c not in seen]
        held = [c for c in self._held if c not in seen]
        fresh = max(self._size // 5, 16) if held else self._size
        keep = max(0, self._size - fresh)
        found = dict.fromkeys(held[len(held) - min(keep, len(held)) :])
        drawn = self._anchor(self._space.sample(self._rng, fresh))
        found.update(dict.fromkeys(c for c in drawn if c not in seen))
        self._held = list(found)
        return list(self._held)

    def _anchor(self, sample: Sequence[Configuration]) -> list[Configuration]:
        """The sample, a share of it moved towards an anchor where that gives a member."""
        if not self._anchored:
            return list(sample)
        anchors = {tuple(k for k, _ in a.items): dict(a.items) for a in self._space.anchors[::-1]}
        width = max(map(len, anchors))
        draws = self._rng.random((len(sample), width + 2))
        moved = list(sample)
        at = [
            i
            for i, config in enumerate(sample)
            if draws[i, 0] < self._anchored and tuple(k for k, _ in config.items) in anchors
        ]
        for i in at:
            anchor = anchors[tuple(k for k, _ in sample[i].items)]
            kept = draws[i, 2:] < draws[i, 1]
            pairs = zip(sample[i].items, kept.tolist()[: len(anchor)], strict=True)
            moved[i] = Configuration(tuple((k, v if own else anchor[k]) for (k, v), own in pairs))
        valid = self._space.contains_many([moved[i] for i in at])
        for i, ok in zip(at, valid, strict=True):
            if not ok:
                moved[i] = sample[i]
        return moved


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
