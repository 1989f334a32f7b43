"""Index arithmetic: expressions as sums of atoms (`linear`), quotients, remainders, simplification.

An :class:`Arithmetic` makes equal atoms one object, so that equal terms meet and cancel, and sums
of the same terms are equal whichever way they were written. Bound inference, barriers, tensorizing
and code generation all compute with these sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import gcd
from typing import Any, TypeAlias

from tilewright.schedule.expr import COMPARISONS, TRUE, Binary, Const, Expr, Not, Select, Var, index
from tilewright.schedule.linear import Atom, Linear, holds, number
from tilewright.schedule.nest import Load
from tilewright.schedule.tensor import TensorRead
from tilewright.schedule.types import BOOL, INDEX
from tilewright.schedule.walk import children, nodes, rebuilt

Bounds: TypeAlias = tuple[int, int]
FALSE = Const(False, BOOL)
#: Bounds of what is not known.
FAR = 1 << 62
_LEAST = {"min": min, "max": max}


class Arithmetic:
    """Makes sums and simplifies expressions under known bounds of variables (both ends belong to
    the range)."""

    def __init__(self, bounds: Mapping[Expr, Bounds] | None = None) -> None:
        self.bounds: dict[Expr, Bounds] = dict(bounds or {})
        self._atoms: dict[object, Atom] = {}
        self._linear: dict[Expr, Linear] = {}
        # Of remainders: the quotients that go with them.
        self._quotients: dict[Atom, Linear] = {}
        # While an expression is made plain: what was made of its parts.
        self._plain: dict[Expr, Expr] | None = None

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
            quotient = self._quotients.get(atom)
            if quotient is None:
                quotient = self._quotients[atom] = self.quotient(x, c)
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
        if self._plain is None:
            # What occurs several times is made plain once: an expression that is quantised again
            # and again has each part in four places.
            self._plain = {}
            try:
                return self._plainest(expr, inside)
            finally:
                self._plain = None
        if inside:
            return self._plainest(expr, inside)
        if expr not in self._plain:
            self._plain[expr] = self._plainest(expr, inside)
        return self._plain[expr]

    def _plainest(self, expr: Expr, inside: bool) -> Expr:
        """What `simplify_value` says, of parts that have been made plain where they were met."""
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
