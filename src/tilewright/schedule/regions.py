"""Which part of a tensor is read while some loop variables stand still and others run."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from tilewright.schedule.arith import _FAR, Arithmetic, Linear
from tilewright.schedule.expr import Binary, Expr, Var, index
from tilewright.schedule.walk import nodes


class Span(NamedTuple):
    """Values from `base + low` to `base + high`, where `base` is linear in variables that stand
    still."""

    base: Linear
    low: int
    high: int


def span_of(form: Linear, fixed: Collection[Expr], arithmetic: Arithmetic) -> Span:
    """The values of an index while all variables but the fixed ones run over their ranges."""
    base: dict[Expr, int] = {}
    low = high = form.constant
    extra: list[tuple[Linear, int]] = []
    for atom, c in form.terms.items():
        if isinstance(atom, Var):
            if atom in fixed:
                base[atom] = c
                continue
            a, b = arithmetic.atom_bounds(atom)
        elif _only(atom, fixed):
            base[atom] = c
            continue
        else:
            part = _compound(atom, fixed, arithmetic)
            if part.base.terms:
                extra.append((part.base, c))
            a, b = part.low, part.high
        low, high = low + min(c * a, c * b), high + max(c * a, c * b)
    total = Linear(base, 0)
    for part_base, c in extra:
        total = total.plus(part_base, c)
    return Span(Linear(total.terms, 0), low + total.constant, high + total.constant)


def _only(atom: Expr, fixed: Collection[Expr]) -> bool:
    """Whether an atom is made of fixed variables alone (values from memory may always change)."""
    for node in nodes(atom):
        if isinstance(node, Var):
            if node not in fixed:
                return False
        elif hasattr(node, "indices"):
            return False
    return True


def _compound(atom: Expr, fixed: Collection[Expr], arithmetic: Arithmetic) -> Span:
    anywhere = Span(Linear({}, 0), *arithmetic.atom_bounds(atom))
    if not isinstance(atom, Binary) or atom.op not in ("floordiv", "floormod"):
        return anywhere
    divisor = arithmetic.linear(atom.b).constant
    base, low, high = span_of(arithmetic.linear(atom.a), fixed, arithmetic)
    whole, rest = base.split(divisor)
    if atom.op == "floordiv":
        if not rest.terms:
            return Span(whole.over(divisor), low // divisor, high // divisor)
        start = arithmetic.quotient(base.plus(Linear({}, low)), divisor)
        return Span(
            Linear(start.terms, 0),
            start.constant,
            start.constant + (high - low + divisor - 1) // divisor,
        )
    if not rest.terms:
        if low // divisor == high // divisor:
            return Span(Linear({}, 0), low % divisor, high % divisor)
        return anywhere
    a, b = arithmetic.interval(rest)
    if a + low >= 0 and b + high < divisor:
        return Span(rest, low, high)
    return anywhere


def union(spans: Iterable[Span], arithmetic: Arithmetic) -> Span:
    """Values of one span or the other."""
    first, *others = spans
    base, low, high = first
    for other in others:
        a, b = arithmetic.interval(other.base.plus(base, -1))
        low, high = min(low, other.low + a), max(high, other.high + b)
    return Span(base, low, high)


def clipped(span: Span, size: int, arithmetic: Arithmetic) -> tuple[Expr, int]:
    """The first index and the number of indices, never more than the tensor has.

    Indices of a span that lie outside of the tensor are not read: they come from the ends of
    loops, or are guarded.
    """
    base, low, high = span
    if high - low + 1 >= size or high - low >= _FAR:
        return index(0), size
    return arithmetic.expr(Linear(base.terms, base.constant + low)), high - low + 1
