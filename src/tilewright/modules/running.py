"""A function of a module run once: its results, saved or compared with expected ones, or as text.

The text is in the syntax that `--input` reads back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.argument import ELEMENT_TYPES, ArgumentType, element_type_of
from tilewright.errors import UserError
from tilewright.files import check_writable_file
from tilewright.ir.program import pick_function
from tilewright.measure.inputs import save_array
from tilewright.measure.pool import WorkerFailure
from tilewright.measure.verify import Comparison, compare
from tilewright.modules.functions import make_arguments, parse_inputs
from tilewright.modules.ready_module import OpenModule
from tilewright.tuning.programs import PROGRAM_REDUCTION_LENGTH

NPY = ".npy"


@dataclass(frozen=True)
class Tolerance:
    """|result - expected| may be up to `absolute + relative * |expected|`."""

    relative: float = 0.0
    absolute: float = 0.0

    def __post_init__(self) -> None:
        for flag, value in (("--rtol", self.relative), ("--atol", self.absolute)):
            if not 0 <= value < float("inf"):
                raise UserError(f"{flag}: {value} is not a number of at least 0")


@dataclass(frozen=True)
class RunResult:
    """The results of one run, with the types that the module declares for them.

    comparisons: one for each result where expected ones were given.
    """

    function: str
    outputs: tuple[NDArray[Any], ...]
    types: tuple[ArgumentType | None, ...]
    comparisons: tuple[Comparison, ...] = ()

    @property
    def ok(self) -> bool:
        return all(one.ok for one in self.comparisons)


def run_module(
    module: OpenModule,
    function: str | None,
    inputs: Sequence[str] = (),
    *,
    seed: int = 0,
    expected: Sequence[str] = (),
    tolerance: Tolerance | None = None,
) -> RunResult:
    """Run a function once.

    Args:
        module: opened.
        function: its name; None: the only one there is.
        inputs: texts in the syntax of `--input`, or .npy files; without any the data is random.
        seed: of random data.
        expected: the results, as inputs are given.
        tolerance: by default that of the element types, as programs are compared when they are
            tuned.

    Returns:
        The results, compared with those expected.

    Raises:
        UserError: something does not fit, or the function fails, crashes or hangs.
    """
    name = pick_function({n: f.signature for n, f in module.functions.items()}, function)
    chosen = module.functions[name]
    wanted = _expected(expected)
    arguments = make_arguments(
        chosen, inputs, module.folder / "inputs", seed=seed, limits=module.limits(name)
    )
    outputs = module.benchmark.run(
        str(module.vmfb),
        arguments,
        module.folder / "outputs.npz",
        function=name,
        parameters=module.parameters,
    )
    if isinstance(outputs, WorkerFailure):
        raise module.failure(name, outputs, given=bool(inputs))
    declared = chosen.signature.outputs
    types = declared if len(declared) == len(outputs) else (None,) * len(outputs)
    outputs = [_exact(output, kind) for output, kind in zip(outputs, types, strict=True)]
    if expected and len(wanted) != len(outputs):
        raise UserError(f"--expected: {len(wanted)} given, '{name}' has {len(outputs)} results")
    comparisons = tuple(
        _compare(output, want, tolerance) for output, want in zip(outputs, wanted, strict=False)
    )
    return RunResult(name, tuple(outputs), tuple(types), comparisons)


def check_outputs(paths: Sequence[Path]) -> None:
    """Ask, before the run, whether results can be saved.

    Args:
        paths: the files.

    Raises:
        UserError: one is no place for them.
    """
    for path in paths:
        if path.suffix != NPY:
            raise UserError(f"--output: {path} must be a {NPY} file")
        check_writable_file(path, "--output")


def save_outputs(result: RunResult, paths: Sequence[Path]) -> None:
    """Write each result to its file, or all of them to a single one, one after the other. bf16 and
    8-bit floats, which NumPy does not know, are written as unsigned integers of the same bits;
    `--expected` takes them so.

    Args:
        result: of a run.
        paths: one for each result, or one.

    Raises:
        UserError: the numbers do not fit, or a file cannot be written.
    """
    if len(paths) not in (1, len(result.outputs)):
        raise UserError(
            f"--output: {len(paths)} files for the {len(result.outputs)} results of "
            f"'{result.function}'; give one for each, or one for all"
        )
    try:
        if len(paths) == len(result.outputs):
            for path, output in zip(paths, result.outputs, strict=True):
                save_array(path, output)
            return
        with paths[0].open("wb") as file:
            for output in result.outputs:
                save_array(file, output)
    except OSError as error:
        raise UserError(f"--output: cannot write the results ({error.strerror})") from error


def _expected(texts: Sequence[str]) -> list[NDArray[Any]]:
    found = []
    for given in parse_inputs(texts):
        if given.values is None:
            raise UserError(f"--expected {given.text}: it has no values; write 2xf32=1,2")
        found.append(given.values)
    return found


def _exact(output: NDArray[Any], kind: ArgumentType | None) -> NDArray[Any]:
    """A scalar in its declared type: the runtime gives it as Python's int or float."""
    if kind is None or kind.shape is not None or kind.element_type not in ELEMENT_TYPES:
        return output
    return output.astype(kind.dtype)


def _compare(
    output: NDArray[Any], expected: NDArray[Any], tolerance: Tolerance | None
) -> Comparison:
    element_type = element_type_of(output.dtype)
    bits = expected.dtype.kind == "u" and expected.dtype.itemsize == output.dtype.itemsize
    if output.dtype.isbuiltin != 1 and bits:
        expected = expected.view(output.dtype)
    if tolerance is None:
        if output.dtype.kind == "c":
            output, expected = (np.stack([x.real, x.imag], -1) for x in (output, expected))
            element_type = element_type_of(output.dtype)
        return compare(output, expected, element_type, PROGRAM_REDUCTION_LENGTH)
    return _within(output, expected, tolerance)


def _within(output: NDArray[Any], expected: NDArray[Any], tolerance: Tolerance) -> Comparison:
    """The comparison by the user's own tolerance."""
    if output.shape != expected.shape:
        return compare(output, expected, element_type_of(output.dtype))
    wide = np.complex128 if "c" in (output.dtype.kind, expected.dtype.kind) else np.float64
    got, want = output.astype(wide), expected.astype(wide)
    with np.errstate(invalid="ignore"):
        allowed = tolerance.absolute + tolerance.relative * np.abs(want)
        # NaN and infinity are right only where they are expected.
        allowed = np.where(np.isfinite(want), allowed, 0.0)
        error = np.where(got == want, 0.0, np.abs(got - want))
    error = np.where(np.isnan(got) & np.isnan(want), 0.0, error)
    bad = ~(error <= allowed)
    if not want.size:
        return Comparison(True, (), 0.0, 0.0, 0.0, 0.0)
    excess = np.nan_to_num(error - allowed, nan=np.inf)
    worst = np.unravel_index(int(np.argmax(excess)), want.shape)
    reason = f"{int(bad.sum())} of {want.size} elements are out of tolerance"
    return Comparison(
        not bad.any(),
        tuple(int(i) for i in worst),
        float(got[worst].real),
        float(want[worst].real),
        float(np.nan_to_num(error[worst], nan=np.inf)),
        float(allowed[worst]),
        reason if bad.any() else "",
    )


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
