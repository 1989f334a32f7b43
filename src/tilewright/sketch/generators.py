"""The sketches that there are. A sketch is a class in a module of its own, and its line here."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tilewright.registration import registered
from tilewright.sketch.interface import SiteExpression, Sketch
from tilewright.sketch.loops import LoopsSketch
from tilewright.space.pipeline import Unfit
from tilewright.target import Target
from tilewright.trial import Configuration

# Modules of this package, each of which has its sketches in `SKETCHES`.
_MODULES = (
    "matrix_tiles",
    "split_tiles",
    "split_windows",
    "dot_tiles",
    "dot_windows",
    "elementwise",
    "rows",
    "split_rows",
    "tiles",
    "windows",
    "bands",
    "attention",
    "winograd",
)

# Sketches that compute a smaller part of the products come first.
_MUCH_LEFT_OUT = 0.7

SKETCHES: tuple[type[Sketch], ...] = tuple(registered("tilewright.sketch", _MODULES, "SKETCHES"))


def sketches(
    site: SiteExpression,
    target: Target,
    *,
    exact: bool = True,
    best: Mapping[str, Sequence[Configuration]] = MappingProxyType({}),
) -> list[Sketch]:
    """The sketches that fit an expression.

    Args:
        site: the expression.
        target: what it is compiled for.
        exact: whether those are left out that compute other sums than the expression.
        best: by the names of sketches, as of `Sketch.best`.

    Returns:
        Each with its space, first those that leave much of the work out; the plainest rule alone
        where no other is for it.
    """
    found: list[Sketch] = []
    for sketch in SKETCHES:
        if exact and not sketch.is_exact:
            continue
        with contextlib.suppress(Unfit):
            one = sketch(site, target)
            one.best = best.get(one.name, ())
            # Some find only here that there is nothing in it.
            _ = one.space
            found.append(one)
    found.sort(key=lambda one: one.work >= _MUCH_LEFT_OUT)
    return found or [LoopsSketch(site, target)]
