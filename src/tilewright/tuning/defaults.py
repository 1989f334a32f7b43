"""The dispatches of a variant as the compiler configures them: references, times, shares."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilewright.argument import ArgumentType
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.compile_worker import session
from tilewright.measure.inputs import index_bounds, load_arguments, random_inputs, write_outputs
from tilewright.measure.jobs import WorkerState
from tilewright.measure.pool import Job, WorkerFailure
from tilewright.measure.runtime import DeviceOptions
from tilewright.measure.timing import InterleavedBaseline, TimingPolicy
from tilewright.measure.verify import is_float_type
from tilewright.target import parse_target
from tilewright.trial import Status
from tilewright.tuning.candidate_trial import CandidateTester, Reference
from tilewright.tuning.context import RunContext
from tilewright.tuning.events import DispatchesRanked, DispatchRow
from tilewright.tuning.extract_tasks import ISOLATED_FLAG, ExtractedDispatch
from tilewright.tuning.prepare import PreparedVariant, Skipped
from tilewright.tuning.task import DispatchTask, rotations_for
from tilewright.tuning.worker_tasks import compile_candidate, parse_module

FLOAT64 = "float64 NumPy"

# Another way through the compiler: no vectors, no fused multiply-adds, no loop transformations.
INDEPENDENT_FLAGS = (
    "--iree-llvmcpu-target-cpu=generic",
    "--iree-llvmcpu-mlir-opt-level=O0",
    "--iree-llvmcpu-loop-vectorization=false",
    "--iree-llvmcpu-slp-vectorization=false",
    "--iree-llvmcpu-loop-unrolling=false",
)


_TIMEOUT_S = 300.0
_TIMING = TimingPolicy(max_s=0.25, drop_factor=None)
# A submission to a GPU that lasts longer is made so short.
_LONGEST_S, _SHORTER_S = 0.25, 0.05


def measure_defaults(context: RunContext, prepared: PreparedVariant, program_s: float) -> None:
    """Time every task as the compiler configures it, and rank the tasks by share of the program.

    Makes the inputs and the expected results first. A task whose default does not compile or run
    alone is skipped, with the reason.

    Args:
        context: the run.
        prepared: its tasks are timed; those that cannot be become `skipped`.
        program_s: seconds of the whole program.
    """
    jobs: list[Job[Any, Any]] = [
        Job(make_reference, _reference_request(context, task), 600.0, tag=task)
        for task in prepared.tasks
    ]
    jobs += [
        Job(compile_candidate, task.request(default_vmfb(task)), _TIMEOUT_S, tag=task)
        for task in prepared.tasks
    ]
    for result in context.compilers.run(jobs):
        task: DispatchTask = result.job.tag
        if result.failure is not None:
            task.failure = task.failure or result.failure.message
        elif result.job.task is make_reference:
            task.reference = result.value
        else:
            task.compile_s = result.seconds
    ready = [t for t in prepared.tasks if not t.failure and t.reference is not None]
    if context.benchmark.round_size > 1:
        with context.benchmark.ahead("the dispatches as the compiler configures them"):
            for task in ready:
                _measure(context, task)
                if task.reference is not None and task.reference.expected is not None:
                    _tester(context, task).check(default_vmfb(task))
    for task in ready:
        task.failure = _time_default(context, task)
    for task in [t for t in prepared.tasks if t.failure or t.default_s is None]:
        prepared.skipped.append(
            Skipped(
                task.name, task.count, f"does not run alone: {task.failure}", task.workload.name
            )
        )
        prepared.tasks.remove(task)
    seconds = {t.name: (t.default_s or 0.0) * t.count for t in prepared.tasks}
    # Alone, without what they wait for and share in the program, dispatches may take more time
    # together than the program; then their sum is the whole.
    whole = max(program_s, sum(seconds.values()))
    for task in prepared.tasks:
        task.share = seconds[task.name] / whole
    prepared.tasks.sort(key=lambda t: -t.share)
    _announce(context, prepared)


def _seed(seed: int, key: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{key}".encode()).digest()[:4], "little")


def default_vmfb(task: DispatchTask) -> Path:
    """Where the program of a task's default is."""
    return task.folder / "default.vmfb"


def _reference_request(
    context: RunContext, task: DispatchTask, sensitivity: bool = False
) -> ReferenceRequest:
    seed = _seed(context.options.seed, task.workload.key)
    terms = math.prod(d.size for d in task.workload.dims if d.reduction)
    return ReferenceRequest(task.dispatch, task.flags, seed, task.folder, terms, sensitivity)


def _tester(context: RunContext, task: DispatchTask) -> CandidateTester:
    return task.tester(context.benchmark, _TIMEOUT_S)


def _time_default(context: RunContext, task: DispatchTask) -> str:
    """The default's time, and a check of its results against the reference; '' or what failed.

    Where the float64 interpreter does not know the dispatch, the results of the dispatch compiled
    without optimisation are the reference, and the report says so.
    """
    path = default_vmfb(task)
    problem = _measure(context, task)
    if problem:
        return problem
    assert task.default_s is not None
    if context.target.is_gpu and task.repeats > 1 and task.default_s * task.repeats > _LONGEST_S:
        problem = _fewer_repeats(context, task)
        if problem:
            return problem
    task.baseline = InterleavedBaseline(str(path), reference_s=task.default_s)
    if context.benchmark.round_size > 1:
        # What is asked for in a round does not know what came before it, nor on which device.
        task.baseline.every = 0
    assert task.reference is not None
    if task.reference.expected is None:
        problem = _independent_reference(context, task)
        if problem:
            return f"no reference: {task.reference.unsupported}; {problem}"
    tested = _tester(context, task).check(path)
    if tested.status is Status.WRONG_RESULT and task.reference.method == FLOAT64:
        # Random data can be ill-conditioned; then no evaluation is closer than it is sensitive.
        request = _reference_request(context, task, sensitivity=True)
        reference = context.compilers.ask(make_reference, request, 900.0)
        if not isinstance(reference, WorkerFailure):
            task.reference = reference
            tested = _tester(context, task).check(path)
    if tested.status is Status.WRONG_RESULT:
        return f"the compiler's default itself differs from the reference: {tested.message}"
    return tested.message


def _measure(context: RunContext, task: DispatchTask) -> str:
    """Time the default; '' or what failed."""
    timed = _tester(context, task).time(default_vmfb(task), _TIMING)
    if timed.measurement is not None:
        task.default_s = timed.measurement.time_s
    return timed.message


def _fewer_repeats(context: RunContext, task: DispatchTask) -> str:
    """Time the default anew with shorter submissions; '' or what failed.

    How often a dispatch is repeated in one is guessed for a large GPU. A small one, or a driver
    without one, can be a thousand times slower, and ends a submission of seconds by force.
    """
    assert task.default_s is not None
    task.repeats = max(1, round(_SHORTER_S / task.default_s))
    task.rotations = rotations_for(task.workload.bytes, context.target.l2_bytes, task.repeats)
    request = task.request(default_vmfb(task))
    compiled = context.compilers.ask(compile_candidate, request, _TIMEOUT_S)
    if isinstance(compiled, WorkerFailure):
        return compiled.message
    return _measure(context, task)


def _independent_reference(context: RunContext, task: DispatchTask) -> str:
    """The results of another compile of the dispatch as its reference; '' or what failed.

    For a GPU it is compiled for this machine's processor, since the compiler has one way only for
    the GPU itself. Where that cannot be done, candidates are compared with its own choice, and the
    report says so.
    """
    assert task.reference is not None
    if not context.target.is_gpu:
        flags = (*task.flags, *INDEPENDENT_FLAGS)
        return _refer(context, task, flags, context.benchmark, "an unoptimised compile")
    own = set(context.target.flags)
    processor = parse_target("cpu")
    flags = (*processor.flags, *(f for f in task.flags if f not in own), *INDEPENDENT_FLAGS)
    with Benchmark(DeviceOptions.cpu(processor.cores)) as here:
        problem = _refer(context, task, flags, here, "an unoptimised compile for the processor")
    if problem:
        return _refer(context, task, task.flags, context.benchmark, "the default itself")
    return ""


def _refer(
    context: RunContext,
    task: DispatchTask,
    flags: tuple[str, ...],
    benchmark: Benchmark,
    method: str,
) -> str:
    """The results of a compile with these flags become the task's reference; '' or what failed."""
    assert task.reference is not None
    vmfb = task.folder / "independent.vmfb"
    every = (*flags, ISOLATED_FLAG)
    outcome = context.toolchain.compile(task.dispatch.file, vmfb, every, timeout_s=_TIMEOUT_S)
    if not outcome.ok:
        return outcome.error
    expected = task.folder / "expected.npz"
    outputs = benchmark.run(str(vmfb), task.inputs, expected, timeout_s=_TIMEOUT_S)
    if isinstance(outputs, WorkerFailure):
        return outputs.message
    method = f"{method} ({task.reference.unsupported})"
    task.reference = replace(task.reference, expected=expected, method=method)
    return ""


def _announce(context: RunContext, prepared: PreparedVariant) -> None:
    rows = [
        DispatchRow(
            name=task.name,
            workload=task.workload.name,
            count=task.count,
            share=task.share,
            default_s=task.default_s,
            gflops=task.gflops(task.default_s),
            space=task.space_points,
            note=f"{len(task.names)} dispatches" if len(task.names) > 1 else "",
        )
        for task in prepared.tasks
    ]
    rows += [
        DispatchRow(s.name, s.workload, s.count, 0.0, None, None, None, s.reason)
        for s in prepared.skipped
    ]
    context.emit(DispatchesRanked(prepared.variant.name, tuple(rows)))


# In the workers


@dataclass(frozen=True)
class ReferenceRequest:
    """Make random inputs of a dispatch and compute its results in float64.

    `with_sensitivity`: find out as well how much each result moves with the inputs' last digit,
    which takes a few evaluations more. `terms`: what is taken for the length of its sums where that
    cannot be read from it.
    """

    dispatch: ExtractedDispatch
    flags: tuple[str, ...]
    seed: int
    folder: Path
    terms: int
    with_sensitivity: bool = False


def make_reference(state: WorkerState, request: ReferenceRequest) -> Reference:
    """Task: see ReferenceRequest.

    Args:
        request: which dispatch, its arguments, and where the data goes.

    Returns:
        The inputs and results in files; no results where the interpreter does not know an op.
    """
    from tilewright.ir.dispatches import ISOLATED_FUNCTION
    from tilewright.ir.reference import Unsupported, accuracy, evaluate, sensitivity

    dispatch = request.dispatch
    request.folder.mkdir(parents=True, exist_ok=True)
    inputs = random_inputs(
        request.folder,
        dispatch.arguments,
        seed=request.seed,
        bounds=index_bounds(dict(dispatch.limits)),
        values=dict(dispatch.values),
    )
    compiler = session(state, request.flags)
    module = parse_module(compiler, dispatch.file.read_bytes())
    values = load_arguments(inputs)
    outputs, terms = dispatch.output_types, request.terms
    try:
        limits = accuracy(module, ISOLATED_FUNCTION, _largest(dispatch.arguments))
        terms = limits.reduction_length
        expected = evaluate(module, ISOLATED_FUNCTION, values)
    except Unsupported as error:
        return Reference(inputs, None, outputs, terms, unsupported=str(error))
    # A result of floats is as coarse as the coarsest format that the program rounds to inside.
    types = tuple((limits.working_type or own) if is_float_type(own) else own for own in outputs)
    path = request.folder / "expected.npz"
    write_outputs(path, expected)
    moves: Path | None = None
    if request.with_sensitivity:
        moves = request.folder / "sensitivity.npz"
        widest = next((t for t in types if is_float_type(t)), "f32")
        write_outputs(moves, sensitivity(module, ISOLATED_FUNCTION, values, widest))
    return Reference(
        inputs,
        path,
        types,
        limits.reduction_length,
        limits.accumulation_type or None,
        int(limits.rounds_to_integer),
        moves,
        FLOAT64,
    )


def _largest(arguments: tuple[ArgumentType, ...]) -> int:
    """No size of a dispatch that its types leave open is taken to be larger than this."""
    return max((size for a in arguments for size in a.shape or ()), default=1)
