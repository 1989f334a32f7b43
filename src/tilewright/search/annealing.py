"""Simulated annealing on measured times."""

from __future__ import annotations

import math

from tilewright.search.first_batch import start_options
from tilewright.search.registry import register
from tilewright.search.strategy_options import Option
from tilewright.search.trajectory import Path, Proposal, TrajectorySearch
from tilewright.trial import Configuration

_HOT_REACH, _COLD_REACH = 3, 2


@register("annealing")
class AnnealingSearch(TrajectorySearch):
    """A single trajectory (S. Kirkpatrick, C. D. Gelatt and M. P. Vecchi, Science 220, 1983): from
    the best of a few starts to a neighbour and on, always to a faster one, to a slower one with a
    probability that falls with the loss and as the temperature does. A failure is never stepped on.

    After `patience` trials that did not improve on the best of its run it starts over.
    """

    summary = "one trajectory of simulated annealing over measured times, with restarts"
    options_table = (
        Option("starts", 6, "points of which the best begins a run", 1, 1000),
        Option("temperature", 0.2, "slowdown taken with probability 1/e at first, as log time", 0),
        Option("cooling", 0.94, "factor on the temperature for each trial of a run", 0.01, 1),
        Option("patience", 20, "trials without improvement before it starts over", 1, 1_000_000),
        *start_options(use_prior=False),
    )

    def _heat(self, path: Path) -> float:
        return self.option("temperature") * self.option("cooling") ** path.steps

    def _follow(self, path: Path, proposal: Proposal, time: float) -> None:
        if not math.isfinite(time):
            return
        loss = math.log(time / path.time) if math.isfinite(path.time) else 0.0
        heat = self._heat(path)
        if loss <= 0 or (heat > 0 and proposal.chance < math.exp(-loss / heat)):
            path.go(proposal.configuration, time)

    def _steps(self, path: Path, n: int, taken: set[Configuration]) -> list[Configuration]:
        assert path.at is not None
        is_hot = 2 * self._heat(path) > self.option("temperature")
        return self._near(path.at, n, taken, _HOT_REACH if is_hot else _COLD_REACH)
