"""Where in a loop its checks begin and cease to hold, in terms of what is known only when the code
runs: the numbers of the tiles and workgroups that the loop is in.

A window over an image's edge leaves out other rows in the first tile than in the last. Versions of
all the code around the window would say which; loops that begin and end where the checks do need
one version of what is whole, and code for the few values of the sum where something is left out.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from tilewright.schedule import nest
from tilewright.schedule.arith import Arithmetic
from tilewright.schedule.codegen.sums import SumEmitter
from tilewright.schedule.codegen.versions import (
    Check,
    GuardedComparison,
    check_of,
    easiest_check,
    is_worth_asking,
    parts_of,
)
from tilewright.schedule.expr import Expr, Var
from tilewright.schedule.linear import Atom, Linear, number
from tilewright.schedule.nest import Stmt, inner


@dataclass(frozen=True)
class Cut:
    """The iterations of a loop in which `factor` times its variable plus `rest` is not negative:
    from one on where the factor is positive, up to one where it is negative.

    least: no value of `rest` is below it.
    parts: the comparisons that hold in these.
    slack: where the sum and it are negative nothing is done; None where that is not known.
    """

    factor: int
    rest: Linear
    least: int
    parts: tuple[Expr, ...]
    slack: int | None = None

    @property
    def key(self) -> object:
        """Equal for cuts that differ by a number."""
        return self.factor, frozenset(self.rest.terms.items())

    def idle_beyond(self, constant: int) -> Cut:
        """The cut, where nothing is done while it is negative with this constant in `rest`."""
        slack = constant - self.rest.constant
        return replace(self, slack=slack if self.slack is None else min(slack, self.slack))

    def place(self, sums: Arithmetic) -> Linear:
        """The first such iteration, or the one behind the last; may be beyond the loop.

        Args:
            sums: of who emits.
        """
        quotient = sums.quotient(self.rest, abs(self.factor))
        return quotient.times(-1) if self.factor > 0 else quotient.plus(1)

    def active(self) -> Cut | None:
        """The iterations in which anything is done; None where that may be all."""
        if self.slack is None:
            return None
        return Cut(self.factor, self.rest.plus(self.slack), self.least + self.slack, ())

    def outside(self, value: int, extent: int) -> tuple[int, int]:
        """The other iterations, of these those in which something is done.

        Args:
            value: of `rest`.
            extent: iterations of the loop.

        Returns:
            The first one, and the one behind the last.
        """
        size, slack = abs(self.factor), self.slack
        if self.factor > 0:
            first = 0 if slack is None else max(0, -((value + slack) // size))
            return first, min(extent, -(value // size))
        end = extent if slack is None else min(extent, (value + slack) // size + 1)
        return max(0, value // size + 1), end

    def leaves_out(self, extent: int) -> bool:
        """Whether there may be others.

        Args:
            extent: iterations of the loop.
        """
        return bool(self._range(extent))

    def values(self, extent: int, most: int) -> list[int]:
        """The values of `rest` with which something is done in others.

        Args:
            extent: iterations of the loop.
            most: how many of them are looked for.
        """
        found = self._range(extent)
        if self.slack is not None:
            # What is below leaves out all iterations.
            lowest = -self.slack - max(0, self.factor * (extent - 1))
            found = found[max(0, -(-(lowest - found.start) // found.step)) :]
        some = (v for v in found if self.outside(v, extent)[0] < self.outside(v, extent)[1])
        return list(islice(some, most))

    def _range(self, extent: int) -> range:
        """The values of `rest` with which there are others."""
        end = max(0, -self.factor * (extent - 1))
        step = self.rest.divisor
        first = self.least + (self.rest.constant - self.least) % step
        return range(first, min(end, self.rest.high + 1), step)

    def atoms(self, value: int) -> dict[Atom, Linear]:
        """What is known of parts of `rest`.

        Args:
            value: of `rest`.
        """
        terms = self.rest.terms
        if value in (self.rest.low, self.rest.high):
            upper = value == self.rest.high
            return {a: number(a.high if (c > 0) == upper else a.low) for a, c in terms.items()}
        others = self.rest.plus(-value)
        for atom, factor in terms.items():
            if not any(c % factor for c in (*terms.values(), others.constant)):
                return {atom: others.plus(Linear({atom: factor}, 0), -1).over(-factor)}
        return {}


def cuts(emitter: SumEmitter, loop: nest.For, found: Sequence[GuardedComparison]) -> list[Cut]:
    """Where a loop's checks begin and cease to hold.

    Args:
        emitter: knows the values of the variables around.
        loop: the loop.
        found: what `comparisons` gives of its body.

    Returns:
        At most one for each sum of other variables, those of checks that hold in all iterations
        among them; an iteration before the one from which on some hold is never behind the one up
        to which others do.
    """
    if not is_worth_asking(loop):
        return []
    var = emitter.stand_in(loop.var, loop.extent)
    kept: dict[object, Cut] = {}
    useless: set[int] = set()
    with emitter.bound({loop.var: emitter.sums.variable(var)}):
        for one in found:
            if id(one.part) in emitter.assumed:
                continue
            cut = None if one.is_asked_within else _cut(emitter, one, check_of(emitter, one), var)
            if cut is None:
                useless.add(id(one.part))
            else:
                kept[cut.key] = _both(kept[cut.key], cut) if cut.key in kept else cut
        for places in _needed(loop.body) if kept else []:
            done = [_cut(emitter, one, easiest_check(emitter, one), var) for one in places]
            first = done[0]
            if first is not None and all(one is not None and one.key == first.key for one in done):
                most = max(one.rest.constant for one in done if one is not None)
                if first.key in kept:
                    kept[first.key] = kept[first.key].idle_beyond(most)
    whole = [replace(cut, parts=_without(cut.parts, useless)) for cut in kept.values()]
    whole = [cut for cut in whole if cut.parts]
    some = [cut for cut in whole if cut.leaves_out(loop.extent)]
    firsts, lasts = ([c for c in some if (c.factor > 0) == begins] for begins in (True, False))
    return whole if all(_apart(a, b) for a in firsts for b in lasts) else []


def _cut(emitter: SumEmitter, found: GuardedComparison, check: Check, var: Var) -> Cut | None:
    """The cut of one comparison; None where the variable is no term of it, or the only one."""
    bound = check.bound if check.op == "ge" else check.bound.times(-1).plus(-1)
    mine, rest = bound.part(lambda atom, _: var in atom.variables)
    rest = rest.plus(bound.constant)
    around = rest.terms and not rest.volatile and emitter.lane not in rest.variables
    if not around or [atom.kind for atom in mine.terms] != ["var"]:
        return None
    (factor,) = mine.terms.values()
    size = abs(factor)
    if rest.divisor % size == 0:
        # Elements of a tile and the tile are asked for by the same sum.
        factor, rest = factor // size, rest.over(size)
    return Cut(factor, rest, emitter.least(rest), (found.part,))


def _both(one: Cut, other: Cut) -> Cut:
    """Where the checks of two cuts hold that differ by a number."""
    first = min(one, other, key=lambda cut: cut.rest.constant)
    return replace(first, parts=(*one.parts, *other.parts))


def _without(parts: Sequence[Expr], useless: Collection[int]) -> tuple[Expr, ...]:
    return tuple(part for part in parts if id(part) not in useless)


def _apart(first: Cut, last: Cut) -> bool:
    """Whether no iteration is both before the one and behind the other."""
    factor = first.factor
    least = first.rest.plus(last.rest).low
    # Rounding down costs less than one iteration at each.
    return last.factor == -factor and least >= (-1 if factor == 1 else 0)


def busy(emitter: SumEmitter, loop: nest.For, first: int, end: int) -> tuple[int, int]:
    """Iterations of a loop without those at its ends that write nothing anybody reads: tiles beyond
    the data.

    Args:
        emitter: knows the values of the variables around.
        loop: the loop.
        first: of its iterations.
        end: behind the last one.

    Returns:
        The first one, and the one behind the last.
    """
    var = emitter.stand_in(loop.var, loop.extent)
    with emitter.bound({loop.var: emitter.sums.variable(var)}):
        asked = [[easiest_check(emitter, one) for one in places] for places in _needed(loop.body)]
    for checks in asked:
        if all(check.is_of(var) for check in checks):
            ranges = [check.range(loop.extent) for check in checks]
            first = max(first, min(low for low, _ in ranges))
            end = min(end, max(high for _, high in ranges))
    return first, max(first, end)


@functools.lru_cache(maxsize=256)
def _needed(body: Stmt) -> list[list[GuardedComparison]]:
    """Comparisons of which each has to hold somewhere for a statement to write anything, by the
    places where it is asked."""
    places: dict[int, list[GuardedComparison]] = {}
    around: set[int] | None = None
    for guards in _writes(body, (), (), frozenset()):
        asked = {id(one.part) for one in guards}
        around = asked if around is None else around & asked
        for one in guards:
            places.setdefault(id(one.part), []).append(one)
    return [found for part, found in places.items() if around is not None and part in around]


def _writes(
    stmt: Stmt,
    loops: tuple[nest.For, ...],
    guards: tuple[GuardedComparison, ...],
    own: frozenset[nest.Buffer],
) -> Iterator[tuple[GuardedComparison, ...]]:
    """The comparisons around each thing within that is more than a hint, and writes more than
    memory of the statement's own."""
    match stmt:
        case nest.Prefetch():
            return
        case nest.Store():
            if stmt.buffer not in own:
                yield guards
        case nest.If():
            parts = tuple(GuardedComparison(part, loops, ()) for part in parts_of(stmt.condition))
            yield from _writes(stmt.then, loops, (*guards, *parts), own)
            if stmt.otherwise is not None:
                yield from _writes(stmt.otherwise, loops, guards, own)
        case nest.For():
            yield from _writes(stmt.body, (*loops, stmt), guards, own)
        case nest.Allocate():
            yield from _writes(stmt.body, loops, guards, own | {stmt.buffer})
        case nest.Seq() | nest.StoreAll():
            for part in inner(stmt):
                yield from _writes(part, loops, guards, own)
        case _:
            yield guards
