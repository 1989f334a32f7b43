"""Functions of f32 on CPUs that take half of the operations of the compiler's own, or fewer.

exp: 2 to an integer times e^r with |r| at most ln(2) / 2, which a polynomial has to 0.9 units in
the last place; results below 1.8e-38 are 0. The integer is rounded, and moved to where floats have
their exponent, by adding 1.5 * 2^23 (as in N. Schraudolph, "A Fast, Compact Approximation of the
Exponential Function", 1999, made exact). erf: the rational function of the XLA compiler, to 5.3
units; the compiler's own chooses among polynomials, to 4.
"""

from __future__ import annotations

from collections.abc import Callable

from iree.compiler import ir
from iree.compiler.dialects import arith

from tilewright.schedule import functions as te
from tilewright.schedule.codegen import scalars
from tilewright.schedule.expr import Expr, const

_LOG2_E = 1.4426950408889634
# ln(2) in two parts, the first so short that its products with exponents are exact.
_LN2 = (0.693145751953125, 1.42860682030941723212e-6)
_ROUND = 12582912.0
# Of 2 e^r, highest power first; the least relative error on the interval.
_POLYNOMIAL = (
    *(0.0027629081159830093, 0.01673749089241028, 0.08333677798509598),
    *(0.3333304226398468, 0.9999998807907104, 2.0, 2.0),
)
# Below and above, 2 to this power is 0 and infinite.
_LOWEST, _HIGHEST = -126.0, 128.4
# The exponent's bias, less one for the 2 of the polynomial.
_BIAS, _MANTISSA_BITS = 126, 23

_ERF_END = 3.832506856900711
_ERF_P = (
    *(0.00022905065861350646, 0.0034082910107109506, 0.050955695062380861),
    *(0.18520832239976145, 1.128379143519084),
)
_ERF_Q = (
    *(-1.1791602954361697e-7, 0.000023547966471313185, 0.0010179625278914885),
    *(0.014070470171167667, 0.11098505178285362, 0.49746925110067538, 1.0),
)


def exponential(x: ir.Value, base_2: bool) -> ir.Value:
    """e, or 2, to the power of x.

    Args:
        x: an f32, or a vector of them.
        base_2: whether it is 2 to the power.

    Returns:
        A value of its type; NaN of NaN.
    """
    unit = 1.0 if base_2 else _LOG2_E

    def number(value: float) -> ir.Value:
        return scalars.like(x, value)

    def calculated(op: str, a: ir.Value, b: ir.Value) -> ir.Value:
        return scalars.operation(op, [a, b], "f32", False)

    # NaN stays what it is in both.
    lowest, highest = number(_LOWEST / unit), number(_HIGHEST / unit)
    near = arith.SelectOp(scalars.compare("lt", x, lowest, "f32"), lowest, x).result
    near = arith.SelectOp(scalars.compare("gt", near, highest, "f32"), highest, near).result
    powers = near if base_2 else calculated("mul", near, number(unit))
    moved = calculated("add", powers, number(_ROUND))
    exponent = calculated("sub", moved, number(_ROUND))
    if base_2:
        rest = calculated("mul", calculated("sub", near, exponent), number(sum(_LN2)))
    else:
        rest = near
        for part in _LN2:
            rest = calculated("sub", rest, calculated("mul", exponent, number(part)))
    total = number(_POLYNOMIAL[0])
    for factor in _POLYNOMIAL[1:]:
        total = calculated("add", calculated("mul", total, rest), number(factor))
    integer = ir.IntegerType.get_signless(32)
    type_ = x.type
    if isinstance(type_, ir.VectorType):
        integer = ir.VectorType.get(type_.shape, integer)
    bits = arith.BitcastOp(integer, moved).result
    biased = arith.AddIOp(bits, scalars.like(bits, _BIAS)).result
    shift = scalars.like(bits, _MANTISSA_BITS)
    power = arith.BitcastOp(type_, arith.ShLIOp(biased, shift).result).result
    return calculated("mul", total, power)


def _erf(x: Expr) -> Expr:
    # NaN stays what it is in both.
    near = te.select(x < -_ERF_END, const(-_ERF_END, "f32"), x)
    near = te.select(near > _ERF_END, const(_ERF_END, "f32"), near)
    square = near * near

    def polynomial(factors: tuple[float, ...]) -> Expr:
        total: Expr = const(factors[0], "f32")
        for factor in factors[1:]:
            total = total * square + factor
        return total

    return near * polynomial(_ERF_P) / polynomial(_ERF_Q)


#: By name, what a function is of f32 expressions.
FUNCTIONS: dict[str, Callable[..., Expr]] = {"erf": _erf}
#: The functions that this module has.
NAMES = frozenset(("exp", "exp2", *FUNCTIONS))
