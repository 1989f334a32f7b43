"""Index arithmetic as sums: a constant and multiples of atoms.

An atom is a loop's variable, the lane of a vector, or what is not linear in them (a floor division,
a minimum, a value from memory). Sums of the same terms are equal, whichever way they were written,
so that addresses can be compared, and bounds of the atoms decide many conditions at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

#: Bounds of what is not known: wide enough, and far from overflowing when multiplied.
UNKNOWN = 1 << 40


class Atom:
    """What a sum is made of; compared by identity, `Space` makes equal ones one.

    low, high: the least and the largest value. loops: the loop variables that it depends on. lane:
    whether it differs between the lanes of a vector. volatile: whether it may change while its
    loops stand still (it is read from memory). kind, args: how it is computed (`loop`, `lane`,
    `floordiv`, `floormod`, `min`, `max`, `mul`, `value`).
    """

    __slots__ = ("args", "high", "kind", "lane", "loops", "low", "number", "volatile")

    def __init__(
        self,
        number: int,
        kind: str,
        args: tuple[Any, ...],
        low: int,
        high: int,
        loops: frozenset[Atom],
        lane: bool,
        volatile: bool,
    ) -> None:
        self.number = number
        self.kind = kind
        self.args = args
        self.low = low
        self.high = high
        self.loops = loops or (frozenset((self,)) if kind == "loop" else loops)
        self.lane = lane
        self.volatile = volatile

    def __repr__(self) -> str:
        return f"{self.kind}{self.number}"


class Linear:
    """`constant + sum(factor * atom)`; terms in the order in which their atoms were made."""

    __slots__ = ("_hash", "constant", "terms")

    def __init__(self, terms: tuple[tuple[Atom, int], ...], constant: int) -> None:
        self.terms = terms
        self.constant = constant
        self._hash = hash((terms, constant))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Linear)
            and self.constant == other.constant
            and self.terms == other.terms
        )

    def __repr__(self) -> str:
        parts = [f"{factor}*{atom}" for atom, factor in self.terms]
        return " + ".join([*parts, str(self.constant)])

    def __add__(self, other: Linear) -> Linear:
        if not other.terms:
            return Linear(self.terms, self.constant + other.constant)
        if not self.terms:
            return Linear(other.terms, self.constant + other.constant)
        return _sum((*self.terms, *other.terms), self.constant + other.constant)

    def __sub__(self, other: Linear) -> Linear:
        return self + other.scaled(-1)

    def scaled(self, factor: int) -> Linear:
        """The product with a constant."""
        if factor == 1:
            return self
        if factor == 0:
            return constant(0)
        return Linear(tuple((a, f * factor) for a, f in self.terms), self.constant * factor)

    def plus(self, value: int) -> Linear:
        return Linear(self.terms, self.constant + value) if value else self

    @property
    def low(self) -> int:
        return self.constant + sum(f * (a.low if f > 0 else a.high) for a, f in self.terms)

    @property
    def high(self) -> int:
        return self.constant + sum(f * (a.high if f > 0 else a.low) for a, f in self.terms)

    @property
    def loops(self) -> frozenset[Atom]:
        """The loop variables that it depends on."""
        return frozenset().union(*(a.loops for a, _ in self.terms))

    @property
    def volatile(self) -> bool:
        return any(a.volatile for a, _ in self.terms)

    @property
    def lane(self) -> bool:
        """Whether it differs between the lanes of a vector."""
        return any(a.lane for a, _ in self.terms)

    def without_lane(self) -> tuple[Linear, int | None]:
        """What is the same in all lanes, and the step from one lane to the next; the step is None
        (and the rest the whole) where there is no such step."""
        step, rest = 0, []
        for atom, factor in self.terms:
            if atom.kind == "lane":
                step += factor
            elif atom.lane:
                return self, None
            else:
                rest.append((atom, factor))
        return Linear(tuple(rest), self.constant), step


def constant(value: int) -> Linear:
    """A sum of no atoms."""
    return Linear((), value)


def _sum(terms: Iterable[tuple[Atom, int]], offset: int) -> Linear:
    factors: dict[Atom, int] = {}
    for atom, factor in terms:
        factors[atom] = factors.get(atom, 0) + factor
    kept = [(a, f) for a, f in factors.items() if f]
    kept.sort(key=lambda term: term[0].number)
    return Linear(tuple(kept), offset)


class Space:
    """Makes atoms, equal ones once, and the sums that need new ones."""

    def __init__(self) -> None:
        self._atoms: dict[tuple[Any, ...], Atom] = {}
        self._count = 0

    def loop(self, extent: int) -> Atom:
        """A new loop's variable: 0 to extent - 1."""
        return self._made("loop", (), 0, extent - 1, frozenset(), False, False)

    def lane(self, lanes: int) -> Atom:
        """The number of a lane of a vector: one for all vectors of this length, so that places in
        different vectorized loops can be compared."""
        return self._single("lane", (lanes,), 0, lanes - 1, frozenset(), True, False).terms[0][0]

    def value(self, node: object, loops: frozenset[Atom], lane: bool) -> Linear:
        """An index computed in another way, from memory for instance."""
        return self._single("value", (node,), -UNKNOWN, UNKNOWN, loops, lane, True)

    def product(self, a: Linear, b: Linear) -> Linear:
        if not a.terms:
            return b.scaled(a.constant)
        if not b.terms:
            return a.scaled(b.constant)
        ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
        return self._pair("mul", a, b, min(ends), max(ends))

    def floordiv(self, a: Linear, divisor: int) -> Linear:
        """`a // divisor`, towards minus infinity; the divisor is positive."""
        out, rest = _divided(a, divisor)
        low, high = rest.low // divisor, rest.high // divisor
        if low == high:
            return out.plus(low)
        return out + self._opaque("floordiv", rest, divisor, low, high)

    def floormod(self, a: Linear, divisor: int) -> Linear:
        """`a - a // divisor * divisor`."""
        _, rest = _divided(a, divisor)
        if rest.low // divisor == rest.high // divisor:
            return rest.plus(-(rest.low // divisor) * divisor)
        return self._opaque("floormod", rest, divisor, 0, divisor - 1)

    def minimum(self, a: Linear, b: Linear) -> Linear:
        difference = a - b
        if difference.high <= 0:
            return a
        if difference.low >= 0:
            return b
        return self._pair("min", a, b, min(a.low, b.low), min(a.high, b.high))

    def maximum(self, a: Linear, b: Linear) -> Linear:
        difference = a - b
        if difference.low >= 0:
            return a
        if difference.high <= 0:
            return b
        return self._pair("max", a, b, max(a.low, b.low), max(a.high, b.high))

    def _opaque(self, kind: str, a: Linear, divisor: int, low: int, high: int) -> Linear:
        return self._single(kind, (a, divisor), low, high, a.loops, a.lane, a.volatile)

    def _pair(self, kind: str, a: Linear, b: Linear, low: int, high: int) -> Linear:
        return self._single(
            kind,
            (a, b),
            max(low, -UNKNOWN),
            min(high, UNKNOWN),
            a.loops | b.loops,
            a.lane or b.lane,
            a.volatile or b.volatile,
        )

    def _single(self, kind: str, args: tuple[Any, ...], *rest: Any) -> Linear:
        key = (kind, *args)
        atom = self._atoms.get(key)
        if atom is None:
            atom = self._atoms[key] = self._made(kind, args, *rest)
        return Linear(((atom, 1),), 0)

    def _made(self, kind: str, args: tuple[Any, ...], *rest: Any) -> Atom:
        self._count += 1
        return Atom(self._count, kind, args, *rest)


def _divided(a: Linear, divisor: int) -> tuple[Linear, Linear]:
    """`a` as a multiple of the divisor (given divided) and a rest."""
    out = tuple((atom, f // divisor) for atom, f in a.terms if f % divisor == 0)
    rest = tuple((atom, f) for atom, f in a.terms if f % divisor)
    whole = a.constant // divisor
    return Linear(out, whole), Linear(rest, a.constant - whole * divisor)
