"""Rounds that are interleaved over the providers of a workload: how long a turn is, in how many
parts it is timed, and what becomes of the samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

from tilewright.compare import worker as tasks
from tilewright.compare.comparison_options import CompareOptions
from tilewright.compare.peer import PeerEntry
from tilewright.compare.results import ProviderOutcome
from tilewright.compare.worker import SampleRequest
from tilewright.measure.comparison import ComparisonPolicy, interleaved_rounds
from tilewright.measure.pool import WorkerFailure
from tilewright.measure.statistics import minimum_rounds

# Processor time over wall time may exceed the threads by this: clocks are read one after another.
_CORES_SLACK = 0.15
# A sample is timed in parts that last at least this long: short beside what else a machine does.
_PART_S = 0.0005
# As many at least, unless a call is long.
_LEAST_PARTS = 4
_LONG_S = 0.1
# A longer call needs none before it to warm the caches up.
_WARM_BELOW_S = 0.1
# How many times as long as expected a sample may take.
_SLOWEST = 20


def measure(entries: Sequence[PeerEntry], options: CompareOptions) -> None:
    """Interleaved rounds of those that are ready, then their results once more.

    Args:
        entries: prepared and right; their rows get the times, or say what failed.
        options: how to compare.
    """
    if not entries:
        return
    parts = _parts([entry.call_s for entry in entries], options)
    samplers = [_sampler(entry, options, parts) for entry in entries]
    round_s = sum(_sample_s(e.call_s, options, parts) for e in entries)
    rounds = max(minimum_rounds(0.95), min(options.rounds, int(options.max_s / round_s)))
    policy = ComparisonPolicy(rounds=rounds, max_s=math.inf, seed=options.seed)
    for entry, samples in zip(entries, interleaved_rounds(samplers, policy), strict=True):
        if entry.peer is None:
            continue
        real = sum(one.real_s * one.calls for one in entry.taken)
        cpu = sum(one.cpu_s * one.calls for one in entry.taken)
        fastest = tuple(one.fastest_s for one in entry.taken)
        entry.row = replace(entry.row, samples=tuple(samples), fastest=fastest)
        cores = cpu / real if real else 0.0
        if not options.place.is_gpu:
            # What the host does while a GPU computes is no part of it.
            processor = tuple(one.fastest_cpu_s for one in entry.taken)
            entry.row = replace(entry.row, processor=processor, cores=cores)
        if not options.place.is_gpu and cores > options.threads + _CORES_SLACK:
            entry.fail(
                ProviderOutcome.FAILED,
                f"it used {cores:.2f} cores where {options.threads} are allowed",
            )
            continue
        answer = entry.peer.ask(tasks.finish, None)
        if isinstance(answer, WorkerFailure):
            entry.failed(answer)
        else:
            entry.check(answer)


def _parts(calls_s: Sequence[float], options: CompareOptions) -> int:
    """Parts of a sample, for all providers as many: the fastest of more is faster by chance."""
    middle = max(_PART_S, median(calls_s))
    return max(1 if middle > _LONG_S else _LEAST_PARTS, math.ceil(options.min_sample_s / middle))


def _sampler(entry: PeerEntry, options: CompareOptions, parts: int) -> Callable[[], float | None]:
    call_s = max(entry.call_s, 1e-9)
    each = max(1, math.ceil(options.min_sample_s / parts / call_s))
    request = SampleRequest(1 if call_s < _WARM_BELOW_S else 0, parts, each)

    def sample() -> float | None:
        assert entry.peer is not None
        limit = max(options.timeout_s, _SLOWEST * _sample_s(call_s, options, parts))
        answer = entry.peer.ask(tasks.sample, request, limit)
        if isinstance(answer, WorkerFailure):
            entry.failed(answer)
            return None
        entry.taken.append(answer)
        return answer.real_s

    return sample


def _sample_s(call_s: float, options: CompareOptions, parts: int) -> float:
    """About what a sample takes, with the call before it."""
    warm_s = call_s if call_s < _WARM_BELOW_S else 0.0
    return max(parts * call_s, options.min_sample_s) + warm_s
