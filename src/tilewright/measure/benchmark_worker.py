"""Tasks of a benchmark worker: the one process that runs programs on a device.

Inputs are put on the device once for each set and kept while candidates come and go; a worker that
replaces one that a candidate crashed loads them again by itself, because every request names them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.argument import ArgumentType
from tilewright.ir.guards import GUARDED, WroteOutside, without_guards
from tilewright.measure.comparison import ComparisonPolicy, interleave
from tilewright.measure.device_options import (
    NO_PARAMETERS,
    DeviceOptions,
    Parameters,
    schedule_as_batch,
)
from tilewright.measure.inputs import InputFile, InputSet, read_outputs, write_outputs
from tilewright.measure.jobs import RecentlyUsed, WorkerState
from tilewright.measure.runtime import Device, LoadedProgram
from tilewright.measure.statistics import Measurement
from tilewright.measure.timing import Repetition, TimingPolicy, measure
from tilewright.measure.timing import repeat as repeat_calls

MAIN, BENCH = "main", "bench"

# Sets of inputs and programs kept; those of a candidate and of its baseline are in use at a time.
_KEPT_INPUTS = 3
_KEPT_PROGRAMS = 2
_KEPT_SIZES = 64
# Bytes of memory that stands in for constants, beside that of the latest program.
_KEPT_CONSTANTS = 256 << 20
# Of what the baseline usually takes, from when on it is timed twice.
_SLOWER = 1.03

Vmfb = str | bytes


@dataclass(frozen=True)
class RunRequest:
    """Run `function` once and write its outputs to a .npz file (`inputs.read_outputs`)."""

    vmfb: Vmfb
    inputs: InputSet
    outputs: str
    function: str = MAIN
    parameters: Parameters = NO_PARAMETERS


@dataclass(frozen=True)
class VerifyRequest:
    """Run `function` once and compare its outputs with those in a .npz file.

    element_types: of each output, the type that decides its tolerance (the outputs' own if None:
    give the operands' where they are narrower). reduction_length: terms of the longest sum.
    accumulation_type, integer_slack: see `verify.compare`. sensitivity: a .npz file with how much
    each element moves with the inputs' last digit, for ill-conditioned data.
    """

    vmfb: Vmfb
    inputs: InputSet
    expected: str
    reduction_length: int
    element_types: tuple[str, ...] | None = None
    function: str = MAIN
    parameters: Parameters = NO_PARAMETERS
    accumulation_type: str | None = None
    integer_slack: int = 0
    sensitivity: str | None = None


@dataclass(frozen=True)
class TimeRequest:
    """Time a program.

    repeats: 1 times `function`; more times `bench`, which runs the dispatch this often in one call.
    best_s: best time so far on the machine as it is now (for dropping slow candidates).
    baseline: path of the default's vmfb, to be timed before the candidate if `baseline_first`, and
    after it if the candidate takes less than `best_s`; with `baseline_inputs` and
    `baseline_parameters` where they are not the candidate's. usual_s: what the baseline took at the
    reference: where it seems to take longer it is timed twice. record_below: of `best_s`; what is
    faster is a record whatever the baseline says, which is not asked.
    """

    vmfb: Vmfb
    inputs: InputSet
    policy: TimingPolicy
    repeats: int = 1
    best_s: float | None = None
    baseline: str | None = None
    baseline_first: bool = False
    parameters: Parameters = NO_PARAMETERS
    function: str = MAIN
    baseline_inputs: InputSet | None = None
    baseline_parameters: Parameters | None = None
    usual_s: float | None = None
    record_below: float = 0.0


@dataclass(frozen=True)
class TimeReply:
    """The candidate's measurement, and the baseline's seconds where it was timed."""

    measurement: Measurement
    baseline_before_s: float | None = None
    baseline_after_s: float | None = None


@dataclass(frozen=True)
class CompareRequest:
    """Time programs in interleaved rounds. All are loaded at once, each with its own inputs.
    `repeats` and `function` as in TimeRequest."""

    vmfbs: tuple[Vmfb, ...]
    inputs: tuple[InputSet, ...]
    policy: ComparisonPolicy
    repeats: tuple[int, ...]
    parameters: tuple[Parameters, ...]
    function: str = MAIN


@dataclass(frozen=True)
class RepeatRequest:
    """One repetition of a benchmark of `function`; the rest as in `timing.repeat`."""

    vmfb: str
    inputs: InputSet
    function: str
    iterations: int | None
    min_time_s: float
    parameters: Parameters = NO_PARAMETERS


class _Bench:
    """The open device, and what is kept on it and of it.

    arguments: of sets of inputs, by their keys. sizes: of references. copies: more sets of the
    arguments of one set of inputs, with its key and their number. constants: memory that stands in
    for constants, by type; what was used last comes last.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.arguments: RecentlyUsed[str, list[Any]] = RecentlyUsed(_KEPT_INPUTS)
        self.programs: RecentlyUsed[tuple[str, Parameters], LoadedProgram]
        self.programs = RecentlyUsed(_KEPT_PROGRAMS)
        self.sizes: RecentlyUsed[tuple[str, int, tuple[str, ...]], list[float]]
        self.sizes = RecentlyUsed(_KEPT_SIZES)
        self.copies: tuple[tuple[str, int], list[Any]] | None = None
        self.constants: dict[ArgumentType, list[Any]] = {}


def setup(state: WorkerState, options: DeviceOptions) -> None:
    """Open the device.

    Args:
        state: of a new worker.
        options: the device and how to open it.

    Raises:
        UserError: it cannot be opened.
    """
    if options.uri == "local-task":
        schedule_as_batch(options.schedules_batch)
    state.keep(_Bench(Device(options)))
    # A kernel that writes where it must not takes its context down: nothing that comes after it in
    # the process runs, on CUDA, HIP and Vulkan alike.
    state.fragile = not options.uri.startswith("local-")


def load(state: WorkerState, inputs: InputSet) -> None:
    """Task: put inputs on the device before the first request that uses them.

    Args:
        state: what the worker keeps.
        inputs: the arguments of programs to come.
    """
    _arguments(state, inputs)


def run(state: WorkerState, request: RunRequest) -> str:
    """Task: see RunRequest. Returns the path of the outputs.

    Args:
        state: what the worker keeps.
        request: what is asked.
    """
    write_outputs(Path(request.outputs), _run_once(state, request))
    return request.outputs


def verify(state: WorkerState, request: VerifyRequest) -> list[Any]:
    """Task: see VerifyRequest. Returns what `verify.compare` says of each output.

    Args:
        state: what the worker keeps.
        request: what is asked.

    Raises:
        ValueError: the program has more or fewer results than are expected.
        WroteOutside: it writes behind its results.
    """
    from tilewright.argument import element_type_of
    from tilewright.measure.verify import compare as compare_outputs

    expected = read_outputs(Path(request.expected))
    actual = _checked_run(state, request, [one.shape for one in expected])
    if len(actual) != len(expected):
        raise ValueError(f"the program has {len(actual)} results, {len(expected)} are expected")
    types = request.element_types or tuple(element_type_of(e.dtype) for e in expected)
    moves: list[Any] = [None] * len(expected)
    if request.sensitivity:
        moves = read_outputs(Path(request.sensitivity))
    sizes = _reference_sizes(state, request.expected, expected, types)
    sums = request.reduction_length, request.accumulation_type, request.integer_slack
    return [
        compare_outputs(a, e, kind, *sums, moved, size)
        for a, e, kind, moved, size in zip(actual, expected, types, moves, sizes, strict=True)
    ]


def _reference_sizes(
    state: WorkerState, path: str, expected: list[Any], types: tuple[str, ...]
) -> list[float]:
    """How large the values of a reference are, found out once for all candidates.

    The values themselves are read again for each: what a candidate writes outside its own buffers
    must not change what it is compared with.
    """
    from tilewright.measure.verify import reference_size

    key = (path, Path(path).stat().st_mtime_ns, types)
    return state.get(_Bench).sizes.get(
        key, lambda: [reference_size(e, kind) for e, kind in zip(expected, types, strict=True)]
    )


def time_program(state: WorkerState, request: TimeRequest) -> TimeReply:
    """Task: see TimeRequest.

    Args:
        state: what the worker keeps.
        request: what is asked.

    Returns:
        The measurement, with the baseline's seconds where it was timed.
    """
    arguments = _arguments(state, request.inputs)
    before = after = None
    if request.baseline and request.baseline_first:
        before = _time_baseline(state, request)
    program = open_device(state).load(request.vmfb, request.parameters)
    call, executions = _timed_call(
        state, request.inputs, program, request.function, request.repeats
    )
    measurement = measure(
        call,
        request.policy,
        executions=executions,
        probe=program.bind(request.function, arguments),
        best_s=request.best_s,
    )
    promising = (
        request.best_s is not None
        and not measurement.dropped
        and request.record_below * request.best_s <= measurement.quartile_s < request.best_s
    )
    if request.baseline and promising:
        after = _time_baseline(state, request)
    return TimeReply(measurement, before, after)


def compare(state: WorkerState, request: CompareRequest) -> list[Measurement]:
    """Task: see CompareRequest. Measurements in the order of the programs.

    Args:
        state: what the worker keeps.
        request: what is asked.
    """
    device = open_device(state)
    # The programs must outlive their calls' use of them.
    programs = [device.load(v, p) for v, p in zip(request.vmfbs, request.parameters, strict=True)]
    bound = [
        _timed_call(state, inputs, program, request.function, repeats)
        for program, inputs, repeats in zip(programs, request.inputs, request.repeats, strict=True)
    ]
    calls, executions = [b[0] for b in bound], [b[1] for b in bound]
    return interleave(calls, request.policy, executions=executions)


def repeat(state: WorkerState, request: RepeatRequest) -> Repetition:
    """Task: see RepeatRequest. The program stays loaded for the next repetition.

    Args:
        state: what the worker keeps.
        request: what is asked.

    Returns:
        Seconds of one iteration.
    """
    program = kept_program(state, request.vmfb, request.parameters)
    return repeat_calls(
        program.bind(request.function, _arguments(state, request.inputs)),
        iterations=request.iterations,
        min_time_s=request.min_time_s,
    )


def open_device(state: WorkerState) -> Device:
    """The worker's device, for tasks of other modules.

    Args:
        state: what the worker keeps.
    """
    return state.get(_Bench).device


def kept_program(state: WorkerState, vmfb: str, parameters: Parameters) -> LoadedProgram:
    """A program that stays loaded, with its state, until others have taken its place.

    Args:
        state: what the worker keeps.
        vmfb: path of the compiled program.
        parameters: its weights.
    """
    bench = state.get(_Bench)
    return bench.programs.get((vmfb, parameters), lambda: bench.device.load(vmfb, parameters))


def _arguments(state: WorkerState, inputs: InputSet) -> list[Any]:
    bench = state.get(_Bench)
    return bench.arguments.get(inputs.key, lambda: bench.device.arguments(inputs))


def _run_once(state: WorkerState, request: RunRequest | VerifyRequest) -> list[Any]:
    """Outputs of one run on inputs fresh from their files: an earlier candidate may have written
    outside its own buffers."""
    device = open_device(state)
    program = device.load(request.vmfb, request.parameters)
    results = program.bind(request.function, device.arguments(request.inputs))()
    return program.outputs(results)


def _checked_run(
    state: WorkerState, request: VerifyRequest, shapes: list[tuple[int, ...]]
) -> list[Any]:
    """As `_run_once`; of a program that has guards, with a look at them."""
    device = open_device(state)
    program = device.load(request.vmfb, request.parameters)
    if request.function != MAIN or not program.has(GUARDED):
        return _run_once(state, request)
    results = program.outputs(program.bind(GUARDED, device.arguments(request.inputs))())
    try:
        return without_guards(results, shapes)
    except WroteOutside:
        # Where else it wrote nobody knows.
        state.fragile = True
        raise


def _timed_call(
    state: WorkerState, inputs: InputSet, program: LoadedProgram, function: str, repeats: int
) -> tuple[Callable[[], Any], int]:
    """The call that is timed, and how often it runs what is measured.

    A `bench` that takes the arguments several times over uses copies of them in turn, each at least
    once. It is a candidate's: a user's program may have a function of that name, too.
    """
    arguments, sets = _arguments(state, inputs), 1
    if arguments and (repeats > 1 or inputs.turns > 1):
        sets = program.argument_count(BENCH) // len(arguments)
    if repeats == 1 and sets < 2:
        return program.bind(function, arguments), 1
    if sets > 1:
        further = _with_other_constants if inputs.constant else _copies
        arguments = [*arguments, *further(state, inputs, sets - 1)]
    return program.bind(BENCH, arguments), max(repeats, sets)


def _copies(state: WorkerState, inputs: InputSet, sets: int) -> list[Any]:
    """More sets of the arguments, one after the other; kept for the next program."""
    key = (inputs.key, sets)
    bench = state.get(_Bench)
    if bench.copies is None or bench.copies[0] != key:
        bench.copies = None  # the old ones make room first
        copies = [one for _ in range(sets) for one in bench.device.arguments(inputs)]
        bench.copies = key, copies
    return list(bench.copies[1])


def _with_other_constants(state: WorkerState, inputs: InputSet, sets: int) -> list[Any]:
    """More sets of the arguments, whose constants lie in other memory.

    What is in it may be another kernel's, of the same type: what is timed takes as long with it.
    """
    bench, arguments = state.get(_Bench), _arguments(state, inputs)
    used: dict[ArgumentType, int] = {}
    made: list[Any] = []
    for _ in range(sets):
        for i, given in enumerate(inputs.arguments):
            if i not in inputs.constant or not isinstance(given, InputFile):
                made.append(arguments[i])
                continue
            number = used.get(given.type, 0)
            used[given.type] = number + 1
            known = bench.constants.pop(given.type, [])
            bench.constants[given.type] = known
            if number == len(known):
                known.append(bench.device.upload(given.load()))
            made.append(known[number])
    kept = 0
    for kind in reversed(list(bench.constants)):
        kept += len(bench.constants[kind]) * kind.bytes
        if kept > _KEPT_CONSTANTS and kind not in used:
            del bench.constants[kind]
    return made


def _time_baseline(state: WorkerState, request: TimeRequest) -> float:
    assert request.baseline is not None
    parameters = request.baseline_parameters or request.parameters
    program = kept_program(state, request.baseline, parameters)
    inputs = request.baseline_inputs or request.inputs
    call, executions = _timed_call(state, inputs, program, request.function, request.repeats)
    seconds = measure(call, request.policy, executions=executions).quartile_s
    if request.usual_s is not None and seconds > _SLOWER * request.usual_s:
        # It is the first to run after compiling, and can be slow for a moment that candidates do
        # not see: the machine is slower only if it still is.
        seconds = min(seconds, measure(call, request.policy, executions=executions).quartile_s)
    return seconds
