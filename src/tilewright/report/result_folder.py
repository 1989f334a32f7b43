"""What a page needs of a result folder: the summary, the manifest, and every trial by dispatch."""

from __future__ import annotations

import collections
import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.errors import UserError
from tilewright.files import parse_json
from tilewright.sketch.spec_tasks import report_on
from tilewright.spec.report import SpecRow
from tilewright.trial import Status
from tilewright.tuning.outputs import MANIFEST, SPEC, SUMMARY, read_manifest

TRIALS, COMMAND = "trials.csv", "command.txt"

# Of the trials, those that a page needs.
_COLUMNS = ("status", "time_ms", "compile_s", "measure_s", "knobs", "message")
# Reasons of failures that are listed; the rest is added up.
_MOST_REASONS = 8
_REASON_CHARS = 160


@dataclass
class Trials:
    """The trials of one dispatch in their order.

    seconds: time of each in milliseconds, NaN for one that failed, [trials]. spent: seconds of
    compiling and measuring so far, [trials]. knobs: for each the values in ascending order, and
    the number of each trial's value, [trials] (-1: the trial had no such knob).
    """

    times_ms: NDArray[np.float64]
    spent_s: NDArray[np.float64]
    knobs: Mapping[str, tuple[tuple[str, ...], NDArray[np.int64]]]
    failures: tuple[tuple[str, str, int], ...]

    @property
    def count(self) -> int:
        return int(self.times_ms.size)

    @property
    def ok(self) -> NDArray[np.bool_]:
        return ~np.isnan(self.times_ms)


@dataclass(frozen=True)
class ResultFolder:
    """A result folder as read. `trials` by (dispatch, variant); `entries` of the spec by name."""

    path: Path
    summary: dict[str, Any]
    manifest: dict[str, Any]
    command: str
    spec: str
    entries: Mapping[str, SpecRow]
    trials: Mapping[tuple[str, str], Trials]


def read_result_folder(folder: Path) -> ResultFolder:
    """Read a folder that `tilewright tune` wrote.

    Args:
        folder: its path.

    Raises:
        UserError: it is another folder, or cannot be read.
    """
    if not (folder / MANIFEST).is_file():
        raise UserError(
            f"{folder}: not a result folder: it has no {MANIFEST}; give the folder that "
            "`tilewright tune -o` wrote"
        )
    manifest = read_manifest(folder)
    try:
        summary = parse_json((folder / SUMMARY).read_text())
        text = (folder / COMMAND).read_text()
        command = "\n".join(x for x in text.splitlines() if not x.startswith("#"))
        spec = (folder / SPEC).read_text()
        trials = _read_trials(folder / TRIALS)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder}: the result cannot be read: {error}") from error
    entries = {row.name: row for row in report_on(folder / SPEC).entries}
    return ResultFolder(folder, summary, manifest, command, spec, entries, trials)


def _read_trials(path: Path) -> dict[tuple[str, str], Trials]:
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    # A row of an error of the compiler, or of many samples, can be long.
    csv.field_size_limit(1 << 24)
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        for row in csv.DictReader(file):
            found.setdefault((row["dispatch"], row["variant"]), []).append(
                {name: row[name] for name in _COLUMNS}
            )
    return {key: _trials(rows) for key, rows in found.items()}


def _trials(rows: Sequence[Mapping[str, str]]) -> Trials:
    good = [row["status"] == Status.OK and bool(row["time_ms"]) for row in rows]
    pairs = list(zip(rows, good, strict=True))
    failed = [row for row, fine in pairs if not fine]
    failures = collections.Counter((row["status"], _reason(row["message"])) for row in failed)
    listed = [(s, m, n) for (s, m), n in failures.most_common(_MOST_REASONS)]
    rest = len(failed) - sum(n for *_, n in listed)
    if rest:
        listed.append(("", "other reasons", rest))
    each = [parse_json(row["knobs"]) for row in rows]
    names = dict.fromkeys(name for knobs in each for name in knobs)
    return Trials(
        np.array([float(row["time_ms"]) if fine else np.nan for row, fine in pairs]),
        np.cumsum([float(r["compile_s"] or 0) + float(r["measure_s"] or 0) for r in rows]),
        {name: _codes([knobs.get(name) for knobs in each]) for name in names},
        tuple(listed),
    )


def _reason(message: str) -> str:
    lines = message.strip().splitlines()
    return lines[0][:_REASON_CHARS] if lines else ""


def _codes(values: list[Any]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The different values as text in ascending order, and the number of each."""
    keyed = [None if v is None else tuple(v) if isinstance(v, list) else v for v in values]
    different = {v for v in keyed if v is not None}
    try:
        ordered = sorted(different)
    except TypeError:
        ordered = sorted(different, key=str)
    number = {value: i for i, value in enumerate(ordered)}
    codes = np.array([-1 if v is None else number[v] for v in keyed], np.int64)
    return tuple(_text(v) for v in ordered), codes


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
