"""Expressions to operations: conditions, and values of any type, both with lanes or without."""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, vector

from tilewright.schedule.codegen import narrow_functions, scalars, wide_functions
from tilewright.schedule.codegen.machine import Processor
from tilewright.schedule.codegen.memory import MemoryEmitter
from tilewright.schedule.codegen.quotients import rounded_quotient
from tilewright.schedule.codegen.sums import is_pure, is_vector
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
    cast,
)
from tilewright.schedule.linear import Linear, holds
from tilewright.schedule.nest import Load
from tilewright.schedule.types import BOOL, INDEX
from tilewright.schedule.walk import children, nodes

# One instruction each where the processor has them. IREE's passes write `math.roundeven` out, in a
# dozen operations on bits.
_ROUNDINGS = {
    "ceil": "llvm.ceil",
    "floor": "llvm.floor",
    "round": "llvm.roundeven",
    "trunc": "llvm.trunc",
}


class ValueEmitter(MemoryEmitter):
    """Emits expressions at the insertion point, where the loops' variables have the values of
    `bound`.

    processor: what code is made for.
    """

    def __init__(self, processor: Processor) -> None:
        super().__init__(processor)
        #: The parameters of a function that is written out, and what has been computed of them.
        self._known: dict[Expr, ir.Value] = {}
        #: Whether a value is being made, and how many were.
        self._within, self._number = False, 0

    # -- conditions --------------------------------------------------------------------------------

    def condition(self, expr: Expr) -> bool | ir.Value:
        """A bool.

        Args:
            expr: of type `bool`.

        Returns:
            True or False of Python where that is known.
        """
        if id(expr) in self.assumed:
            return True
        match expr:
            case Const():
                return bool(expr.value)
            case Not():
                inner = self.condition(expr.a)
                return not inner if isinstance(inner, bool) else self.negated(inner)
            case Binary() if expr.op in LOGICAL:
                return self.logical(expr.op, self.condition(expr.a), self.condition(expr.b))
            case Binary() if expr.op in COMPARISONS and expr.a.dtype == INDEX:
                return self.compared(expr.op, self.linear(expr.a).plus(self.linear(expr.b), -1))
        return self._computed(expr)

    def negated(self, value: ir.Value) -> ir.Value:
        """The negation of a bool.

        Args:
            value: an i1 or a vector of them.
        """
        return self.once(("not", value), lambda: scalars.operation("not", [value], BOOL, False))

    def logical(self, op: str, a: bool | ir.Value, b: bool | ir.Value) -> bool | ir.Value:
        """`logical_and` or `logical_or` of two bools.

        Args:
            op: the operator.
            a: one that is known, or a value.
            b: the other.
        """
        for first, second in ((a, b), (b, a)):
            if isinstance(first, bool):
                return first if first == (op == "logical_or") else second
        return a if a == b else self._operation(op, BOOL, a, b)

    def compared(self, op: str, difference: Linear) -> bool | ir.Value:
        """The comparison of a sum with 0.

        Args:
            op: `eq`, `ne`, `lt`, `le`, `gt` or `ge`.
            difference: the sum.

        Returns:
            True or False of Python where that is known.
        """
        known = holds(op, difference)
        if known is not None:
            return known
        if op in ("le", "gt"):
            op, difference = ("lt" if op == "le" else "ge"), difference.plus(-1)
        return self.once((op, difference, self.lanes), lambda: self._compared(op, difference))

    def _compared(self, op: str, difference: Linear) -> ir.Value:
        if self.lane not in difference.variables:
            return scalars.compare(op, self.sum(difference), self.number(0), INDEX)
        assert self.lane is not None
        step, base = difference.step(self.lane)
        if step is None:
            return scalars.compare(
                op, self.lanes_of(difference), self.spread(self.number(0)), INDEX
            )
        bound = self.sum(base.times(-1))
        if op == "lt" and step == 1:
            # Lanes below the bound are true, which is what the operation for masks says.
            type_ = ir.VectorType.get([self.lanes], scalars.element(BOOL))
            return vector.CreateMaskOp(type_, [bound]).result
        # The lanes' part is constant, so that only one sum is made for each vector.
        return scalars.compare(op, self._lane_numbers(step), self.spread(bound), INDEX)

    # -- values ------------------------------------------------------------------------------------

    def value(self, expr: Expr) -> ir.Value:
        """The value of an expression, a vector where it differs between lanes.

        Args:
            expr: of any type.
        """
        if expr.dtype != BOOL:
            return self._value_once(expr)
        known = self.condition(expr)
        return self.constant(known, BOOL) if isinstance(known, bool) else known

    def _value_once(self, expr: Expr) -> ir.Value:
        """The value of an expression, made once within the one that it is a part of: loops and
        masks do not change there, but for what a mask is made for."""
        if self._within and children(expr):
            key = ("value", self._number, self.mask, expr)
            return self.once(key, lambda: self._computed(expr))
        outer, self._within = self._within, True
        self._number += not outer
        try:
            return self._computed(expr)
        finally:
            self._within = outer

    def _computed(self, expr: Expr) -> ir.Value:
        if self._known and expr not in self._known:
            self._known[expr] = self._made_of(expr)
        return self._known[expr] if self._known else self._made_of(expr)

    def _made_of(self, expr: Expr) -> ir.Value:
        match expr:
            case Select():
                return self._select(expr)
            case Load():
                return self._load(expr)
            case Cast():
                source, inner = expr.value.dtype, self.value(expr.value)
                key = ("cast", source, expr.dtype, inner)
                return self.once(key, lambda: scalars.cast(inner, source, expr.dtype))
            case Call():
                quotient = rounded_quotient(expr) if self.processor.fuses else None
                if quotient is not None:
                    return self.value(quotient)
                args = self._alike(*(self.value(arg) for arg in expr.args))
                dtype = expr.args[0].dtype
                return self.once((expr.name, dtype, *args), lambda: self._call(expr, args))
            case _ if expr.dtype == INDEX:
                place = self.linear(expr)
                return self.lanes_of(place) if self.lane in place.variables else self.sum(place)
            case Const():
                return self.constant(expr.value, expr.dtype)
            case Binary():
                a, b = self.value(expr.a), self.value(expr.b)
                return self._operation(expr.op, expr.a.dtype, a, b, isinstance(expr.b, Const))
        raise TypeError(f"no value for {type(expr).__name__}")

    def _call(self, call: Call, args: Sequence[ir.Value]) -> ir.Value:
        dtype, name = call.args[0].dtype, call.name
        written = wide_functions.FUNCTIONS if dtype == "f64" else {}
        if dtype != "f64" and name in narrow_functions.NAMES and not self.processor.is_gpu:
            if dtype != "f32":
                wide = Call(name, tuple(cast("f32", arg) for arg in call.args), "f32")
                return self.value(cast(dtype, wide))
            if name not in narrow_functions.FUNCTIONS:
                return narrow_functions.exponential(args[0], base_2=name == "exp2")
            written = narrow_functions.FUNCTIONS
        if name in _ROUNDINGS and dtype in ("f32", "f64") and self.processor.rounds:
            return scalars.intrinsic(_ROUNDINGS[name], args)
        if name not in written:
            return scalars.call(name, list(args), dtype)
        parameters = [Var(name, dtype) for _ in args]
        outer = self._known
        self._known = {**outer, **dict(zip(parameters, args, strict=True))}
        result = self.value(written[name](*parameters))
        self._known = outer
        return result

    def _select(self, expr: Select) -> ir.Value:
        condition = self.condition(expr.condition)
        if isinstance(condition, bool):
            return self.value(expr.a if condition else expr.b)
        test = expr.condition
        if expr.guarded and is_vector(condition):
            if isinstance(test, Binary) and test.op == "logical_and":
                # One by one: what is the same in all lanes is a branch, the rest a mask.
                inner = Select(test.b, expr.a, expr.b, True)
                return self._select(Select(test.a, inner, expr.b, True))
            with self.masked(condition):
                a = self.value(expr.a)
            with self.masked(self.negated(condition)):
                b = self.value(expr.b)
        elif expr.guarded and (self._may_fail(expr.a) or self._may_fail(expr.b)):
            lanes = self.lanes if self._has_lanes(expr.a) or self._has_lanes(expr.b) else 0
            return self._chosen(
                condition,
                scalars.type_of(expr.dtype, lanes),
                lambda: self.value(expr.a),
                lambda: self.value(expr.b),
            )
        else:
            a, b = self.value(expr.a), self.value(expr.b)
        parts = self._alike(a, b, *([condition] if is_vector(condition) else []))[:2]
        return self.once(
            ("select", condition, *parts), lambda: arith.SelectOp(condition, *parts).result
        )

    def _has_lanes(self, expr: Expr) -> bool:
        """Whether an expression differs between lanes."""
        return self.lane is not None and any(
            (isinstance(node, Var) and self.lane in self._bound[node].variables)
            or (isinstance(node, Load) and self.storages[node.buffer].spread > 1)
            for node in nodes(expr)
        )

    def _may_fail(self, expr: Expr) -> bool:
        """Whether evaluating an expression reads what may not exist."""
        return any(
            isinstance(node, Load)
            and not (
                all(map(is_pure, node.indices)) and self.access(node.buffer, node.indices).exists
            )
            for node in nodes(expr)
        )
