"""Whether what would be handed back for a configuration reaches the dispatch it was made for."""

from __future__ import annotations

from tilewright.measure.jobs import WorkerFailure
from tilewright.trial import Configuration
from tilewright.tuning.confirm import entry_request
from tilewright.tuning.context import RunContext
from tilewright.tuning.task import DispatchTask
from tilewright.tuning.worker_tasks import (
    CONFIGURED,
    AppliedRequest,
    SpecRequest,
    read_applied,
    write_tuning_spec,
)

_TIMEOUT_S = 120.0


def spec_applies(
    context: RunContext,
    flags: tuple[str, ...],
    task: DispatchTask,
    configuration: Configuration,
) -> str:
    """'' when the dispatch compiled with a spec gets the configuration, else what is wrong."""
    after = task.folder / "proof.configured.mlir"
    entry = entry_request(task, configuration)
    spec = task.folder / "proof.spec.mlir"
    written = context.compilers.ask(
        write_tuning_spec, SpecRequest((entry,), spec, flags), _TIMEOUT_S
    )
    if isinstance(written, WorkerFailure):
        return written.message
    outcome = context.toolchain.compile(
        task.isolated,
        after,
        (*flags, f"{context.target.spec_flag}{spec}", f"--compile-to={CONFIGURED}"),
        timeout_s=_TIMEOUT_S,
    )
    if not outcome.ok:
        return outcome.error
    request = AppliedRequest(task.configured, after, flags)
    changes = context.compilers.ask(read_applied, request, _TIMEOUT_S)
    if isinstance(changes, WorkerFailure):
        return changes.message
    if not any(change.entry for change in changes):
        return "the spec did not apply to the dispatch that it was made for"
    return ""
