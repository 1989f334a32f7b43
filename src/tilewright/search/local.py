"""Pattern search from the best points, with restarts."""

from __future__ import annotations

from itertools import islice

import numpy as np

from tilewright.search.first_batch import start_options
from tilewright.search.registry import register
from tilewright.search.strategy_options import Option
from tilewright.search.trajectory import Path, Proposal, TrajectorySearch
from tilewright.trial import Configuration

_MAX_REACH = 4


@register("local")
class LocalSearch(TrajectorySearch):
    """Pattern search (R. Hooke and T. A. Jeeves, "Direct search", JACM 8, 1961): neighbours of the
    best point of the run, in one knob first, then in two that share a constraint. After a step that
    paid, the same knobs are moved on in the same direction. The reach of steps doubles with each
    success and halves when a batch brought none.

    After `patience` trials without success it starts over, from the best of `starts` new points.
    """

    summary = "pattern search from the best point, with restarts"
    options_table = (
        Option("starts", 6, "points of which the best begins a run", 1, 1000),
        Option("patience", 24, "trials without improvement before it starts over", 1, 1_000_000),
        *start_options(use_prior=False),
    )

    def _follow(self, path: Path, proposal: Proposal, time: float) -> None:
        if time < path.time:
            path.go(proposal.configuration, time)
            path.reach = min(2 * path.reach, _MAX_REACH)
        elif path.waited and path.waited % 8 == 0:
            path.reach = max(1, path.reach // 2)

    def _steps(self, path: Path, n: int, taken: set[Configuration]) -> list[Configuration]:
        assert path.at is not None
        found: dict[Configuration, None] = {}
        onward = self._onward(path)
        if onward is not None and onward not in taken:
            found[onward] = None
        for reach in dict.fromkeys((path.reach, *range(1, _MAX_REACH + 1))):
            if len(found) >= n:
                break
            unseen = (
                c
                for c in self.space.neighbours(path.at, self.rng, reach)
                if c not in taken and c not in found
            )
            found.update(dict.fromkeys(islice(unseen, n - len(found))))
        return list(found)[:n]

    def _onward(self, path: Path) -> Configuration | None:
        """The point beyond the last step: every knob that it moved, moved on as far as it can in
        the same direction. None where there is none."""
        if path.at is None or path.before is None:
            return None
        here, there = dict(path.before.items), dict(path.at.items)
        values = dict(there)
        for knob in self.space.knobs:
            old, new = here.get(knob.name), there.get(knob.name)
            if old is None or new is None or old == new:
                continue
            origin, now = np.array(knob.encode(old)), np.array(knob.encode(new))
            beyond = [
                v
                for v in knob.neighbours(new)
                if np.abs(np.array(knob.encode(v)) - origin).sum() > np.abs(now - origin).sum()
            ]
            if beyond:
                values[knob.name] = beyond[0]
        if values == there:
            return None
        return self.space.nearest_valid(Configuration.of(values))
