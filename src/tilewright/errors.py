"""Errors made for people: what is wrong, where, what is allowed, what to do.

Every mistake that a user can make ends in a :class:`UserError`. The command line prints it in one
line and exits with status 2; the Python API raises it. A candidate that fails is never an error but
a :class:`tilewright.trial.Status`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

TRACEBACK = "TILEWRIGHT_TRACEBACK"
"""The variable of the environment with which a fault of tilewright ends a command, its traceback
shown."""

# Names listed in one message; a list of hundreds would bury the rest.
_SHOWN = 120


class TilewrightError(Exception):
    """Base of every error that tilewright raises on purpose."""


class UserError(TilewrightError):
    """Something in the user's input, options or environment that the user can mend."""


class UncompilableError(UserError):
    """A program that the compiler does not take as it is, before anything is tuned."""


class UnknownNameError(UserError):
    """A name that is not one of those registered; says which there are and the nearest match."""

    def __init__(self, what: str, name: str, allowed: Iterable[str], where: str = "") -> None:
        self.allowed = sorted(allowed)
        shown = ", ".join(self.allowed[:_SHOWN])
        if len(self.allowed) > _SHOWN:
            shown += f" and {len(self.allowed) - _SHOWN} more"
        super().__init__(
            f"{where + ': ' if where else ''}unknown {what} '{name}'"
            f"{did_you_mean(name, self.allowed)} (allowed: {shown})"
        )


def did_you_mean(name: str, allowed: Sequence[str]) -> str:
    """`; did you mean 'x'?` for the nearest of the allowed names, or nothing.

    Args:
        name: what was given.
        allowed: the names that there are.
    """
    near = difflib.get_close_matches(name, allowed, n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else ""
