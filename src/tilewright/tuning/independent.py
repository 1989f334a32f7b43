"""References from another compile of a dispatch or a site, for what float64 does not know."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.measure.benchmark import Benchmark
from tilewright.measure.device_options import NO_PARAMETERS, DeviceOptions, Parameters
from tilewright.measure.pool import WorkerFailure
from tilewright.target import parse_target
from tilewright.tuning.candidate_trial import Reference
from tilewright.tuning.context import RunContext
from tilewright.tuning.default_programs import TIMEOUT_S
from tilewright.tuning.extract_tasks import ISOLATED_FLAG
from tilewright.tuning.reference_tasks import SITE_FLAG, SiteData
from tilewright.tuning.task import DispatchTask

# Another way through the compiler: no vectors, no fused multiply-adds, no loop transformations.
_FLAGS = (
    "--iree-llvmcpu-target-cpu=generic",
    "--iree-llvmcpu-mlir-opt-level=O0",
    "--iree-llvmcpu-loop-vectorization=false",
    "--iree-llvmcpu-slp-vectorization=false",
    "--iree-llvmcpu-loop-unrolling=false",
)


@dataclass(frozen=True)
class _Alone:
    """What is compiled once more for a reference: from which phase, and with what it is run."""

    program: Path
    phase: str
    reference: Reference
    parameters: Parameters = NO_PARAMETERS


def independent_reference(context: RunContext, task: DispatchTask) -> str:
    """Take the results of another compile of a task's dispatch, or of its site, as its reference.

    Args:
        context: the run.
        task: that has no results to compare with; it gets them.

    Returns:
        '' or what failed.
    """
    assert task.reference is not None
    chain = task.data if task.is_chain else None
    alone = _Alone(task.dispatch.file, ISOLATED_FLAG, task.reference)
    found = (
        _compiled_again(context, task, alone)
        if chain is None
        else site_reference(context, task, chain)
    )
    if isinstance(found, str):
        return found
    task.reference = found
    if chain is not None:
        task.data = replace(chain, reference=replace(found, inputs=chain.reference.inputs))
    return ""


def site_reference(context: RunContext, task: DispatchTask, data: SiteData) -> Reference | str:
    """The results of another compile of a site.

    Args:
        context: the run.
        task: whose site it is.
        data: of the site.

    Returns:
        The reference, or what failed.
    """
    reference = replace(data.reference, inputs=data.inputs)
    alone = _Alone(data.program, SITE_FLAG, reference, data.parameters)
    return _compiled_again(context, task, alone)


def _compiled_again(context: RunContext, task: DispatchTask, alone: _Alone) -> Reference | str:
    """The reference with the results of another compile, or what failed.

    For a GPU it is compiled for this machine's processor, since the compiler has one way only for
    the GPU itself. Where that cannot be done, candidates are compared with its own choice, and the
    report says so.
    """
    if not context.target.is_gpu:
        flags = (*task.flags, *_FLAGS)
        return _refer(context, task, alone, flags, context.benchmark, "an unoptimised compile")
    own = set(context.target.flags)
    processor = parse_target("cpu")
    flags = (*processor.flags, *(f for f in task.flags if f not in own), *_FLAGS)
    with Benchmark(DeviceOptions.cpu(processor.cores)) as here:
        method = "an unoptimised compile for the processor"
        found = _refer(context, task, alone, flags, here, method)
    if isinstance(found, str):
        method = "the default itself"
        return _refer(context, task, alone, task.flags, context.benchmark, method)
    return found


def _refer(
    context: RunContext,
    task: DispatchTask,
    alone: _Alone,
    flags: tuple[str, ...],
    benchmark: Benchmark,
    method: str,
) -> Reference | str:
    """The reference with the results of a compile with these flags, or what failed."""
    reference = alone.reference
    vmfb = task.folder / "independent.vmfb"
    every = (*flags, alone.phase)
    outcome = context.toolchain.compile(alone.program, vmfb, every, timeout_s=TIMEOUT_S)
    if not outcome.ok:
        return outcome.error
    expected = task.folder / f"{alone.program.stem}.expected.npz"
    outputs = benchmark.run(
        str(vmfb),
        reference.inputs,
        expected,
        parameters=alone.parameters,
        timeout_s=TIMEOUT_S,
    )
    if isinstance(outputs, WorkerFailure):
        return outputs.message
    return replace(reference, expected=expected, method=f"{method} ({reference.unsupported})")
