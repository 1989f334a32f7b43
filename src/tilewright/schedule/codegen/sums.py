"""Index arithmetic to operations: sums of loops' variables, their lanes, and where code stands.

Every operation is made once in a block and used again in the blocks within.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from iree.compiler import ir
from iree.compiler.dialects import arith, vector

from tilewright.schedule.arith import Arithmetic
from tilewright.schedule.codegen import scalars
from tilewright.schedule.codegen.machine import Processor
from tilewright.schedule.expr import Binary, Cast, Const, Expr, Select, Var
from tilewright.schedule.linear import Atom, Linear, number
from tilewright.schedule.nest import Load
from tilewright.schedule.types import BOOL, INDEX
from tilewright.schedule.walk import nodes


def is_vector(value: object) -> bool:
    """Whether a value has lanes.

    Args:
        value: what :meth:`ValueEmitter.value` or :meth:`ValueEmitter.condition` gave.
    """
    return isinstance(value, ir.Value) and isinstance(value.type, ir.VectorType)


def is_pure(expr: Expr) -> bool:
    """Whether an index expression is made of variables and arithmetic alone.

    Args:
        expr: of type `index`.
    """
    return not any(isinstance(node, Load | Cast | Select) for node in nodes(expr))


class SumEmitter(ABC):
    """Emits sums at the insertion point, where the loops' variables have the values of `bound`.

    Within `vector` there is a `lane`, and what depends on it has lanes; within `masked` what is
    read and written is only that of the lanes for which the condition holds.

    processor: what code is made for.
    """

    def __init__(self, processor: Processor) -> None:
        self.processor = processor
        self.sums = Arithmetic()
        self.lane: Var | None = None
        self.lanes = 0
        self.mask: ir.Value | None = None
        #: Identities of the comparisons that are known to hold.
        self.assumed: frozenset[int] = frozenset()
        #: Sums that are known to be not negative.
        self._nonnegative: tuple[Linear, ...] = ()
        #: The values of the variables that `loop_var` makes.
        self.loops: dict[Var, ir.Value] = {}
        self._index = ir.IndexType.get()
        self._bound: dict[Var, Linear] = {}
        self._stand_ins: dict[tuple[Var, int], Var] = {}
        #: What has been made in this block and those around it, and the keys of each block's own.
        self._made: dict[Any, ir.Value] = {}
        self._own: list[list[Any]] = [[]]
        # Unrolled loops ask for the same sums over and over: by expression and the values of the
        # variables in it. None for what is more than arithmetic.
        self._free: dict[Expr, tuple[Var, ...] | None] = {}
        self._sums: dict[tuple[object, ...], Linear] = {}

    @abstractmethod
    def value(self, expr: Expr) -> ir.Value:
        """The value of an expression, a vector where it differs between lanes.

        Args:
            expr: of any type.
        """

    @abstractmethod
    def condition(self, expr: Expr) -> bool | ir.Value:
        """A bool.

        Args:
            expr: of type `bool`.

        Returns:
            True or False of Python where that is known.
        """

    # -- where code stands -------------------------------------------------------------------------

    def loop_var(self, name: str, extent: int) -> Var:
        """A new variable of a loop from 0 to `extent` - 1.

        Args:
            name: for messages.
            extent: iterations.
        """
        var = Var(name)
        self.sums.bind(var, 0, extent - 1)
        return var

    def stand_in(self, var: Var, extent: int) -> Var:
        """A variable in the place of a loop's while conditions are looked at: no code has it, so
        that it is always the same one, and what was found out in its terms is known.

        Args:
            var: the loop's.
            extent: iterations that count.
        """
        found = self._stand_ins.get((var, extent))
        if found is None:
            found = self._stand_ins[var, extent] = self.loop_var(var.name, extent)
        return found

    @contextmanager
    def bound(self, values: Mapping[Var, Linear], known: Iterable[Expr] = ()) -> Iterator[None]:
        """Where variables have these values, instead of those that they may have had.

        Args:
            values: by variable of the nest.
            known: comparisons, as objects of the nest, that hold there.
        """
        outer, assumed = self._bound, self.assumed
        self._bound = {**outer, **values}
        self.assumed = assumed | {id(part) for part in known}
        yield
        self._bound, self.assumed = outer, assumed

    @contextmanager
    def known(self, values: Mapping[Atom, Linear]) -> Iterator[None]:
        """Where parts of sums are known to be equal to others.

        Args:
            values: by atom of the emitter's sums.
        """
        with self.bound({var: place.where(values) for var, place in self._bound.items()}):
            yield

    @contextmanager
    def nonnegative(self, sums: Iterable[Linear]) -> Iterator[None]:
        """Where sums are known to be not negative.

        Args:
            sums: in terms of the emitted loops' variables.
        """
        outer = self._nonnegative
        self._nonnegative = (*outer, *(one.over(one.divisor or 1) for one in sums))
        yield
        self._nonnegative = outer

    def least(self, place: Linear) -> int:
        """What a sum is at least, by its atoms' bounds and what is known to be not negative.

        Args:
            place: a sum.
        """
        divisor = place.divisor or 1
        terms = place.over(divisor).terms
        known = [one.constant for one in self._nonnegative if one.terms == terms]
        return max([place.low, *(place.constant - divisor * one for one in known)])

    @contextmanager
    def vector(self, lane: Var, lanes: int) -> Iterator[None]:
        """Where each operation is one for all lanes.

        Args:
            lane: the variable of the lanes' numbers.
            lanes: how many there are.
        """
        self.lane, self.lanes = lane, lanes
        yield
        self.lane, self.lanes, self.mask = None, 0, None

    @contextmanager
    def masked(self, condition: ir.Value) -> Iterator[None]:
        """Where only the lanes count for which a condition holds.

        Args:
            condition: a vector of bools.
        """
        outer = self.mask
        both = condition
        if outer is not None:
            both = self._operation("logical_and", BOOL, outer, condition)
        self.mask = both
        yield
        self.mask = outer

    @contextmanager
    def block(self, block: ir.Block) -> Iterator[None]:
        """Operations go to the end of a block; what is made there is not there afterwards.

        Args:
            block: of a loop or a branch, without a terminator yet.
        """
        self._own.append([])
        with ir.InsertionPoint(block):
            yield
        for key in self._own.pop():
            self._made.pop(key, None)

    def once(self, key: Any, make: Callable[[], ir.Value]) -> ir.Value:
        """The value made for an equal key in this block or one around it, else a new one.

        Args:
            key: tells what is made; values of MLIR may be in it.
            make: emits it.
        """
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = make()
            self._own[-1].append(key)
        return found

    # -- indices -----------------------------------------------------------------------------------

    def number(self, value: int) -> ir.Value:
        """A constant of type `index`.

        Args:
            value: any integer.
        """
        return self.once(value, lambda: arith.ConstantOp(self._index, value).result)

    def linear(self, expr: Expr) -> Linear:
        """An expression of type `index` as a sum.

        Args:
            expr: in terms of the nest's variables.

        Returns:
            The sum in terms of the emitted loops' variables.
        """
        match expr:
            case Const():
                return number(int(expr.value))
            case Var():
                return self._bound[expr]
            case Binary():
                free = self._variables(expr)
                if free is None:
                    return self.sums.combined(expr.op, self.linear(expr.a), self.linear(expr.b))
                key = (expr, *(self._bound[var] for var in free))
                known = self._sums.get(key)
                if known is None:
                    known = self.sums.combined(expr.op, self.linear(expr.a), self.linear(expr.b))
                    self._sums[key] = known
                return known
            case Select():
                chosen = self.condition(expr.condition)
                if isinstance(chosen, bool):
                    return self.linear(expr.a if chosen else expr.b)
        value = self.value(expr)
        moving = [self.lane] if self.lane is not None and is_vector(value) else []
        return self.sums.opaque(value, value, moving)

    def _variables(self, expr: Expr) -> tuple[Var, ...] | None:
        """The variables of an index expression of nothing but arithmetic; None for others."""
        if expr not in self._free:
            parts = nodes(expr)
            plain = all(isinstance(part, Const | Var | Binary) for part in parts)
            found = tuple(part for part in parts if isinstance(part, Var))
            self._free[expr] = found if plain else None
        return self._free[expr]

    def sum(self, place: Linear) -> ir.Value:
        """A sum that is the same in all lanes, an `index`.

        Args:
            place: a sum that has nothing to do with the lane.
        """
        terms = sorted(place.terms.items(), key=lambda term: term[0].number)
        return self.once(place, lambda: self._sum(terms, place.constant))

    def _sum(self, terms: list[tuple[Atom, int]], constant: int) -> ir.Value:
        """Parts of the sum are made once as well: outer loops' come first."""
        if not terms:
            return self.number(constant)
        if constant:
            rest = self.sum(Linear(dict(terms), 0))
            return arith.AddIOp(rest, self.number(constant)).result
        *others, (atom, factor) = terms
        if others:
            last = self.sum(Linear({atom: factor}, 0))
            return arith.AddIOp(self.sum(Linear(dict(others), 0)), last).result
        value = self._atom(atom, self.sum)
        return value if factor == 1 else arith.MulIOp(value, self.number(factor)).result

    def _atom(self, atom: Atom, part: Callable[[Linear], ir.Value]) -> ir.Value:
        if atom.kind == "var":
            return self._lane_numbers(1) if atom.args[0] is self.lane else self.loops[atom.args[0]]
        if atom.kind == "opaque":
            value: ir.Value = atom.args[0]
            return value
        a, b = atom.args
        args = [part(a), part(b)]
        rounded = atom.kind in scalars.UNSIGNED
        if rounded and a.low >= 0 and not b.terms and b.constant > 0:
            return scalars.UNSIGNED[atom.kind](*args).result
        return scalars.operation(atom.kind, args, INDEX, not b.terms)

    def lanes_of(self, place: Linear) -> ir.Value:
        """A sum as a vector of indices.

        Args:
            place: any sum.
        """
        return self.once(("lanes", place, self.lanes), lambda: self._lane_sum(place))

    def _lane_sum(self, place: Linear) -> ir.Value:
        mine, even = place.part(lambda atom, _: self.lane in atom.variables)
        total = self.spread(self.sum(even.plus(place.constant)))
        for atom, factor in mine.terms.items():
            term = self._atom(atom, self.lanes_of)
            if factor != 1:
                term = arith.MulIOp(term, self.spread(self.number(factor))).result
            total = arith.AddIOp(total, term).result
        return total

    def _lane_numbers(self, step: int) -> ir.Value:
        type_ = ir.VectorType.get([self.lanes], self._index)
        steps = [ir.IntegerAttr.get(self._index, step * lane) for lane in range(self.lanes)]
        return self.once(
            ("steps", step, self.lanes),
            lambda: arith.ConstantOp(type_, ir.DenseElementsAttr.get(steps, type_)).result,
        )

    def spread(self, value: ir.Value) -> ir.Value:
        """A value with lanes: a scalar is the same in all of them.

        Args:
            value: a scalar or a vector.

        Returns:
            A vector of as many elements as there are lanes.
        """
        if is_vector(value):
            return value
        type_ = ir.VectorType.get([self.lanes], value.type)
        return self.once(
            ("splat", value, self.lanes), lambda: vector.BroadcastOp(type_, value).result
        )

    # -- operations --------------------------------------------------------------------------------

    def constant(self, value: float | int | bool, dtype: str) -> ir.Value:
        """A scalar constant.

        Args:
            value: the number.
            dtype: a short type name.
        """
        # Equal floats may differ in their sign, and NaN equals nothing.
        key = value.hex() if isinstance(value, float) else value
        return self.once((dtype, key), lambda: scalars.constant(dtype, value))

    def _operation(
        self, op: str, dtype: str, a: ir.Value, b: ir.Value, constant_divisor: bool = False
    ) -> ir.Value:
        args = self._alike(a, b)
        return self.once(
            (op, dtype, *args), lambda: scalars.operation(op, args, dtype, constant_divisor)
        )

    def _alike(self, *values: ir.Value) -> list[ir.Value]:
        """The values all with lanes, or all without."""
        return [self.spread(v) for v in values] if any(map(is_vector, values)) else list(values)
