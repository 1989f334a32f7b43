"""Results of comparisons: rows, runs, files in JSON and CSV."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tilewright.compare.machine_state import MachineState
from tilewright.errors import UnknownNameError, UserError
from tilewright.files import check_writable_file, parse_json, read_text, write_whole
from tilewright.measure.statistics import Interval, bootstrap_interval, paired_ratio_interval
from tilewright.plain_data import tupled
from tilewright.tables import check_columns, csv_text

FORMAT = 1
_WHAT = "tilewright comparison"


class ProviderOutcome(enum.StrEnum):
    """What became of a workload with a provider."""

    OK = "ok"
    FAILED = "FAILED"
    """Wrong numbers, or more threads than it was given: in no mean."""
    ERROR = "error"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    SKIPPED = "skipped"
    """Not installed; the reason is the line that would bring it."""
    ABSENT = "not there"
    """The provider does not have this workload."""


@dataclass(frozen=True)
class ComparisonRow:
    """A workload with a provider.

    samples: mean seconds of one call, one for each round; fastest: the same for the fastest part
    of each round, which is what a row is judged by (other things that run only add time);
    processor: the least processor time that a part of each round took for one call, of all threads
    together. cores: processor time over wall time while it was timed.
    threads: what the library says of its threads. worst: the largest error over what is allowed.
    progress: (seconds, candidates, best seconds) of a search.
    """

    workload: str
    kind: str
    provider: str
    outcome: ProviderOutcome
    reason: str = ""
    version: str = ""
    flops: int = 0
    bytes: int = 0
    element_type: str = ""
    reference: str = ""
    samples: tuple[float, ...] = ()
    fastest: tuple[float, ...] = ()
    processor: tuple[float, ...] = ()
    cores: float | None = None
    threads: str = ""
    worst: float | None = None
    note: str = ""
    build_s: float = 0.0
    progress: tuple[tuple[float, int, float], ...] = ()

    @property
    def ok(self) -> bool:
        return self.outcome is ProviderOutcome.OK

    @property
    def times(self) -> tuple[float, ...]:
        """Seconds of one call that count: of the fastest part of each round."""
        return self.fastest or self.samples

    @property
    def time(self) -> Interval:
        """The median over the rounds of the fastest part's seconds, with its 95% bootstrap
        interval."""
        return bootstrap_interval(self.times)

    @property
    def gflops(self) -> Interval | None:
        """GFLOP/s with the same interval; None for what has no known number of operations."""
        if not self.flops or not self.samples:
            return None
        time = self.time
        value, low, high = (self.flops / s / 1e9 for s in (time.value, time.high, time.low))
        return Interval(value, low, high, time.confidence)

    @staticmethod
    def from_json(data: dict[str, Any]) -> ComparisonRow:
        """What `ComparisonRun.to_json` wrote.

        Args:
            data: one entry.
        """
        values = {name: tupled(value) for name, value in data.items()}
        values["outcome"] = ProviderOutcome(data["outcome"])
        values["fastest"] = values.get("fastest") or values["samples"]
        return ComparisonRow(**values)


@dataclass(frozen=True)
class ComparisonRun:
    """One comparison: when, how, on what, and its rows."""

    date: str
    command: str
    threads: int
    settings: dict[str, Any]
    state: MachineState
    versions: dict[str, str]
    rows: tuple[ComparisonRow, ...] = field(default=())

    @property
    def gpu(self) -> str:
        """The GPU that it ran on, '' for processors."""
        return str(self.state.machine.get("gpu", ""))

    @property
    def computer(self) -> str:
        """The model of what computed."""
        return self.gpu or str(self.state.machine.get("cpu", ""))

    @property
    def threads_text(self) -> str:
        """How much of it: threads of a processor, or for a GPU what code was made for."""
        if self.gpu:
            return str(self.settings.get("target", ""))
        return "1 thread" if self.threads == 1 else f"{self.threads} threads"

    @property
    def workloads(self) -> list[str]:
        return list(dict.fromkeys(row.workload for row in self.rows))

    @property
    def providers(self) -> list[str]:
        return list(dict.fromkeys(row.provider for row in self.rows))

    def row(self, workload: str, provider: str) -> ComparisonRow | None:
        """The row of a workload with a provider; None where there is none.

        Args:
            workload: its name.
            provider: its label.
        """
        found = (r for r in self.rows if r.workload == workload and r.provider == provider)
        return next(found, None)

    def to_json(self) -> dict[str, Any]:
        """For the file of results."""
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> ComparisonRun:
        """What `to_json` wrote.

        Args:
            data: one entry.
        """
        return ComparisonRun(
            **{
                **data,
                "state": MachineState.from_json(data["state"]),
                "rows": tuple(map(ComparisonRow.from_json, data["rows"])),
            }
        )


_Cell = Callable[[ComparisonRun, ComparisonRow], object]


def read_runs(path: Path) -> list[ComparisonRun]:
    """The comparisons of a file.

    Args:
        path: as `tilewright compare --output` wrote it.

    Returns:
        At least one, oldest first.

    Raises:
        UserError: it cannot be read, or is something else.
    """
    try:
        data = parse_json(read_text(path, "results of a comparison"))
        if data["what"] != _WHAT:
            raise ValueError("another kind of file")
        if data["format"] != FORMAT:
            raise UserError(
                f"{path}: it has the format {data['format']}, this version reads {FORMAT}"
            )
        runs = [ComparisonRun.from_json(run) for run in data["runs"]]
        if not runs:
            raise ValueError("there is no run in it")
        return runs
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: not results of a comparison, as `tilewright compare --output FILE.json` "
            f"writes them ({error})"
        ) from error


def check_output(path: Path, append: bool, threads: int, target: str, gpu: bool) -> None:
    """Ask, before the work, whether results can be written to a file. The rows of a file are read
    as one result, so they are of one target and, on processors, of one number of threads.

    Args:
        path: the file, .json or .csv.
        append: behind what it has.
        threads: of what will be added.
        target: of what will be added.
        gpu: whether that is a GPU.

    Raises:
        UserError: they cannot.
    """
    if path.suffix not in (".json", ".csv"):
        raise UserError(f"--output: {path} must end in .json or .csv")
    check_writable_file(path, "--output")
    there = ResultFile(path, append).newest
    if there is None:
        return
    before = str(there.settings.get("target", target))
    if before != target or (there.threads != threads and not gpu):
        raise UserError(
            f"--append: {path} has results of {before} with {there.threads} threads, and these "
            f"would be of {target} with {threads}; write another file"
        )


def write_run(path: Path, run: ComparisonRun, append: bool = False) -> None:
    """Write a comparison to a .json or .csv file, behind what is there with `append`.

    Args:
        path: the file.
        run: the comparison.
        append: behind what it has.

    Raises:
        UserError: it cannot be written, or gone on with.
    """
    ResultFile(path, append).write(run)


class ResultFile:
    """A file that a comparison is written to, as often as it has come further.

    append: behind what the file has now. Raises UserError for a file that cannot be gone on with.
    """

    def __init__(self, path: Path, append: bool = False) -> None:
        self._path = path
        goes_on = append and path.is_file()
        self._runs: list[ComparisonRun] = []
        self._text = ""
        self.written = False
        if path.suffix != ".csv":
            self._runs = read_runs(path) if goes_on else []
        elif goes_on:
            check_columns(path, COLUMNS)
            self._text = read_text(path, "results of a comparison")

    @property
    def newest(self) -> ComparisonRun | None:
        """The last comparison that a .json file had."""
        return self._runs[-1] if self._runs else None

    def write(self, run: ComparisonRun) -> None:
        """The run as far as it has come; the file is whole at every moment.

        Args:
            run: the comparison that this file is for.

        Raises:
            UserError: it cannot be written.
        """
        if self._path.suffix == ".csv":
            rows = ({name: c(run, row) for name, c in _CELLS.items()} for row in run.rows)
            text = self._text + csv_text(COLUMNS, rows, header=not self._text)
        else:
            runs = [one.to_json() for one in (*self._runs, run)]
            text = json.dumps({"what": _WHAT, "format": FORMAT, "runs": runs}, indent=1) + "\n"
        try:
            write_whole(self._path, text.encode())
            self.written = True
        except OSError as error:
            raise UserError(f"--output: cannot write {self._path} ({error.strerror})") from error


# -- CSV -------------------------------------------------------------------------------------------


def _ms(part: Callable[[Interval], float]) -> _Cell:
    return lambda run, row: f"{1e3 * part(row.time):.6g}" if row.samples else ""


_CELLS: Mapping[str, _Cell] = {
    "date": lambda run, row: run.date,
    "workload": lambda run, row: row.workload,
    "kind": lambda run, row: row.kind,
    "provider": lambda run, row: row.provider,
    "outcome": lambda run, row: str(row.outcome),
    "threads": lambda run, row: run.threads,
    "median_ms": _ms(lambda time: time.value),
    "low_ms": _ms(lambda time: time.low),
    "high_ms": _ms(lambda time: time.high),
    "rounds": lambda run, row: len(row.samples),
    "gflops": lambda run, row: f"{rate.value:.2f}" if (rate := row.gflops) else "",
    "cores": lambda run, row: "" if row.cores is None else f"{row.cores:.2f}",
    "flops": lambda run, row: row.flops or "",
    "bytes": lambda run, row: row.bytes or "",
    "version": lambda run, row: row.version,
    "reason": lambda run, row: row.reason,
    "note": lambda run, row: row.note,
}
COLUMNS = tuple(_CELLS)


# -- what rows say together ------------------------------------------------------------------------


def speedup(run: ComparisonRun, workload: str, provider: str, base: str) -> Interval | None:
    """The base's time over the provider's (above 1 is faster), from the ratios within the rounds;
    None unless both are ok.

    Args:
        run: the comparison.
        workload: its name.
        provider: its label.
        base: the label of what it is compared with.

    Returns:
        The median of the ratios with its 95% interval; None unless both are ok.
    """
    one, other = run.row(workload, provider), run.row(workload, base)
    if one is None or other is None or not (one.ok and other.ok):
        return None
    count = min(len(one.times), len(other.times))
    return paired_ratio_interval(other.times[:count], one.times[:count])


def geometric_mean(values: Iterable[float]) -> float | None:
    """None of nothing.

    Args:
        values: all positive.

    Returns:
        None of nothing.
    """
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def mean_speedup(run: ComparisonRun, provider: str, base: str) -> tuple[float | None, int]:
    """The geometric mean of the speed-ups over the workloads where both are ok, and their number.

    Everything else is in no mean.

    Args:
        run: the comparison.
        provider: its label.
        base: the label of what it is compared with.

    Returns:
        The mean (None of nothing), and of how many workloads.
    """
    found = [speedup(run, w, provider, base) for w in run.workloads]
    values = [s.value for s in found if s is not None]
    return geometric_mean(values), len(values)


def default_base(run: ComparisonRun, named: str | None = None) -> str:
    """The provider that the others are compared with.

    Args:
        run: the comparison.
        named: the user's choice.

    Returns:
        The one named, else the first that is ok anywhere.

    Raises:
        UserError: there is none of that name.
    """
    if named is not None:
        if named not in run.providers:
            raise UnknownNameError("provider", named, run.providers, "--base")
        return named
    there = [p for p in run.providers if any(r.ok for r in run.rows if r.provider == p)]
    return (there or run.providers)[0]


def latest(runs: Sequence[ComparisonRun]) -> ComparisonRun:
    """All rows of a file as one run: of each workload with a provider the newest, under the newest
    run's date and machine.

    Args:
        runs: of a file, oldest first.
    """
    rows: dict[tuple[str, str], ComparisonRow] = {}
    for run in runs:
        for row in run.rows:
            rows[row.workload, row.provider] = row
    return replace(runs[-1], rows=tuple(rows.values()))
