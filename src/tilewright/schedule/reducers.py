"""Reductions: sum, prod, min, max, any, all, and those that the user declares."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import (
    TRUE,
    Combiner,
    Expr,
    Operand,
    Var,
    as_expr,
    binary,
    cast,
    const,
)
from tilewright.schedule.functions import max_value, min_value
from tilewright.schedule.tensor import REDUCE, IterVar, Reduce
from tilewright.schedule.types import BOOL, INDEX, is_float


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
