"""Conditions on knobs as data: written as Python expressions, evaluated by NumPy, and exportable.

A term is an integer or truth value that follows from knobs. Arithmetic on terms makes terms, so a
rule is the same expression whether it is given numbers, arrays of them or terms; what Python has no
operator for is a function here (`where`, `least`, `either`).
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from tilewright.gpu import SmtNode


@dataclass(frozen=True, eq=False)
class Term:
    """One value, as :class:`tilewright.gpu.SmtNode` describes it, with its operands themselves.

    `options`: of a variable that stands for a choice among names, these names: its value is the
    position of one. Comparisons make terms, also `==`: what a term is, `is` tells.
    """

    operation: str
    operands: tuple[Term, ...] = ()
    value: int = 0
    name: str = ""
    table: tuple[tuple[int, int], ...] = ()
    options: tuple[Any, ...] = ()

    # NumPy's numbers leave it to the term what arithmetic with them means.
    __array_ufunc__ = None

    def _with(self, operation: str, other: Any) -> Term:
        return Term(operation, (self, term(other)))

    def _behind(self, operation: str, other: Any) -> Term:
        return Term(operation, (term(other), self))

    def __add__(self, other: Any) -> Term:
        return self._with("add", other)

    def __radd__(self, other: Any) -> Term:
        return self._behind("add", other)

    def __sub__(self, other: Any) -> Term:
        return self._with("sub", other)

    def __rsub__(self, other: Any) -> Term:
        return self._behind("sub", other)

    def __mul__(self, other: Any) -> Term:
        return self._with("mul", other)

    def __rmul__(self, other: Any) -> Term:
        return self._behind("mul", other)

    def __floordiv__(self, other: Any) -> Term:
        return self._with("div", other)

    def __rfloordiv__(self, other: Any) -> Term:
        return self._behind("div", other)

    def __mod__(self, other: Any) -> Term:
        return self._with("mod", other)

    def __rmod__(self, other: Any) -> Term:
        return self._behind("mod", other)

    def __neg__(self) -> Term:
        return Term("neg", (self,))

    def __lt__(self, other: Any) -> Term:
        return self._with("lt", other)

    def __le__(self, other: Any) -> Term:
        return self._with("le", other)

    def __gt__(self, other: Any) -> Term:
        return self._with("gt", other)

    def __ge__(self, other: Any) -> Term:
        return self._with("ge", other)

    def __eq__(self, other: object) -> Term:  # type: ignore[override]
        return self._with("eq", _position(self, other))

    def __ne__(self, other: object) -> Term:  # type: ignore[override]
        return self._with("distinct", _position(self, other))

    __hash__ = object.__hash__

    def __and__(self, other: Any) -> Term:
        return self._with("and", other)

    def __rand__(self, other: Any) -> Term:
        return self._behind("and", other)

    def __or__(self, other: Any) -> Term:
        return self._with("or", other)

    def __ror__(self, other: Any) -> Term:
        return self._behind("or", other)

    def __invert__(self) -> Term:
        return Term("not", (self,))

    def __bool__(self) -> bool:
        raise TypeError("a term has no truth value of its own: use &, |, ~, `where` and `either`")


def _position(variable: Term, other: object) -> Any:
    """What a variable is compared with: of a choice among names, the position of one."""
    if not variable.options or isinstance(other, Term):
        return other
    if other not in variable.options:
        raise ValueError(f"'{variable.name}' has no option {other!r}")
    return variable.options.index(other)


def term(value: Any) -> Term:
    """A number or truth value as a term; a term itself.

    Args:
        value: what a term can be made of.
    """
    return value if isinstance(value, Term) else Term("constant", value=int(value))


def variable(name: str, options: Sequence[Any] = ()) -> Term:
    """The value of a knob.

    Args:
        name: of the knob.
        options: of a knob that chooses among names.
    """
    return Term("variable", name=name, options=tuple(options))


def look_up(key: Any, table: Sequence[int]) -> Any:
    """The number at a position of a table.

    Args:
        key: the position: a number, an array of them, or a term.
        table: the numbers.
    """
    if isinstance(key, Term):
        return Term("lookup", (key,), table=tuple(enumerate(map(int, table))))
    return np.asarray(table, dtype=np.int64)[key]


def where(condition: Any, then: Any, otherwise: Any) -> Any:
    """One value or the other, for numbers, arrays and terms.

    Args:
        condition: a truth value.
        then: where it is true.
        otherwise: where it is not.
    """
    if any(isinstance(one, Term) for one in (condition, then, otherwise)):
        return Term("ite", (term(condition), term(then), term(otherwise)))
    return np.where(condition, then, otherwise)


def least(first: Any, second: Any) -> Any:
    """The smaller of two numbers, arrays or terms.

    Args:
        first: one of them.
        second: the other.
    """
    return where(first <= second, first, second)


def greatest(first: Any, second: Any) -> Any:
    """The larger of two numbers, arrays or terms.

    Args:
        first: one of them.
        second: the other.
    """
    return where(first >= second, first, second)


def either(first: Any, second: Any) -> Any:
    """Whether one of two truth values is true, for Python's, arrays and terms.

    Args:
        first: one of them.
        second: the other.
    """
    if isinstance(first, Term) or isinstance(second, Term):
        return term(first) | second
    return np.logical_or(first, second)


def product(values: Iterable[Any]) -> Any:
    """The product of numbers, arrays or terms; 1 of none.

    Args:
        values: the factors.
    """
    return functools.reduce(lambda a, b: a * b, values, 1)


# -- as a list of nodes ----------------------------------------------------------------------------


def nodes_of(terms: Sequence[Term]) -> tuple[tuple[SmtNode, ...], tuple[int, ...]]:
    """Terms as nodes, each behind its operands, what they share once.

    Args:
        terms: of any kind.

    Returns:
        The nodes, and the position of each term among them.
    """
    nodes: list[SmtNode] = []
    by_node: dict[SmtNode, int] = {}
    known: dict[int, int] = {}

    def place(one: Term) -> int:
        if id(one) not in known:
            operands = tuple(place(operand) for operand in one.operands)
            node = SmtNode(one.operation, operands, one.value, one.name, one.table)
            if node not in by_node:
                by_node[node] = len(nodes)
                nodes.append(node)
            known[id(one)] = by_node[node]
        return known[id(one)]

    positions = tuple(place(one) for one in terms)
    return tuple(nodes), positions


def options_of(terms: Iterable[Term]) -> dict[str, tuple[Any, ...]]:
    """The options of the variables in terms, by name.

    Args:
        terms: of any kind.
    """
    found: dict[str, tuple[Any, ...]] = {}
    seen: set[int] = set()
    left = list(terms)
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if one.options:
            found[one.name] = one.options
        left.extend(one.operands)
    return found


def variables_of(terms: Iterable[Term]) -> frozenset[str]:
    """The names of the variables in terms.

    Args:
        terms: of any kind.
    """
    nodes, _ = nodes_of(list(terms))
    return frozenset(node.name for node in nodes if node.operation == "variable")


def evaluator(condition: Term, knobs: Sequence[str]) -> Callable[..., Any]:
    """The function that a term stands for.

    Args:
        condition: over these knobs.
        knobs: the order of the function's arguments: values, or arrays of one shape.

    Raises:
        ValueError: where the term has a knob that is not among them.
    """
    nodes, (result,) = nodes_of([condition])
    options = options_of([condition])
    position = {name: at for at, name in enumerate(knobs)}
    missing = {n.name for n in nodes if n.operation == "variable"} - set(knobs)
    if missing:
        raise ValueError(f"a condition on {', '.join(sorted(missing))}, which is not in its scope")

    blank: list[Any] = [node.value for node in nodes]
    inputs = [
        (at, position[node.name], options.get(node.name))
        for at, node in enumerate(nodes)
        if node.operation == "variable"
    ]
    steps = [
        (at, _function(nodes, node), node.operands)
        for at, node in enumerate(nodes)
        if node.operation not in ("constant", "variable")
    ]

    def compute(*values: Any) -> Any:
        found = blank.copy()
        for at, where_from, choices in inputs:
            value = values[where_from]
            found[at] = numbered(value, choices) if choices else value
        for at, function, operands in steps:
            found[at] = function(*[found[i] for i in operands])
        return found[result]

    return compute


def _function(nodes: Sequence[SmtNode], node: SmtNode) -> Callable[..., Any]:
    """What computes a node from its operands: Python's own operator where that means the same, for
    it takes a tenth of the time with single numbers."""
    if node.operation == "lookup":
        return functools.partial(looked_up, table=node.table)
    operands = [nodes[i] for i in node.operands]
    if node.operation in ("and", "or", "not") and not all(o.operation in _TRUTHS for o in operands):
        return OPERATIONS[node.operation]
    if node.operation in ("div", "mod"):
        by = operands[1]
        if by.operation != "constant" or by.value <= 0:
            return OPERATIONS[node.operation]
    if len(operands) == 2 and node.operation in _OPERATORS:
        return _OPERATORS[node.operation]
    return _negated if node.operation == "not" else OPERATIONS[node.operation]


def _negated(truth: Any) -> Any:
    return truth ^ True


def numbered(value: Any, options: Sequence[Any]) -> Any:
    """The positions of values among options, of one value or an array of them.

    Args:
        value: what is among the options.
        options: of different names.
    """
    if np.ndim(value) == 0:
        return list(options).index(value if not isinstance(value, np.generic) else value.item())
    labels, inverse = np.unique(np.asarray(value).astype(str), return_inverse=True)
    names = [str(one) for one in options]
    found = np.array([names.index(str(one)) for one in labels], dtype=np.int64)
    return found[inverse].reshape(np.shape(value))


# -- what operations mean --------------------------------------------------------------------------


def divided(dividend: Any, divisor: Any) -> Any:
    """Division as SMT-LIB defines it (the remainder is not negative); 0 by zero.

    Args:
        dividend: a number, or an array of them.
        divisor: likewise.
    """
    if isinstance(divisor, int):
        return dividend // divisor if divisor > 0 else -(dividend // -divisor) if divisor else 0
    by = np.asarray(divisor)
    magnitude = np.where(by == 0, 1, np.abs(by))
    quotient = np.sign(by) * np.floor_divide(dividend, magnitude)
    return np.where(by == 0, 0, quotient)


def looked_up(key: Any, table: Sequence[tuple[int, int]]) -> Any:
    """The value of a key; one that the table does not have is ruled out by another assertion.

    Args:
        key: a number, or an array of them.
        table: pairs of key and value.
    """
    if isinstance(key, int):
        return dict(table).get(key, table[-1][1])
    out: Any = np.int64(table[-1][1])
    for one, value in table[:-1]:
        out = np.where(key == one, value, out)
    return out


def _all(truths: Sequence[Any]) -> Any:
    out: Any = np.bool_(True)
    for truth in truths:
        out = out & truth
    return out


def _true(value: Any) -> Any:
    return np.asarray(value) != 0


def _chosen(condition: Any, then: Any, otherwise: Any) -> Any:
    if isinstance(condition, bool):
        return then if condition else otherwise
    return np.where(_true(condition), then, otherwise)


# Operations with a truth value, and those of two operands that Python has an operator for; those of
# truth values are for operands that have one, those of division for a divisor above 0.
_TRUTHS = ("lt", "le", "gt", "ge", "eq", "distinct", "and", "or", "not", "xor", "implies")
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.floordiv,
    "mod": operator.mod,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "distinct": operator.ne,
    "and": operator.and_,
    "or": operator.or_,
}

LEAVES = ("constant", "dim", "variable", "lookup")
"""The operations that need more than their operands' values."""

OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": lambda first, *rest: sum(rest, start=first),
    "sub": lambda first, *rest: first - sum(rest),
    "mul": lambda first, *rest: math.prod(rest, start=first),
    "div": divided,
    "mod": lambda a, b: a - b * divided(a, b),
    "neg": lambda a: -a,
    "abs": np.abs,
    "ite": _chosen,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda first, *rest: _all([first == other for other in rest]),
    "distinct": lambda *values: _all([a != b for a, b in combinations(values, 2)]),
    "and": lambda *truths: _all([_true(t) for t in truths]),
    "or": lambda *truths: ~_all([~_true(t) for t in truths]),
    "not": lambda truth: ~_true(truth),
    "xor": lambda a, b: _true(a) ^ _true(b),
    "implies": lambda a, b: ~_true(a) | _true(b),
}
"""What each of the others does with its operands: numbers, or arrays of one shape."""
