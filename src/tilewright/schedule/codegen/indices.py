"""Expressions to values: index arithmetic as sums, lanes and masks of the vector being made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from tilewright.schedule.codegen.code import Access, Value, Values
from tilewright.schedule.codegen.linear import Linear, Space, constant
from tilewright.schedule.expr import (
    COMPARISONS,
    LOGICAL,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Not,
    Select,
    Var,
)
from tilewright.schedule.nest import Buffer, Load
from tilewright.schedule.types import BOOL, INDEX

_NEGATED = {"lt": "ge", "ge": "lt", "eq": "ne", "ne": "eq"}


class Indices(ABC):
    """Evaluates expressions where the loops' variables have the values of `bound`.

    Within `vector` there is a `lane` and values that depend on it have lanes; within `masked` what
    is read and written is only that of the lanes for which the condition holds.
    """

    def __init__(self) -> None:
        self.space = Space()
        self.values = Values()
        self.lane: Linear | None = None
        self.lanes = 0
        self.mask: Value | None = None
        #: Identities of the comparisons that are known to hold.
        self.assumed: frozenset[int] = frozenset()
        self._bound: dict[Var, Linear] = {}

    @contextmanager
    def bound(self, var: Var, value: Linear) -> Iterator[None]:
        """`var` has this value. A variable that has one already, of a loop around, gets it back."""
        outer = self._bound.get(var)
        self._bound[var] = value
        yield
        if outer is None:
            del self._bound[var]
        else:
            self._bound[var] = outer

    @contextmanager
    def all_bound(self, values: Mapping[Var, Linear]) -> Iterator[None]:
        """Several variables have these values."""
        outer = self._bound
        self._bound = {**outer, **values}
        yield
        self._bound = outer

    @contextmanager
    def assuming(self, parts: Iterable[Expr]) -> Iterator[None]:
        """These comparisons hold."""
        outer = self.assumed
        self.assumed = outer | {id(part) for part in parts}
        yield
        self.assumed = outer

    @contextmanager
    def vector(self, lane: Linear, lanes: int) -> Iterator[None]:
        self.lane, self.lanes = lane, lanes
        yield
        self.lane, self.lanes, self.mask = None, 0, None

    @contextmanager
    def masked(self, condition: Value) -> Iterator[None]:
        outer = self.mask
        self.mask = condition if outer is None else self.logical("logical_and", outer, condition)
        yield
        self.mask = outer

    @abstractmethod
    def access(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Access:
        """Where the elements of a buffer are."""

    # -- indices -----------------------------------------------------------------------------------

    def linear(self, expr: Expr) -> Linear:
        """An expression of type `index` as a sum."""
        match expr:
            case Const():
                return constant(int(expr.value))
            case Var():
                return self._bound[expr]
            case Binary():
                return self._arithmetic(expr)
            case Cast() | Select():
                return self._computed(expr)
        raise TypeError(f"'{expr}' is no index")

    def _arithmetic(self, expr: Binary) -> Linear:
        a, b = self.linear(expr.a), self.linear(expr.b)
        match expr.op:
            case "add":
                return a + b
            case "sub":
                return a - b
            case "mul":
                return self.space.product(a, b)
            case "min":
                return self.space.minimum(a, b)
            case "max":
                return self.space.maximum(a, b)
        if not b.terms and b.constant > 0:
            if expr.op == "floordiv" or (expr.op == "truncdiv" and a.low >= 0):
                return self.space.floordiv(a, b.constant)
            if expr.op == "floormod" or (expr.op == "truncmod" and a.low >= 0):
                return self.space.floormod(a, b.constant)
        value = self.values.make(expr.op, INDEX, (self._sum(a), self._sum(b)))
        return self.space.value(value, a.loops | b.loops, a.lane or b.lane)

    def _computed(self, expr: Cast | Select) -> Linear:
        if isinstance(expr, Cast):
            inner = self.value(expr.value)
            if inner.op == "const":
                return constant(int(inner.data))
            value = self.values.make("cast", INDEX, (inner,))
        else:
            value = self._select(expr)
            if value.op == "index":
                return value.data  # type: ignore[no-any-return]
        return self.space.value(value, value.loops, bool(value.lanes))

    def _sum(self, value: Linear) -> Value:
        return self.values.make("index", INDEX, data=value, lanes=self.lanes if value.lane else 0)

    # -- values ------------------------------------------------------------------------------------

    def value(self, expr: Expr) -> Value:
        """The value of an expression; an index constant is of op `index`."""
        if isinstance(expr, Const):
            if expr.dtype == INDEX:
                return self._sum(constant(int(expr.value)))
            return self.values.constant(expr.value, expr.dtype)
        if id(expr) in self.assumed:
            return self.values.constant(True, BOOL)
        match expr:
            case Select():
                return self._select(expr)
            case Load():
                return self._load(expr)
            case _ if expr.dtype == INDEX:
                return self._sum(self.linear(expr))
            case Binary() if expr.op in COMPARISONS and expr.a.dtype == INDEX:
                return self.compared(expr.op, self.linear(expr.a) - self.linear(expr.b))
            case Binary() if expr.op in LOGICAL:
                return self.logical(expr.op, self.value(expr.a), self.value(expr.b))
            case Binary():
                return self.values.make(
                    expr.op, expr.dtype, (self.value(expr.a), self.value(expr.b))
                )
            case Not():
                return self.negated(self.value(expr.a))
            case Cast():
                return self.values.make("cast", expr.dtype, (self.value(expr.value),))
            case Call():
                args = tuple(self.value(a) for a in expr.args)
                return self.values.make("call", expr.dtype, args, expr.name)
        raise TypeError(f"no value for {type(expr).__name__}")

    def compared(self, op: str, difference: Linear) -> Value:
        """The comparison of a sum with 0."""
        if op in ("le", "gt"):
            op, difference = ("lt" if op == "le" else "ge"), difference.plus(-1)
        low, high = difference.low, difference.high
        known: bool | None = None
        if op in ("lt", "ge"):
            known = True if high < 0 else False if low >= 0 else None
        else:
            known = False if low > 0 or high < 0 else True if low == high else None
        if known is not None:
            return self.values.constant(known == (op in ("lt", "eq")), BOOL)
        lanes = self.lanes if difference.lane else 0
        return self.values.make("sign", BOOL, data=(op, difference), lanes=lanes)

    def negated(self, value: Value) -> Value:
        if value.op == "const":
            return self.values.constant(not value.data, BOOL)
        if value.op == "sign":
            op, difference = value.data
            return self.values.make(
                "sign", BOOL, data=(_NEGATED[op], difference), lanes=value.lanes
            )
        return self.values.make("not", BOOL, (value,))

    def logical(self, op: str, a: Value, b: Value) -> Value:
        for first, second in ((a, b), (b, a)):
            if first.op == "const":
                decides = bool(first.data) == (op == "logical_or")
                return first if decides else second
        return a if a is b else self.values.make(op, BOOL, (a, b))

    def _select(self, expr: Select) -> Value:
        condition = self.value(expr.condition)
        if condition.op == "const":
            return self.value(expr.a if condition.data else expr.b)
        test = expr.condition
        if (
            expr.guarded
            and condition.lanes
            and isinstance(test, Binary)
            and test.op == "logical_and"
        ):
            # One by one: what is the same in all lanes is a branch, the rest a mask.
            inner = Select(test.b, expr.a, expr.b, True)
            return self._select(Select(test.a, inner, expr.b, True))
        if expr.guarded and condition.lanes:
            with self.masked(condition):
                a = self.value(expr.a)
            with self.masked(self.negated(condition)):
                b = self.value(expr.b)
        else:
            a, b = self.value(expr.a), self.value(expr.b)
        lazy = expr.guarded and not condition.lanes and (may_fail(a) or may_fail(b))
        return self.values.make("guarded" if lazy else "select", expr.dtype, (condition, a, b))

    def _load(self, expr: Load) -> Value:
        access = self.access(expr.buffer, expr.indices)
        exists = access.place.low >= 0 and access.place.high < access.storage.size
        if exists and access.mask is not None:
            access = Access(access.storage, access.place, access.lanes, None)
        load = self.values.make("load", expr.dtype, data=access, lanes=access.lanes)
        if self.mask is None or access.lanes or exists:
            return load
        # The same element for all lanes, which is there if it is wanted for any.
        some = self.values.make("any", BOOL, (self.mask,))
        zero = self.values.constant(False if expr.dtype == BOOL else 0, expr.dtype)
        return self.values.make("guarded", expr.dtype, (some, load, zero))


def may_fail(value: Value) -> bool:
    """Whether evaluating a value reads what may not exist."""
    if value.op == "load":
        access: Access = value.data
        inside = access.place.low >= 0 and access.place.high < access.storage.size
        return not inside and access.mask is None
    return any(may_fail(a) for a in value.args)
