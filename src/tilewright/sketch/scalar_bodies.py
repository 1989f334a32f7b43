"""Scalar operations of MLIR (`arith`, `math`, `affine`) as expressions of the schedule language."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce as fold
from typing import Any

from iree.compiler import ir

from tilewright.ir.reference.access import evaluate_expr
from tilewright.schedule import functions as te
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import Binary, Call, Const, Expr, Not, binary, cast, const, index
from tilewright.schedule.types import BOOL, INDEX, bits, is_float
from tilewright.sketch import integer_bodies
from tilewright.sketch.scalar_rules import ScalarRules, Scalars
from tilewright.sketch.untranslatable import Untranslatable, dtype_of


def translate_scalar(op: ir.Operation, operands: Scalars) -> Scalars:
    """The results of a scalar operation.

    Args:
        op: one of `arith`, `math` or `affine`.
        operands: expressions of its operands.

    Returns:
        One expression for each result.

    Raises:
        Untranslatable: there is no expression for it.
    """
    rule = _RULES.get(op.name)
    if rule is None:
        raise Untranslatable(op.name, "no such function in the schedule language")
    try:
        made = rule(op, operands)
    except ScheduleError as problem:
        raise Untranslatable(op.name, str(problem)) from problem
    return made if isinstance(made, list) else [made]


def is_scalar(op: ir.Operation) -> bool:
    """Whether there is an expression for an operation, whatever it is computed with.

    Args:
        op: any.
    """
    return op.name in _RULES


_RULES = ScalarRules(integer_bodies.RULES)


def _result(op: ir.Operation) -> str:
    return dtype_of(op.results[0].type, op.name)


# -- floats ----------------------------------------------------------------------------------------


def negated(x: Expr) -> Expr:
    """The negative of a float: -0.0 of 0.0, which `0 - x` is not.

    Args:
        x: a float.
    """
    return binary("sub", const(-0.0, x.dtype), x)


def copysign(x: Expr, y: Expr) -> Expr:
    """The magnitude of one float with the sign of another.

    Args:
        x: gives the magnitude.
        y: gives the sign.
    """
    return Call("copysign", (x, y), x.dtype)


def larger(x: Expr, y: Expr) -> Expr:
    """The larger of two floats; the one that is a number where the other is NaN.

    Args:
        x, y: floats of one type.
    """
    wins = binary("gt", x, y)
    return te.select(wins if isinstance(y, Const) else te.any(wins, te.isnan(y)), x, y)


def smaller(x: Expr, y: Expr) -> Expr:
    """The smaller of two floats; the one that is a number where the other is NaN.

    Args:
        x, y: floats of one type.
    """
    wins = binary("lt", x, y)
    return te.select(wins if isinstance(y, Const) else te.any(wins, te.isnan(y)), x, y)


def _away_from_zero(x: Expr) -> Expr:
    """The nearest integer, halves away from 0."""
    whole = te.trunc(x)
    half = binary("ge", te.abs(binary("sub", x, whole)), const(0.5, x.dtype))
    return te.select(half, binary("add", whole, copysign(const(1.0, x.dtype), x)), whole)


def _asinh(x: Expr) -> Expr:
    size = te.abs(x)
    square = size * size
    return copysign(te.log1p(size + square / (1.0 + te.sqrt(square + 1.0))), x)


def _acosh(x: Expr) -> Expr:
    over = x - 1.0
    made: Expr = te.log1p(over + te.sqrt(over * (over + 2.0)))
    return made


_FLOATS: dict[str, Callable[..., Expr]] = {
    "arith.addf": lambda x, y: binary("add", x, y),
    "arith.subf": lambda x, y: binary("sub", x, y),
    "arith.mulf": lambda x, y: binary("mul", x, y),
    "arith.divf": lambda x, y: binary("div", x, y),
    "arith.negf": negated,
    "arith.maximumf": te.maximum,
    "arith.minimumf": te.minimum,
    "arith.maxnumf": larger,
    "arith.minnumf": smaller,
    "math.absf": te.abs,
    "math.acosh": _acosh,
    "math.asinh": _asinh,
    "math.atan2": te.atan2,
    "math.atanh": lambda x: 0.5 * te.log1p(2.0 * x / (1.0 - x)),
    "math.cbrt": lambda x: copysign(te.power(te.abs(x), const(1.0 / 3.0, x.dtype)), x),
    "math.clampf": lambda x, low, high: te.minimum(te.maximum(x, low), high),
    "math.copysign": copysign,
    "math.fma": te.fma,
    "math.fpowi": lambda x, n: te.power(x, cast(x.dtype, n)),
    "math.isfinite": lambda x: binary("lt", te.abs(x), const(float("inf"), x.dtype)),
    "math.isinf": lambda x: te.abs(x).equal(const(float("inf"), x.dtype)),
    "math.isnan": te.isnan,
    "math.powf": te.power,
    "math.round": _away_from_zero,
    "math.roundeven": te.round,
    **{
        f"math.{name}": getattr(te, name)
        for name in (
            *("acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "exp", "exp2", "expm1"),
            *("floor", "log", "log10", "log1p", "log2", "rsqrt", "sin", "sinh", "sqrt", "tan"),
            *("tanh", "trunc"),
        )
    },
}
for _name, _function in _FLOATS.items():
    _RULES[_name] = lambda op, operands, function=_function: function(*operands)  # type: ignore[misc]


@_RULES.rule("math.sincos")
def _sincos(op: ir.Operation, operands: Scalars) -> Scalars:
    return [te.sin(operands[0]), te.cos(operands[0])]


def _unordered(x: Expr, y: Expr) -> Expr:
    return te.any(te.isnan(x), te.isnan(y))


def _opposite(name: str) -> Callable[[Expr, Expr], Expr]:
    return lambda x, y: te.logical_not(binary(name, x, y))


def _compared(name: str) -> Callable[[Expr, Expr], Expr]:
    return lambda x, y: binary(name, x, y)


def _unequal(x: Expr, y: Expr) -> Expr:
    return te.any(binary("lt", x, y), binary("gt", x, y))


# arith.cmpf predicates in the order of their codes: ordered ones are false on NaN, unordered true.
_FLOAT_PREDICATES: tuple[Callable[[Expr, Expr], Expr], ...] = (
    lambda x, y: const(False, BOOL),
    *map(_compared, ("eq", "gt", "ge", "lt", "le")),
    _unequal,
    lambda x, y: te.logical_not(_unordered(x, y)),
    lambda x, y: te.logical_not(_unequal(x, y)),
    *map(_opposite, ("le", "lt", "ge", "gt")),
    _compared("ne"),
    _unordered,
    lambda x, y: const(True, BOOL),
)


@_RULES.rule("arith.cmpf")
def _compare_floats(op: ir.Operation, operands: Scalars) -> Expr:
    return _FLOAT_PREDICATES[int(op.attributes["predicate"])](*operands)


# -- conversions and choices -----------------------------------------------------------------------


@_RULES.rule("arith.extf", "arith.truncf")
def _float_format(op: ir.Operation, operands: Scalars) -> Expr:
    return cast(_result(op), operands[0])


@_RULES.rule("arith.extsi", "arith.trunci", "arith.index_cast", "arith.sitofp")
def _from_signed(op: ir.Operation, operands: Scalars) -> Expr:
    x, target = operands[0], _result(op)
    if x.dtype == BOOL:
        # As a signed number a true i1 is -1.
        return cast(target, -cast("i32", x))
    if target == BOOL:
        return binary("ne", binary("and", x, const(1, x.dtype)), const(0, x.dtype))
    return cast(target, x)


@_RULES.rule("arith.extui", "arith.index_castui", "arith.uitofp")
def _from_unsigned(op: ir.Operation, operands: Scalars) -> Expr:
    x, target = operands[0], _result(op)
    if x.dtype == BOOL:
        return cast(target, x)
    if x.dtype == INDEX or (target == INDEX and bits(x.dtype) == 64):
        # Sizes and positions: never negative.
        return cast(target, x)
    if bits(x.dtype) < 32:
        return cast(target, binary("and", cast("i32", x), const((1 << bits(x.dtype)) - 1, "i32")))
    return cast(target, integer_bodies.unsigned(x, op.name))


@_RULES.rule("arith.fptosi", "arith.fptoui")
def _to_integer(op: ir.Operation, operands: Scalars) -> Expr:
    target = _result(op)
    if op.name == "arith.fptosi":
        return cast(target, operands[0])
    if bits(target) == 64:
        raise Untranslatable(op.name, f"floats as unsigned {target}")
    return cast(target, cast("i32" if bits(target) < 32 else "i64", operands[0]))


@_RULES.rule("arith.select")
def _select(op: ir.Operation, operands: Scalars) -> Expr:
    condition, a, b = operands
    # `x` unless it is at most a number, else that number: exporters' ReLU. NaN stays NaN.
    if isinstance(condition, Not) and isinstance(b, Const) and is_float(b.dtype):
        compared = condition.a
        if isinstance(compared, Binary) and compared.a is a and same_number(compared.b, b):
            extreme = {"le": te.maximum, "lt": te.maximum, "ge": te.minimum, "gt": te.minimum}
            if compared.op in extreme and b.value == b.value:
                return extreme[compared.op](a, b)
    return te.select(condition, a, b)


@_RULES.rule("affine.apply", "affine.min", "affine.max")
def _affine(op: ir.Operation, operands: Scalars) -> Expr:
    map_ = ir.AffineMapAttr(op.attributes["map"]).value
    dims, symbols = operands[: map_.n_dims], operands[map_.n_dims :]
    results = [as_index(evaluate_expr(e, dims, symbols)) for e in map_.results]
    return fold(lambda a, b: binary(op.name.removeprefix("affine."), a, b), results)


@_RULES.rule("util.assume.int", "util.optimization_barrier")
def _pass_through(op: ir.Operation, operands: Scalars) -> Scalars:
    return operands


def as_index(value: Any) -> Expr:
    """A value of an affine expression as an index.

    Args:
        value: a number, or an expression of type index.
    """
    return index(value) if isinstance(value, int) else value


def same_number(a: Expr, b: Expr) -> bool:
    """Whether both are constants of one value.

    Args:
        a, b: expressions.
    """
    return isinstance(a, Const) and isinstance(b, Const) and a.value == b.value


def terms(op: str, value: Expr) -> Sequence[Expr]:
    """What an expression is the sum (the product, the maximum, ...) of.

    Args:
        op: an operator that may be carried out in any order.
        value: the expression.
    """
    if isinstance(value, Binary) and value.op == op:
        return [*terms(op, value.a), *terms(op, value.b)]
    return [value]
