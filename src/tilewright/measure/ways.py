"""The runtime's choices for a program on a processor, timed side by side on its machine.

A thread that must be woken costs tens of microseconds, which a small program does not earn back by
sharing its work: whether `local-sync` or `local-task`, and with how many threads, is measured. The
weights of a large one lie in tens of thousands of small pages, whose addresses the processor looks
up again and again: huge pages are one more way, workers that keep their cores another, workers that
stay awake for a moment a third. What a program takes as a process like any other is one, too: batch
processes wait better. So is what it takes where its caller waits asleep, as IREE's tools do, and
could wait awake.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

from tilewright.argument import ASYNC
from tilewright.measure import benchmark_worker as tasks
from tilewright.measure.benchmark_worker import RepeatRequest
from tilewright.measure.comparison import ComparisonPolicy, interleaved_rounds
from tilewright.measure.device_options import (
    NO_PARAMETERS,
    DeviceOptions,
    Parameters,
)
from tilewright.measure.huge_pages import huge_pages_on_request
from tilewright.measure.inputs import InputSet
from tilewright.measure.jobs import Job, WorkerFailure, WorkerState
from tilewright.measure.pool import WorkerPool

# Between what was best of 5 and 20 us for products of 128 to 512 cubed and for an LSTM (two cores).
_SPIN_US = 10
# Seconds that a sample lasts at least.
_SAMPLE_S = 0.01


@dataclass(frozen=True)
class WaysRequest:
    """Time `function` with each of the runtime's choices for so many threads at most, in rounds.

    tuned_for: threads that the program was made for. timeout_s: of a sample. polls: whether callers
    can wait awake, as `takes_fences` says.
    """

    vmfb: str
    inputs: InputSet
    function: str
    threads: int
    tuned_for: int
    policy: ComparisonPolicy
    timeout_s: float
    parameters: Parameters = NO_PARAMETERS
    polls: bool = False


@dataclass(frozen=True)
class WayTimes:
    """One of the runtime's choices, with seconds of a run in each round; fewer where it failed."""

    device: DeviceOptions
    samples: tuple[float, ...]


def takes_fences(state: WorkerState, named: tuple[str, str]) -> bool:
    """Task: whether a function can be called with fences, too, and so be waited for awake.

    Args:
        state: what the worker keeps.
        named: a compiled program, and the function's name.
    """
    vmfb, function = named
    exported = tasks.open_device(state).exported(vmfb)
    return function + ASYNC in {one.name for one in exported}


def ways_to_run(threads: int, polls: bool = False) -> list[DeviceOptions]:
    """The runtime's choices on a CPU: the calling thread alone, or workers of a number.

    Args:
        threads: at most.
        polls: whether callers can wait awake.

    Returns:
        First `local-sync`, then `local-task` with 2, 4, 8, ... threads, and as many as there may
        be; these also with huge pages where the system gives them to who asks, wherever the system
        has them and awake for a moment where they have cores of their own, with a caller that
        sleeps where it need not, and not as a batch process where they would be one.
    """
    counts = {2**i for i in range(threads.bit_length())} | {threads}
    ways = [DeviceOptions.cpu(n) for n in sorted(counts)]
    last = ways[-1:]
    if huge_pages_on_request():
        last.append(replace(ways[-1], huge_pages=True))
    if ways[-1].pinned:
        last += [replace(one, pinned=False) for one in last]
        # Workers that share a core would take from each other what they stay awake for.
        last.append(replace(ways[-1], spin_us=_SPIN_US))
    if polls and ways[-1].can_poll:
        last.append(replace(ways[-1], polls=False))
    if ways[-1].schedules_batch:
        last.append(replace(ways[-1], batch=False))
    return [*ways[:-1], *last]


def time_ways(state: WorkerState, request: WaysRequest) -> list[WayTimes]:
    """Task: see WaysRequest. What a process reads when it starts differs from way to way, so each
    has a process of its own, which ends with this one.

    Args:
        state: what the worker keeps.
        request: what is asked.

    Returns:
        Times of each, that which the program was tuned for first; of it alone where there is no
        choice.

    Raises:
        WorkerStartError: a device cannot be opened.
    """
    tuned_for = DeviceOptions.cpu(request.tuned_for)
    others = ways_to_run(request.threads, request.polls)
    ways = [tuned_for, *(one for one in others if one != tuned_for)]
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                WorkerPool(
                    1,
                    setup=Job(tasks.setup, way),
                    timeout_s=request.timeout_s,
                    environment=way.environment,
                )
            )
            for way in ways
        ]
        # They start side by side, with what the samples need.
        for worker in workers:
            worker.submit(Job(tasks.load, request.inputs))
        for worker in workers:
            while worker.pending:
                worker.poll()
        samplers = [_sampler(worker, request) for worker in workers]
        found = interleaved_rounds(samplers, request.policy)
    return [WayTimes(way, tuple(samples)) for way, samples in zip(ways, found, strict=True)]


def _sampler(worker: WorkerPool, request: WaysRequest) -> Callable[[], float | None]:
    """Seconds of one run, by a worker; None where the program fails there."""
    iterations: int | None = None

    def sample() -> float | None:
        nonlocal iterations
        asked = RepeatRequest(
            request.vmfb,
            request.inputs,
            request.function,
            iterations,
            _SAMPLE_S,
            parameters=request.parameters,
        )
        found = worker.ask(tasks.repeat, asked, request.timeout_s)
        if isinstance(found, WorkerFailure):
            return None
        iterations = found.iterations
        return found.real_s

    return sample
