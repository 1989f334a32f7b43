"""Element types of the schedule language, by their short names.

`f64 f32 f16 bf16 i64 i32 i16 i8 bool` are types of elements; `index` is the type of loop variables
and of everything computed from them alone. The long spellings (`float32`, `int8`, ...) and NumPy's
types are accepted wherever a type is.
"""

from __future__ import annotations

from typing import Any

from tilewright.errors import UnknownNameError

FLOATS = ("f64", "f32", "f16", "bf16")
INTEGERS = ("i64", "i32", "i16", "i8")
BOOL = "bool"
INDEX = "index"
ELEMENTS = (*FLOATS, *INTEGERS, BOOL)

_ALIASES = {
    "float64": "f64",
    "double": "f64",
    "float32": "f32",
    "float": "f32",
    "float16": "f16",
    "half": "f16",
    "bfloat16": "bf16",
    "int64": "i64",
    "int32": "i32",
    "int": "i32",
    "int16": "i16",
    "int8": "i8",
    "i1": "bool",
    "uint1": "bool",
    "bool_": "bool",
}
_BITS = {"f64": 64, "f32": 32, "f16": 16, "bf16": 16, "i64": 64, "i32": 32, "i16": 16, "i8": 8}


def canonical(dtype: Any) -> str:
    """The short name of a type given by any of its names, or as a NumPy type.

    Args:
        dtype: `f32`, `float32`, `numpy.float32`.

    Returns:
        The short name.

    Raises:
        UnknownNameError: for a type that the language does not have.
    """
    if isinstance(dtype, str):
        name = dtype
    else:
        name = getattr(dtype, "__name__", None) or getattr(dtype, "name", None) or str(dtype)
    name = _ALIASES.get(name, name)
    if name not in ELEMENTS and name != INDEX:
        raise UnknownNameError("element type", name, [*ELEMENTS, *_ALIASES])
    return name


def is_float(dtype: str) -> bool:
    """Whether the type is one of floats.

    Args:
        dtype: a short name.
    """
    return dtype in FLOATS


def is_integer(dtype: str) -> bool:
    """Whether the type is an integer one (`index` is, `bool` is not).

    Args:
        dtype: a short name.
    """
    return dtype in INTEGERS or dtype == INDEX


def bits(dtype: str) -> int:
    """Bits of one element in memory (8 for bool, 64 for index).

    Args:
        dtype: a short name.
    """
    return _BITS.get(dtype, 64 if dtype == INDEX else 8)


def promoted(a: str, b: str) -> str:
    """The type in which values of two types meet: floats over integers, wide over narrow,
    elements over `index`, `f32` for f16 with bf16.

    Args:
        a, b: short names.

    Returns:
        A short name.
    """
    if a == b:
        return a
    for first, second in ((a, b), (b, a)):
        if first == BOOL:
            return second
        if first == INDEX:
            return second
    if is_float(a) != is_float(b):
        return a if is_float(a) else b
    if is_float(a) and bits(a) == bits(b):
        return "f32"
    return a if bits(a) > bits(b) else b


def numpy_type(dtype: str) -> Any:
    """The NumPy type of elements (bf16 from ml_dtypes).

    Args:
        dtype: a short name.

    Returns:
        A `numpy.dtype`.
    """
    import numpy as np

    if dtype == "bf16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    names = {"bool": "bool", "index": "int64"}
    return np.dtype(
        names.get(dtype) or dtype.replace("f", "float", 1)
        if is_float(dtype)
        else names.get(dtype) or dtype.replace("i", "int", 1)
    )
