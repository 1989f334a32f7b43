"""What `profile run` says of a dispatch: a block of lines, rows of a table and of a CSV file."""

from __future__ import annotations

import csv
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from tilewright.errors import UserError
from tilewright.kernels.operation import ROW_MAJOR, Operation
from tilewright.profiler.names import parse_configuration
from tilewright.profiler.peaks import TOLERANCE, Peaks
from tilewright.profiler.running import ProfileOutcome, Verification
from tilewright.trial import Status

PROVIDER = "IREE Codegen"
NOT_PROFILED = "Not profiled"
_NONE = "N/A"
_DEFAULT = "Default"
_SPLIT_K = "matmul_splitk"

# The columns of IREE's first dispatch profiler, by their names there, and those that are new.
CLASSIC_COLUMNS = (
    "Provider",
    "op_kind",
    "Operation",
    "bytes",
    "flops",
    "batch_count",
    "m",
    "n",
    "k",
    "lhs",
    "rhs",
    "result",
    "split_k_mode",
    "split_k_slices",
    "Tile config",
    "Core class",
    "Instruction class",
    "Verification",
    "Runtime(ms)",
    "GFLOPs",
)
NEW_COLUMNS = (
    "Dispatch",
    "Configuration",
    "Arguments",
    "Pipeline",
    "Status",
    "Message",
    "Runtime low(ms)",
    "Runtime high(ms)",
    "Samples",
    "GB/s",
    "Peak(%)",
    "Peak GFLOPs",
    "Worst index",
    "Worst actual",
    "Worst expected",
    "Compile(s)",
)
COLUMNS = (*CLASSIC_COLUMNS, *NEW_COLUMNS)


@dataclass(frozen=True)
class Numbers:
    """The performance of a dispatch, from the median of its samples.

    low_ms, high_ms: the median's 95% interval (the extremes, where there are too few samples for
    one). percent: of the measured peak for the operation's types; None where there is none, and
    for a kernel that is above it and was not verified.
    """

    runtime_ms: float
    low_ms: float
    high_ms: float
    samples: int
    gflops: float
    gbytes_per_s: float
    percent: float | None
    peak_gflops: float | None


def numbers(outcome: ProfileOutcome, peaks: Peaks | None) -> Numbers | None:
    """None for a dispatch that was not timed."""
    measured = outcome.measurement
    if measured is None:
        return None
    operation = outcome.dispatch.folder.operation
    interval = measured.interval()
    low, high = interval.low, interval.high
    if low == 0.0:
        low, high = min(measured.samples), max(measured.samples)
    gflops = operation.flops / measured.median_s / 1e9
    verified = outcome.verification is Verification.SUCCESS
    peak = peaks.gflops(operation.types, gflops, verified) if peaks is not None else None
    plausible = peak is not None and gflops <= TOLERANCE * peak
    return Numbers(
        measured.median_s * 1e3,
        low * 1e3,
        high * 1e3,
        len(measured.samples),
        gflops,
        operation.bytes / measured.median_s / 1e9,
        100 * gflops / peak if peak and plausible else None,
        peak,
    )


def arguments(operation: Operation) -> str:
    """The operation in words, as options: sizes, then operands and result."""
    words = [f"--{name}={size}" for name, size in operation.dims.items()]
    if operation.variant:
        words.insert(0, f"--variant={operation.variant}")
    words += [f"--{name}={text}" for name, text in _operands(operation).items()]
    return " ".join(words)


def _operands(operation: Operation) -> dict[str, str]:
    types = operation.types
    pairs = zip(operation.kind.operands, operation.layout, strict=True)
    named = {name: types.operand + letter for name, letter in pairs}
    return {**named, "result": types.result + ROW_MAJOR}


def block_lines(outcome: ProfileOutcome, found: Numbers | None) -> list[str]:
    """A dispatch as a block of labelled lines."""
    operation = outcome.dispatch.folder.operation
    lines = [
        ("Dispatch", outcome.dispatch.name),
        ("Provider", PROVIDER),
        ("OpKind", operation.kind.name),
        ("Operation", operation.name),
        ("Configuration", outcome.dispatch.configuration),
        ("Arguments", arguments(operation)),
        ("Verification", verification(outcome)),
        ("Runtime(ms)", NOT_PROFILED if found is None else _runtime(found)),
        ("GFLOPs", NOT_PROFILED if found is None else f"{found.gflops:.2f}"),
        ("Bytes", f"{operation.bytes:,}"),
        ("GB/s", NOT_PROFILED if found is None else f"{found.gbytes_per_s:.2f}"),
        ("Peak", NOT_PROFILED if found is None else _peak(found)),
    ]
    if outcome.message:
        lines.append(("Message", outcome.message))
    indent = " " * 16
    written = ["-" * 64]
    for label, text in lines:
        wrapped = textwrap.wrap(text, 84, break_long_words=False, break_on_hyphens=False)
        written.append(f"{label:<14}: {(chr(10) + indent).join(wrapped)}")
    return written


def verification(outcome: ProfileOutcome) -> str:
    """SUCCESS, FAILED or Not verified; with the status where that says more."""
    word = str(outcome.verification)
    shown = outcome.status in (Status.OK, Status.WRONG_RESULT)
    return word if shown else f"{word} ({outcome.status})"


def _runtime(found: Numbers) -> str:
    return (
        f"{found.runtime_ms:.4g} ({found.low_ms:.4g} to {found.high_ms:.4g}, "
        f"{found.samples} samples)"
    )


def _peak(found: Numbers) -> str:
    if found.peak_gflops is None:
        return "not measured for these types"
    if found.percent is None:
        return f"above the {found.peak_gflops:.1f} GFLOP/s that were measured: verify it"
    return f"{found.percent:.1f}% of {found.peak_gflops:.1f} GFLOP/s"


TABLE_COLUMNS = (
    "Dispatch",
    "Verification",
    "Runtime(ms)",
    "+-%",
    "GFLOPs",
    "bytes",
    "GB/s",
    "Peak(%)",
)


def table_row(outcome: ProfileOutcome, found: Numbers | None) -> tuple[str, ...]:
    """A dispatch as cells of `TABLE_COLUMNS`; `+-%` is half the width of the runtime's interval."""
    size = f"{outcome.dispatch.folder.operation.bytes:,}"
    head = (outcome.dispatch.name, verification(outcome))
    if found is None:
        return (*head, "-", "-", "-", size, "-", "-")
    half = 50 * (found.high_ms - found.low_ms) / found.runtime_ms
    return (
        *head,
        f"{found.runtime_ms:.4g}",
        f"{half:.1f}",
        f"{found.gflops:.2f}",
        size,
        f"{found.gbytes_per_s:.2f}",
        "-" if found.percent is None else f"{found.percent:.1f}",
    )


def csv_row(outcome: ProfileOutcome, found: Numbers | None, instructions: str) -> dict[str, object]:
    """A dispatch as cells of `COLUMNS`. `instructions`: the processor's vector instructions."""
    dispatch = outcome.dispatch
    operation = dispatch.folder.operation
    tiles = parse_configuration(dispatch.configuration)
    split = operation.kind.name == _SPLIT_K
    dims = operation.dims
    operands = _operands(operation)
    compared = outcome.comparison
    wrong = compared if compared is not None and not compared.ok else None
    return {
        "Provider": PROVIDER,
        "op_kind": operation.kind.name,
        "Operation": operation.name,
        "bytes": operation.bytes,
        "flops": operation.flops,
        "batch_count": dims.get("batch", 1),
        **{name: dims.get(name, _NONE) for name in ("m", "n", "k")},
        # The first operand and the second, whatever the kind calls them.
        "lhs": next(iter(operands.values())),
        "rhs": list(operands.values())[1] if len(operands) > 2 else _NONE,
        "result": operands["result"],
        "split_k_mode": "parallel" if split else _NONE,
        "split_k_slices": dims["slices"] if split else _NONE,
        "Tile config": _DEFAULT if tiles is None else tiles.tiles,
        "Core class": _DEFAULT if tiles is None else "cpu",
        "Instruction class": _DEFAULT if tiles is None else instructions,
        "Verification": str(outcome.verification),
        "Runtime(ms)": "" if found is None else f"{found.runtime_ms:.6g}",
        "GFLOPs": NOT_PROFILED if found is None else f"{found.gflops:.2f}",
        "Dispatch": dispatch.name,
        "Configuration": dispatch.configuration,
        "Arguments": arguments(operation),
        "Pipeline": _DEFAULT if tiles is None else str(tiles.translation),
        "Status": str(outcome.status),
        "Message": outcome.message,
        "Runtime low(ms)": "" if found is None else f"{found.low_ms:.6g}",
        "Runtime high(ms)": "" if found is None else f"{found.high_ms:.6g}",
        "Samples": "" if found is None else found.samples,
        "GB/s": "" if found is None else f"{found.gbytes_per_s:.2f}",
        "Peak(%)": "" if found is None or found.percent is None else f"{found.percent:.2f}",
        "Peak GFLOPs": "" if found is None or not found.peak_gflops else f"{found.peak_gflops:.1f}",
        "Worst index": "" if wrong is None else "x".join(map(str, wrong.worst_index)),
        "Worst actual": "" if wrong is None else repr(wrong.actual),
        "Worst expected": "" if wrong is None else repr(wrong.expected),
        "Compile(s)": dispatch.entry.compiled.seconds if dispatch.entry.compiled else "",
    }


def parse_tags(text: str, option: str = "--tags") -> dict[str, str]:
    """The columns and values of `key:value,key:value`. Raises UserError."""
    tags: dict[str, str] = {}
    for part in text.split(","):
        key, colon, value = part.strip().partition(":")
        if not key or not colon or not value:
            raise UserError(f"{option}: '{part.strip()}' is not key:value")
        if key in tags or key in COLUMNS:
            what = "given twice" if key in tags else "a column of the report itself"
            raise UserError(f"{option}: '{key}' is {what}; choose another name")
        tags[key] = value
    return tags


class CsvReport:
    """A CSV file that is written row by row, so that a sweep that ends early leaves its rows.

    tags: columns with one value throughout, before the others. append: go on in a file that has
    these columns. Raises UserError when the file cannot be written or has other columns.
    """

    def __init__(self, path: Path, tags: Mapping[str, str], append: bool = False) -> None:
        self._path = path
        self._tags = dict(tags)
        self._columns = [*tags, *COLUMNS]
        try:
            goes_on = append and path.is_file() and path.stat().st_size > 0
            if goes_on:
                _check_columns(path, self._columns)
            self._file: TextIO = path.open("a" if append else "w", newline="", encoding="utf-8")
        except OSError as error:
            raise UserError(f"--output: {path}: cannot write it ({error.strerror})") from error
        self._writer = csv.DictWriter(self._file, self._columns)
        if not goes_on:
            self._writer.writeheader()

    def add(self, row: Mapping[str, object]) -> None:
        self._writer.writerow({**self._tags, **row})
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        have = next(csv.reader(file), [])
    if have != list(columns):
        different = [c for c in columns if c not in have] or [c for c in have if c not in columns]
        raise UserError(
            f"--append: {path} has other columns (such as {', '.join(different[:3] or have[:3])}); "
            "append with the same --tags, or write another file"
        )
