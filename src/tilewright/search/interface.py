"""The search interface: ask a strategy for configurations, tell it what became of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from tilewright.search.history import History
from tilewright.search.optional import load
from tilewright.search.strategy_options import Option, OptionValue, parse_options
from tilewright.search.transfer import Experience
from tilewright.space.interface import Space
from tilewright.trial import Configuration, Trial


class Strategy(ABC):
    """Proposes configurations of a space, a batch at a time.

    The contract, which every registered strategy is tested against:

    - `ask(n)` returns at most `n` different members of the space, none of them proposed before,
      told, or among the `known` trials. Fewer, or none, means that nothing is left to propose.
    - `tell` takes the trials in any order and any number, failures included; they need not have
      been asked for. It never raises for what a trial contains.
    - The same space, seed, options, known trials and asks give the same proposals.
    - The order of telling does not matter: what was told between two asks may come in any order
      and in any number of calls. Only its set decides.

    A subclass implements `_propose`. It finds what was told in `self.history`, in an order that
    depends on the configurations alone; what it proposed, ask by ask, in `self.asked`; and all that
    it must not propose again in `self.seen`. It draws from `self.rng` in `_propose` only. Options
    are declared in `options_table` and arrive parsed in `self.options`; `libraries` are modules of
    the extra `learn` that it needs. One that sets `transfers` finds in `self.experience` the trials
    of other shapes of the same kind.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    options_table: ClassVar[tuple[Option, ...]] = ()
    libraries: ClassVar[tuple[str, ...]] = ()
    transfers: ClassVar[bool] = False

    def __init__(
        self,
        space: Space,
        seed: int,
        options: Mapping[str, object] | None = None,
        known: Sequence[Trial] = (),
        experience: Sequence[Experience] = (),
    ) -> None:
        self.space = space
        self.experience = tuple(experience)
        self.rng = np.random.default_rng(seed)
        self.options: dict[str, OptionValue] = self.check(options or {})
        self.seen: set[Configuration] = set()
        self.asked: list[tuple[Configuration, ...]] = []
        self.history = History()
        self._start()
        self.tell(known)

    @classmethod
    def check(cls, options: Mapping[str, object]) -> dict[str, OptionValue]:
        """The options, parsed and with the defaults of those not given.

        UserError for an option that there is not, a value that is not allowed, or a library that is
        not installed.
        """
        where = f"strategy '{cls.name}'"
        for library in cls.libraries:
            load(library, where)
        return parse_options(cls.options_table, options, where)

    def ask(self, n: int) -> list[Configuration]:
        """Up to `n` new members of the space; fewer or none when it is exhausted."""
        out: list[Configuration] = []
        if n > 0:
            for config in self._propose(n):
                if len(out) < n and config not in self.seen and self.space.contains(config):
                    self.seen.add(config)
                    out.append(config)
        if out:
            self.asked.append(tuple(out))
        return out

    def tell(self, trials: Sequence[Trial]) -> None:
        """Report trials, whatever became of them."""
        self.seen.update(t.configuration for t in trials)
        self.history.add(trials)

    def option(self, name: str) -> float:
        """A numeric option."""
        value = self.options[name]
        assert isinstance(value, int | float)
        return value

    def count(self, name: str) -> int:
        """An option that is a whole number."""
        return int(self.option(name))

    def _start(self) -> None:  # noqa: B027
        """Set up a subclass's own state, before the known trials are told."""

    @abstractmethod
    def _propose(self, n: int) -> Sequence[Configuration]:
        """At least `n` candidates if there are as many, best first; those seen are dropped."""
