"""Programs of dispatches and sites as the compiler makes them, and the times of those that none is
made of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeGuard

from tilewright.measure.pool import Job
from tilewright.measure.timing import InterleavedBaseline
from tilewright.tuning.context import RunContext
from tilewright.tuning.prepared_variant import PreparedVariant
from tilewright.tuning.reference_tasks import FLOAT64, compile_site_program
from tilewright.tuning.task import DispatchTask

NO_TIME = "no time to measure it (--time-limit)"
"""Why a task fails that nothing else is wrong with."""
TIMEOUT_S = 300.0
# Of what a dispatch takes: what padding its data may be guessed to take at most, where the two are
# not compiled as one. So many times its bytes are moved then, at such a rate at least.
_PADDING, _MOVED, _BYTES_PER_S = 0.05, 3, 5e9


def default_vmfb(task: DispatchTask) -> Path:
    """Where the program of a task's default is.

    Args:
        task: any.
    """
    return task.folder / "default.vmfb"


def sum_default(chain: DispatchTask, prepared: PreparedVariant, *, roughly: bool = False) -> bool:
    """Take the times of its dispatches for the time of a site, if that is to be had.

    Where its data may need more than an evaluation in float64, the program of its default says so.

    Args:
        chain: gets the time, and what corrects times of its kernels for drift.
        prepared: the tasks of its dispatches are timed, or have failed.
        roughly: whether padding counts nothing however long it may take, nor do dispatches that
            there was no time for. No kernel looks better for it.

    Returns:
        Whether the time is known.
    """
    assert chain.site is not None
    assert chain.data is not None
    site = chain.site.site
    known = {name: task for task in prepared.tasks if not task.is_chain for name in task.names}
    parts: list[tuple[int, DispatchTask]] = []
    for name, runs in zip(site.dispatches, site.all_runs, strict=True):
        part = known.get(name)
        if _is_plain(part):
            parts.append((runs, part))
        elif not (roughly and part is not None and part.failure == NO_TIME):
            return False
    if not parts or chain.data.reference.expected is None:
        return False
    if is_padded(chain) and not roughly:
        # What it takes besides is left out, so that no kernel looks better for it.
        padding_s = _MOVED * chain.workload.bytes / _BYTES_PER_S
        if padding_s > _PADDING * (parts[0][1].default_s or 0.0):
            return False
    pads = chain.site.pads
    seconds = [
        runs / site.count * ((part.default_s or 0.0) + (prepared.padding_s(part) if pads else 0.0))
        for runs, part in parts
    ]
    chain.default_s = sum(seconds)
    chain.compile_s = sum(part.compile_s for _, part in parts)
    _, hottest = parts[seconds.index(max(seconds))]
    # Not less than its sets of operands, as which the program would be taken to run.
    chain.repeats = max(chain.repeats, hottest.rotations)
    chain.baseline = InterleavedBaseline(
        str(default_vmfb(hottest)),
        # Its program runs as often in a submission as its own task says.
        reference_s=(hottest.default_s or 0.0) * hottest.repeats / chain.repeats,
        inputs=hottest.inputs,
        parameters=hottest.parameters,
    )
    return True


def is_padded(task: DispatchTask) -> bool:
    """Whether a task is of a site of one dispatch that gets its data padded.

    Args:
        task: any.
    """
    return task.is_chain and task.site is not None and task.site.is_padded_dispatch


def _is_plain(task: DispatchTask | None) -> TypeGuard[DispatchTask]:
    """Whether a dispatch has a time, and results that float64 alone was enough to check."""
    if task is None or task.failure or task.default_s is None or task.reference is None:
        return False
    return task.reference.method == FLOAT64 and task.reference.sensitivity is None


def compile_chains(context: RunContext, chains: Sequence[DispatchTask]) -> None:
    """Make the programs of sites of several dispatches, as the compiler makes them.

    Args:
        context: the run.
        chains: the sites' tasks; one whose program does not compile fails.
    """
    for result in context.compilers.run([default_job(task) for task in chains]):
        task = result.job.tag
        task.failure = result.failure.message if result.failure is not None else task.failure
        task.compile_s = result.seconds


def default_job(chain: DispatchTask) -> Job[Any, Any]:
    """What makes the program of a site of several dispatches, as the compiler makes it.

    Args:
        chain: the site's task, which is the job's tag.
    """
    request = chain.site_request(default_vmfb(chain))
    return Job(compile_site_program, request, TIMEOUT_S, tag=chain)
