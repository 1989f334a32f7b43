"""Sums of atoms with bounds: the form in which indices are computed with.

An index is a constant plus integer multiples of atoms: loop variables, and what is not linear in
them (quotients, remainders, extremes, products, values from memory). What makes them, and equal
atoms one object, is :class:`tilewright.schedule.arith.Arithmetic`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.schedule.expr import Expr, Var


@dataclass(eq=False, slots=True)
class Atom:
    """What a sum is made of; known by identity, an :class:`Arithmetic` makes equal ones one.

    kind, args: how it is computed: `var` of a loop's variable, `opaque` of something computed in
        another way, or an operator of :class:`Binary` of two sums.
    low, high: the least and the largest value.
    variables: the loop variables that it depends on.
    volatile: whether it may change while these stand still (it is read from memory).
    number: atoms are numbered as they are made.
    """

    number: int
    kind: str
    args: tuple[Any, ...]
    low: int
    high: int
    variables: frozenset[Var]
    volatile: bool
    #: The expression that it stands for, once somebody has asked for that.
    expr: Expr | None = None

    def divided(self, kind: str) -> tuple[Linear, int] | None:
        """What is divided and by which number, if this is such a quotient or remainder.

        Args:
            kind: `floordiv` or `floormod`.

        Returns:
            The sum and the divisor; None for other atoms, and where the divisor is no number.
        """
        if self.kind == kind and not self.args[1].terms:
            return self.args[0], self.args[1].constant
        return None


class Linear:
    """`constant` plus the sum of `terms`: atoms with coefficients other than 0."""

    __slots__ = ("_hash", "constant", "terms")

    def __init__(self, terms: dict[Atom, int], constant: int) -> None:
        self.terms = terms
        self.constant = constant
        self._hash: int | None = None

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((frozenset(self.terms.items()), self.constant))
        return self._hash

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Linear)
            and self.constant == other.constant
            and self.terms == other.terms
        )

    def plus(self, other: Linear | int, factor: int = 1) -> Linear:
        """This and `factor` times the other.

        Args:
            other: another sum or a number.
            factor: what it is multiplied by.
        """
        if isinstance(other, int):
            return Linear(self.terms, self.constant + other * factor)
        if not other.terms:
            return Linear(self.terms, self.constant + other.constant * factor)
        terms = dict(self.terms)
        add_terms(terms, other, factor)
        return Linear(terms, self.constant + other.constant * factor)

    def times(self, factor: int) -> Linear:
        """The product with a number.

        Args:
            factor: any number; by 0 nothing is left.
        """
        if factor == 0:
            return number(0)
        return Linear({a: c * factor for a, c in self.terms.items()}, self.constant * factor)

    def where(self, values: Mapping[Atom, Linear]) -> Linear:
        """The sum with others in the place of some of its atoms.

        Args:
            values: by atom.
        """
        result = self
        for atom, factor in self.terms.items():
            if atom in values:
                result = result.plus(Linear({atom: factor}, 0), -1).plus(values[atom], factor)
        return result

    @property
    def divisor(self) -> int:
        """The largest number that divides every coefficient; 0 where there is none."""
        return math.gcd(*self.terms.values())

    def over(self, divisor: int) -> Linear:
        """The quotient by a number that divides every coefficient; rounded down.

        Args:
            divisor: divides every coefficient without a rest.
        """
        return Linear({a: c // divisor for a, c in self.terms.items()}, self.constant // divisor)

    def split(self, divisor: int) -> tuple[Linear, Linear]:
        """The part that the divisor divides, and the rest (its constant from 0 to divisor - 1).

        Args:
            divisor: positive.

        Returns:
            The multiple of the divisor and the rest, whose sum this is.
        """
        whole: dict[Atom, int] = {}
        rest: dict[Atom, int] = {}
        for atom, factor in self.terms.items():
            (rest if factor % divisor else whole)[atom] = factor
        remainder = self.constant % divisor
        return Linear(whole, self.constant - remainder), Linear(rest, remainder)

    def part(self, wanted: Callable[[Atom, int], bool]) -> tuple[Linear, Linear]:
        """The sum in two: some of its terms and the others, both without the constant.

        Args:
            wanted: given an atom and its coefficient, whether the term is of the first part.

        Returns:
            The two parts.
        """
        chosen: dict[Atom, int] = {}
        others: dict[Atom, int] = {}
        for atom, factor in self.terms.items():
            (chosen if wanted(atom, factor) else others)[atom] = factor
        return Linear(chosen, 0), Linear(others, 0)

    def step(self, var: Var) -> tuple[int | None, Linear]:
        """By how much the sum grows with a variable, and what is left without it.

        Args:
            var: a loop's variable.

        Returns:
            The step and the rest; None and the whole where it depends on the variable in another
            way than by a multiple of it.
        """
        mine, others = self.part(lambda atom, _: var in atom.variables)
        if any(atom.kind != "var" for atom in mine.terms):
            return None, self
        return sum(mine.terms.values()), others.plus(self.constant)

    @property
    def low(self) -> int:
        """The least value; far away where a variable has no bounds."""
        return self.constant + sum(c * (a.low if c > 0 else a.high) for a, c in self.terms.items())

    @property
    def high(self) -> int:
        """The largest value; far away where a variable has no bounds."""
        return self.constant + sum(c * (a.high if c > 0 else a.low) for a, c in self.terms.items())

    @property
    def variables(self) -> frozenset[Var]:
        """The loop variables that it depends on."""
        return frozenset().union(*(atom.variables for atom in self.terms))

    @property
    def volatile(self) -> bool:
        """Whether it depends on memory."""
        return any(atom.volatile for atom in self.terms)


def add_terms(terms: dict[Atom, int], other: Linear, factor: int) -> None:
    """Adds a multiple of a sum's terms to others, in place.

    Args:
        terms: atoms with coefficients other than 0.
        other: the sum, of which the constant is left out.
        factor: what its terms are multiplied by.
    """
    for atom, coefficient in other.terms.items():
        total = terms.get(atom, 0) + coefficient * factor
        if total:
            terms[atom] = total
        else:
            terms.pop(atom, None)


def number(value: int) -> Linear:
    """A sum of no atoms.

    Args:
        value: its constant.
    """
    return Linear({}, value)


def holds(op: str, difference: Linear) -> bool | None:
    """Whether a comparison of a sum with 0 holds.

    Args:
        op: `eq`, `ne`, `lt`, `le`, `gt` or `ge`.
        difference: the sum.

    Returns:
        Whether it does for all of the sum's values (True) or for none (False); None where that
        depends on them, as far as the bounds say.
    """
    low, high = difference.low, difference.high
    match op:
        case "lt":
            return True if high < 0 else False if low >= 0 else None
        case "le":
            return True if high <= 0 else False if low > 0 else None
        case "eq":
            return True if low == high == 0 else False if low > 0 or high < 0 else None
    known = holds({"ge": "lt", "gt": "le", "ne": "eq"}[op], difference)
    return None if known is None else not known
