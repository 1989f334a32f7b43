"""What happens on the host and in dispatches while a function runs, as IREE's runtime records it.

The runtime's own tools do the work, which its wheel has: `iree-benchmark-module` runs the function
with HAL profiling (`--device_profiling_mode=`), `iree-profile export` writes what was recorded as
lines of JSON. On a CPU these are the operations of the device's queue, the dispatches with the time
that each was under way, and the memory that the device holds.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.errors import UserError
from tilewright.measure.inputs import InputFile, ScalarInput
from tilewright.modules.benchmarking import choose_functions
from tilewright.modules.functions import make_arguments
from tilewright.modules.ready_module import OpenModule
from tilewright.toolchain import error_line

# What the runtime records of a device that is this CPU.
_RECORDED = "queue-events,host-execution,memory-events,executable-metadata"
_LOCAL = "local-"
# Types that .npy files know by the names of NumPy; of others IREE reads raw bytes.
_NPY_KINDS = "biufc"
QUEUE, DISPATCHES = "queue", "dispatches"


@dataclass(frozen=True)
class TraceSpan:
    """Something with a begin and an end, in ns since the first of them.

    lane: `QUEUE` or `DISPATCHES`. details: what else is known, for people.
    """

    lane: str
    name: str
    start_ns: int
    end_ns: int
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class RunTrace:
    """Calls of a function: spans in the order of their begin, and the memory that the device holds
    for them, as (ns, bytes) from each change on."""

    function: str
    calls: int
    spans: tuple[TraceSpan, ...]
    memory: tuple[tuple[int, int], ...]

    @property
    def duration_ns(self) -> int:
        """From the first begin to the last end."""
        return max((span.end_ns for span in self.spans), default=0)

    def dispatches(self) -> dict[str, list[TraceSpan]]:
        """The spans of each dispatch by its name, the longest in all first."""
        found: dict[str, list[TraceSpan]] = {}
        for span in self.spans:
            if span.lane == DISPATCHES:
                found.setdefault(span.name, []).append(span)
        order = sorted(found, key=lambda name: -sum(s.duration_ns for s in found[name]))
        return {name: found[name] for name in order}


def trace_module(
    module: OpenModule,
    function: str | None,
    inputs: Sequence[str] = (),
    *,
    seed: int = 0,
    calls: int = 1,
) -> RunTrace:
    """Run a function with the runtime's recording.

    Args:
        module: opened.
        function: its name; None: the only one, or the only one without arguments.
        inputs: as for `run_module`.
        seed: of random data.
        calls: how often it runs.

    Returns:
        What was recorded.

    Raises:
        UserError: it fails, or nothing can be recorded: the device is no CPU, or it uses none.
    """
    if not module.device.uri.startswith(_LOCAL):
        raise UserError(
            f"--device: '{module.device.uri}' is no CPU, and only a CPU's runs are traced here; "
            "IREE's own tools record others (--device_profiling_mode, iree-profile)"
        )
    chosen = choose_functions(module, function, inputs)
    if len(chosen) > 1:
        names = ", ".join(one.name for one in chosen)
        raise UserError(f"--function: name the one to trace (allowed: {names})")
    folder = module.folder / "inputs"
    limits = module.limits(chosen[0].name)
    arguments = make_arguments(chosen[0], inputs, folder, seed=seed, limits=limits)
    recorded = module.folder / "run.ireeprof"
    command = [
        *_tool("iree-benchmark-module"),
        f"--module={module.vmfb}",
        f"--function={chosen[0].name}",
        *module.device.tool_flags,
        *(f"--input={_written(one, folder, i)}" for i, one in enumerate(arguments.arguments)),
        *(f"--parameters={scope}={file}" for scope, file in module.parameters.archives),
        f"--benchmark_min_time={calls}x",
        f"--device_profiling_mode={_RECORDED}",
        f"--device_profiling_output={recorded}",
    ]
    what = f"{module.path}: '{chosen[0].name}'"
    _run(command, module.timeout_s, what)
    if not recorded.is_file():
        raise UserError(f"{what} uses no device: there is nothing to trace")
    text = _run(
        [*_tool("iree-profile"), "export", "--format=ireeperf-jsonl", "--output=-", str(recorded)],
        module.timeout_s,
        what,
    )
    return read_trace(chosen[0].name, calls, map(json.loads, text.splitlines()))


def _tool(name: str) -> list[str]:
    """The command of one of the runtime's tools."""
    package = importlib.util.find_spec("iree._runtime_libs")
    folders = package.submodule_search_locations if package is not None else None
    for folder in folders or ():
        if (Path(folder) / name).is_file():
            return [str(Path(folder) / name)]
    raise UserError(f"the installed runtime of IREE has no {name}, which tracing needs")


def _written(argument: InputFile | ScalarInput, folder: Path, position: int) -> str:
    """An argument as IREE's tools take it."""
    if isinstance(argument, ScalarInput):
        return str(argument.value)
    if argument.type.dtype.kind in _NPY_KINDS:
        return f"@{argument.path}"
    raw = folder / f"input_{position}.bin"
    raw.write_bytes(argument.load().tobytes())
    return f"{argument.type}=@{raw}"


def _run(command: Sequence[str], timeout_s: float, what: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise UserError(
            f"{what} gave no answer within {timeout_s:g} s; give it longer with --timeout, or "
            "fewer --calls"
        ) from None
    if done.returncode != 0:
        said = error_line(done.stderr) or f"{Path(command[0]).name} ended by {done.returncode}"
        raise UserError(f"{what} failed: {said}")
    return done.stdout


def read_trace(function: str, calls: int, records: Iterable[Mapping[str, Any]]) -> RunTrace:
    """A trace from the records of `iree-profile export --format=ireeperf-jsonl`.

    Args:
        function: that ran.
        calls: how often.
        records: each line's object.

    Returns:
        The trace; its times begin at 0.

    Raises:
        UserError: nothing was recorded that has a begin and an end.
    """
    found: list[TraceSpan] = []
    memory: list[tuple[int, int]] = []
    for record in records:
        kind = record["record_type"]
        if kind == "host_execution_event":
            found.append(_span(record))
        elif kind == "memory_event" and record.get("pool_stats_available"):
            memory.append((record["host_time_ns"], record["pool_bytes_reserved"]))
    if not found:
        raise UserError(f"'{function}' ran nothing on the device: there is nothing to trace")
    begin = min(span.start_ns for span in found)
    spans = [
        TraceSpan(s.lane, s.name, s.start_ns - begin, s.end_ns - begin, s.details) for s in found
    ]
    return RunTrace(
        function,
        calls,
        tuple(sorted(spans, key=lambda span: (span.start_ns, -span.end_ns))),
        tuple((max(0, when - begin), held) for when, held in sorted(memory)),
    )


def _span(record: Mapping[str, Any]) -> TraceSpan:
    start, end = record["start_host_time_ns"], record["end_host_time_ns"]
    if record["op"] != "dispatch":
        details = {"bytes": record["payload_length"]} if record["payload_length"] else {}
        return TraceSpan(QUEUE, record["op"], start, end, details)
    details = {
        "workgroups": record["tile_count"],
        "time of all workgroups": f"{record['tile_duration_sum_ns'] / 1e6:.4g} ms",
    }
    return TraceSpan(DISPATCHES, record["key"] or "dispatch", start, end, details)
