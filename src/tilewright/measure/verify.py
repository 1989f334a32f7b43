"""Is a result right? Comparison of measured outputs with a float64 reference.

The bound for element i of an output with expected values e is

    rtol * |e_i| + atol_scale * size(e)

    rtol       = 8 u + a                          (at most 1/4)
    atol_scale = 8 u + 8 v sqrt(k) + a / 4        (at most 1/4)

where size is the root mean square (`typical_size`), u the unit roundoff of the element type, v that
of the format in which k terms are accumulated (the element type itself, unless told otherwise) and
a covers the polynomials by which compilers evaluate exp, atan and the like in f32 (errors up to
4e-6 are usual). Why this form:

* An element computed from few operations is off by a few roundings of its own size: 8 u |e|.
* The rounding errors of a sum's k partial sums do not shrink when its terms cancel: they are
  independent, together of the size of a typical output times v sqrt(k) (Higham and Mary, "A New
  Approach to Probabilistic Rounding Error Analysis", 2019; the worst case, v k, is not met on
  random data). Hence the second part, relative to the size of the whole output rather than of the
  element. The largest of 10^5 errors is seen at about 2.6 v sqrt(k) rms for sequential sums; 8
  leaves a factor of three.
* The caps keep the test able to fail: however long the sum and coarse the type, zeros in place of
  values of the usual size are wrong.

Some data is ill-conditioned (a division by a sum that happens to be near zero). A caller that knows
how much each element moves when the inputs do (`tilewright.ir.reference.sensitivity`) passes that,
and 8 sqrt(k) times as much is allowed there on top.

Integers and booleans must be equal. NaN and infinity are right only where they are expected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tilewright.argument import float_dtype

_APPROXIMATION = 1e-5
_CAP = 0.25
# Elements that the size of an output is estimated from.
_SAMPLE = 1 << 20
# Share of an integer output that may be off by `integer_slack`.
_SLACK_SHARE = 1e-3


@dataclass(frozen=True)
class Comparison:
    """Whether an output is right, and its worst element (the one that exceeds its bound by most).

    `error` is |actual - expected| there, `tolerance` what was allowed. For shapes that differ or an
    empty output, `worst_index` is empty and the numbers are 0. `reason` says in words why not ok.
    `against`: what was expected, where that is not the reference that the caller gave.
    """

    ok: bool
    worst_index: tuple[int, ...]
    actual: float
    expected: float
    error: float
    tolerance: float
    reason: str = ""
    against: str = ""

    @property
    def share_of_bound(self) -> float:
        """The error as a part of what is allowed."""
        return self.error / self.tolerance if self.tolerance else float(not self.ok)

    def __str__(self) -> str:
        if self.ok:
            return "right"
        if not self.worst_index:
            return self.reason
        place = ", ".join(map(str, self.worst_index))
        return (
            f"{self.reason}; worst at [{place}]: {self.actual:.6g} where {self.expected:.6g} is "
            f"expected (off by {self.error:.3g}, allowed {self.tolerance:.3g})"
        )


def float_format(element_type: str) -> Any:
    """Limits (`eps`, `max`, `smallest_normal`…) of a float type.

    Args:
        element_type: its MLIR name: `f32`, `bf16`…

    Raises:
        ValueError: it is no float type.
    """
    return ml_dtypes.finfo(float_dtype(element_type))  # type: ignore[no-untyped-call]


def is_float_type(element_type: str) -> bool:
    """Whether it is a float type.

    Args:
        element_type: its MLIR name.
    """
    return element_type.startswith(("f", "bf"))


def tolerance(
    element_type: str, reduction_length: int, accumulation_type: str | None = None
) -> tuple[float, float]:
    """(rtol, atol_scale) of the formula above; (0, 0) for integers and booleans.

    Args:
        element_type: the coarsest float format that a result is rounded to on its way (its own type
            if nothing else).
        reduction_length: number of terms that are added up to an element.
        accumulation_type: the format in which they are (default: `element_type`).
    """
    if not is_float_type(element_type):
        return 0.0, 0.0
    unit = float(float_format(element_type).eps) / 2
    adding = float(float_format(accumulation_type or element_type).eps) / 2
    # Beyond f32 there is no polynomial to allow for but the libraries' own last digits.
    approximation = _APPROXIMATION if unit > 2.0**-30 else 8 * unit
    rtol = 8 * unit + approximation
    growth = 8 * adding * math.sqrt(max(1, reduction_length))
    return min(_CAP, rtol), min(_CAP, 8 * unit + growth + approximation / 4)


def compare(
    actual: npt.ArrayLike,
    expected: npt.ArrayLike,
    element_type: str,
    reduction_length: int = 1,
    accumulation_type: str | None = None,
    integer_slack: int = 0,
    sensitivity: npt.ArrayLike | None = None,
    size: float | None = None,
) -> Comparison:
    """Compare an output with its reference element by element.

    Args:
        actual: the output.
        expected: the reference, of the same shape: float64, or exact integers.
        element_type: the coarsest format that a result is rounded to on its way.
        reduction_length: terms that are added up to an element.
        accumulation_type: the format in which they are (default: `element_type`).
        integer_slack: the difference that is allowed in at most a thousandth of the elements of an
            integer output that the program rounds from floats, where a value may fall on either
            side of a rounding boundary.
        sensitivity: how much each element moves with the inputs' last digit.
        size: what `reference_size` says of the reference, for who compares with it many times.
    """
    got, want = np.asarray(actual), np.asarray(expected)
    if got.shape != want.shape:
        return _failed(f"shape {list(got.shape)} where {list(want.shape)} is expected")
    if want.size == 0:
        return Comparison(True, (), 0.0, 0.0, 0.0, 0.0)
    if not is_float_type(element_type):
        error = integer_errors(got.ravel(), want.ravel(), element_type)
        different = int((error > 0).sum())
        right = error <= integer_slack
        few = different <= max(1, int(want.size * _SLACK_SHARE))
        reason = f"{different} of {want.size} elements differ"
        bound = np.full(want.size, float(integer_slack))
        return _verdict(bool(right.all() and few), reason, got, want, error, bound, error - bound)
    rtol, atol_scale = tolerance(element_type, reduction_length, accumulation_type)
    want = want.astype(np.float64, copy=False)
    limits = float_format(element_type)
    if size is None:
        size = reference_size(want, element_type)
    # Below the normal range a type's spacing is absolute.
    floor = float(limits.smallest_normal) * float(limits.eps)
    g, e = got.ravel(), want.ravel()
    with np.errstate(invalid="ignore", over="ignore"):
        bound = np.abs(e)
        bound *= rtol
        bound += atol_scale * size + floor
        if sensitivity is not None:
            moves = np.nan_to_num(np.asarray(sensitivity, np.float64).ravel(), posinf=0.0)
            bound += 8 * math.sqrt(max(1, reduction_length)) * moves
        error = np.subtract(g, e, dtype=np.float64)
        np.abs(error, out=error)
        excess = error - bound
        # The largest is finite only when there is neither NaN nor infinity on either side: then
        # this is all there is to see.
        largest = float(excess.max())
        if math.isfinite(largest):
            wrong = 0 if largest <= 0 else int((excess > 0).sum())
        else:
            matches = _matches(g, e, error, bound, float(limits.max))
            excess = np.nan_to_num(excess, nan=np.inf)
            excess[matches & ~np.isfinite(error)] = -np.inf
            wrong = int((~matches).sum())
    reason = f"{wrong} of {want.size} elements are out of tolerance"
    return _verdict(wrong == 0, reason, got, want, error, bound, excess)


def _matches(
    g: npt.NDArray[Any],
    e: npt.NDArray[np.float64],
    error: npt.NDArray[np.float64],
    bound: npt.NDArray[np.float64],
    largest: float,
) -> npt.NDArray[np.bool_]:
    """Which elements are right where some are not finite; sets the others' bounds to 0."""
    bound[~np.isfinite(e)] = 0.0
    right = np.isfinite(e) & (error <= bound)
    # Beyond the type's range its infinity is right; just below, either is.
    same_infinity = np.isinf(g) & (np.sign(g) == np.sign(e))
    right |= same_infinity & (np.abs(e) + bound > largest)
    right |= np.isnan(e) & np.isnan(g)
    return right


def reference_size(expected: npt.ArrayLike, element_type: str) -> float:
    """`typical_size` of what a float type can hold of a reference; 0 for other types.

    Args:
        expected: the reference, of any shape.
        element_type: the coarsest format that a result is rounded to on its way.
    """
    if not is_float_type(element_type):
        return 0.0
    want = np.asarray(expected).astype(np.float64, copy=False)
    return typical_size(want[np.abs(want) <= float(float_format(element_type).max)])


def _verdict(
    ok: bool,
    reason: str,
    got: npt.NDArray[Any],
    want: npt.NDArray[Any],
    error: npt.NDArray[np.float64],
    bound: npt.NDArray[np.float64],
    excess: npt.NDArray[np.float64],
) -> Comparison:
    """The comparison with its worst element; the last three arrays are flat."""
    worst = int(np.argmax(excess))
    index = tuple(int(i) for i in np.unravel_index(worst, want.shape))
    return Comparison(
        ok,
        index,
        float(got[index]),
        float(want[index]),
        float(np.nan_to_num(error[worst], nan=np.inf)),
        float(bound[worst]),
        "" if ok else reason,
    )


def integer_errors(
    got: npt.NDArray[Any], want: npt.NDArray[Any], element_type: str
) -> npt.NDArray[np.float64]:
    """|got - want| for signless integers: either side may read the top bit as it likes.

    Args:
        got, want: integers, of one shape.
        element_type: their MLIR name.
    """
    digits = element_type.lstrip("siu")
    width = int(digits) if digits.isdigit() else 64
    a, b = (x.astype(np.int64) for x in (got, want))
    if width == 64:
        high, low = np.maximum(a, b), np.minimum(a, b)
        return np.asarray(high.astype(np.uint64) - low.astype(np.uint64), np.float64)
    mask, sign = np.int64((1 << width) - 1), np.int64(1 << (width - 1))
    a, b = (((x & mask) ^ sign) - sign for x in (a, b))
    return np.asarray(np.abs(a - b), np.float64)


def typical_size(values: npt.NDArray[np.float64]) -> float:
    """Root mean square of an output, elements of quite another size cut down.

    Values that stand for minus infinity in a mask (-1e9, the lowest finite float) would otherwise
    excuse any error in the rest: magnitudes count up to 1024 times the lower quartile of those that
    are not zero. 0 for nothing but zeros.

    Args:
        values: of any shape.
    """
    sizes = np.abs(values.ravel()[:: max(1, values.size // _SAMPLE)])
    present = sizes[sizes > 0]
    if present.size == 0:
        sizes = np.abs(values.ravel())
        present = sizes[sizes > 0]
        if present.size == 0:
            return 0.0
    cut = np.minimum(sizes, 1024 * np.quantile(present, 0.25))
    largest = float(cut.max())
    return largest * float(np.sqrt(np.mean((cut / largest) ** 2)))


def _failed(reason: str) -> Comparison:
    return Comparison(False, (), 0.0, 0.0, 0.0, 0.0, reason)
