"""Functions of a module timed in repetitions and reported in the form of Google Benchmark.

Its JSON (https://github.com/google/benchmark, docs/user_guide.md and tools/compare.py) is what many
scripts read: the same keys are written here, so that they read these results too.
"""

from __future__ import annotations

import datetime
import math
import os
import socket
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.errors import UserError
from tilewright.ir.program import pick_function
from tilewright.measure.benchmark_worker import RepeatRequest, repeat
from tilewright.measure.machine import describe, scales_frequency, warnings
from tilewright.measure.pool import WorkerFailure
from tilewright.modules.functions import ModuleFunction, make_arguments
from tilewright.modules.ready_module import OpenModule
from tilewright.tables import csv_text
from tilewright.toolchain import versions

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True)
class BenchPolicy:
    """How often and how long functions are timed.

    repetitions: of each function. min_time_s: what one lasts at least. batch_size: how many
    iterations a call counts as, as in iree-benchmark-module: as many as the program was compiled to
    run each dispatch (`--iree-hal-benchmark-dispatch-repeat-count`). A benchmark of a dispatch is
    told to run it this often.
    """

    repetitions: int = 1
    min_time_s: float = 0.5
    batch_size: int = 1


def run_name(function: str) -> str:
    """What iree-benchmark-module calls the benchmark of a function.

    Args:
        function: its name.

    Returns:
        The name, which says that CPU time is that of the process, and that wall time decides how
        many iterations there are.
    """
    return f"BM_{function}/process_time/real_time"


@dataclass(frozen=True)
class BenchmarkRow:
    """A line of the report: one repetition, or a statistic over all of a function.

    statistic: '' for a repetition, else `mean`, `median`, `stddev` or `cv` (a share, no time).
    Times are seconds of one iteration.
    """

    function: str
    statistic: str
    index: int
    repetitions: int
    iterations: int
    real_s: float
    cpu_s: float
    items_per_s: float

    @property
    def name(self) -> str:
        """As iree-benchmark-module names it, such as `BM_main/process_time/real_time_median`."""
        return run_name(self.function) + (f"_{self.statistic}" if self.statistic else "")


@dataclass(frozen=True)
class BenchResult:
    """The report on one function; `error` says why it has no rows, or too few."""

    function: str
    rows: tuple[BenchmarkRow, ...]
    unit: str
    error: str = ""


Listener = Callable[[BenchmarkRow, str], None]


def bench_module(
    module: OpenModule,
    function: str | None,
    inputs: Sequence[str] = (),
    *,
    seed: int = 0,
    policy: BenchPolicy | None = None,
    on_row: Listener = lambda row, unit: None,
) -> list[BenchResult]:
    """Benchmark a function: the one that is named, else the only one, else every one that takes no
    arguments. One that fails has an error in its result; the others go on.

    Args:
        module: opened.
        function: its name.
        inputs: as for `run_module`.
        seed: of random data.
        policy: how long and how often.
        on_row: told of each row, with the unit to show it in, as soon as it is known.

    Returns:
        A result for each function.

    Raises:
        UserError: there is nothing to benchmark, or inputs do not fit.
    """
    chosen = choose_functions(module, function, inputs)
    return [_bench(module, one, inputs, seed, policy or BenchPolicy(), on_row) for one in chosen]


def choose_functions(
    module: OpenModule, function: str | None, inputs: Sequence[str] = ()
) -> list[ModuleFunction]:
    """See `bench_module`.

    Args:
        module: opened.
        function: its name.
        inputs: as for `run_module`.

    Raises:
        UserError: there is none, or it is not said which.
    """
    functions = module.functions
    without = [one for one in functions.values() if one.takes_nothing]
    if function is None and len(functions) > 1 and without:
        if inputs and len(without) > 1:
            names = ", ".join(one.name for one in without)
            raise UserError(
                f"--input: name the function it is for with --function (allowed: {names})"
            )
        return without
    name = pick_function({n: f.signature for n, f in functions.items()}, function)
    return [functions[name]]


def _bench(
    module: OpenModule,
    function: ModuleFunction,
    inputs: Sequence[str],
    seed: int,
    policy: BenchPolicy,
    on_row: Listener,
) -> BenchResult:
    arguments = make_arguments(
        function,
        inputs,
        module.folder / "inputs",
        seed=seed,
        limits=module.limits(function.name),
        repeats=policy.batch_size,
    )
    rows: list[BenchmarkRow] = []
    unit, iterations = "", None
    for index in range(policy.repetitions):
        request = RepeatRequest(
            str(module.vmfb),
            arguments,
            function.name,
            iterations,
            policy.min_time_s,
            module.parameters,
        )
        done = module.benchmark.ask(repeat, request)
        if isinstance(done, WorkerFailure):
            error = module.failure(function.name, done, given=bool(inputs))
            return BenchResult(function.name, tuple(rows), unit or "ms", str(error))
        iterations, batch = done.iterations, policy.batch_size
        real_s, cpu_s = done.real_s / batch, done.cpu_s / batch
        rate = 1 / real_s if real_s > 0 else math.inf
        unit = unit or _unit(real_s)
        times = (iterations * batch, real_s, cpu_s, rate)
        rows.append(BenchmarkRow(function.name, "", index, policy.repetitions, *times))
        on_row(rows[-1], unit)
    if policy.repetitions > 1:
        for row in _statistics(rows):
            rows.append(row)
            on_row(row, unit)
    return BenchResult(function.name, tuple(rows), unit)


def _statistics(rows: Sequence[BenchmarkRow]) -> list[BenchmarkRow]:
    """Mean, median, sample standard deviation and its share of the mean, of every column."""
    columns = [[getattr(r, name) for r in rows] for name in ("real_s", "cpu_s", "items_per_s")]
    of: dict[str, Callable[[list[float]], float]] = {
        "mean": statistics.fmean,
        "median": statistics.median,
        "stddev": statistics.stdev,
        "cv": lambda c: statistics.stdev(c) / statistics.fmean(c) if any(c) else 0.0,
    }
    first = rows[0]
    return [
        BenchmarkRow(first.function, name, 0, first.repetitions, len(rows), *map(compute, columns))
        for name, compute in of.items()
    ]


def _unit(seconds: float) -> str:
    return next((unit for unit, size in UNITS.items() if seconds >= size), "ns")


# -- the report ------------------------------------------------------------------------------------


def context(module: OpenModule) -> dict[str, Any]:
    """The machine and the conditions, by Google Benchmark's keys and some more.

    Args:
        module: opened.
    """
    machine = describe()
    return {
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "host_name": socket.gethostname(),
        "executable": "tilewright bench",
        "num_cpus": machine.threads,
        "mhz_per_cpu": round(machine.frequency_mhz or 0),
        "cpu_scaling_enabled": scales_frequency(machine),
        "caches": [
            {"type": c.kind, "level": c.level, "size": c.bytes, "num_sharing": c.shared_by}
            for c in machine.caches
        ],
        "load_avg": [round(load, 2) for load in os.getloadavg()],
        "library_version": versions()["tilewright"],
        "library_build_type": "release",
        "cpu": machine.cpu,
        "module": str(module.path),
        "device": module.device.uri,
        "threads": module.device.threads or 1,
        "versions": versions(),
        "warnings": list(warnings(machine)),
    }


def to_json(results: Sequence[BenchResult], about: dict[str, Any]) -> dict[str, Any]:
    """The report in Google Benchmark's form. A statistic that is a share has the unit of one.

    Args:
        results: of `bench_module`.
        about: of `context`.
    """
    rows: list[dict[str, Any]] = []
    for family, result in enumerate(results):
        rows += [_row_json(family, row, result.unit) for row in result.rows]
        if result.error:
            rows.append(
                {
                    "name": run_name(result.function),
                    "run_name": run_name(result.function),
                    "family_index": family,
                    "run_type": "iteration",
                    "error_occurred": True,
                    "error_message": result.error,
                }
            )
    return {"context": about, "benchmarks": rows}


def _row_json(family: int, row: BenchmarkRow, unit: str) -> dict[str, Any]:
    is_share = row.statistic == "cv"
    scale = 1.0 if is_share else UNITS[unit]
    data: dict[str, Any] = {
        "name": row.name,
        "family_index": family,
        "per_family_instance_index": 0,
        "run_name": run_name(row.function),
        "run_type": "aggregate" if row.statistic else "iteration",
        "repetitions": row.repetitions,
        "threads": 1,
    }
    if row.statistic:
        data["aggregate_name"] = row.statistic
        data["aggregate_unit"] = "percentage" if is_share else "time"
    else:
        data["repetition_index"] = row.index
    return data | {
        "iterations": row.iterations,
        "real_time": row.real_s / scale,
        "cpu_time": row.cpu_s / scale,
        "time_unit": unit,
        "items_per_second": row.items_per_s,
    }


# The columns of Google Benchmark's CSV; the JSON has the same keys.
_CSV_COLUMNS = (
    "name",
    "iterations",
    "real_time",
    "cpu_time",
    "time_unit",
    "bytes_per_second",
    "items_per_second",
    "label",
    "error_occurred",
    "error_message",
)


def to_csv(results: Sequence[BenchResult]) -> str:
    """The report as Google Benchmark writes it with `--benchmark_format=csv`.

    Args:
        results: of `bench_module`.

    Returns:
        The lines of the file. A statistic that is a share has no unit.
    """
    rows = to_json(results, {})["benchmarks"]
    for row in rows:
        if row.get("aggregate_unit") == "percentage":
            row["time_unit"] = ""
        if "error_occurred" in row:
            row["error_occurred"] = "true"
    return csv_text(_CSV_COLUMNS, [{k: row.get(k, "") for k in _CSV_COLUMNS} for row in rows])
