"""Tasks of a provider's worker: set up, prepare a workload, take samples of it, check it."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass
from statistics import mean

import numpy as np

from tilewright.argument import element_type_of
from tilewright.compare.comparison_options import Place
from tilewright.compare.providers.interface import (
    Built,
    PreparedTask,
    PrepareRequest,
    Provider,
    Threads,
)
from tilewright.compare.workloads import ProviderTask
from tilewright.measure.device_options import schedule_as_batch
from tilewright.measure.inputs import load_arguments, read_outputs
from tilewright.measure.jobs import WorkerState
from tilewright.measure.timing import TimingPolicy, measure, repeat
from tilewright.measure.verify import Comparison, compare

# Warm-up ends when two calls in a row differ by less than this, or here.
_WARM_UP = TimingPolicy(
    warmup_max_s=1.0,
    warmup_max_calls=1000,
    warmup_tolerance=0.02,
    min_samples=1,
    max_samples=1,
    min_sample_s=0.005,
    drop_factor=None,
)


@dataclass(frozen=True)
class WorkerSetup:
    """cpus: processors to stay on; None: all."""

    provider: Provider
    place: Place
    cpus: tuple[int, ...] | None = None


@dataclass(frozen=True)
class About:
    """What a provider says of itself, and the threads that it computes with."""

    version: str
    threads: Threads


@dataclass(frozen=True)
class Ready:
    """A workload is prepared, right, and warm: seconds of a call, and what preparing said."""

    call_s: float
    comparisons: tuple[Comparison, ...]
    built: Built


@dataclass(frozen=True)
class _Open:
    """The provider that computes here."""

    provider: Provider


@dataclass(frozen=True)
class _Current:
    """The workload that is prepared."""

    prepared: PreparedTask
    task: ProviderTask


def setup(state: WorkerState, request: WorkerSetup) -> None:
    """Task: before anything is imported that starts threads.

    Args:
        state: the worker's.
        request: the provider and where it computes.
    """
    if request.cpus is not None:
        os.sched_setaffinity(0, request.cpus)
    # For every library alike, whoever gains by it.
    schedule_as_batch(True)
    request.provider.open(request.place)
    state.keep(_Open(request.provider))


def about(state: WorkerState, _: None) -> About:
    """Task: what computes here, and with how many threads it says it does.

    Args:
        state: the worker's.
        _: nothing.
    """
    provider = state.get(_Open).provider
    return About(provider.version(), provider.threads())


def prepare(state: WorkerState, request: PrepareRequest) -> Ready:
    """Task: prepare a workload, check its results, warm up. The one before is forgotten.

    Args:
        state: the worker's.
        request: the workload, as it was built.

    Returns:
        How long a call takes, and whether its results are right.
    """
    _forget(state)
    provider = state.get(_Open).provider
    # Copies: mapped files are read-only, and pages of them may have to be fetched.
    loaded = load_arguments(request.task.inputs)
    arguments = [np.array(a) if isinstance(a, np.ndarray) else a for a in loaded]
    prepared = provider.prepare(request, arguments)
    comparisons = _compare(prepared, request.task)
    call_s = 0.0
    if all(one.ok for one in comparisons):
        call_s = measure(prepared.call, _WARM_UP).samples[0]
    state.keep(_Current(prepared, request.task))
    built = prepared.built if prepared.built != Built() else request.built
    return Ready(call_s, comparisons, Built(None, built.note, built.progress))


@dataclass(frozen=True)
class SampleRequest:
    """Calls before the clock starts; then parts of so many calls each."""

    warm_calls: int
    parts: int
    calls: int


@dataclass(frozen=True)
class Sample:
    """Seconds of one call, by the clock and of processor time: in the mean of all, and in the
    fastest part, which tells most of the program where other things run as well."""

    calls: int
    real_s: float
    cpu_s: float
    fastest_s: float
    fastest_cpu_s: float


def sample(state: WorkerState, request: SampleRequest) -> Sample:
    """Task: time the prepared workload.

    Args:
        state: the worker's.
        request: how often.

    Returns:
        The times of a call.
    """
    prepared = state.get(_Current).prepared
    for _ in range(request.warm_calls):
        prepared.call()
    if prepared.timed is not None:
        # By the device's clock, and in one part, so that it is not left without work in between.
        calls = request.parts * request.calls
        seconds = prepared.timed(calls) / calls
        return Sample(calls, seconds, 0.0, seconds, 0.0)
    parts = [
        repeat(prepared.call, iterations=request.calls, min_time_s=0.0)
        for _ in range(request.parts)
    ]
    real, cpu = [part.real_s for part in parts], [part.cpu_s for part in parts]
    return Sample(request.parts * request.calls, mean(real), mean(cpu), min(real), min(cpu))


def finish(state: WorkerState, _: None) -> tuple[Comparison, ...]:
    """Task: check the results once more, after all the timing, and forget the workload.

    Args:
        state: the worker's.
        _: nothing.

    Returns:
        A comparison for each result.
    """
    current = state.get(_Current)
    comparisons = _compare(current.prepared, current.task)
    _forget(state)
    return comparisons


def _forget(state: WorkerState) -> None:
    state.drop(_Current)
    gc.collect()


def _compare(prepared: PreparedTask, task: ProviderTask) -> tuple[Comparison, ...]:
    outputs = [np.asarray(o) for o in prepared.outputs(prepared.call())]
    assert task.expected is not None
    expected = read_outputs(task.expected)
    if len(outputs) != len(expected):
        raise ValueError(f"{len(outputs)} results where {len(expected)} are expected")
    types = task.element_types or tuple(element_type_of(o.dtype) for o in outputs)
    return tuple(
        compare(o, e, kind, task.reduction_length, task.accumulation_type)
        for o, e, kind in zip(outputs, expected, types, strict=True)
    )
