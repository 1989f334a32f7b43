"""The dispatches of a variant as the compiler configures them: references, times, shares."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.measure.drift import InterleavedBaseline
from tilewright.measure.pool import Job, WorkerFailure
from tilewright.measure.statistics import Measurement
from tilewright.measure.timing import TimingPolicy
from tilewright.tuning.candidate_tasks import CandidateRequest, compile_candidate
from tilewright.tuning.context import RunContext
from tilewright.tuning.events import DispatchesRanked, DispatchRow
from tilewright.tuning.extract_tasks import ISOLATED_FLAG
from tilewright.tuning.prepare import PreparedVariant, Skipped
from tilewright.tuning.task import DispatchTask, rotations_for
from tilewright.tuning.verification import check
from tilewright.tuning.worker_tasks import ReferenceRequest, make_reference

FLOAT64 = "float64 NumPy"

# Another way through the compiler: no vectors, no fused multiply-adds, no loop transformations.
INDEPENDENT_FLAGS = (
    "--iree-llvmcpu-target-cpu=generic",
    "--iree-llvmcpu-mlir-opt-level=O0",
    "--iree-llvmcpu-loop-vectorization=false",
    "--iree-llvmcpu-slp-vectorization=false",
    "--iree-llvmcpu-loop-unrolling=false",
)


# A submission to a GPU that lasts longer is made so short.
_LONGEST_S, _SHORTER_S = 0.25, 0.05


def measure_defaults(context: RunContext, prepared: PreparedVariant, program_s: float) -> None:
    """Time every task as the compiler configures it, and rank the tasks by share of the program.

    Makes the inputs and the expected results first. A task whose default does not compile or run
    alone is skipped, with the reason.
    """
    jobs: list[Job[Any, Any]] = [
        Job(make_reference, _reference_request(context, task, prepared.flags), 600.0, tag=task)
        for task in prepared.tasks
    ]
    jobs += [
        Job(compile_candidate, _default_request(task, prepared.flags), 300.0, tag=task)
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
                _measured_default(context, task)
                if task.reference is not None and task.reference.expected is not None:
                    check(context.benchmark, task, default_vmfb(task), 300.0)
    for task in ready:
        _time_default(context, task, prepared)
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
    return task.folder / "default.vmfb"


def _default_request(task: DispatchTask, flags: tuple[str, ...]) -> CandidateRequest:
    return CandidateRequest(
        configured=task.configured,
        executable=task.executable,
        entry=task.name,
        configuration=None,
        repeats=task.repeats,
        rotations=task.rotations,
        flags=flags,
        vmfb=default_vmfb(task),
    )


def _reference_request(
    context: RunContext, task: DispatchTask, flags: tuple[str, ...], sensitivity: bool = False
) -> ReferenceRequest:
    return ReferenceRequest(
        isolated=task.isolated,
        arguments=task.arguments,
        outputs=task.output_types,
        flags=flags,
        seed=_seed(context.options.seed, task.workload.key),
        folder=task.folder,
        with_sensitivity=sensitivity,
        values=task.argument_values,
        limits=task.index_limits,
    )


def _measured_default(context: RunContext, task: DispatchTask) -> Measurement | WorkerFailure:
    policy = replace(TimingPolicy(), max_s=0.25, drop_factor=None)
    return context.benchmark.time(
        str(default_vmfb(task)), task.inputs, repeats=task.repeats, policy=policy, timeout_s=300.0
    )


def _time_default(context: RunContext, task: DispatchTask, prepared: PreparedVariant) -> None:
    """The default's time, and a check of its results against the reference.

    Where the float64 interpreter does not know the dispatch, the results of the dispatch compiled
    without optimisation are the reference, and the report says so.
    """
    path = default_vmfb(task)
    measured = _measured_default(context, task)
    if isinstance(measured, WorkerFailure):
        task.failure = measured.message
        return
    task.default_s = measured.time_s
    if context.target.is_gpu and task.repeats > 1 and measured.time_s * task.repeats > _LONGEST_S:
        task.failure = _fewer_repeats(context, task, prepared)
        if task.failure:
            return
    task.baseline = InterleavedBaseline(str(path), reference_s=task.default_s)
    if context.benchmark.round_size > 1:
        # What is asked for in a round does not know what came before it, nor on which device.
        task.baseline.every = 0
    assert task.reference is not None
    if task.reference.expected is None:
        task.failure = _independent_reference(context, task)
        if task.failure:
            return
    wrong = check(context.benchmark, task, path, 300.0)
    if wrong and task.reference.method == FLOAT64 and not isinstance(wrong, WorkerFailure):
        # Random data can be ill-conditioned; then no evaluation is closer than it is sensitive.
        request = _reference_request(context, task, prepared.flags, True)
        reference = context.compilers.ask(make_reference, request, 900.0)
        if not isinstance(reference, WorkerFailure):
            task.reference = reference
            wrong = check(context.benchmark, task, path, 300.0)
    if isinstance(wrong, WorkerFailure):
        task.failure = wrong.message
    elif wrong:
        task.failure = f"the compiler's default itself differs from the reference: {wrong}"


def _fewer_repeats(context: RunContext, task: DispatchTask, prepared: PreparedVariant) -> str:
    """Time the default anew with shorter submissions; '' or what failed.

    How often a dispatch is repeated in one is guessed for a large GPU. A small one, or a driver
    without one, can be a thousand times slower, and ends a submission of seconds by force.
    """
    assert task.default_s is not None
    task.repeats = max(1, round(_SHORTER_S / task.default_s))
    task.rotations = rotations_for(task.workload.bytes, context.target.l2_bytes, task.repeats)
    compiled = context.compilers.ask(compile_candidate, _default_request(task, prepared.flags), 300)
    if isinstance(compiled, WorkerFailure):
        return compiled.message
    measured = _measured_default(context, task)
    if isinstance(measured, WorkerFailure):
        return measured.message
    task.default_s = measured.time_s
    return ""


def _independent_reference(context: RunContext, task: DispatchTask) -> str:
    """The results of another compile of the dispatch as its reference; '' or what failed."""
    assert task.reference is not None
    vmfb = task.folder / "independent.vmfb"
    # For GPUs the compiler has one way only: candidates are compared with its own choice.
    other = () if context.target.is_gpu else INDEPENDENT_FLAGS
    flags = (*task.flags, *other, ISOLATED_FLAG)
    outcome = context.toolchain.compile(task.isolated, vmfb, flags, timeout_s=300.0)
    if not outcome.ok:
        return f"no reference: {task.reference.unsupported}; {outcome.error}"
    expected = task.folder / "expected.npz"
    outputs = context.benchmark.run(str(vmfb), task.inputs, expected, timeout_s=300.0)
    if isinstance(outputs, WorkerFailure):
        return f"no reference: {task.reference.unsupported}; {outputs.message}"
    task.reference = replace(
        task.reference,
        expected=expected,
        reduction_length=4096,
        method=f"{'an unoptimised compile' if other else 'the default'} "
        f"({task.reference.unsupported})",
    )
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
