"""Strategies by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from tilewright.errors import UnknownNameError
from tilewright.search.interface import Strategy
from tilewright.search.transfer import Experience
from tilewright.space.interface import Space
from tilewright.trial import Trial

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
) -> Strategy:
    """Make a strategy.

    Args:
        name: its name, or an older one.
        space: what it searches.
        seed: decides its proposals.
        options: by name, as text (from the command line) or as values.
        known: trials that were made before.
        experience: trials of other shapes of the same kind of workload.

    Raises:
        UserError: for a strategy or an option that there is not, a value that is not allowed, or a
            library that is not installed.
    """
    return find_strategy(name)(space, seed, options, known, experience)
