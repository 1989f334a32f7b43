"""Types of the arguments and results of programs, and their NumPy counterparts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.errors import UnknownNameError

# MLIR's name of each element type that the runtime can take, with its NumPy type.
ELEMENT_TYPES: Mapping[str, np.dtype[Any]] = {
    "i1": np.dtype(np.bool_),
    **{f"{s}i{n}": np.dtype(f"int{n}") for n in (8, 16, 32, 64) for s in ("", "s")},
    **{f"ui{n}": np.dtype(f"uint{n}") for n in (8, 16, 32, 64)},
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "f8E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "f8E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "complex<f32>": np.dtype(np.complex64),
    "complex<f64>": np.dtype(np.complex128),
}
# Arguments of this type are passed as integers.
INDEX = "index"

ASYNC = "$async"
"""What the name of a function ends with that takes a fence to wait for and one to signal, beside
one without them that calls it: IREE makes such pairs of ONNX's and PyTorch's programs."""


@dataclass(frozen=True)
class ArgumentType:
    """Type of an argument. `shape` None: a scalar; (): a tensor of rank 0; -1: a dynamic size."""

    element_type: str
    shape: tuple[int, ...] | None

    def __str__(self) -> str:
        if self.shape is None:
            return self.element_type
        return "x".join([*("?" if d < 0 else str(d) for d in self.shape), self.element_type])

    @property
    def dtype(self) -> np.dtype[Any]:
        return dtype_of(self.element_type)

    @property
    def bytes(self) -> int:
        """Of a tensor whose sizes are known; a scalar counts as a tensor of rank 0."""
        return prod(self.shape or ()) * self.dtype.itemsize


def dtype_of(element_type: str) -> np.dtype[Any]:
    """NumPy type of an MLIR element type.

    Args:
        element_type: as MLIR spells it.

    Raises:
        UnknownNameError: it cannot be passed.
    """
    if element_type == INDEX:
        return np.dtype(np.int64)
    try:
        return ELEMENT_TYPES[element_type]
    except KeyError:
        raise UnknownNameError("element type", element_type, ELEMENT_TYPES) from None


def float_dtype(name: str) -> np.dtype[Any]:
    """The NumPy (or ml_dtypes) type of a float format.

    Args:
        name: as MLIR spells it: `f32`, `bf16`, `f8E4M3FN`, also formats that cannot be passed.

    Raises:
        ValueError: it is no float format that NumPy or ml_dtypes knows.
    """
    # MLIR's f8E4M3FN is ml_dtypes' float8_e4m3fn.
    spelled = ("bfloat" if name.startswith("bf") else "float") + name.lstrip("bf")
    try:
        return np.dtype("_e".join(part.lower() for part in spelled.split("E", 1)))
    except TypeError:
        raise ValueError(f"'{name}' is not a float type such as f32, f16, bf16") from None


def element_type_of(dtype: np.dtype[Any]) -> str:
    """MLIR element type of a NumPy type (integers signless when signed).

    Args:
        dtype: of NumPy or ml_dtypes.

    Raises:
        UnknownNameError: there is none.
    """
    for name, known in ELEMENT_TYPES.items():
        if known == dtype:
            return name
    raise UnknownNameError("NumPy type", str(dtype), {str(d) for d in ELEMENT_TYPES.values()})
