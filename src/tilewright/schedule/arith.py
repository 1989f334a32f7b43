"""Arithmetic of indices: linear forms, intervals, divisibility.

An index expression is kept as a sum of atoms times integers plus an integer. Atoms are loop
variables and what is not linear in them: quotients, remainders, extremes, values from memory. Equal
atoms are one object within an :class:`Arithmetic`, so that equal terms meet and cancel.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import TypeAlias

from tilewright.schedule.expr import (
    COMPARISONS,
    TRUE,
    Binary,
    Const,
    Expr,
    Not,
    Select,
    Var,
    index,
)
from tilewright.schedule.types import BOOL, INDEX
from tilewright.schedule.walk import children, rebuilt

Bounds: TypeAlias = tuple[int, int]
FALSE = Const(False, BOOL)
_FAR = 1 << 62


class Linear:
    """`constant` plus the sum of `terms`: atoms with coefficients other than 0."""

    __slots__ = ("constant", "terms")

    def __init__(self, terms: dict[Expr, int], constant: int) -> None:
        self.terms = terms
        self.constant = constant

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """This and `factor` times the other."""
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            total = terms.get(atom, 0) + coefficient * factor
            if total:
                terms[atom] = total
            else:
                del terms[atom]
        return Linear(terms, self.constant + other.constant * factor)

    def times(self, factor: int) -> Linear:
        if factor == 0:
            return Linear({}, 0)
        return Linear({a: c * factor for a, c in self.terms.items()}, self.constant * factor)

    def over(self, divisor: int) -> Linear:
        """The quotient by a number that divides every coefficient and the constant."""
        return Linear({a: c // divisor for a, c in self.terms.items()}, self.constant // divisor)

    def split(self, divisor: int) -> tuple[Linear, Linear]:
        """The part that the divisor divides, and the rest (its constant from 0 to divisor - 1)."""
        whole: dict[Expr, int] = {}
        rest: dict[Expr, int] = {}
        for atom, c in self.terms.items():
            (rest if c % divisor else whole)[atom] = c
        remainder = self.constant % divisor
        return Linear(whole, self.constant - remainder), Linear(rest, remainder)

    @property
    def key(self) -> tuple[frozenset[tuple[Expr, int]], int]:
        return frozenset(self.terms.items()), self.constant


class Arithmetic:
    """Simplification under known bounds of variables (both ends belong to the range)."""

    def __init__(self, bounds: Mapping[Expr, Bounds] | None = None) -> None:
        self.bounds: dict[Expr, Bounds] = dict(bounds or {})
        self._atoms: dict[object, Expr] = {}
        self._linear: dict[Expr, Linear] = {}

    def bind(self, var: Expr, low: int, high: int) -> None:
        """Let a variable range from `low` to `high`."""
        self.bounds[var] = (low, high)

    # -- linear forms ------------------------------------------------------------------------------

    def linear(self, expr: Expr) -> Linear:
        """The linear form of an index expression."""
        known = self._linear.get(expr)
        if known is None:
            known = self._linear[expr] = self._linear_of(expr)
        return known

    def _linear_of(self, expr: Expr) -> Linear:
        if isinstance(expr, Const):
            return Linear({}, int(expr.value))
        if isinstance(expr, Var):
            low, high = self.bounds.get(expr, (-_FAR, _FAR))
            return Linear({}, low) if low == high else Linear({expr: 1}, 0)
        if isinstance(expr, Binary):
            a = self.linear(expr.a)
            b = self.linear(expr.b)
            match expr.op:
                case "add":
                    return self._paired(a.plus(b))
                case "sub":
                    return self._paired(a.plus(b, -1))
                case "mul" if not b.terms:
                    return a.times(b.constant)
                case "mul" if not a.terms:
                    return b.times(a.constant)
                case "floordiv" if not b.terms and b.constant > 0:
                    return self.quotient(a, b.constant)
                case "floormod" if not b.terms and b.constant > 0:
                    return self.remainder(a, b.constant)
                case "truncdiv" if not b.terms and b.constant > 0 and self.interval(a)[0] >= 0:
                    return self.quotient(a, b.constant)
                case "truncmod" if not b.terms and b.constant > 0 and self.interval(a)[0] >= 0:
                    return self.remainder(a, b.constant)
                case "min" | "max":
                    return self._extreme(expr.op, a, b)
            return self._atom((expr.op, a.key, b.key), self._with(expr, (a, b)))
        new = self.simplify_value(expr, inside=True)
        return self._atom(self._structure(new), new)

    def _with(self, expr: Expr, parts: tuple[Linear, ...]) -> Expr:
        return rebuilt(expr, tuple(self.expr(p) for p in parts))

    def _structure(self, expr: Expr) -> object:
        """What tells an expression from others, with index parts in linear form."""
        if isinstance(expr, Var):
            return expr
        if isinstance(expr, Const):
            return (expr.dtype, expr.value)
        own = [getattr(expr, f, None) for f in ("op", "name", "buffer", "tensor", "guarded")]
        parts = [
            self.linear(p).key if p.dtype == INDEX else self._structure(p) for p in children(expr)
        ]
        return (type(expr), expr.dtype, *own, *parts)

    def _atom(self, key: object, expr: Expr) -> Linear:
        if isinstance(expr, Const):
            return Linear({}, int(expr.value))
        return Linear({self._atoms.setdefault(key, expr): 1}, 0)

    def _paired(self, form: Linear) -> Linear:
        """Joins `(x // c) * c * f` and `(x % c) * f` to `x * f`."""
        for atom, f in form.terms.items():
            if isinstance(atom, Binary) and atom.op == "floormod":
                x, c = self.linear(atom.a), self.linear(atom.b).constant
                quotient = self.quotient(x, c)
                if quotient.constant == 0 and len(quotient.terms) == 1:
                    part, q = next(iter(quotient.terms.items()))
                    if q == 1 and form.terms.get(part) == c * f:
                        terms = {a: v for a, v in form.terms.items() if a not in (part, atom)}
                        joined = Linear(terms, form.constant).plus(x, f)
                        return self._paired(joined)
        return form

    def quotient(self, form: Linear, divisor: int) -> Linear:
        """`form // divisor`, rounded down."""
        if divisor == 1:
            return form
        whole, rest = form.split(divisor)
        result = whole.over(divisor)
        low, high = self.interval(rest)
        if low // divisor == high // divisor:
            return Linear(result.terms, result.constant + low // divisor)
        # (g * x + r) // (g * d) is x // d where 0 <= r < g.
        common = gcd(divisor, *rest.terms.values())
        if common > 1:
            reduced, _ = rest.split(common)
            return result.plus(self.quotient(reduced.over(common), divisor // common))
        smaller = self._reduced(rest, divisor)
        if smaller is not None:
            return result.plus(smaller)
        if len(rest.terms) == 1 and rest.constant == 0:
            atom, c = next(iter(rest.terms.items()))
            if c == 1 and isinstance(atom, Binary) and atom.op == "floordiv":
                inner = self.linear(atom.b).constant
                return result.plus(self.quotient(self.linear(atom.a), inner * divisor))
        key = ("floordiv", rest.key, divisor)
        return result.plus(self._atom(key, Binary("floordiv", *self._pair(rest, divisor), INDEX)))

    def _reduced(self, rest: Linear, divisor: int) -> Linear | None:
        """The quotient where some terms together never reach the next multiple of a divisor's
        divisor that all others are multiples of."""
        sizes = sorted({abs(c) for c in rest.terms.values()}, reverse=True)
        for size in sizes:
            step = gcd(size, divisor)
            if step <= 1:
                continue
            whole, small = rest.split(step)
            low, high = self.interval(small)
            if whole.terms and low >= 0 and high < step:
                return self.quotient(whole.over(step), divisor // step)
        return None

    def remainder(self, form: Linear, divisor: int) -> Linear:
        """`form % divisor`, from 0 to divisor - 1."""
        if divisor == 1:
            return Linear({}, 0)
        _, rest = form.split(divisor)
        low, high = self.interval(rest)
        if low // divisor == high // divisor:
            return Linear(rest.terms, rest.constant - low // divisor * divisor)
        common = gcd(divisor, *rest.terms.values())
        if common > 1:
            reduced, small = rest.split(common)
            inner = self.remainder(reduced.over(common), divisor // common)
            return inner.times(common).plus(small)
        for size in sorted({abs(c) for c in rest.terms.values()}, reverse=True):
            step = gcd(size, divisor)
            if step <= 1:
                continue
            whole, small = rest.split(step)
            low, high = self.interval(small)
            if whole.terms and low >= 0 and high < step:
                inner = self.remainder(whole.over(step), divisor // step)
                return inner.times(step).plus(small)
        if len(rest.terms) == 1 and rest.constant == 0:
            atom, c = next(iter(rest.terms.items()))
            if c == 1 and isinstance(atom, Binary) and atom.op == "floormod":
                modulus = self.linear(atom.b).constant
                if modulus % divisor == 0:
                    return self.remainder(self.linear(atom.a), divisor)
        key = ("floormod", rest.key, divisor)
        return self._atom(key, Binary("floormod", *self._pair(rest, divisor), INDEX))

    def _pair(self, form: Linear, divisor: int) -> tuple[Expr, Expr]:
        return self.expr(form), index(divisor)

    def _extreme(self, op: str, a: Linear, b: Linear) -> Linear:
        low, high = self.interval(a.plus(b, -1))
        if high <= 0:
            return a if op == "min" else b
        if low >= 0:
            return b if op == "min" else a
        key = (op, frozenset((a.key, b.key)))
        return self._atom(key, Binary(op, self.expr(a), self.expr(b), INDEX))

    # -- intervals ---------------------------------------------------------------------------------

    def interval(self, form: Linear) -> Bounds:
        """The smallest and largest value; far away where a variable has no bounds."""
        low = high = form.constant
        for atom, c in form.terms.items():
            a, b = self.atom_bounds(atom)
            if c > 0:
                low, high = low + c * a, high + c * b
            else:
                low, high = low + c * b, high + c * a
        return low, high

    def atom_bounds(self, atom: Expr) -> Bounds:
        known = self.bounds.get(atom)
        if known is not None:
            return known
        found = (-_FAR, _FAR)
        if isinstance(atom, Binary):
            low, high = self.interval(self.linear(atom.a))
            form = self.linear(atom.b)
            match atom.op:
                case "floordiv" if not form.terms:
                    found = (low // form.constant, high // form.constant)
                case "floormod" if not form.terms:
                    found = (0, min(form.constant - 1, high) if low >= 0 else form.constant - 1)
                case "min":
                    a, b = self.interval(form)
                    found = (min(low, a), min(high, b))
                case "max":
                    a, b = self.interval(form)
                    found = (max(low, a), max(high, b))
        elif isinstance(atom, Select) and atom.dtype == INDEX:
            one, other = self.interval(self.linear(atom.a)), self.interval(self.linear(atom.b))
            found = (min(one[0], other[0]), max(one[1], other[1]))
        if not isinstance(atom, Var):
            self.bounds[atom] = found
        return found

    def expr_bounds(self, expr: Expr) -> Bounds:
        """The smallest and largest value of an index expression."""
        return self.interval(self.linear(expr))

    def within(self, expr: Expr, low: int, high: int) -> bool:
        """Whether the value provably lies from `low` to `high`."""
        a, b = self.expr_bounds(expr)
        return low <= a and b <= high

    def difference(self, a: Expr, b: Expr) -> int | None:
        """`a - b` where that is a known number."""
        form = self.linear(a).plus(self.linear(b), -1)
        low, high = self.interval(form)
        return low if low == high else None

    # -- back to expressions -----------------------------------------------------------------------

    def expr(self, form: Linear) -> Expr:
        """The expression of a linear form: larger steps first, subtraction where it reads well."""
        result: Expr | None = None
        terms = sorted(form.terms.items(), key=lambda t: -t[1])
        for atom, c in terms:
            factor = abs(c)
            term = atom if factor == 1 else Binary("mul", atom, index(factor), INDEX)
            if result is None:
                result = term if c > 0 else Binary("sub", index(form.constant), term, INDEX)
            else:
                result = Binary("add" if c > 0 else "sub", result, term, INDEX)
        if result is None:
            return index(form.constant)
        if form.constant and terms[0][1] > 0:
            op = "add" if form.constant > 0 else "sub"
            result = Binary(op, result, index(abs(form.constant)), INDEX)
        self._linear[result] = form
        return result

    def simplify(self, expr: Expr) -> Expr:
        """The expression with its indices in their plainest form and decided conditions decided."""
        if expr.dtype == INDEX:
            return self.expr(self.linear(expr))
        return self.simplify_value(expr)

    def simplify_value(self, expr: Expr, inside: bool = False) -> Expr:
        """As :meth:`simplify` for any type; `inside` looks only at the operands."""
        parts = children(expr)
        if not parts:
            return expr
        if expr.dtype == INDEX and not inside:
            return self.simplify(expr)
        new = rebuilt(expr, tuple(self.simplify(p) for p in parts))
        match new:
            case Binary() if new.op in COMPARISONS and new.a.dtype == INDEX:
                return self._decided(new)
            case Binary(op="logical_and") | Binary(op="logical_or"):
                return _logic(new)
            case Not(a=Const() as c):
                return FALSE if c.value else TRUE
            case Select(condition=Const() as c):
                return new.a if c.value else new.b
        return new

    def _decided(self, comparison: Binary) -> Expr:
        low, high = self.interval(self.linear(comparison.a).plus(self.linear(comparison.b), -1))
        match comparison.op:
            case "lt":
                return TRUE if high < 0 else FALSE if low >= 0 else comparison
            case "le":
                return TRUE if high <= 0 else FALSE if low > 0 else comparison
            case "gt":
                return TRUE if low > 0 else FALSE if high <= 0 else comparison
            case "ge":
                return TRUE if low >= 0 else FALSE if high < 0 else comparison
            case "eq" if low == high == 0:
                return TRUE
            case "eq" if low > 0 or high < 0:
                return FALSE
            case "ne" if low == high == 0:
                return FALSE
            case "ne" if low > 0 or high < 0:
                return TRUE
        return comparison


def _logic(node: Binary) -> Expr:
    conjunction = node.op == "logical_and"
    for this, other in ((node.a, node.b), (node.b, node.a)):
        if isinstance(this, Const):
            if bool(this.value) is conjunction:
                return other
            return this
    return node
