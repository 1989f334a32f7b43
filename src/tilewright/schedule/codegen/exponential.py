"""exp of f32 on CPUs, in vectors: half of the operations that the compiler's own takes.

The power is 2 to an integer times e^r with |r| at most ln(2) / 2, which a polynomial has to 0.9
units in the last place; results below 1.8e-38 are 0. The integer is rounded, and moved to where
floats have their exponent, by adding 1.5 * 2^23 (as in N. Schraudolph, "A Fast, Compact
Approximation of the Exponential Function", 1999, made exact).
"""

from __future__ import annotations

from iree.compiler import ir
from iree.compiler.dialects import arith

from tilewright.schedule.codegen import scalars

_LOG2_E = 1.4426950408889634
# ln(2) in two parts, the first so short that its products with exponents are exact.
_LN2 = (0.693145751953125, 1.42860682030941723212e-6)
_ROUND = 12582912.0
# Of 2 e^r, highest power first; the least relative error on the interval.
_POLYNOMIAL = (
    *(0.0027629081159830093, 0.01673749089241028, 0.08333677798509598),
    *(0.3333304226398468, 0.9999998807907104, 2.0, 2.0),
)
# Below and above, the result is 0 and infinite.
_LOWEST, _HIGHEST = -87.0, 89.0
# The exponent's bias, less one for the 2 of the polynomial.
_BIAS, _MANTISSA_BITS = 126, 23


def exponential(x: ir.Value) -> ir.Value:
    """e to the power of x.

    Args:
        x: an f32, or a vector of them.

    Returns:
        A value of its type; NaN of NaN.
    """

    def number(value: float) -> ir.Value:
        return scalars.like(x, value)

    def calculated(op: str, a: ir.Value, b: ir.Value) -> ir.Value:
        return scalars.operation(op, [a, b], "f32", False)

    def whole(value: int) -> ir.Value:
        return scalars.like(bits, value)

    # NaN stays what it is in both.
    small = scalars.compare("lt", x, number(_LOWEST), "f32")
    near = arith.SelectOp(small, number(_LOWEST), x).result
    large = scalars.compare("gt", near, number(_HIGHEST), "f32")
    near = arith.SelectOp(large, number(_HIGHEST), near).result
    moved = calculated("add", calculated("mul", near, number(_LOG2_E)), number(_ROUND))
    # Not contracted: the rounded sum is what counts.
    exponent = arith.SubFOp(moved, number(_ROUND)).result
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
    biased = arith.AddIOp(bits, whole(_BIAS)).result
    power = arith.BitcastOp(type_, arith.ShLIOp(biased, whole(_MANTISSA_BITS)).result).result
    return calculated("mul", total, power)
