"""The functions of expressions: casts, choices, logic, mathematics; and reductions over axes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import reduce as fold
from typing import Any

from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import (
    TRUE,
    Binary,
    Call,
    Combiner,
    Const,
    Expr,
    Not,
    Operand,
    Select,
    Var,
    _matched,
    as_expr,
    binary,
    cast,
    const,
)
from tilewright.schedule.tensor import REDUCE, IterVar, Reduce
from tilewright.schedule.types import BOOL, INDEX, bits, canonical, is_float, is_integer, promoted


def _float_call(name: str, *operands: Operand) -> Expr:
    args = [as_expr(o) for o in operands]
    dtype = fold(promoted, (a.dtype for a in args))
    if not is_float(dtype):
        raise ScheduleError(
            f"te.{name} needs a float, got {dtype} '{args[0]}': cast it first, .astype('f32')"
        )
    return Call(name, tuple(cast(dtype, a) for a in args), dtype)


def _unary(name: str, about: str) -> Any:
    def function(x: Operand) -> Expr:
        return _float_call(name, x)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = about
    return function


exp = _unary("exp", "e to the power of a float.")
exp2 = _unary("exp2", "2 to the power of a float.")
expm1 = _unary("expm1", "exp(x) - 1, accurate near 0.")
log = _unary("log", "Natural logarithm.")
log2 = _unary("log2", "Logarithm to base 2.")
log10 = _unary("log10", "Logarithm to base 10.")
log1p = _unary("log1p", "log(1 + x), accurate near 0.")
sqrt = _unary("sqrt", "Square root.")
rsqrt = _unary("rsqrt", "1 / sqrt(x).")
tanh = _unary("tanh", "Hyperbolic tangent.")
tan = _unary("tan", "Tangent.")
sin = _unary("sin", "Sine.")
cos = _unary("cos", "Cosine.")
sinh = _unary("sinh", "Hyperbolic sine.")
cosh = _unary("cosh", "Hyperbolic cosine.")
asin = _unary("asin", "Arc sine.")
acos = _unary("acos", "Arc cosine.")
atan = _unary("atan", "Arc tangent.")
erf = _unary("erf", "The error function.")
floor = _unary("floor", "The next integer below, as a float.")
ceil = _unary("ceil", "The next integer above, as a float.")
round = _unary("round", "The nearest integer as a float, ties to the even one.")
trunc = _unary("trunc", "The next integer towards 0, as a float.")


def sigmoid(x: Operand) -> Expr:
    """1 / (1 + exp(-x)).

    Args:
        x: a float.
    """
    value = as_expr(x)
    one = const(1, value.dtype)
    return one / (one + _float_call("exp", -value))


def power(x: Operand, y: Operand) -> Expr:
    """x to the power of y, floats.

    Args:
        x: the base.
        y: the exponent.
    """
    return _float_call("pow", x, y)


def atan2(y: Operand, x: Operand) -> Expr:
    """The angle of the point (x, y)."""
    return _float_call("atan2", y, x)


def fma(a: Operand, b: Operand, c: Operand) -> Expr:
    """a * b + c, rounded once."""
    return _float_call("fma", a, b, c)


def abs(x: Operand) -> Expr:
    """The absolute value of a number."""
    value = as_expr(x)
    return Call("abs", (value,), value.dtype)


def isnan(x: Operand) -> Expr:
    """Whether a float is NaN."""
    call = _float_call("isnan", x)
    assert isinstance(call, Call)
    return Call("isnan", call.args, BOOL)


def maximum(a: Operand, b: Operand) -> Expr:
    """The larger of two values; NaN when either is."""
    return binary("max", a, b)


def minimum(a: Operand, b: Operand) -> Expr:
    """The smaller of two values; NaN when either is."""
    return binary("min", a, b)


def truncdiv(a: Operand, b: Operand) -> Expr:
    """Integer division rounded towards 0, as C's."""
    return binary("truncdiv", a, b)


def truncmod(a: Operand, b: Operand) -> Expr:
    """Remainder of :func:`truncdiv`."""
    return binary("truncmod", a, b)


def floordiv(a: Operand, b: Operand) -> Expr:
    """Integer division rounded towards minus infinity, as Python's `//`."""
    return binary("floordiv", a, b)


def floormod(a: Operand, b: Operand) -> Expr:
    """Remainder of :func:`floordiv`, as Python's `%`."""
    return binary("floormod", a, b)


def _condition(value: Operand, where: str) -> Expr:
    condition = as_expr(value)
    if condition.dtype != BOOL:
        raise ScheduleError(f"{where} needs a condition (bool), got {condition.dtype} '{value}'")
    return condition


def all(*conditions: Operand) -> Expr:
    """Whether every condition holds.

    Args:
        conditions: one at least.

    Raises:
        ScheduleError: there is none, or one is no bool.
    """
    return _joined("logical_and", "te.all", conditions)


def any(*conditions: Operand) -> Expr:
    """Whether one of the conditions holds.

    Args:
        conditions: one at least.

    Raises:
        ScheduleError: there is none, or one is no bool.
    """
    return _joined("logical_or", "te.any", conditions)


def _joined(op: str, where: str, conditions: tuple[Operand, ...]) -> Expr:
    if not conditions:
        raise ScheduleError(f"{where} needs one condition at least")
    parts = [_condition(c, where) for c in conditions]
    return fold(lambda a, b: Binary(op, a, b, BOOL), parts)


def conjunction(conditions: list[Expr]) -> Expr:
    """All conditions as one; true for none.

    Args:
        conditions: any number; those that always hold are left out.
    """
    parts = [c for c in conditions if not (isinstance(c, Const) and c.value is True)]
    return all(*parts) if parts else TRUE


def logical_not(condition: Operand) -> Expr:
    """Whether the condition does not hold."""
    return Not(_condition(condition, "te.logical_not"))


def if_then_else(condition: Operand, a: Operand, b: Operand) -> Expr:
    """`a` where the condition holds, else `b`; only the one that is taken is evaluated, so the
    other may read outside of a tensor.

    Args:
        condition: a bool.
        a, b: the values, brought to one type.

    Raises:
        ScheduleError: the condition is none.
    """
    x, y = _matched("select", a, b)
    return Select(_condition(condition, "te.if_then_else"), x, y, guarded=True)


def select(condition: Operand, a: Operand, b: Operand) -> Expr:
    """`a` where the condition holds, else `b`; both may be evaluated.

    Args:
        condition: a bool.
        a, b: the values, brought to one type.

    Raises:
        ScheduleError: the condition is none.
    """
    x, y = _matched("select", a, b)
    return Select(_condition(condition, "te.select"), x, y, guarded=False)


def conjuncts(condition: Expr) -> list[Expr]:
    """The conditions that hold together where one does.

    Args:
        condition: a bool.

    Returns:
        The parts of a conjunction; any other condition alone.
    """
    if isinstance(condition, Binary) and condition.op == "logical_and":
        return [*conjuncts(condition.a), *conjuncts(condition.b)]
    return [condition]


def var(name: str = "v", dtype: Any = "index") -> Var:
    """A variable, for custom reducers and intrinsics.

    Args:
        name: shown in messages.
        dtype: its type.
    """
    return Var(name, canonical(dtype))


_LARGEST = {
    "f64": 1.7976931348623157e308,
    "f32": 3.4028234663852886e38,
    "f16": 65504.0,
    "bf16": 3.3895313892515355e38,
}


def min_value(dtype: Any) -> Const:
    """The smallest value of a type that is finite."""
    name = canonical(dtype)
    if is_float(name):
        return const(-_LARGEST[name], name)
    return const(-(2 ** (bits(name) - 1)) if is_integer(name) else False, name)


def max_value(dtype: Any) -> Const:
    """The largest value of a type that is finite."""
    name = canonical(dtype)
    if is_float(name):
        return const(_LARGEST[name], name)
    return const(2 ** (bits(name) - 1) - 1 if is_integer(name) else True, name)


def infinity(dtype: Any) -> Const:
    """Plus infinity."""
    return const(float("inf"), dtype)


# -- reductions ------------------------------------------------------------------------------------


def comm_reducer(
    fcombine: Callable[..., Any],
    fidentity: Callable[..., Any],
    name: str = "reduce",
) -> Callable[..., Any]:
    """A reduction of one's own.

    The result is called as `te.sum` is: `argmax((index, value), axis=k)` gives a list of the
    outputs, to be returned by the function of a `compute`.

    Args:
        fcombine: gives the combination of two values, or of two tuples of values as a tuple. It has
            to be commutative and associative.
        fidentity: gives the value that changes nothing, for the type (or types) of the values.
        name: shown in nests.
        argmax = te.comm_reducer( lambda x, y: (te.select(x[1] >= y[1], x[0], y[0]),
            te.maximum(x[1], y[1])), lambda t0, t1: (te.const(-1, t0), te.min_value(t1)),
            name="argmax")

    Returns:
        A function of (expression, axis, where=None, init=None): `where` is a condition, `init` what
        the reduction starts from.

    Raises:
        ScheduleError: (when called) an axis is not made by `te.reduce_axis`, or the numbers of
            values do not agree.
    """

    def reducer(
        expr: Any, axis: Any, where: Operand | None = None, init: Any = None
    ) -> Expr | list[Expr]:
        several = isinstance(expr, tuple | list)
        sources = tuple(_value(e) for e in (expr if several else (expr,)))
        combiner = _combiner(name, fcombine, fidentity, tuple(s.dtype for s in sources), several)
        axes = _axes(axis, name)
        condition = TRUE if where is None else as_expr(where)
        if condition.dtype != BOOL:
            raise ScheduleError(f"te.{name}: where needs a condition, got {condition.dtype}")
        start: tuple[Expr, ...] | None = None
        if init is not None:
            given = init if isinstance(init, tuple | list) else (init,)
            if len(given) != len(sources):
                raise ScheduleError(
                    f"te.{name}: {len(given)} values in init for {len(sources)} reduced values"
                )
            start = tuple(cast(s.dtype, v) for v, s in zip(given, sources, strict=True))
        made = [Reduce(combiner, sources, axes, condition, i, start) for i in range(len(sources))]
        return list(made) if several else made[0]

    reducer.__name__ = name
    reducer.__doc__ = fcombine.__doc__
    return reducer


def _value(value: Operand) -> Expr:
    expr = as_expr(value)
    return cast("i32", expr) if expr.dtype == INDEX else expr


def _axes(axis: Any, name: str) -> tuple[IterVar, ...]:
    axes = tuple(axis) if isinstance(axis, Sequence) else (axis,)
    if not axes:
        raise ScheduleError(f"te.{name}: no axis to reduce over")
    for a in axes:
        if not isinstance(a, IterVar) or a.kind != REDUCE:
            shown = a.name if isinstance(a, Var) else a
            raise ScheduleError(f"te.{name}: '{shown}' is not made by te.reduce_axis")
    if len(set(axes)) < len(axes):
        raise ScheduleError(f"te.{name}: an axis is given twice")
    return axes


def _combiner(
    name: str,
    fcombine: Callable[..., Any],
    fidentity: Callable[..., Any],
    dtypes: tuple[str, ...],
    several: bool,
) -> Combiner:
    many = len(dtypes) > 1
    lhs = tuple(Var(f"x{i}" if many else "x", t) for i, t in enumerate(dtypes))
    rhs = tuple(Var(f"y{i}" if many else "y", t) for i, t in enumerate(dtypes))
    made = fcombine(lhs, rhs) if several else fcombine(lhs[0], rhs[0])
    result = made if isinstance(made, tuple | list) else (made,)
    given = fidentity(*dtypes[: len(inspect.signature(fidentity).parameters)])
    identity = given if isinstance(given, tuple | list) else (given,)
    if len(result) != len(dtypes) or len(identity) != len(dtypes):
        raise ScheduleError(
            f"reducer '{name}': {len(dtypes)} values are reduced, fcombine gives {len(result)} and "
            f"fidentity {len(identity)}"
        )
    return Combiner(
        name,
        lhs,
        rhs,
        tuple(cast(t, r) for t, r in zip(dtypes, result, strict=True)),
        tuple(cast(t, i) for t, i in zip(dtypes, identity, strict=True)),
    )


def _lowest(dtype: str) -> Expr:
    return const(float("-inf"), dtype) if is_float(dtype) else min_value(dtype)


def _highest(dtype: str) -> Expr:
    return const(float("inf"), dtype) if is_float(dtype) else max_value(dtype)


def _sum(x: Expr, y: Expr) -> Expr:
    """The sum over axes: `te.sum(A[i, k], axis=k, where=None)`."""
    return x + y


def _prod(x: Expr, y: Expr) -> Expr:
    """The product over axes."""
    return x * y


def _max(x: Expr, y: Expr) -> Expr:
    """The largest value over axes (minus infinity or the smallest integer for none)."""
    return binary("max", x, y)


def _min(x: Expr, y: Expr) -> Expr:
    """The smallest value over axes (infinity or the largest integer for none)."""
    return binary("min", x, y)


sum = comm_reducer(_sum, lambda t: const(0, t), "sum")
prod = comm_reducer(_prod, lambda t: const(1, t), "prod")
max = comm_reducer(_max, _lowest, "max")
min = comm_reducer(_min, _highest, "min")
