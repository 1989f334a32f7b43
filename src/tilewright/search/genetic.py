"""Genetic search: crossover and mutation of the best, repaired to the nearest valid configuration.

J. H. Holland, Adaptation in Natural and Artificial Systems, 1975, with uniform crossover (G.
Syswerda, ICGA 1989) and elites that stay parents for good.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.search.first_batch import SampledStrategy, start_options
from tilewright.search.interface import register
from tilewright.search.strategy_options import Option
from tilewright.trial import Configuration

# Children drawn for one place before it is given to a uniform draw.
_TRIES = 3


@register("genetic", aliases=("GATuner",))
class GeneticSearch(SampledStrategy):
    """An opening of `population` trials, then children of the best: each takes every knob from one
    of two parents, mutates some, and is moved to the nearest valid configuration.

    Parents are the `elites` fastest trials of all, and of the last `population` that were proposed
    the faster half. They are drawn by rank. A child that was tried before takes some further steps.
    """

    summary = "population with elites, crossover and mutation over knobs, repair to the valid"
    options_table = (
        Option("population", 12, "trials of the opening, and of one generation", 2, 10_000),
        Option("elites", 4, "fastest trials that always stay parents", 1, 1000),
        Option("crossover", 0.8, "share of children with two parents", 0, 1),
        Option("mutation", 0.15, "probability that a knob of a child mutates", 0, 1),
        Option("leap", 0.2, "share of mutations to any value, the others are steps", 0, 1),
        *start_options(use_prior=False),
    )

    def _start(self) -> None:
        super()._start()
        self._knobs = [k for k in self.space.knobs if k.effect and k.cardinality > 1]

    def _choose(self, n: int, chosen: dict[Configuration, None]) -> None:
        opening = min(n, self.count("population") - len(self.seen))
        if opening > 0:
            candidates = self._pool.members(self.seen) if self.options["use_prior"] else []
            proposed = self._opening.propose(opening, self.seen, candidates)
            chosen.update(dict.fromkeys(proposed))
        parents = self._parents()
        tries = _TRIES * (n - len(chosen)) if parents else 0
        while len(chosen) < n and tries > 0:
            tries -= 1
            child = self._child(parents)
            if child not in self.seen:
                chosen[child] = None

    def _parents(self) -> list[Configuration]:
        """The fastest first."""
        elites = [t.configuration for t in self.history.best(self.count("elites"))]
        recent = [c for batch in self.asked for c in batch if c in self.history]
        generation = set(recent[-self.count("population") :])
        ranked = [t.configuration for t in self.history.best(len(self.history))]
        of_late = [c for c in ranked if c in generation]
        return list(dict.fromkeys([*elites, *of_late[: (len(of_late) + 1) // 2]]))

    def _drawn(self, parents: Sequence[Configuration]) -> int:
        """Position of one of the parents: the faster of two drawn uniformly."""
        return int(self.rng.integers(len(parents), size=2).min())

    def _child(self, parents: Sequence[Configuration]) -> Configuration:
        at = self._drawn(parents)
        first = dict(parents[at].items)
        values = dict(first)
        others = [*parents[:at], *parents[at + 1 :]]
        if others and self.rng.random() < self.option("crossover"):
            second = dict(others[self._drawn(others)].items)
            values |= {
                name: second[name] for name in first if name in second and self.rng.random() < 0.5
            }
        for knob in self._knobs:
            if knob.name in values and self.rng.random() < self.option("mutation"):
                value = values[knob.name]
                values[knob.name] = knob.mutated(value, self.rng, self.option("leap"))
        child = self.space.nearest_valid(Configuration.of(values))
        for reach in (1, 1, 2, 2):
            if child not in self.seen:
                break
            child = self.space.step_many([child], self.rng, reach)[0]
        return child
