"""The syntax of `--input`, as IREE's tools read it.

    3x5xf32=1               a tensor with one value throughout
    2x2xi32=1,2,3,4         all values, row by row; spaces and brackets [[1 2][3 4]] may separate
    2x2xi32=@raw.bin        the raw bytes of a file
    3x5xf32                 random data of this type
    f32=1.5                 a tensor of rank 0
    2.5                     a scalar; its type is the argument's
    @values.npy             the arrays of a .npy file, one input for each

Element types are those of `tilewright.argument`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.argument import ELEMENT_TYPES, INDEX, ArgumentType, dtype_of, element_type_of
from tilewright.errors import UnknownNameError, UserError
from tilewright.measure.inputs import Bounds, random_array

_FORMS = "allowed: 3x5xf32, 3x5xf32=1, 2x2xi32=1,2,3,4, 2x2xi32=@file.bin, 1.5, @file.npy"
_TRUE, _FALSE = ("true", "1"), ("false", "0")


@dataclass(frozen=True)
class GivenInput:
    """One input as the user gave it.

    type: None for a scalar without a type. values: None asks for random data.
    """

    text: str
    type: ArgumentType | None
    values: NDArray[Any] | None


def parse_input(text: str) -> list[GivenInput]:
    """Parse one `--input`; a .npy file may hold several.

    Args:
        text: as the user gave it.

    Raises:
        UserError: it is not of any form that is allowed.
    """
    stripped = text.strip()
    if stripped.startswith("@"):
        return _read_npy(text, Path(stripped[1:]))
    head, equals, tail = stripped.partition("=")
    # With a value `0xf32` is a tensor without elements, alone it is a number.
    is_number = not equals and _is_hexadecimal(stripped)
    kind = None if is_number else _parse_type(text, head.strip())
    if kind is None:
        if equals:
            raise _error(text, f"'{head}' is no tensor type", _FORMS)
        return [GivenInput(text, None, np.asarray(_number(text, stripped)))]
    if not equals:
        return [GivenInput(text, kind, None)]
    return [GivenInput(text, kind, _values(text, kind, tail.strip()))]


def resolve_inputs(
    given: Sequence[GivenInput],
    types: Sequence[ArgumentType],
    *,
    seed: int = 0,
    bounds: Mapping[int, Bounds] | None = None,
) -> list[NDArray[Any]]:
    """The values of a program's arguments: one for each of `types`, in its exact type.

    Without any input given all are random. Sizes that the program leaves dynamic (-1) come from the
    input given.

    Args:
        given: the inputs, in order.
        types: of the arguments.
        seed: of random data.
        bounds: of random data, by position.

    Raises:
        UserError: an input does not fit its argument.
    """
    hints = bounds or {}
    if not given:
        return [random_array(kind, seed, i, hints.get(i)) for i, kind in enumerate(types)]
    if len(given) != len(types):
        takes = ", ".join(map(str, types)) or "none"
        raise UserError(f"--input: {len(given)} given, the program takes {len(types)} ({takes})")
    return [
        _resolve(position, one, kind, seed, hints.get(position))
        for position, (one, kind) in enumerate(zip(given, types, strict=True))
    ]


def _resolve(
    position: int, given: GivenInput, kind: ArgumentType, seed: int, bounds: Bounds | None
) -> NDArray[Any]:
    if given.type is None:
        assert given.values is not None
        if kind.shape not in (None, ()):
            raise _error(given.text, f"argument {position + 1} is a tensor of {kind}", str(kind))
        whole = kind.dtype.kind in "iub"
        if whole and given.values.dtype.kind == "f" and not float(given.values).is_integer():
            raise _error(given.text, f"argument {position + 1} is {kind}", "a whole number")
        return given.values.astype(kind.dtype)
    shape, want = given.type.shape or (), kind.shape or ()
    fits = len(shape) == len(want) and all(w in (-1, h) for w, h in zip(want, shape, strict=True))
    if not fits or not _same_element_type(given.type.element_type, kind.element_type):
        raise _error(given.text, f"argument {position + 1} of the program is {kind}", str(kind))
    if given.values is None:
        return random_array(ArgumentType(kind.element_type, shape), seed, position, bounds)
    return given.values.view(kind.dtype)


def _same_element_type(given: str, wanted: str) -> bool:
    """Signless, signed and unsigned integers of one width, and `index` as i64, are the same."""
    if given == wanted:
        return True
    a, b = dtype_of(given), dtype_of(wanted)
    return a.kind in "iu" and b.kind in "iu" and a.itemsize == b.itemsize


def _parse_type(text: str, head: str) -> ArgumentType | None:
    """`3x5xf32` or `f32`; None for what begins with no type (a plain number)."""
    if not head:
        raise _error(text, "it is empty", _FORMS)
    *sizes, element_type = head.split("x")
    if head.startswith("complex<"):
        sizes, element_type = [], head
    elif "complex<" in head:
        before, _, after = head.partition("xcomplex<")
        sizes, element_type = before.split("x"), f"complex<{after}"
    if not sizes and element_type not in ELEMENT_TYPES:
        return None
    if element_type not in ELEMENT_TYPES:
        if element_type == INDEX:
            raise _error(text, "index is no tensor type here", "i64, or a plain number")
        raise UnknownNameError("element type", element_type, ELEMENT_TYPES, f"--input {text}")
    shape = []
    for size in sizes:
        if not (size.isascii() and size.isdigit()):
            raise _error(text, f"size '{size}' is not a number", "sizes as in 3x5xf32")
        shape.append(int(size))
    return ArgumentType(element_type, tuple(shape))


def _is_hexadecimal(word: str) -> bool:
    try:
        int(word, 16)
    except ValueError:
        return False
    return word.lower().startswith("0x")


def _values(text: str, kind: ArgumentType, tail: str) -> NDArray[Any]:
    shape = kind.shape or ()
    count = int(np.prod(shape, dtype=np.int64))
    if tail.startswith("@"):
        data = _read_bytes(text, Path(tail[1:]))
        if len(data) != count * kind.dtype.itemsize:
            needed = f"{count * kind.dtype.itemsize} bytes for {kind}"
            raise _error(text, f"{tail[1:]} has {len(data)} bytes", needed)
        return np.frombuffer(data, dtype=kind.dtype).reshape(shape)
    words = tail.translate(str.maketrans(",[]", "   ")).split()
    if len(words) not in (1, count) or (not words and count):
        raise _error(text, f"{len(words)} values", f"1 or {count} values for {kind}")
    try:
        parsed = [_element(kind.dtype, word) for word in words]
        # Checked by NumPy: an integer that does not fit raises OverflowError.
        array = np.array(parsed, dtype=kind.dtype)
    except (ValueError, OverflowError) as error:
        raise _error(text, str(error), f"values of {kind.element_type}") from None
    return np.full(shape, array[0]) if len(words) == 1 else array.reshape(shape)


def _element(dtype: np.dtype[Any], word: str) -> Any:
    if dtype.kind == "b":
        if word.lower() not in _TRUE + _FALSE:
            raise ValueError(f"'{word}' is neither {_TRUE} nor {_FALSE}")
        return word.lower() in _TRUE
    if dtype.kind in "iu":
        return int(word, 0)
    return complex(word) if dtype.kind == "c" else float(word)


def _number(text: str, word: str) -> int | float:
    for parse in (lambda w: int(w, 0), float):
        try:
            value: int | float = parse(word)
            return value
        except ValueError:
            continue
    raise _error(text, f"'{word}' is neither a number nor a tensor type", _FORMS)


def _read_npy(text: str, path: Path) -> list[GivenInput]:
    found = []
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(0)
            while file.tell() < end:
                array = np.load(file, allow_pickle=False)
                kind = ArgumentType(element_type_of(array.dtype), array.shape)
                found.append(GivenInput(text, kind, array))
    except OSError as error:
        raise _error(text, f"cannot be read: {error.strerror}", "a .npy file") from None
    except MemoryError as error:
        raise _error(text, f"not enough memory: {error}", "what fits into memory") from None
    except Exception as error:
        # Damage can surface anywhere in NumPy's parser of headers.
        raise _error(text, str(error), "a .npy file of numbers, as numpy.save writes it") from None
    if not found:
        raise _error(text, f"{path} is empty", "a .npy file with at least one array")
    return found


def _read_bytes(text: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _error(text, f"{path} cannot be read: {error.strerror}", "an existing file") from None


def _error(text: str, what: str, allowed: str) -> UserError:
    allowed = allowed if allowed.startswith("allowed") else f"allowed: {allowed}"
    return UserError(f"--input {text}: {what} ({allowed})")
