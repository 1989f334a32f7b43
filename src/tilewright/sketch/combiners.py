"""How a reduction combines: read from the expression of its accumulators' next values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce as fold
from typing import Any

from tilewright.schedule import functions as te
from tilewright.schedule.expr import (
    Binary,
    Const,
    Expr,
    Select,
    Var,
    binary,
    const,
    same,
    variables,
)
from tilewright.schedule.types import BOOL, is_float
from tilewright.sketch.scalar_bodies import negated, same_number, terms

Reducer = Callable[..., Any]
Combine = Callable[[Sequence[Expr], Sequence[Expr]], Sequence[Expr]]


@dataclass(frozen=True)
class Combination:
    """Accumulators that are combined, each with a term that depends on none of them.

    reducer: makes the reduction of the terms (see `te.comm_reducer`). combine: the accumulators'
        next values for former ones and terms. identity: what changes nothing.
    """

    reducer: Reducer
    combine: Combine
    sources: tuple[Expr, ...]
    identity: tuple[Const, ...]

    def starts_from(self, values: Sequence[Const | None]) -> bool:
        """Whether these initial values change nothing.

        Args:
            values: one for each accumulator; None for one that is not constant.
        """
        return all(
            value is not None and same_number(value, identity)
            for value, identity in zip(values, self.identity, strict=True)
        )


def _lowest(dtype: str) -> Const:
    return const(float("-inf"), dtype) if is_float(dtype) else te.min_value(dtype)


def _highest(dtype: str) -> Const:
    return const(float("inf"), dtype) if is_float(dtype) else te.max_value(dtype)


_IDENTITIES: dict[str, Callable[[str], Const]] = {
    "add": lambda t: const(0, t),
    "mul": lambda t: const(1, t),
    "max": _lowest,
    "min": _highest,
    "and": lambda t: const(-1, t),
    "or": lambda t: const(0, t),
    "xor": lambda t: const(0, t),
    "logical_and": lambda t: const(True, t),
    "logical_or": lambda t: const(False, t),
    "ne": lambda t: const(False, t),
}
_REDUCERS = {"add": te.sum, "mul": te.prod, "max": te.max, "min": te.min}


def _larger_number(x: Expr, y: Expr) -> Expr:
    """The larger of two floats, where only the second may be NaN: that is left out."""
    return te.select(binary("gt", y, x), y, x)


def _smaller_number(x: Expr, y: Expr) -> Expr:
    """The smaller of two floats, where only the second may be NaN: that is left out."""
    return te.select(binary("lt", y, x), y, x)


# One comparison and one choice, which processors have an instruction for; NaN never gets into an
# accumulator.
largest_number = te.comm_reducer(_larger_number, _lowest, "max")
smallest_number = te.comm_reducer(_smaller_number, _highest, "min")


def _one(reducer: Reducer, function: Callable[[Expr, Expr], Expr], x: Expr, zero: Const) -> Any:
    return Combination(reducer, lambda a, b: [function(a[0], b[0])], (x,), (zero,))


def recognised(
    accumulators: Sequence[Var], results: Sequence[Expr], counts: Callable[[Expr], bool]
) -> Combination | None:
    """How accumulators are combined.

    Args:
        accumulators: stand for the values before a step.
        results: their values after it.
        counts: whether an expression grows from step to step.

    Returns:
        None where no combiner is known for it.
    """
    if len(accumulators) == 1:
        return _single(accumulators[0], results[0])
    if len(accumulators) == 2:
        for position in (0, 1):
            found = _extreme_with_place(accumulators, results, position)
            if found is not None and not counts(found.sources[1 - position]):
                return None
            if found is not None:
                return found
    parts = [_single(a, r) for a, r in zip(accumulators, results, strict=True)]
    if any(part is None for part in parts) or any(
        variables(source) & set(accumulators) for part in parts if part for source in part.sources
    ):
        return None
    return _together([part for part in parts if part is not None])


def _single(accumulator: Var, result: Expr) -> Combination | None:
    return _sum(accumulator, result) or _folded(accumulator, result) or _chosen(accumulator, result)


def _sum(accumulator: Var, result: Expr) -> Combination | None:
    """A sum, of which some terms may be taken off."""
    signed: list[tuple[Expr, bool]] = []

    def collect(value: Expr, taken_off: bool) -> None:
        if isinstance(value, Binary) and value.op in ("add", "sub") and value.dtype != BOOL:
            collect(value.a, taken_off)
            collect(value.b, taken_off != (value.op == "sub"))
        else:
            signed.append((value, taken_off))

    collect(result, False)
    rest = [(value, off) for value, off in signed if value is not accumulator]
    if len(rest) != len(signed) - 1 or (accumulator, False) not in signed or not rest:
        return None
    if any(accumulator in variables(value) for value, _ in rest):
        return None
    first, *others = sorted(rest, key=lambda term: term[1])
    total = first[0]
    if first[1]:
        total = negated(total) if is_float(total.dtype) else -total
    for value, off in others:
        total = binary("sub" if off else "add", total, value)
    zero = const(0, accumulator.dtype)
    return _one(te.sum, lambda x, y: x + y, total, zero)  # type: ignore[no-any-return]


def _folded(accumulator: Var, result: Expr) -> Combination | None:
    """An operator whose operands are the accumulator, once, and what does not depend on it."""
    if not isinstance(result, Binary) or result.op not in _IDENTITIES:
        return None
    op = result.op
    if op == "ne" and result.a.dtype != BOOL:
        return None
    parts = terms(op, result)
    rest = [part for part in parts if part is not accumulator]
    if len(rest) != len(parts) - 1 or any(accumulator in variables(part) for part in rest):
        return None

    def function(x: Expr, y: Expr) -> Expr:
        return binary(op, x, y)

    identity = _IDENTITIES[op]
    reducer = _REDUCERS.get(op) or te.comm_reducer(function, identity, op)
    made: Combination = _one(reducer, function, fold(function, rest), identity(accumulator.dtype))
    return made


def _chosen(accumulator: Var, result: Expr) -> Combination | None:
    """The larger or smaller one, written as a comparison and a choice."""
    found = _choice(result)
    if found is None:
        return None
    x, best, larger = found
    if best is not accumulator or accumulator in variables(x):
        return None
    if not is_float(x.dtype):
        op = "max" if larger else "min"
        identity = _IDENTITIES[op](x.dtype)
        return _one(_REDUCERS[op], lambda a, b: binary(op, a, b), x, identity)  # type: ignore[no-any-return]
    if larger:
        return _one(largest_number, _larger_number, x, _lowest(x.dtype))  # type: ignore[no-any-return]
    return _one(smallest_number, _smaller_number, x, _highest(x.dtype))  # type: ignore[no-any-return]


_MIRRORED = {"gt": "lt", "ge": "le", "lt": "gt", "le": "ge"}


def _choice(result: Expr) -> tuple[Expr, Expr, bool] | None:
    """(x, y, larger) of `select(x > y, x, y)`, an accumulator for y where there is one: whether the
    larger one is chosen. What takes the other where one is NaN passes too."""
    if not isinstance(result, Select) or result.guarded:
        return None
    compared = result.condition
    if (
        isinstance(compared, Binary)
        and compared.op == "logical_or"
        and same(compared.b, te.isnan(result.b))
    ):
        compared = compared.a
    if not isinstance(compared, Binary) or compared.op not in _MIRRORED:
        return None
    op, x, y = compared.op, compared.a, compared.b
    if same(x, result.b) and same(y, result.a):
        op, x, y = _MIRRORED[op], y, x
    elif not (same(x, result.a) and same(y, result.b)):
        return None
    if isinstance(x, Var) and not isinstance(y, Var):
        x, y = y, x
    return x, y, op in ("gt", "ge")


def _extreme_with_place(
    accumulators: Sequence[Var], results: Sequence[Expr], position: int
) -> Combination | None:
    """The extreme value and where it is: accumulator `position` and the other one.

    Steps come in the order of the places: which of equal values counts is the first one or the
    last, and so the one with the lower or the higher place.
    """
    best, place = accumulators[position], accumulators[1 - position]
    chosen, at = results[position], results[1 - position]
    if not isinstance(at, Select) or not isinstance(at.condition, Binary):
        return None
    condition = at.condition
    op, x, y = condition.op, condition.a, condition.b
    if op not in _MIRRORED:
        return None
    new, old = at.a, at.b
    if y is not best:
        op, x, y = _MIRRORED[op], y, x
    if new is place:
        new, old = old, new
        op = {"gt": "le", "ge": "lt", "lt": "ge", "le": "gt"}[op]
    if y is not best or old is not place or variables(x) & set(accumulators):
        return None
    larger, last = op in ("gt", "ge"), op.endswith("e")
    value = _single(best, chosen)
    wanted = "max" if larger else "min"
    if value is None or not same(value.sources[0], x) or variables(new) & set(accumulators):
        return None
    if value.identity[0].value != _IDENTITIES[wanted](x.dtype).value:
        return None

    def combine(a: Sequence[Expr], b: Sequence[Expr]) -> Sequence[Expr]:
        (v, i), (w, j) = _ordered(a, position), _ordered(b, position)
        nearer = binary("gt" if last else "lt", j, i)
        taken = te.any(binary("gt" if larger else "lt", w, v), te.all(binary("eq", w, v), nearer))
        return _ordered((value.combine((v,), (w,))[0], te.select(taken, j, i)), position)

    # Where no value is better than the worst there is, the place stays what it began with, which
    # is nearer than any other.
    nowhere = const(0, place.dtype) if not last else te.min_value(place.dtype)
    identity = tuple(_ordered((value.identity[0], nowhere), position))
    reducer = te.comm_reducer(
        lambda a, b: tuple(combine(a, b)),
        lambda *_: identity,
        f"arg{wanted}",
    )
    sources = tuple(_ordered((x, new), position))
    return Combination(reducer, combine, sources, identity)


def _ordered(pair: Sequence[Any], position: int) -> Sequence[Any]:
    return pair if position == 0 else (pair[1], pair[0])


def _together(parts: Sequence[Combination]) -> Combination:
    """Several accumulators that do not know of each other, in one pass."""

    def combine(a: Sequence[Expr], b: Sequence[Expr]) -> Sequence[Expr]:
        return [p.combine((x,), (y,))[0] for p, x, y in zip(parts, a, b, strict=True)]

    identity = tuple(part.identity[0] for part in parts)
    reducer = te.comm_reducer(lambda a, b: tuple(combine(a, b)), lambda *_: identity, "several")
    return Combination(reducer, combine, tuple(part.sources[0] for part in parts), identity)
