"""Functions of f64 that the compiler has no code for on CPUs: it would call a library's.

Rational approximations and range reductions of S. L. Moshier's Cephes library (netlib.org/cephes,
double precision), in the schedule language and without branches, so that they work on vectors.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.schedule import functions as te
from tilewright.schedule.expr import Call, Expr, const

_LOG2_E = 1.4426950408889634074
_HALF_PI, _PI = 1.5707963267948966, 3.141592653589793
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


def _polynomial(x: Expr, factors: tuple[float, ...]) -> Expr:
    """Horner's scheme, highest power first."""
    total: Expr = const(factors[0], "f64")
    for factor in factors[1:]:
        total = total * x + factor
    return total


def _signed_as(size: Expr, x: Expr) -> Expr:
    """A value with the sign of another, that of -0 too."""
    return Call("copysign", (size, x), "f64")


def _tanh(x: Expr) -> Expr:
    size, square = te.abs(x), x * x
    large = 1.0 - 2.0 / (te.exp(size + size) + 1.0)
    ratio = _polynomial(square, _TANH_P) / _polynomial(square, _TANH_Q)
    return te.select(size > 0.625, _signed_as(large, x), x * square * ratio + x)


def _erf(x: Expr) -> Expr:
    size, square = te.abs(x), x * x
    small = x * (_polynomial(square, _ERF_T) / _polynomial(square, _ERF_U))
    # From 6 on the error function is 1 to the last digit.
    near = te.select(size < 6.0, size, const(6.0, "f64"))
    rest = te.exp(0.0 - near * near) * (_polynomial(near, _ERFC_P) / _polynomial(near, _ERFC_Q))
    large = _signed_as(1.0 - rest, x)
    return te.select(te.isnan(x), x, te.select(size < 1.0, small, large))


def _octants(x: Expr) -> tuple[Expr, Expr]:
    """The even octant of |x|, 0 to 6, and the angle from it."""
    size = te.abs(x)
    octant = te.floor(size * (4.0 / _PI))
    octant = te.floor((octant + 1.0) * 0.5) * 2.0
    angle = size
    for part in _PI_PARTS:
        angle = angle - octant * part
    return octant - te.floor(octant * 0.125) * 8.0, angle


def _sine_and_cosine(angle: Expr) -> tuple[Expr, Expr]:
    square = angle * angle
    sine = angle + angle * square * _polynomial(square, _SIN)
    cosine = 1.0 - square * 0.5 + square * square * _polynomial(square, _COS)
    return sine, cosine


def _sin(x: Expr) -> Expr:
    octant, angle = _octants(x)
    sine, cosine = _sine_and_cosine(angle)
    # 0: sin, 2: cos, 4: -sin, 6: -cos.
    folded = te.select(octant > 3.0, octant - 4.0, octant)
    result = te.select(folded > 1.0, cosine, sine)
    result = te.select(octant > 3.0, 0.0 - result, result)
    return te.select(x < 0.0, 0.0 - result, result)


def _cos(x: Expr) -> Expr:
    octant, angle = _octants(x)
    sine, cosine = _sine_and_cosine(angle)
    # 0: cos, 2: -sin, 4: -cos, 6: sin.
    folded = te.select(octant > 3.0, octant - 4.0, octant)
    result = te.select(folded > 1.0, 0.0 - sine, cosine)
    return te.select(octant > 3.0, 0.0 - result, result)


def _atan(x: Expr) -> Expr:
    size, zero = te.abs(x), const(0.0, "f64")
    large, middle = size > _TAN_3_PI_8, size > 0.66
    reduced = te.select(middle, (size - 1.0) / (size + 1.0), size)
    reduced = te.select(large, -1.0 / size, reduced)

    def part(right: float) -> Expr:
        """Of the angle that was taken off: a right one, half of it, or none."""
        half = te.select(middle, const(right / 2, "f64"), zero)
        return te.select(large, const(right, "f64"), half)

    square = reduced * reduced
    ratio = square * _polynomial(square, _ATAN_P) / _polynomial(square, _ATAN_Q)
    # Beyond some size the squares would overflow, and the angle is a right one.
    return _signed_as(part(_HALF_PI) + (reduced * ratio + reduced + part(_MORE_BITS)), x)


def _atan2(y: Expr, x: Expr) -> Expr:
    size_y, size_x, zero = te.abs(y), te.abs(x), const(0.0, "f64")
    angle = te.select((size_x + size_y).equal(0.0), zero, _atan(size_y / size_x))
    backwards = _signed_as(const(1.0, "f64"), x) < 0.0
    return _signed_as(te.select(backwards, _PI - angle, angle), y)


def _leg(x: Expr) -> Expr:
    """sqrt(1 - x^2)."""
    leg: Expr = te.sqrt((1.0 - x) * (1.0 + x))
    return leg


#: By name, what a function is of f64 expressions.
FUNCTIONS: dict[str, Callable[..., Expr]] = {
    "tanh": _tanh,
    "erf": _erf,
    "sin": _sin,
    "cos": _cos,
    "tan": lambda x: _sin(x) / _cos(x),
    "atan": _atan,
    "atan2": _atan2,
    "asin": lambda x: _atan2(x, _leg(x)),
    "acos": lambda x: _atan2(_leg(x), x),
    "log2": lambda x: te.log(x) * _LOG2_E,
}
