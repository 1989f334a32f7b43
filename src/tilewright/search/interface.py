"""The search interface: ask a strategy for configurations, tell it what became of them; by name."""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from tilewright.errors import UnknownNameError, UserError
from tilewright.search.history import History
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
    are declared in `options_table` and arrive parsed in `self.options`; `libraries` are modules
    that it needs. One that sets `transfers` finds in `self.experience` the trials of other shapes
    of the same kind. `self.trials` is how many trials the search will have, if that is known.
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
        trials: int | None = None,
    ) -> None:
        self.space = space
        self.trials = trials
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


DEFAULT_STRATEGY = "auto"

_strategies: dict[str, type[Strategy]] = {}
_aliases: dict[str, str] = {}

S = TypeVar("S", bound=type[Strategy])


def register(name: str, aliases: Sequence[str] = ()) -> Callable[[S], S]:
    """Class decorator that makes a strategy known under a name (and other spellings of it)."""

    def add(strategy: S) -> S:
        for each in (name, *aliases):
            if each in _strategies or each in _aliases:
                raise ValueError(f"strategy '{each}' is registered already")
        strategy.name = name
        _strategies[name] = strategy
        _aliases.update(dict.fromkeys(aliases, name))
        return strategy

    return add


def strategies() -> dict[str, type[Strategy]]:
    """All registered strategies by name, in order of the name."""
    return dict(sorted(_strategies.items()))


def strategy_names() -> tuple[str, ...]:
    """Every name that a strategy goes by: its own first, then the older ones."""
    return (*strategies(), *sorted(_aliases))


def find_strategy(name: str, where: str = "--strategy") -> type[Strategy]:
    """The strategy of a name or an older one.

    Raises:
        UserError: with the names there are; `where` begins the message.
    """
    found = _strategies.get(_aliases.get(name, name))
    if found is None:
        raise UnknownNameError("strategy", name, _strategies, where)
    return found


def check_strategy(name: str, options: Mapping[str, object] | None = None) -> None:
    """Check a strategy and its options without making it.

    Raises:
        UserError: unless it exists, takes these options and has the libraries it needs.
    """
    find_strategy(name).check(options or {})


def create_strategy(
    name: str,
    space: Space,
    seed: int,
    options: Mapping[str, object] | None = None,
    known: Sequence[Trial] = (),
    experience: Sequence[Experience] = (),
    trials: int | None = None,
) -> Strategy:
    """Make a strategy.

    Args:
        name: its name, or an older one.
        space: what it searches.
        seed: decides its proposals.
        options: by name, as text (from the command line) or as values.
        known: trials that were made before.
        experience: trials of other shapes of the same kind of workload.
        trials: how many the search will have; None where that is not known.

    Raises:
        UserError: for a strategy or an option that there is not, a value that is not allowed, or a
            library that is not installed.
    """
    return find_strategy(name)(space, seed, options, known, experience, trials)


def load(module: str, needed_by: str) -> Any:
    """The module; UserError with the line that installs it, or why it cannot be loaded."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"{needed_by} needs the package {module.partition('.')[0]}, which is not installed;"
            f" run: {_install(module)}"
        ) from error
    except Exception as error:
        # A native library that does not load raises whatever it likes.
        raise UserError(
            f"{needed_by} needs the package {module.partition('.')[0]}, which cannot be loaded"
            f" ({' '.join(str(error).split())[:200]}); run:"
            f" {_install(module, '--force-reinstall ')}"
        ) from error


def _install(module: str, option: str = "") -> str:
    """The line that installs a module's package: as pyproject.toml names it."""
    package = module.partition(".")[0]
    if package == "xgboost" and sys.platform != "darwin":
        # The same without the code for GPUs, which takes hundreds of megabytes.
        package = "xgboost-cpu"
    return f"pip install {option}{package}"
