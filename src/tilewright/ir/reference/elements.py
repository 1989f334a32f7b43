"""How values of the program's element types are held while it is interpreted.

Floats of every width are held as float64, integers of 2 to 64 bits and `index` as the int64 with
the same signed value (MLIR's signless integers are read as signed; an operation that reads them as
unsigned converts for itself), and i1 as bool. Arithmetic on floats is that of float64; only the
program's own casts round to a narrower format (`round_to`).
Constant attributes are read as such arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from iree.compiler import ir, passmanager
from iree.compiler.dialects import arith, func

from tilewright.argument import float_dtype
from tilewright.errors import TilewrightError

Array = npt.NDArray[Any]


class Unsupported(TilewrightError):
    """The program has something that the reference interpreter does not know; the message names it.

    Not a fault of the program: the caller verifies it in another way.
    """


@dataclass(frozen=True)
class Element:
    """An element type: `kind` is `float` or `int` (`index` is a 64-bit int), `width` in bits."""

    name: str
    kind: str
    width: int

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_bool(self) -> bool:
        return self.kind == "int" and self.width == 1

    @property
    def storage(self) -> np.dtype[Any]:
        """The NumPy type that holds values of this type exactly."""
        if self.is_float:
            return np.dtype(np.float64)
        return np.dtype(np.bool_ if self.width == 1 else np.int64)


@cache
def element(name: str) -> Element:
    """The element type that MLIR spells `name`.

    Args:
        name: such as `f32`, `bf16`, `i8`, `index`.

    Raises:
        Unsupported: it is another (complex numbers, integers wider than 64 bits, vectors).
    """
    if name == "index":
        return Element(name, "int", 64)
    digits = name.removeprefix("s").removeprefix("u").removeprefix("i")
    if digits.isdigit() and "i" in name:
        if not 1 <= int(digits) <= 64:
            raise Unsupported(f"element type {name}: integers have 1 to 64 bits here")
        return Element(name, "int", int(digits))
    return Element(name, "float", 8 * float_format(name).itemsize)


def element_of(type_: ir.Type) -> Element:
    """The element type of a tensor, vector or scalar MLIR type.

    Args:
        type_: an `ir.Type`.
    """
    return element(str(getattr(type_, "element_type", type_)))


@cache
def float_format(name: str) -> np.dtype[Any]:
    """The NumPy (or ml_dtypes) type with the format that MLIR calls `name`.

    Args:
        name: such as `f32`, `bf16`, `f8E4M3FN`.

    Raises:
        Unsupported: neither NumPy nor ml_dtypes has it.
    """
    try:
        return float_dtype(name)
    except ValueError:
        raise Unsupported(f"element type {name}") from None


def significant_bits(name: str) -> int:
    """Bits of the significand of a float format, the hidden one included.

    Args:
        name: as MLIR spells the format.
    """
    return int(ml_dtypes.finfo(float_format(name)).nmant) + 1  # type: ignore[no-untyped-call]


def wrap(values: Array, width: int) -> Array:
    """Reduce int64 values modulo 2**width to the signed range (to bool when width is 1).

    Args:
        values: int64 or bool.
        width: in bits.
    """
    if values.dtype == np.bool_:
        values = values.astype(np.int64)
    if width == 64:
        return values
    if width == 1:
        return (values & 1).astype(np.bool_)
    sign = np.int64(1 << (width - 1))
    mask = np.int64((1 << width) - 1)
    return np.asarray(((values & mask) ^ sign) - sign)


def signed(values: Array) -> Array:
    """The int64 values of a signed reading: a set i1 is -1.

    Args:
        values: int64 or bool.
    """
    return -values.astype(np.int64) if values.dtype == np.bool_ else values


def unsigned(values: Array, width: int) -> Array:
    """The values of an unsigned reading: int64 below 64 bits (it holds them all), else uint64.

    Args:
        values: int64 or bool.
        width: in bits.
    """
    if values.dtype == np.bool_:
        return values.astype(np.int64)
    if width == 64:
        return values.astype(np.uint64)
    return np.asarray(values & np.int64((1 << width) - 1))


def round_to(values: Array, target: Element) -> Array:
    """Round float64 values to the float format `target` (to nearest, ties to even).

    Args:
        values: float64.
        target: a float type.
    """
    if target.name == "f64":
        return values
    return values.astype(float_format(target.name)).astype(np.float64)


def hold(values: Array, target: Element) -> Array:
    """An array from outside in the form in which the interpreter holds it, without loss.

    Args:
        values: of the element type.
        target: the element type.
    """
    if target.is_float:
        return values.astype(np.float64)
    if target.is_bool:
        return values.astype(np.bool_)
    return wrap(values.astype(np.int64), target.width)


def undefined(shape: tuple[int, ...], target: Element) -> Array:
    """The contents of a tensor that nothing has been written to: NaN, so that a use of it shows.

    Args:
        shape: of the tensor.
        target: its element type.

    Returns:
        An array that can be written to.
    """
    return np.full(shape, np.nan if target.is_float else 0, dtype=target.storage)


def constant(attribute: ir.Attribute) -> Array:
    """The value of a numeric attribute: rank 0 for a scalar, the tensor's shape for `dense`.

    Args:
        attribute: a number, or `dense` numbers.

    Raises:
        Unsupported: it is of another kind.
    """
    if isinstance(attribute, ir.FloatAttr | ir.IntegerAttr | ir.BoolAttr):
        target = element_of(attribute.type)
        return hold(np.asarray(attribute.value), target)
    if not isinstance(attribute, ir.DenseElementsAttr):
        raise Unsupported(f"a constant held as {type(attribute).__name__}")
    type_ = ir.RankedTensorType(attribute.type)
    target = element_of(type_)
    shape = tuple(type_.shape)
    if attribute.is_splat:
        return np.broadcast_to(constant(attribute.get_splat_value()), shape).copy()
    try:
        values = np.array(attribute)
    except TypeError:
        # The bindings read only the formats that NumPy itself has.
        values = np.array(_widened(attribute, type_, target))
    return hold(values.reshape(shape), target)


def _widened(attribute: ir.Attribute, type_: ir.Type, target: Element) -> Any:
    """The same values as a constant of a wider type: the compiler folds the exact extension."""
    with attribute.context, ir.Location.unknown():
        wide = ir.F64Type.get() if target.is_float else ir.IntegerType.get_signless(64)
        result = ir.RankedTensorType.get(type_.shape, wide)
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            function = func.FuncOp("widen", ir.FunctionType.get([], [result]))
        with ir.InsertionPoint(function.add_entry_block()):
            narrow = arith.ConstantOp(type_, attribute).result
            extend = arith.extf if target.is_float else arith.extsi
            func.ReturnOp([extend(result, narrow)])
        passmanager.PassManager.parse("builtin.module(func.func(canonicalize))").run(
            module.operation
        )
        folded = function.entry_block.operations[0].operation
        if folded.name != "arith.constant":
            raise Unsupported(f"a constant of type {type_}")
        return folded.attributes["value"]
