"""What `profile run` says of a dispatch: a block of lines, rows of a table and of a CSV file."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import UserError
from tilewright.kernels.contractions import MatrixProduct
from tilewright.kernels.operation import ROW_MAJOR, Operation
from tilewright.measure.verify import Comparison
from tilewright.profiler.names import NamedGpuTiling, NamedTiling, parse_configuration
from tilewright.profiler.peaks import TOLERANCE, Peaks
from tilewright.profiler.running import ProfileOutcome, Verification
from tilewright.tables import CsvFile, Table
from tilewright.trial import Status

PROVIDER = "IREE Codegen"
NOT_PROFILED = "Not profiled"
_NONE = "N/A"
_DEFAULT = "Default"
# Dimensions as the block and the first profiler's options call them.
_WORDS = {"batch": "batch_count", "slices": "split_k_slices"}


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
    """The performance of a dispatch.

    Args:
        outcome: what became of it.
        peaks: this machine's; None: not known.

    Returns:
        None for a dispatch that was not timed.
    """
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
    """The operation in words, as options: sizes, then operands and result; of matrix products also
    their batch and how they are split, as IREE's first dispatch profiler has them.

    Args:
        operation: which.
    """
    sizes = {_WORDS.get(name, name): size for name, size in operation.dims.items()}
    split: dict[str, object] = {}
    if isinstance(operation.kind, MatrixProduct):
        sizes = {"batch_count": operation.dims.get("batch", 1), **sizes}
        slices = sizes.pop("split_k_slices", None)
        split = {"split_k_mode": split_mode(operation), "split_k_slices": slices or _NONE}
    words = {**sizes, **_operands(operation), **split}
    if operation.variant:
        words = {"variant": operation.variant, **words}
    return " ".join(f"--{name}={text}" for name, text in words.items())


def split_mode(operation: Operation) -> str:
    """How the sums of an operation are split into slices; N/A where they are not.

    Args:
        operation: which.
    """
    return operation.kind.split_k_mode or _NONE


def _operands(operation: Operation) -> dict[str, str]:
    types = operation.types
    pairs = zip(operation.kind.operands, operation.layout, strict=True)
    named = {name: types.operand + letter for name, letter in pairs}
    return {**named, "result": types.result + ROW_MAJOR}


def block_lines(outcome: ProfileOutcome, found: Numbers | None) -> list[str]:
    """A dispatch as a block of labelled lines.

    Args:
        outcome: what became of it.
        found: its numbers; None: it was not timed.
    """
    operation = outcome.dispatch.folder.operation
    lines = [
        ("Dispatch", outcome.dispatch.name),
        ("Provider", PROVIDER),
        ("OpKind", f"OperationKind.{operation.kind.name.title().replace('_', '')}"),
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
    """SUCCESS, FAILED or Not verified; with the status where that says more.

    Args:
        outcome: what became of a dispatch.
    """
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


@dataclass(frozen=True)
class _Shown:
    """What the cells of a dispatch are made from."""

    outcome: ProfileOutcome
    found: Numbers | None
    instructions: str = ""

    @property
    def operation(self) -> Operation:
        return self.outcome.dispatch.folder.operation

    @property
    def tiles(self) -> NamedTiling | NamedGpuTiling | None:
        return parse_configuration(self.outcome.dispatch.configuration)

    @property
    def wrong(self) -> Comparison | None:
        compared = self.outcome.comparison
        return compared if compared is not None and not compared.ok else None

    @property
    def slices(self) -> int | None:
        return self.operation.dims.get("slices")

    @property
    def pipeline(self) -> str:
        tuned, tiles = self.outcome.dispatch.entry.tuned, self.tiles
        if isinstance(tiles, NamedTiling):
            return str(tiles.translation)
        return _DEFAULT if tuned is None else str(tuned.configuration.translation)


_Cell = Callable[[_Shown], object]


def _timed(cell: Callable[[Numbers], object], untimed: str = "") -> _Cell:
    """A cell of a dispatch that was timed; `untimed` of one that was not."""
    return lambda shown: untimed if shown.found is None else cell(shown.found)


def _tiled(cell: Callable[[NamedTiling | NamedGpuTiling, _Shown], object]) -> _Cell:
    """A cell that tells of a configuration, if it is not the compiler's own."""
    return lambda shown: _DEFAULT if (tiles := shown.tiles) is None else cell(tiles, shown)


def _dim(name: str, otherwise: object = _NONE) -> _Cell:
    return lambda shown: shown.operation.dims.get(name, otherwise)


def _operand(position: int) -> _Cell:
    """An operand, whatever the kind calls it."""

    def cell(shown: _Shown) -> str:
        *operands, _ = _operands(shown.operation).values()
        return operands[position] if position < len(operands) else _NONE

    return cell


_TABLE: Mapping[str, _Cell] = {
    "Dispatch": lambda s: s.outcome.dispatch.name,
    "Verification": lambda s: verification(s.outcome),
    "Runtime(ms)": _timed(lambda n: f"{n.runtime_ms:.4g}", "-"),
    # Half the width of the runtime's interval.
    "+-%": _timed(lambda n: f"{50 * (n.high_ms - n.low_ms) / n.runtime_ms:.1f}", "-"),
    "GFLOPs": _timed(lambda n: f"{n.gflops:.2f}", "-"),
    "bytes": lambda s: f"{s.operation.bytes:,}",
    "GB/s": _timed(lambda n: f"{n.gbytes_per_s:.2f}", "-"),
    "Peak(%)": _timed(lambda n: "-" if n.percent is None else f"{n.percent:.1f}", "-"),
}
# The first twenty are the columns of IREE's first dispatch profiler, by their names there.
_CELLS: Mapping[str, _Cell] = {
    "Provider": lambda s: PROVIDER,
    "op_kind": lambda s: s.operation.kind.name,
    "Operation": lambda s: s.operation.name,
    "bytes": lambda s: s.operation.bytes,
    "flops": lambda s: s.operation.flops,
    "batch_count": _dim("batch", 1),
    "m": _dim("m"),
    "n": _dim("n"),
    "k": _dim("k"),
    "lhs": _operand(0),
    "rhs": _operand(1),
    "result": lambda s: _operands(s.operation)["result"],
    "split_k_mode": lambda s: split_mode(s.operation),
    "split_k_slices": lambda s: s.slices or _NONE,
    "Tile config": _tiled(lambda tiles, s: tiles.tiles),
    "Core class": _tiled(
        lambda tiles, s: tiles.core if isinstance(tiles, NamedGpuTiling) else "cpu"
    ),
    "Instruction class": _tiled(
        lambda tiles, s: (
            (tiles.instruction or _NONE) if isinstance(tiles, NamedGpuTiling) else s.instructions
        )
    ),
    "Verification": lambda s: str(s.outcome.verification),
    "Runtime(ms)": _timed(lambda n: f"{n.runtime_ms:.6g}"),
    "GFLOPs": _timed(lambda n: f"{n.gflops:.2f}", NOT_PROFILED),
    "Dispatch": lambda s: s.outcome.dispatch.name,
    "Configuration": lambda s: s.outcome.dispatch.configuration,
    "Arguments": lambda s: arguments(s.operation),
    "Pipeline": lambda s: s.pipeline,
    "Status": lambda s: str(s.outcome.status),
    "Message": lambda s: s.outcome.message,
    "Runtime low(ms)": _timed(lambda n: f"{n.low_ms:.6g}"),
    "Runtime high(ms)": _timed(lambda n: f"{n.high_ms:.6g}"),
    "Samples": _timed(lambda n: n.samples),
    "GB/s": _timed(lambda n: f"{n.gbytes_per_s:.2f}"),
    "Peak(%)": _timed(lambda n: "" if n.percent is None else f"{n.percent:.2f}"),
    "Peak GFLOPs": _timed(lambda n: f"{n.peak_gflops:.1f}" if n.peak_gflops else ""),
    "Worst index": lambda s: "x".join(map(str, s.wrong.worst_index)) if s.wrong else "",
    "Worst actual": lambda s: repr(s.wrong.actual) if s.wrong else "",
    "Worst expected": lambda s: repr(s.wrong.expected) if s.wrong else "",
    "Compile(s)": lambda s: c.seconds if (c := s.outcome.dispatch.entry.compiled) else "",
}
COLUMNS = tuple(_CELLS)


def outcomes_table(done: Iterable[tuple[ProfileOutcome, Numbers | None]]) -> Table:
    """A row for each dispatch.

    Args:
        done: outcomes with their numbers (None: it was not timed).

    Returns:
        The table; `+-%` is half the width of the runtime's interval.
    """
    rows = (tuple(str(cell(_Shown(*one))) for cell in _TABLE.values()) for one in done)
    columns = tuple(_TABLE)
    return Table(columns, columns[2:], tuple(rows))


def csv_row(outcome: ProfileOutcome, found: Numbers | None, instructions: str) -> dict[str, object]:
    """A dispatch as a row of a CSV file.

    Args:
        outcome: what became of it.
        found: its numbers; None: it was not timed.
        instructions: the processor's vector instructions.

    Returns:
        Its cells by the names in `COLUMNS`.
    """
    shown = _Shown(outcome, found, instructions)
    return {name: cell(shown) for name, cell in _CELLS.items()}


def parse_tags(text: str, option: str = "--tags") -> dict[str, str]:
    """The columns and values of `--tags`.

    Args:
        text: `key:value,key:value`.
        option: what it was written for, for messages.

    Raises:
        UserError: it is not that, or a key is given twice or a column of the report.
    """
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


class ProfileCsv(CsvFile):
    """The CSV file of a sweep.

    Args:
        path: the file.
        tags: columns with one value throughout, before the others.
        append: go on in a file that has these columns.

    Raises:
        UserError: the file cannot be written, or has other columns.
    """

    def __init__(self, path: Path, tags: Mapping[str, str], append: bool = False) -> None:
        super().__init__(path, (*tags, *COLUMNS), append, "append with the same --tags, or ")
        self._tags = tags

    def add(self, row: Mapping[str, object]) -> None:
        """Write a row of `csv_row`; it is in the file at once.

        Args:
            row: its cells by column.
        """
        super().add({**self._tags, **row})
