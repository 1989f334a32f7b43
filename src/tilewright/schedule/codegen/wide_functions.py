"""Functions of f64 that the compiler has no code for on CPUs: it would call a library's.

Rational approximations and range reductions of S. L. Moshier's Cephes library (netlib.org/cephes,
double precision), written without branches so that they work on vectors.
"""

from __future__ import annotations

from collections.abc import Callable

from iree.compiler import ir
from iree.compiler.dialects import arith, math

_LOG2_E = 1.4426950408889634074
_LOG10_E = 0.4342944819032518276511289
_HALF_PI, _QUARTER_PI, _PI = 1.5707963267948966, 0.7853981633974483, 3.141592653589793
# What pi / 2 is beyond its f64.
_MORE_BITS = 6.123233995736765886130e-17

_TANH_P = (-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3)
_TANH_Q = (1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3)
_ERF_T = (
    9.60497373987051638749e0,
    9.00260197203842689217e1,
    2.23200534594684319226e3,
    7.00332514112805075473e3,
    5.55923013010394962768e4,
)
_ERF_U = (
    1.0,
    3.35617141647503099647e1,
    5.21357949780152679795e2,
    4.59432382970980127987e3,
    2.26290000613890934246e4,
    4.92673942608635921086e4,
)
_ERFC_P = (
    2.46196981473530512524e-10,
    5.64189564831068821977e-1,
    7.46321056442269912687e0,
    4.86371970985681366614e1,
    1.96520832956077098242e2,
    5.26445194995477358631e2,
    9.34528527171957607540e2,
    1.02755188689515710272e3,
    5.57535335369399327526e2,
)
_ERFC_Q = (
    1.0,
    1.32281951154744992508e1,
    8.67072140885989742329e1,
    3.54937778887819891062e2,
    9.75708501743205489753e2,
    1.82390916687909736289e3,
    2.24633760818710981792e3,
    1.65666309194161350182e3,
    5.57535340817727675546e2,
)
_SIN = (
    1.58962301576546568060e-10,
    -2.50507477628578072866e-8,
    2.75573136213857245213e-6,
    -1.98412698295895385996e-4,
    8.33333333332211858878e-3,
    -1.66666666666666307295e-1,
)
_COS = (
    -1.13585365213876817300e-11,
    2.08757008419747316778e-9,
    -2.75573141792967388112e-7,
    2.48015872888517045348e-5,
    -1.38888888888730564116e-3,
    4.16666666666665929218e-2,
)
# pi / 4 in three parts, the first two short enough that their products with the octant are exact.
_PI_PARTS = (7.85398125648498535156e-1, 3.77489470793079817668e-8, 2.69515142907905952645e-15)
_ATAN_P = (
    -8.750608600031904122785e-1,
    -1.615753718733365076637e1,
    -7.500855792314704667340e1,
    -1.228866684490136173410e2,
    -6.485021904942025371773e1,
)
_ATAN_Q = (
    1.0,
    2.485846490142306297962e1,
    1.650270098316988542046e2,
    4.328810604912902668951e2,
    4.853903996359136964868e2,
    1.945506571482613964425e2,
)
_TAN_3_PI_8 = 2.41421356237309504880
_OLT, _OGT = 4, 2


class _Number:
    """A value with Python's operators."""

    def __init__(self, value: ir.Value) -> None:
        self.value = value

    def of(self, number: float) -> _Number:
        """A constant of this type."""
        type_ = self.value.type
        if isinstance(type_, ir.VectorType):
            one = ir.FloatAttr.get(ir.VectorType(type_).element_type, number)
            splat = ir.DenseElementsAttr.get_splat(type_, one)
            return _Number(arith.ConstantOp(type_, splat).result)
        return _Number(arith.ConstantOp(type_, ir.FloatAttr.get(type_, number)).result)

    def _with(self, other: _Number | float) -> ir.Value:
        return other.value if isinstance(other, _Number) else self.of(other).value

    def __add__(self, other: _Number | float) -> _Number:
        return _Number(arith.AddFOp(self.value, self._with(other)).result)

    def __sub__(self, other: _Number | float) -> _Number:
        return _Number(arith.SubFOp(self.value, self._with(other)).result)

    def __mul__(self, other: _Number | float) -> _Number:
        return _Number(arith.MulFOp(self.value, self._with(other)).result)

    def __truediv__(self, other: _Number | float) -> _Number:
        return _Number(arith.DivFOp(self.value, self._with(other)).result)

    def less(self, other: _Number | float) -> ir.Value:
        return arith.CmpFOp(_OLT, self.value, self._with(other)).result

    def more(self, other: _Number | float) -> ir.Value:
        return arith.CmpFOp(_OGT, self.value, self._with(other)).result

    def signed_as(self, other: _Number) -> _Number:
        return _Number(math.CopySignOp(self.value, other.value).result)

    def polynomial(self, factors: tuple[float, ...]) -> _Number:
        """Horner's scheme, highest power first."""
        total = self.of(factors[0])
        for factor in factors[1:]:
            total = total * self + factor
        return total


def _absolute(x: _Number) -> _Number:
    return _Number(math.AbsFOp(x.value).result)


def _exp(x: _Number) -> _Number:
    return _Number(math.ExpOp(x.value).result)


def _floor(x: _Number) -> _Number:
    return _Number(math.FloorOp(x.value).result)


def _chosen(condition: ir.Value, a: _Number, b: _Number) -> _Number:
    return _Number(arith.SelectOp(condition, a.value, b.value).result)


def _tanh(x: _Number) -> _Number:
    size = _absolute(x)
    large = x.of(1.0) - x.of(2.0) / (_exp(size + size) + 1.0)
    square = x * x
    ratio = square.polynomial(_TANH_P) / square.polynomial(_TANH_Q)
    return _chosen(size.more(0.625), large.signed_as(x), x * square * ratio + x)


def _erf(x: _Number) -> _Number:
    size = _absolute(x)
    square = x * x
    small = x * (square.polynomial(_ERF_T) / square.polynomial(_ERF_U))
    # From 6 on the error function is 1 to the last digit.
    near = _chosen(size.less(6.0), size, x.of(6.0))
    rest = _exp(x.of(0.0) - near * near) * (near.polynomial(_ERFC_P) / near.polynomial(_ERFC_Q))
    large = (x.of(1.0) - rest).signed_as(x)
    is_number = arith.CmpFOp(7, x.value, x.value).result
    return _chosen(is_number, _chosen(size.less(1.0), small, large), x)


def _octants(x: _Number) -> tuple[_Number, _Number]:
    """The even octant of |x|, 0 to 6, and the angle from it."""
    size = _absolute(x)
    octant = _floor(size * (4.0 / _PI))
    octant = _floor((octant + 1.0) * 0.5) * 2.0
    angle = size
    for part in _PI_PARTS:
        angle = angle - octant * part
    return octant - _floor(octant * 0.125) * 8.0, angle


def _sine_and_cosine(angle: _Number) -> tuple[_Number, _Number]:
    square = angle * angle
    sine = angle + angle * square * square.polynomial(_SIN)
    cosine = square.of(1.0) - square * 0.5 + square * square * square.polynomial(_COS)
    return sine, cosine


def _sin(x: _Number) -> _Number:
    octant, angle = _octants(x)
    sine, cosine = _sine_and_cosine(angle)
    # 0: sin, 2: cos, 4: -sin, 6: -cos.
    folded = _chosen(octant.more(3.0), octant - 4.0, octant)
    result = _chosen(folded.more(1.0), cosine, sine)
    result = _chosen(octant.more(3.0), x.of(0.0) - result, result)
    return _chosen(x.less(0.0), x.of(0.0) - result, result)


def _cos(x: _Number) -> _Number:
    octant, angle = _octants(x)
    sine, cosine = _sine_and_cosine(angle)
    # 0: cos, 2: -sin, 4: -cos, 6: sin.
    folded = _chosen(octant.more(3.0), octant - 4.0, octant)
    result = _chosen(folded.more(1.0), x.of(0.0) - sine, cosine)
    return _chosen(octant.more(3.0), x.of(0.0) - result, result)


def _atan(x: _Number) -> _Number:
    size = _absolute(x)
    large, middle = size.more(_TAN_3_PI_8), size.more(0.66)
    reduced = _chosen(middle, (size - 1.0) / (size + 1.0), size)
    reduced = _chosen(large, x.of(-1.0) / size, reduced)
    start = _chosen(large, x.of(_HALF_PI), _chosen(middle, x.of(_QUARTER_PI), x.of(0.0)))
    more = _chosen(large, x.of(_MORE_BITS), _chosen(middle, x.of(_MORE_BITS / 2), x.of(0.0)))
    square = reduced * reduced
    ratio = square * square.polynomial(_ATAN_P) / square.polynomial(_ATAN_Q)
    # Beyond this size the squares would overflow, and the angle is a right one.
    result = start + (reduced * ratio + reduced + more)
    return result.signed_as(x)


def _atan2(y: _Number, x: _Number) -> _Number:
    size_y, size_x = _absolute(y), _absolute(x)
    none = arith.CmpFOp(1, (size_x + size_y).value, x.of(0.0).value).result
    angle = _chosen(none, x.of(0.0), _atan(size_y / size_x))
    # The sign of x, that of -0 too.
    backwards = x.of(1.0).signed_as(x).less(0.0)
    angle = _chosen(backwards, x.of(_PI) - angle, angle)
    return angle.signed_as(y)


def _asin(x: _Number) -> _Number:
    return _atan2(x, _leg(x))


def _acos(x: _Number) -> _Number:
    return _atan2(_leg(x), x)


def _leg(x: _Number) -> _Number:
    """sqrt(1 - x^2)."""
    one = x.of(1.0)
    return _Number(math.SqrtOp(((one - x) * (one + x)).value).result)


def _log(x: _Number) -> _Number:
    return _Number(math.LogOp(x.value).result)


def _on_values(function: Callable[..., _Number]) -> Callable[..., ir.Value]:
    return lambda *args: function(*map(_Number, args)).value


_ON_NUMBERS: dict[str, Callable[..., _Number]] = {
    "tanh": _tanh,
    "erf": _erf,
    "sin": _sin,
    "cos": _cos,
    "tan": lambda x: _sin(x) / _cos(x),
    "atan": _atan,
    "atan2": _atan2,
    "asin": _asin,
    "acos": _acos,
    "log2": lambda x: _log(x) * _LOG2_E,
    "log10": lambda x: _log(x) * _LOG10_E,
}
#: By name, functions of f64 scalars or vectors.
FUNCTIONS = {name: _on_values(function) for name, function in _ON_NUMBERS.items()}
