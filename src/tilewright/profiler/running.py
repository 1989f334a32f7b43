"""`profile run`: each dispatch checked against NumPy, then timed. Nothing that a dispatch does ends
the sweep: every outcome is a value."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.errors import UserError
from tilewright.kernels.worker_tasks import (
    OperationReferenceRequest,
    ReferenceData,
    kept_reference,
    make_operation_reference,
)
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.machine import describe
from tilewright.measure.pool import Job, WorkerFailure, WorkerPool
from tilewright.measure.statistics import Measurement
from tilewright.measure.timing import CAREFUL, TimingPolicy
from tilewright.measure.verify import Comparison
from tilewright.profiler.folder import CompileRecord, Selected
from tilewright.trial import Status
from tilewright.tuning.candidate_trial import CandidateTester, Reference, Tested

_REFERENCE_TIMEOUT_S = 1800.0
_MISSING = CompileRecord("", Status.INVALID, "not compiled; run `tilewright profile compile`")


class Verification(enum.StrEnum):
    """What comparing a dispatch's result with NumPy's said."""

    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    NOT_VERIFIED = "Not verified"


@dataclass(frozen=True)
class RunOptions:
    """What to do with each dispatch.

    threads: of the runtime. gpu: the device that dispatches for a GPU run on; None: the CPU.
    repetitions: samples of each time; None takes as many as a steady
    median needs. jobs: workers that compute references, before anything is measured. timeout_s: for
    a dispatch's check, and for its timing.
    """

    threads: int = 1
    verify: bool = True
    profile: bool = True
    repetitions: int | None = None
    jobs: int = 1
    seed: int = 0
    timeout_s: float = 120.0
    gpu: DeviceOptions | None = None

    @property
    def device(self) -> DeviceOptions:
        """The device that dispatches run on."""
        return self.gpu or DeviceOptions.cpu(self.threads)

    @property
    def policy(self) -> TimingPolicy:
        """How many samples are taken."""
        if self.repetitions is None:
            return CAREFUL
        # Time alone does not end what the user counts.
        count = self.repetitions
        return replace(CAREFUL, min_samples=count, max_samples=count, max_s=self.timeout_s)


@dataclass(frozen=True)
class ProfileOutcome:
    """What became of a dispatch.

    status: `ok`, or how far it came. message: why it is not ok, in one line. comparison: with
    NumPy's result (None: not made). measurement: None when it was not timed, as a dispatch with a
    wrong result is not.
    """

    dispatch: Selected
    status: Status
    message: str = ""
    verification: Verification = Verification.NOT_VERIFIED
    comparison: Comparison | None = None
    measurement: Measurement | None = None

    @property
    def is_fault(self) -> bool:
        """Whether the dispatch was compiled and then did not do what it should."""
        return self.status in (
            Status.WRONG_RESULT,
            Status.CRASHED,
            Status.RUN_ERROR,
            Status.RUN_TIMEOUT,
        )


def run_dispatches(selected: Sequence[Selected], options: RunOptions) -> Iterator[ProfileOutcome]:
    """Verify and time compiled dispatches, one after the other, in their order.

    Args:
        selected: which, compiled or not.
        options: what to do with each.

    Returns:
        An outcome for each.
    """
    references = make_references([d for d in selected if _compiled(d).ok], options)
    with Benchmark(options.device, timeout_s=options.timeout_s) as benchmark:
        for dispatch in selected:
            compiled = _compiled(dispatch)
            if not compiled.ok:
                yield ProfileOutcome(dispatch, compiled.status, compiled.message)
                continue
            data = references[dispatch.folder.operation.name]
            if isinstance(data, WorkerFailure):
                message = f"no inputs or reference: {data.message}"
                yield ProfileOutcome(dispatch, Status.INVALID, message)
                continue
            yield _run(benchmark, dispatch, compiled, data, options)


def check_compiled(selected: Sequence[Selected]) -> None:
    """Ask whether there is anything to run.

    Args:
        selected: dispatches.

    Raises:
        UserError: none of them has been compiled, for better or worse.
    """
    if all(_compiled(dispatch) is _MISSING for dispatch in selected):
        raise UserError(
            f"none of the {len(selected)} dispatches is compiled; run `tilewright profile compile` "
            "with the same --generated-dir first"
        )


def make_inputs(selected: Sequence[Selected], options: RunOptions) -> None:
    """Write the inputs of dispatches where they are not yet.

    Args:
        selected: which.
        options: seed and workers count.

    Raises:
        UserError: they cannot be made.
    """
    for name, made in make_references(selected, replace(options, verify=False)).items():
        if isinstance(made, WorkerFailure):
            raise UserError(f"the inputs of {name} cannot be made: {made.message}")


def _compiled(dispatch: Selected) -> CompileRecord:
    compiled = dispatch.entry.compiled
    if compiled is None or (compiled.ok and not dispatch.vmfb.is_file()):
        return _MISSING
    return compiled


def make_references(
    selected: Sequence[Selected], options: RunOptions
) -> dict[str, ReferenceData | WorkerFailure]:
    """Inputs of the dispatches' operations and, to verify them, NumPy's results, by operation.

    What was computed before is read from the operations' folders.

    Args:
        selected: dispatches.
        options: seed, workers, and whether results are compared.

    Returns:
        For each operation its data, or why there is none.
    """
    found: dict[str, ReferenceData | WorkerFailure] = {}
    jobs: dict[str, Job[OperationReferenceRequest, ReferenceData]] = {}
    for dispatch in selected:
        name, folder = dispatch.folder.operation.name, dispatch.folder.reference
        if name in found or name in jobs:
            continue
        request = OperationReferenceRequest(name, folder, options.seed, not options.verify)
        kept = kept_reference(request)
        if kept is not None:
            found[name] = kept
        else:
            jobs[name] = Job(make_operation_reference, request, tag=name)
    if jobs:
        workers = min(options.jobs, len(jobs))
        # Operations too large for this machine must end a worker, not the machine.
        memory = describe().memory_bytes
        with WorkerPool(
            workers,
            timeout_s=_REFERENCE_TIMEOUT_S,
            memory_limit=memory and memory * 3 // 4 // workers,
        ) as pool:
            for result in pool.run(jobs.values()):
                found[result.job.tag] = result.outcome
    return found


def _run(
    benchmark: Benchmark,
    dispatch: Selected,
    compiled: CompileRecord,
    data: ReferenceData,
    options: RunOptions,
) -> ProfileOutcome:
    """Check and time a dispatch; one that is wrong is not timed."""
    operation = dispatch.folder.operation
    reference = Reference(
        data.inputs,
        data.expected,
        element_types=(operation.kind.working_type(operation),),
        reduction_length=operation.kind.reduction_length(operation),
        accumulation_type=operation.kind.accumulation_type(operation),
    )
    tester = CandidateTester(benchmark, reference, compiled.repeats)
    checked = tester.check(dispatch.vmfb) if options.verify else Tested()
    tested = checked
    if checked.ok and options.profile:
        tested = tester.time(dispatch.vmfb, options.policy)
    comparison = next(iter(checked.comparisons), None)
    verification = Verification.NOT_VERIFIED
    if comparison is not None:
        verification = Verification.SUCCESS if checked.ok else Verification.FAILED
    return ProfileOutcome(
        dispatch, tested.status, tested.message, verification, comparison, tested.measurement
    )
