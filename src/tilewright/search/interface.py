"""The search interface: ask a strategy for configurations, tell it what became of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from tilewright.search.options import Option, OptionValue, parse_options
from tilewright.space.interface import Space
from tilewright.trial import Configuration, Trial


class Strategy(ABC):
    """Proposes configurations of a space, a batch at a time.

    The contract, which every registered strategy is tested against:

    - `ask(n)` returns at most `n` different members of the space, none of them proposed before,
      told, or among the `known` trials. Fewer, or none, means that nothing is left to propose.
    - `tell` takes the trials in any order and any number, failures included; they need not have
      been asked for. It never raises for what a trial contains.
    - The same space, seed, options, known trials and sequence of calls give the same proposals.

    A subclass implements `_propose`, and `_learn` if trials change what it proposes. Options are
    declared in `options_table` and arrive parsed in `self.options`.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    options_table: ClassVar[tuple[Option, ...]] = ()

    def __init__(
        self,
        space: Space,
        seed: int,
        options: Mapping[str, object] | None = None,
        known: Sequence[Trial] = (),
    ) -> None:
        self.space = space
        self.rng = np.random.default_rng(seed)
        self.options: dict[str, OptionValue] = parse_options(
            self.options_table, options or {}, f"strategy '{self.name}'"
        )
        self.seen: set[Configuration] = set()
        self._start()
        self.tell(known)

    def ask(self, n: int) -> list[Configuration]:
        """Up to `n` new members of the space; fewer or none when it is exhausted."""
        out: list[Configuration] = []
        if n > 0:
            for config in self._propose(n):
                if len(out) < n and config not in self.seen and self.space.contains(config):
                    self.seen.add(config)
                    out.append(config)
        return out

    def tell(self, trials: Sequence[Trial]) -> None:
        """Report trials, whatever became of them."""
        self.seen.update(t.configuration for t in trials)
        if trials:
            self._learn(trials)

    def option(self, name: str) -> float:
        """A numeric option."""
        value = self.options[name]
        assert isinstance(value, int | float)
        return value

    def _start(self) -> None:  # noqa: B027
        """Set up a subclass's own state, before the known trials are told."""

    @abstractmethod
    def _propose(self, n: int) -> Sequence[Configuration]:
        """At least `n` candidates if there are as many, best first; those seen are dropped."""

    def _learn(self, trials: Sequence[Trial]) -> None:  # noqa: B027
        """Take in trials."""
