"""Checks a dispatch's program against the task's reference."""

from __future__ import annotations

from pathlib import Path

from tilewright.measure.benchmark import Benchmark
from tilewright.measure.pool import WorkerFailure
from tilewright.tuning.task import DispatchTask


def check(
    benchmark: Benchmark, task: DispatchTask, vmfb: Path, timeout_s: float
) -> str | WorkerFailure:
    """'' when the program's results equal the reference's, else what is wrong with which element.

    A WorkerFailure when the program did not run to its end.
    """
    reference = task.reference
    assert reference is not None
    assert reference.expected is not None
    verdicts = benchmark.verify(
        str(vmfb),
        reference.inputs,
        reference.expected,
        reduction_length=reference.reduction_length,
        element_types=reference.element_types,
        accumulation_type=reference.accumulation_type,
        integer_slack=reference.integer_slack,
        sensitivity=reference.sensitivity,
        timeout_s=timeout_s,
    )
    if isinstance(verdicts, WorkerFailure):
        return verdicts
    return next((str(v) for v in verdicts if not v.ok), "")
