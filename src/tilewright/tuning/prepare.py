"""From a variant of a program to tasks: dispatches grouped by workload, measured and ranked."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tilewright.errors import UserError
from tilewright.ir.program import Program
from tilewright.measure.drift import InterleavedBaseline
from tilewright.measure.pool import Job, Result, WorkerFailure
from tilewright.measure.statistics import Measurement
from tilewright.measure.timing import TimingPolicy
from tilewright.space.generators import DispatchSpace, dispatch_space
from tilewright.space.interface import Space
from tilewright.store import TaskKey
from tilewright.target import Target
from tilewright.tuning.candidate_tasks import CANDIDATE, CandidateRequest
from tilewright.tuning.context import RunContext
from tilewright.tuning.events import DispatchesRanked, DispatchRow
from tilewright.tuning.extract_tasks import EXTRACT, ExtractedDispatch, Extraction, ExtractRequest
from tilewright.tuning.programs import program_flags
from tilewright.tuning.task import DispatchTask, flags_key, repeats_for, rotations_for
from tilewright.tuning.variants import Variant, without_preprocessing
from tilewright.tuning.verification import check
from tilewright.tuning.worker_tasks import (
    CONFIGURE,
    REFERENCE,
    ConfiguredInfo,
    ConfigureRequest,
    ReferenceRequest,
)

# Names of the preceding system's configuration file, and the knobs that they are here.
CLASSIC_NAMES = {
    "tile_m": "distribution_m",
    "tile_n": "distribution_n",
    "tile_k": "cache_reduction_k",
}

# The same on a GPU, where pipelines differ in what they call a knob: the first that there is.
GPU_CLASSIC_NAMES = {
    "block_dim_x": ("workgroup_size_x",),
    "block_dim_y": ("workgroup_size_y",),
    "block_dim_z": ("workgroup_size_z",),
    "pipeline_depth": ("pipeline_depth", "prefetch_num_stages"),
    "tile_m": ("workgroup_m", "wg_0"),
    "tile_n": ("workgroup_n", "wg_1"),
    "tile_k": ("reduction_k", "red_2"),
}

FLOAT64 = "float64 NumPy"

# Another way through the compiler: no vectors, no fused multiply-adds, no loop transformations.
INDEPENDENT_FLAGS = (
    "--iree-llvmcpu-target-cpu=generic",
    "--iree-llvmcpu-mlir-opt-level=O0",
    "--iree-llvmcpu-loop-vectorization=false",
    "--iree-llvmcpu-slp-vectorization=false",
    "--iree-llvmcpu-loop-unrolling=false",
)

_EXTRACT_TIMEOUT_S = 1800.0


@dataclass
class Skipped:
    """A dispatch that is not tuned, and why."""

    name: str
    count: int
    reason: str
    workload: str = ""


@dataclass
class Prepared:
    """The dispatches of a program as one variant compiles it."""

    variant: Variant
    flags: tuple[str, ...]
    tasks: list[DispatchTask] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    target: Target | None = None

    @property
    def kinds(self) -> set[str]:
        return {task.workload.kind for task in self.tasks}


def extract(
    context: RunContext, program: Program, variant: Variant, folder: Path
) -> tuple[Extraction, tuple[str, ...]]:
    """Compile a program to its dispatches; UserError with the compiler's line if it does not."""
    flags = program_flags(program, context.target, context.options.iree_flags, variant)
    request = ExtractRequest(
        program.path,
        flags,
        folder,
        program.functions,
        context.options.function,
        context.arguments,
    )
    job = Job(request, EXTRACT, _EXTRACT_TIMEOUT_S)
    (result,) = context.compilers.run([job])
    if result.failure is not None:
        raise UserError(f"{program.source}: {result.failure.message}")
    extraction: Extraction = result.value
    context.target = context.target.with_vectors(
        extraction.vector_bytes, extraction.features, extraction.processor
    )
    return extraction, without_preprocessing(flags)


def read_tasks(
    context: RunContext,
    extraction: Extraction,
    variant: Variant,
    flags: tuple[str, ...],
    folder: Path,
) -> Prepared:
    """Read every dispatch's workload, template and space; equal workloads become one task."""
    prepared = Prepared(variant, flags)
    wanted = _select(context, extraction, prepared)
    jobs = [
        Job(
            ConfigureRequest(
                isolated=d.isolated,
                executable=d.executable,
                entry=d.entry,
                flags=flags,
                configured=d.isolated.with_suffix(".configured.mlir"),
                arguments=d.arguments,
                workload=d.workload,
                constraints=context.target.is_gpu,
            ),
            CONFIGURE,
            120.0,
            tag=d,
        )
        for d in wanted
        if d.isolated is not None
    ]
    by_workload: dict[str, DispatchTask] = {}
    for result in _configured(context, jobs):
        _add(context, prepared, by_workload, result, folder)
    prepared.tasks = list(by_workload.values())
    return prepared


def _configured(context: RunContext, jobs: Sequence[Job]) -> list[Result]:
    """The results of the jobs. IREE 3.13 crashes where it states the constraints of some products
    (batch_matmul on ROCm): those are read without them."""
    results = context.compilers.run(jobs)
    again = {
        i: replace(r.job, payload=replace(r.job.payload, constraints=False))
        for i, r in enumerate(results)
        if r.failure is not None and r.failure.kind == "crashed" and r.job.payload.constraints
    }
    if again:
        for i, result in zip(again, context.compilers.run(again.values()), strict=True):
            results[i] = result
    return results


def _select(
    context: RunContext, extraction: Extraction, prepared: Prepared
) -> list[ExtractedDispatch]:
    wanted = []
    for dispatch in extraction.dispatches:
        if dispatch.count == 0:
            continue
        if dispatch.isolated is None:
            prepared.skipped.append(Skipped(dispatch.entry, dispatch.count, dispatch.reason))
        elif not context.options.selects(dispatch.entry):
            prepared.skipped.append(Skipped(dispatch.entry, dispatch.count, "left out by --only"))
        else:
            wanted.append(dispatch)
    return wanted


def _add(
    context: RunContext,
    prepared: Prepared,
    by_workload: dict[str, DispatchTask],
    result: Result,
    folder: Path,
) -> None:
    dispatch: ExtractedDispatch = result.job.tag
    if result.failure is not None:
        reason = f"does not compile alone: {result.failure.message}"
        prepared.skipped.append(Skipped(dispatch.entry, dispatch.count, reason))
        return
    info: ConfiguredInfo = result.value
    if prepared.target is None:
        prepared.target = context.target.with_vectors(
            info.vector_bytes, info.features, info.processor
        )
    if info.workload is None or info.template is None:
        prepared.skipped.append(Skipped(dispatch.entry, dispatch.count, info.reason))
        return
    known = by_workload.get(info.workload.key)
    if known is not None:
        known.names.append(dispatch.entry)
        known.executables.append(dispatch.executable)
        known.count += dispatch.count
        return
    space = dispatch_space(info.template, info.workload, prepared.target)
    if space is None:
        reason = (
            "a size that is known at run time only"
            if not info.workload.is_static
            else f"no search space for pipeline {info.template.translation.pipeline}"
        )
        prepared.skipped.append(Skipped(dispatch.entry, dispatch.count, reason, info.workload.name))
        return
    assert dispatch.isolated is not None
    task = DispatchTask(
        names=[dispatch.entry],
        executables=[dispatch.executable],
        count=dispatch.count,
        workload=info.workload,
        template=info.template,
        space=space,
        restricted=_restrict(context, dispatch.entry, space),
        isolated=dispatch.isolated,
        configured=dispatch.isolated.with_suffix(".configured.mlir"),
        folder=folder / dispatch.isolated.stem,
        variant=prepared.variant.name,
        flags=prepared.flags,
        repeats=repeats_for(info.workload, prepared.target.cores, prepared.target.is_gpu),
        encoded=dispatch.encoded,
    )
    if prepared.target.is_gpu:
        size = info.workload.bytes
        task.rotations = rotations_for(size, prepared.target.l2_bytes, task.repeats)
    task.arguments, task.argument_values = info.arguments, info.values
    task.index_limits = dispatch.limits
    task.output_types = tuple(o.element_type for o in info.outputs)
    task.space_points = space.space.size_estimate(np.random.default_rng(0)).points
    task.folder.mkdir(parents=True, exist_ok=True)
    by_workload[info.workload.key] = task


def known_knobs(spaces: Sequence[Space]) -> set[str]:
    """Every knob name of the spaces, with the classic names that mean one of them."""
    names = {knob.name for space in spaces for knob in space.knobs}
    return names | {old for old, new in CLASSIC_NAMES.items() if new in names}


def _restrict(context: RunContext, name: str, space: DispatchSpace) -> Space:
    """The space narrowed by the configuration file; names that it lacks are left out."""
    config = context.options.config
    if config is None:
        return space.space
    wanted = config.restrictions_for(name)
    have = space.restrictable
    classic = GPU_CLASSIC_NAMES if context.target.is_gpu else CLASSIC_NAMES
    values = {}
    for key, allowed in wanted.items():
        knob = next((n for n in _names(classic, key) if n in have), key)
        if knob not in have:
            continue
        fitting = list(allowed)
        if key in classic:
            # One list of sizes is for all dispatches; those beyond a loop are not for this one.
            fitting = [size for size in allowed if space.admits(knob, size)]
            beyond = [str(size) for size in allowed if size not in fitting]
            if beyond:
                context.note(f"{name}: {key} {', '.join(beyond)} does not fit its loop")
        if fitting:
            values[knob] = fitting
    if not values:
        return space.space
    restriction = space.restrict(values)
    for text in restriction.notes:
        context.note(f"{name}: {text}")
    return restriction.space


def _names(classic: Mapping[str, str | tuple[str, ...]], key: str) -> tuple[str, ...]:
    """What a key of the configuration file may be called in a space."""
    names = classic.get(key, key)
    return (names,) if isinstance(names, str) else names


def measure_defaults(context: RunContext, prepared: Prepared, program_s: float) -> None:
    """Time every task as the compiler configures it, and rank the tasks by share of the program.

    Makes the inputs and the expected results first. A task whose default does not compile or run
    alone is skipped, with the reason.
    """
    jobs = [
        Job(_reference_request(context, task, prepared.flags), REFERENCE, 600.0, tag=task)
        for task in prepared.tasks
    ]
    jobs += [
        Job(_default_request(task, prepared.flags), CANDIDATE, 300.0, tag=task)
        for task in prepared.tasks
    ]
    for result in context.compilers.run(jobs):
        task: DispatchTask = result.job.tag
        if result.failure is not None:
            task.failure = task.failure or result.failure.message
        elif result.job.task == REFERENCE:
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


def _time_default(context: RunContext, task: DispatchTask, prepared: Prepared) -> None:
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
    if context.benchmark.round_size == 1:
        # Where candidates are measured in rounds, their default is not timed between them.
        task.baseline = InterleavedBaseline(str(path), reference_s=task.default_s)
    assert task.reference is not None
    if task.reference.expected is None:
        task.failure = _independent_reference(context, task)
        if task.failure:
            return
    wrong = check(context.benchmark, task, path, 300.0)
    if wrong and task.reference.method == FLOAT64 and not isinstance(wrong, WorkerFailure):
        # Random data can be ill-conditioned; then no evaluation is closer than it is sensitive.
        job = Job(_reference_request(context, task, prepared.flags, True), REFERENCE, 900.0)
        (result,) = context.compilers.run([job])
        if result.failure is None:
            task.reference = result.value
            wrong = check(context.benchmark, task, path, 300.0)
    if isinstance(wrong, WorkerFailure):
        task.failure = wrong.message
    elif wrong:
        task.failure = f"the compiler's default itself differs from the reference: {wrong}"


def _independent_reference(context: RunContext, task: DispatchTask) -> str:
    """The results of another compile of the dispatch as its reference; '' or what failed."""
    assert task.reference is not None
    vmfb = task.folder / "independent.vmfb"
    # For GPUs the compiler has one way only: candidates are compared with its own choice.
    other = () if context.target.is_gpu else INDEPENDENT_FLAGS
    outcome = context.toolchain.compile(task.isolated, vmfb, (*task.flags, *other), timeout_s=300.0)
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


def _announce(context: RunContext, prepared: Prepared) -> None:
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


def task_key(context: RunContext, prepared: Prepared, task: DispatchTask) -> TaskKey:
    """The database's key of a task: results are reused only where all of it is equal."""
    assert prepared.target is not None
    own = without_preprocessing(prepared.variant.flags)
    flags = flags_key([*own, *context.options.iree_flags])
    return TaskKey(task.workload, prepared.target.key, context.compiler_version, flags)
