"""Index arithmetic: sums of atoms with bounds, quotients, remainders, simplification.

An index is a constant plus integer multiples of atoms: loop variables, and what is not linear in
them (quotients, remainders, extremes, products, values from memory). An :class:`Arithmetic` makes
equal atoms one object, so that equal terms meet and cancel, and sums of the same terms are equal
whichever way they were written. Bound inference, barriers, tensorizing and code generation all
compute with these sums.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any, NamedTuple, TypeAlias

from tilewright.schedule.expr import COMPARISONS, TRUE, Binary, Const, Expr, Not, Select, Var, index
from tilewright.schedule.nest import Load
from tilewright.schedule.tensor import TensorRead
from tilewright.schedule.types import BOOL, INDEX
from tilewright.schedule.walk import children, nodes, rebuilt

Bounds: TypeAlias = tuple[int, int]
FALSE = Const(False, BOOL)
#: Bounds of what is not known.
FAR = 1 << 62
_LEAST = {"min": min, "max": max}


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
        for atom, coefficient in other.terms.items():
            total = terms.get(atom, 0) + coefficient * factor
            if total:
                terms[atom] = total
            else:
                terms.pop(atom, None)
        return Linear(terms, self.constant + other.constant * factor)

    def times(self, factor: int) -> Linear:
        """The product with a number.

        Args:
            factor: any number; by 0 nothing is left.
        """
        if factor == 0:
            return number(0)
        return Linear({a: c * factor for a, c in self.terms.items()}, self.constant * factor)

    def over(self, divisor: int) -> Linear:
        """The quotient by a number that divides every coefficient and the constant.

        Args:
            divisor: divides every coefficient and the constant without a rest.
        """
        return Linear({a: c // divisor for a, c in self.terms.items()}, self.constant // divisor)

    def split(self, divisor: int) -> tuple[Linear, Linear]:
        """The part that the divisor divides, and the rest (its constant from 0 to divisor - 1).

        Args:
            divisor: positive.

        Returns:
            The multiple of the divisor and the rest, whose sum this is.
        """
        rest, whole = self.part(lambda _, factor: factor % divisor != 0)
        remainder = self.constant % divisor
        return whole.plus(self.constant - remainder), rest.plus(remainder)

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


class Arithmetic:
    """Makes sums and simplifies expressions under known bounds of variables (both ends belong to
    the range)."""

    def __init__(self, bounds: Mapping[Expr, Bounds] | None = None) -> None:
        self.bounds: dict[Expr, Bounds] = dict(bounds or {})
        self._atoms: dict[object, Atom] = {}
        self._linear: dict[Expr, Linear] = {}

    def bind(self, var: Expr, low: int, high: int) -> None:
        """Let a variable range from `low` to `high`.

        Args:
            var: a variable.
            low: its least value.
            high: its largest value.
        """
        if self.bounds.get(var) != (low, high):
            if var in self._linear:
                # What was made of the variable has its former bounds.
                self._linear.clear()
            self.bounds[var] = (low, high)

    # -- sums --------------------------------------------------------------------------------------

    def linear(self, expr: Expr) -> Linear:
        """The sum that an index expression is.

        Args:
            expr: of type `index`.

        Returns:
            The sum, the same for expressions that are equal by the rules known here.
        """
        known = self._linear.get(expr)
        if known is None:
            known = self._linear[expr] = self._linear_of(expr)
        return known

    def _linear_of(self, expr: Expr) -> Linear:
        match expr:
            case Const():
                return number(int(expr.value))
            case Var():
                return self.variable(expr)
            case Binary():
                return self.combined(expr.op, self.linear(expr.a), self.linear(expr.b))
        new = self.simplify_value(expr, inside=True)
        if type(new) is not type(expr):
            return self.linear(new)
        parts = list(nodes(new))
        bounds = (-FAR, FAR)
        if isinstance(new, Select):
            one, other = self.linear(new.a), self.linear(new.b)
            bounds = (min(one.low, other.low), max(one.high, other.high))
        made = self.opaque(
            self._structure(new),
            new,
            frozenset(part for part in parts if isinstance(part, Var)),
            bounds,
            any(isinstance(part, Load | TensorRead) for part in parts),
        )
        (atom,) = made.terms
        atom.expr = atom.args[0]
        return made

    def variable(self, var: Var) -> Linear:
        """The sum that a variable is: a number where it has one value only.

        Args:
            var: a variable; where it has no bounds its values may lie far away.
        """
        low, high = self.bounds.get(var, (-FAR, FAR))
        if low == high:
            return number(low)
        made = self._sum((var, low, high), "var", (var,), (low, high), frozenset((var,)), False)
        (atom,) = made.terms
        atom.expr = var
        return made

    def opaque(
        self,
        key: object,
        content: object,
        variables: Iterable[Var],
        bounds: Bounds = (-FAR, FAR),
        volatile: bool = True,
    ) -> Linear:
        """What is computed in another way, as an atom.

        Args:
            key: equal keys give the same atom.
            content: what it is, for whoever computes it.
            variables: the loop variables that it depends on.
            bounds: its least and its largest value.
            volatile: whether it is read from memory.
        """
        return self._sum(
            ("opaque", key), "opaque", (content,), bounds, frozenset(variables), volatile
        )

    def _sum(
        self,
        key: object,
        kind: str,
        args: tuple[Any, ...],
        bounds: Bounds,
        variables: frozenset[Var],
        volatile: bool,
    ) -> Linear:
        atom = self._atoms.get(key)
        if atom is None:
            low, high = max(bounds[0], -FAR), min(bounds[1], FAR)
            atom = Atom(len(self._atoms), kind, args, low, high, variables, volatile)
            self._atoms[key] = atom
        return Linear({atom: 1}, 0)

    def _pair(self, op: str, a: Linear, b: Linear, low: int, high: int) -> Linear:
        return self._sum(
            (op, a, b),
            op,
            (a, b),
            (low, high),
            a.variables | b.variables,
            a.volatile or b.volatile,
        )

    def _structure(self, expr: Expr) -> object:
        """What tells an expression from others, with index parts as sums."""
        if isinstance(expr, Var):
            return expr
        if isinstance(expr, Const):
            return (expr.dtype, expr.value)
        own = [getattr(expr, f, None) for f in ("op", "name", "buffer", "tensor", "guarded")]
        parts = [self.linear(p) if p.dtype == INDEX else self._structure(p) for p in children(expr)]
        return (type(expr), expr.dtype, *own, *parts)

    def combined(self, op: str, a: Linear, b: Linear) -> Linear:
        """An operator of :class:`Binary` on two sums.

        Args:
            op: `add`, `sub`, `mul`, `floordiv`, `floormod`, `truncdiv`, `truncmod`, `min`, `max` or
                another operator of integers.
            a: the left operand.
            b: the right operand.
        """
        match op:
            case "add":
                return self._joined(a.plus(b))
            case "sub":
                return self._joined(a.plus(b, -1))
            case "mul":
                return self._product(a, b)
            case "min" | "max":
                return self._extreme(op, a, b)
        if not b.terms and b.constant > 0:
            if op == "floordiv" or (op == "truncdiv" and a.low >= 0):
                return self.quotient(a, b.constant)
            if op == "floormod" or (op == "truncmod" and a.low >= 0):
                return self.remainder(a, b.constant)
        return self._pair(op, a, b, -FAR, FAR)

    def _product(self, a: Linear, b: Linear) -> Linear:
        if not a.terms or not b.terms:
            return a.times(b.constant) if not b.terms else b.times(a.constant)
        ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
        return self._pair("mul", a, b, min(ends), max(ends))

    def _joined(self, form: Linear) -> Linear:
        """Joins `(x // c) * c * f` and `(x % c) * f` to `x * f`."""
        for atom, f in form.terms.items():
            divided = atom.divided("floormod")
            if divided is None:
                continue
            x, c = divided
            quotient = self.quotient(x, c)
            if quotient.constant == 0 and len(quotient.terms) == 1:
                ((part, q),) = quotient.terms.items()
                if q == 1 and form.terms.get(part) == c * f:
                    terms = {a: v for a, v in form.terms.items() if a not in (part, atom)}
                    return self._joined(Linear(terms, form.constant).plus(x, f))
        return form

    def quotient(self, form: Linear, divisor: int) -> Linear:
        """`form // divisor`, rounded down.

        Args:
            form: a sum.
            divisor: positive.
        """
        if divisor == 1:
            return form
        whole, rest = form.split(divisor)
        result = whole.over(divisor)
        low, high = rest.low // divisor, rest.high // divisor
        if low == high:
            return result.plus(low)
        # (g * x + r) // (g * d) is x // d where 0 <= r < g.
        step = gcd(divisor, *rest.terms.values())
        step = step if step > 1 else self._coarser(rest, divisor)
        if step > 1:
            coarse, _ = rest.split(step)
            return result.plus(self.quotient(coarse.over(step), divisor // step))
        divided = _only(rest, "floordiv")
        if divided is not None:
            return result.plus(self.quotient(divided[0], divided[1] * divisor))
        return result.plus(self._pair("floordiv", rest, number(divisor), low, high))

    def remainder(self, form: Linear, divisor: int) -> Linear:
        """`form % divisor`, from 0 to divisor - 1.

        Args:
            form: a sum.
            divisor: positive.
        """
        if divisor == 1:
            return number(0)
        _, rest = form.split(divisor)
        low, high = rest.low, rest.high
        if low // divisor == high // divisor:
            return rest.plus(-(low // divisor) * divisor)
        step = gcd(divisor, *rest.terms.values())
        step = step if step > 1 else self._coarser(rest, divisor)
        if step > 1:
            coarse, fine = rest.split(step)
            return self.remainder(coarse.over(step), divisor // step).times(step).plus(fine)
        divided = _only(rest, "floormod")
        if divided is not None and divided[1] % divisor == 0:
            return self.remainder(divided[0], divisor)
        high = min(divisor - 1, high) if low >= 0 else divisor - 1
        return self._pair("floormod", rest, number(divisor), 0, high)

    @staticmethod
    def _coarser(rest: Linear, divisor: int) -> int:
        """A divisor of the divisor such that some terms are multiples of it and the others
        together never reach it; 1 where there is none."""
        for size in sorted({abs(c) for c in rest.terms.values()}, reverse=True):
            step = gcd(size, divisor)
            coarse, fine = rest.split(step)
            if step > 1 and coarse.terms and fine.low >= 0 and fine.high < step:
                return step
        return 1

    def _extreme(self, op: str, a: Linear, b: Linear) -> Linear:
        difference = a.plus(b, -1)
        if difference.high <= 0:
            return a if op == "min" else b
        if difference.low >= 0:
            return b if op == "min" else a
        least = _LEAST[op]
        return self._pair(op, a, b, least(a.low, b.low), least(a.high, b.high))

    # -- questions ---------------------------------------------------------------------------------

    def difference(self, a: Expr, b: Expr) -> int | None:
        """The difference of two index expressions, where it is one number.

        Args:
            a: an index expression.
            b: what is taken off it.

        Returns:
            `a - b`; None where it is not known to be the same everywhere.
        """
        form = self.linear(a).plus(self.linear(b), -1)
        return form.low if form.low == form.high else None

    # -- back to expressions -----------------------------------------------------------------------

    def expr(self, form: Linear) -> Expr:
        """The expression of a sum: larger steps first, subtraction where it reads well.

        Args:
            form: a sum without anything that only its maker can compute.

        Returns:
            An expression of type `index`, whose sum is `form` again.
        """
        result: Expr | None = None
        terms = sorted(form.terms.items(), key=lambda t: -t[1])
        for atom, c in terms:
            factor, term = abs(c), self._atom_expr(atom)
            if factor != 1:
                term = Binary("mul", term, index(factor), INDEX)
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

    def _atom_expr(self, atom: Atom) -> Expr:
        if atom.expr is None:
            a, b = atom.args
            atom.expr = Binary(atom.kind, self.expr(a), self.expr(b), INDEX)
        return atom.expr

    def simplify(self, expr: Expr) -> Expr:
        """The expression with its indices in their plainest form and decided conditions decided.

        Args:
            expr: of any type.
        """
        if expr.dtype == INDEX:
            return self.expr(self.linear(expr))
        return self.simplify_value(expr)

    def simplify_value(self, expr: Expr, inside: bool = False) -> Expr:
        """As :meth:`simplify` for any type; `inside` looks only at the operands.

        Args:
            expr: of any type.
            inside: whether to leave an index expression as such what it is.
        """
        parts = children(expr)
        if not parts:
            return expr
        if expr.dtype == INDEX and not inside:
            return self.simplify(expr)
        new = rebuilt(expr, tuple(self.simplify(p) for p in parts))
        match new:
            case Binary() if new.op in COMPARISONS and new.a.dtype == INDEX:
                known = holds(new.op, self.linear(new.a).plus(self.linear(new.b), -1))
                return new if known is None else TRUE if known else FALSE
            case Binary(op="logical_and") | Binary(op="logical_or"):
                return _logic(new)
            case Not(a=Const() as c):
                return FALSE if c.value else TRUE
            case Select(condition=Const() as c):
                return new.a if c.value else new.b
        return new


def _only(form: Linear, kind: str) -> tuple[Linear, int] | None:
    """What is divided and by which number, if a sum is one quotient (or remainder) alone."""
    if form.constant or list(form.terms.values()) != [1]:
        return None
    (atom,) = form.terms
    return atom.divided(kind)


def _logic(node: Binary) -> Expr:
    conjunction = node.op == "logical_and"
    for this, other in ((node.a, node.b), (node.b, node.a)):
        if isinstance(this, Const):
            if bool(this.value) is conjunction:
                return other
            return this
    return node


# -- spans: what is read while some variables stand still and others run ---------------------------


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
