"""Spans of indices: what is read while some loop variables stand still and others run."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from tilewright.schedule.arith import FAR, Arithmetic
from tilewright.schedule.expr import Expr
from tilewright.schedule.linear import Atom, Linear, number


class Span(NamedTuple):
    """Values from `base + low` to `base + high`, where `base` has no constant and stands still."""

    base: Linear
    low: int
    high: int


def span_of(form: Linear, fixed: Collection[Expr], arithmetic: Arithmetic) -> Span:
    """The values of an index while all variables but the fixed ones run over their ranges.

    Args:
        form: the index.
        fixed: the variables that stand still.
        arithmetic: knows the ranges of the others.

    Returns:
        A span that has all of the values; it may be longer than they are.
    """
    base = number(0)
    low = high = form.constant
    for atom, c in form.terms.items():
        part = _span(atom, fixed, arithmetic)
        base = base.plus(part.base, c)
        low, high = low + min(c * part.low, c * part.high), high + max(c * part.low, c * part.high)
    return Span(base, low, high)


def _span(atom: Atom, fixed: Collection[Expr], arithmetic: Arithmetic) -> Span:
    """The values of an atom; values from memory may always change."""
    if not atom.volatile and all(var in fixed for var in atom.variables):
        return Span(Linear({atom: 1}, 0), 0, 0)
    quotient = atom.divided("floordiv")
    if quotient is not None:
        form, divisor = quotient
        base, low, high = span_of(form, fixed, arithmetic)
        whole, rest = base.split(divisor)
        if not rest.terms:
            return Span(whole.over(divisor), low // divisor, high // divisor)
        start = arithmetic.quotient(base.plus(low), divisor)
        reach = start.constant + (high - low + divisor - 1) // divisor
        return Span(start.plus(-start.constant), start.constant, reach)
    # A remainder that stays within one turn is no atom: arithmetic has made a sum of it.
    return Span(number(0), atom.low, atom.high)


def union(spans: Iterable[Span]) -> Span:
    """Values of one span or the other.

    Args:
        spans: one at least.
    """
    first, *others = spans
    base, low, high = first
    for other in others:
        apart = other.base.plus(base, -1)
        low, high = min(low, other.low + apart.low), max(high, other.high + apart.high)
    return Span(base, low, high)


def clipped(span: Span, size: int, arithmetic: Arithmetic) -> tuple[Expr, int]:
    """The first index and the number of indices, never more than the tensor has.

    Indices of a span that lie outside of the tensor are not read: they come from the ends of
    loops, or are guarded.

    Args:
        span: of the indices that are read.
        size: of the tensor's dimension.
        arithmetic: made the span's sums.

    Returns:
        The first index, and how many there are: all of the dimension where it is not known better.
    """
    base, low, high = span
    if high - low + 1 >= size or high - low >= FAR:
        return arithmetic.expr(number(0)), size
    return arithmetic.expr(base.plus(low)), high - low + 1
