"""Values as text, in the syntax that `--input` reads back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.argument import ArgumentType, element_type_of

# IREE's tools show as many.
MAX_ELEMENTS = 1024


def format_value(
    array: NDArray[Any], kind: ArgumentType | None = None, max_elements: int = MAX_ELEMENTS
) -> str:
    """`2x2xf32=[1 2][3 4]`; a plain number where `kind` says that the value is a scalar.

    Whole arrays are read back by `parse_input` as the same values. Of larger ones the first
    `max_elements` are shown, and `...` for the rest.

    Args:
        array: the value.
        kind: its declared type.
        max_elements: so many are shown.
    """
    if kind is not None and kind.shape is None:
        return _element(array.astype(kind.dtype)[()])
    own = ArgumentType(element_type_of(array.dtype), array.shape)
    values = (_element(value) for value in array.flat)
    limited = _limited(values, array.size, max_elements)
    return f"{own}={_nested(limited, array.shape)}"


def _limited(values: Iterator[str], size: int, limit: int) -> Iterator[str]:
    for count, value in enumerate(values):
        if count == limit and size > limit:
            break
        yield value


def _nested(values: Iterator[str], shape: tuple[int, ...]) -> str:
    """The values row by row, each but the outermost dimension in brackets."""
    if len(shape) <= 1:
        count = shape[0] if shape else 1
        found = [value for _, value in zip(range(count), values, strict=False)]
        return " ".join([*found, *(["..."] if len(found) < count else [])])
    rows: list[str] = []
    for _ in range(shape[0]):
        row = _nested(values, shape[1:])
        rows.append(f"[{row}]")
        if row.rstrip("]").endswith("..."):
            break
    return "".join(rows)


def _element(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "1" if value else "0"
    if isinstance(value, complex | np.complexfloating):
        return str(complex(value)).strip("()")
    if isinstance(value, np.floating) and float(value).is_integer() and abs(float(value)) < 1e16:
        return str(int(value)) if value or not np.signbit(value) else "-0.0"
    return str(value)
