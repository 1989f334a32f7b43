"""Data for the arguments of a program: random, from files, and on its way to the benchmark worker.

Random data is non-degenerate (no zeros throughout, no two operands alike) and small enough that
sums of products over tens of thousands of terms stay far from the limits of f16: a wrong result
shows as wrong, and a right one is neither infinite nor zero.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.argument import INDEX, ArgumentType, dtype_of, element_type_of
from tilewright.errors import UserError

_FLOAT_SIGMA = 0.5
_FLOAT_LIMIT = 2.0
_INT_LIMIT = 8
# Bytes of constants that are worth being read from further away, and of all sets of them together.
_LEAST_FAR, _MOST_FAR = 1 << 18, 128 << 20
_MOST_TURNS = 16


@dataclass(frozen=True)
class Bounds:
    """A hint for random data: uniform in [low, high), integers for integer types.

    Operands that are used as indices need one, or the program reads outside its tensors.
    """

    low: float
    high: float


def index_bounds(limits: Mapping[int, int]) -> dict[int, Bounds]:
    """Bounds of arguments whose elements are indices below a limit.

    Args:
        limits: by position, what the elements stay below.
    """
    return {position: Bounds(0, max(1, limit)) for position, limit in limits.items()}


@dataclass(frozen=True)
class InputFile:
    """A tensor in a .npy file; types that NumPy does not know are stored as their bits."""

    path: str
    type: ArgumentType

    def load(self) -> NDArray[Any]:
        """The array, memory-mapped, [shape] of the element type."""
        # An empty file part cannot be mapped.
        mapped = bool(self.type.shape) and 0 not in (self.type.shape or ())
        data = np.load(self.path, mmap_mode="r" if mapped else None)
        array: NDArray[Any] = data.view(self.type.dtype).reshape(self.type.shape or ())
        return array


@dataclass(frozen=True)
class ScalarInput:
    """A scalar argument."""

    value: int | float
    type: ArgumentType


@dataclass(frozen=True)
class InputSet:
    """The arguments of a program. `key` names the data: equal keys, equal data.

    constant: positions of those that the program knows before it runs. beside: bytes of constants,
    with these, that a call of the larger program reads that it is part of; 0: not said.
    """

    key: str
    arguments: tuple[InputFile | ScalarInput, ...]
    constant: tuple[int, ...] = ()
    beside: int = 0

    @property
    def turns(self) -> int:
        """On how many sets of constants, one after the other, it is timed.

        A larger program reads each of its constants once in a call: they come from further away
        than those of a call that is repeated alone. 1 where it makes no difference, and where
        indices may be among them, for which nothing else can stand in.
        """
        given = (self.arguments[i] for i in self.constant)
        types = [one.type for one in given if isinstance(one, InputFile)]
        if any(t.dtype.kind in "iu" and t.dtype.itemsize > 1 for t in types):
            return 1
        return turns_for(sum(one.bytes for one in types), self.beside)


def turns_for(size: int, beside: int) -> int:
    """On how many sets of constants, one after the other, something is timed.

    Args:
        size: bytes of one set.
        beside: bytes of constants, with these, that the larger program reads in a call.

    Returns:
        1 where it makes no difference.
    """
    if size < _LEAST_FAR:
        return 1
    return max(1, min(_MOST_TURNS, min(beside, _MOST_FAR) // size))


def load_arguments(inputs: InputSet) -> list[Any]:
    """The arguments in their order: arrays (memory-mapped), and scalars as Python numbers.

    Args:
        inputs: as they were stored.
    """
    return [a.load() if isinstance(a, InputFile) else a.value for a in inputs.arguments]


def argument_sizes(inputs: InputSet) -> tuple[tuple[int, ...] | int | None, ...]:
    """For each argument a tensor's shape or an integer's value; None for other numbers.

    Args:
        inputs: as they were stored.
    """
    sizes: list[tuple[int, ...] | int | None] = []
    for argument in inputs.arguments:
        if isinstance(argument, InputFile):
            sizes.append(argument.type.shape or ())
        else:
            sizes.append(argument.value if isinstance(argument.value, int) else None)
    return tuple(sizes)


def random_array(
    argument: ArgumentType, seed: int, operand: int, bounds: Bounds | None = None
) -> NDArray[Any]:
    """Random data of [argument.shape]; a scalar's has shape ().

    Floats are normal with sigma 0.5, cut at 2; integers uniform in [-7, 7] ([0, 7] where unsigned
    or `index`); i1 uniform. The stream depends on the seed and the operand's position.

    Args:
        argument: its type; its sizes must be known.
        seed: of the run.
        operand: position among the arguments.
        bounds: instead of the ranges above.

    Raises:
        UserError: a size is dynamic.
    """
    shape = argument.shape or ()
    if any(size < 0 for size in shape):
        example = str(argument).replace("?", "64")
        raise UserError(
            f"no data for {argument}: give the dynamic sizes with --input, once for each argument, "
            f"such as --input {example}"
        )
    dtype = argument.dtype
    rng = np.random.default_rng([seed, operand])
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, size=shape)).astype(np.bool_)
    if dtype.kind in "iu":
        low, high = (
            (0 if dtype.kind == "u" or argument.element_type == INDEX else 1 - _INT_LIMIT),
            8,
        )
        if bounds:
            low, high = int(bounds.low), max(int(bounds.low) + 1, int(bounds.high))
        return np.asarray(rng.integers(low, high, size=shape, dtype=dtype.type))
    if bounds:
        return np.asarray(rng.uniform(bounds.low, bounds.high, size=shape)).astype(dtype)
    if dtype.kind == "c":
        values = _normal(rng, shape, np.float64) + 1j * _normal(rng, shape, np.float64)
        return np.asarray(values).astype(dtype)
    wide = np.float64 if dtype == np.float64 else np.float32
    return np.asarray(_normal(rng, shape, wide)).astype(dtype)


def _normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    values = np.asarray(rng.standard_normal(size=shape, dtype=dtype))
    values *= _FLOAT_SIGMA
    return np.asarray(np.clip(values, -_FLOAT_LIMIT, _FLOAT_LIMIT))


def save_array(file: Path | IO[bytes], array: NDArray[Any]) -> None:
    """Write a .npy file that `InputFile.load` reads, whatever the type.

    Args:
        file: path, or a file open for writing.
        array: of any element type.

    Raises:
        OSError: it cannot be written.
    """
    with _telling_why():
        np.save(file, _as_bits(np.asarray(array)))


@contextlib.contextmanager
def _telling_why() -> Iterator[None]:
    """NumPy says of a file that it could not write to its end only how much of it is there."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            raise
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {error}") from error


def _as_bits(array: NDArray[Any]) -> NDArray[Any]:
    """NumPy writes the types of ml_dtypes as untyped bytes: store them as unsigned integers."""
    if array.dtype.isbuiltin != 1:
        bits: NDArray[Any] = array.view(f"u{array.dtype.itemsize}")
        return bits
    return array


def write_inputs(
    folder: Path, types: Sequence[ArgumentType], values: Sequence[NDArray[Any]]
) -> InputSet:
    """Store arguments in a folder, one .npy file for each tensor.

    Args:
        folder: made if it is not there.
        types: of the arguments.
        values: one for each, [shape] of the type.

    Raises:
        UserError: a value does not have its argument's shape and element type.
    """
    if len(types) != len(values):
        raise UserError(f"the program takes {len(types)} inputs, {len(values)} are given")
    digest = hashlib.sha256()
    arguments: list[InputFile | ScalarInput] = []
    folder.mkdir(parents=True, exist_ok=True)
    for position, (kind, value) in enumerate(zip(types, values, strict=True)):
        shape = kind.shape or ()
        fits = len(shape) == value.ndim and all(
            want in (-1, have) for want, have in zip(shape, value.shape, strict=True)
        )
        if not fits or value.dtype != kind.dtype:
            given = ArgumentType(element_type_of(value.dtype), value.shape)
            raise UserError(f"--input {position + 1}: the program takes {kind}, {given} is given")
        digest.update(str(kind).encode())
        digest.update(np.ascontiguousarray(_as_bits(value)).reshape(-1).view(np.uint8).data)
        if kind.shape is None:
            scalar = value.item()
            arguments.append(ScalarInput(scalar, kind))
            continue
        path = folder / f"input_{position}.npy"
        save_array(path, value)
        stored = ArgumentType(kind.element_type, value.shape)
        arguments.append(InputFile(str(path.resolve()), stored))
    return InputSet(digest.hexdigest()[:20], tuple(arguments))


def random_inputs(
    folder: Path,
    types: Sequence[ArgumentType],
    *,
    seed: int = 0,
    bounds: Mapping[int, Bounds] | None = None,
    values: Mapping[int, int] | None = None,
) -> InputSet:
    """Random arguments, stored in a folder.

    Args:
        folder: made if it is not there.
        types: of the arguments.
        seed: of the data.
        bounds: hints by position.
        values: of scalars that must have a certain one, by position.
    """
    hints, fixed = bounds or {}, values or {}
    data = [
        np.asarray(fixed[i], dtype=t.dtype)
        if i in fixed
        else random_array(t, seed, i, hints.get(i))
        for i, t in enumerate(types)
    ]
    return write_inputs(folder, types, data)


def turned_inputs(folder: Path, inputs: InputSet) -> InputSet:
    """The same arguments with the elements of every tensor of floats in reverse order: other data
    that a program can be given as well. Integers may be indices and sizes, and stay.

    Args:
        folder: made if it is not there.
        inputs: as they were stored.

    Returns:
        Its key is that of `inputs` where there is nothing to turn.
    """
    types = [argument.type for argument in inputs.arguments]
    values = [
        np.asarray(value, kind.dtype)
        for value, kind in zip(load_arguments(inputs), types, strict=True)
    ]
    turned = [
        value if value.dtype.kind in "biu" else value.ravel()[::-1].reshape(value.shape)
        for value in values
    ]
    if all(np.array_equal(_as_bits(a), _as_bits(b)) for a, b in zip(values, turned, strict=True)):
        return inputs
    return write_inputs(folder, types, turned)


def write_outputs(path: Path, outputs: Sequence[NDArray[Any]]) -> None:
    """Write results to one .npz file: `output_0`, ... and `types`, their element types.

    Args:
        path: of the file.
        outputs: in their order.

    Raises:
        OSError: it cannot be written.
    """
    names = [element_type_of(o.dtype) for o in outputs]
    arrays = {f"output_{i}": _as_bits(o) for i, o in enumerate(outputs)}
    with _telling_why():
        np.savez(path, types=np.array(names, dtype=np.str_), **arrays)  # type: ignore[arg-type]


def read_outputs(path: Path) -> list[NDArray[Any]]:
    """The results that `write_outputs` wrote, in their element types.

    Args:
        path: of the file.
    """
    with np.load(path) as file:
        names = [str(name) for name in file["types"]]
        return [file[f"output_{i}"].view(dtype_of(n)) for i, n in enumerate(names)]
