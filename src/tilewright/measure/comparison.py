"""Comparing finalists with the default: interleaved rounds, paired ratios, a verdict.

In every round each program is timed once, in an order drawn anew, so that slow changes of the
machine and the effect of what ran before fall on all alike. A program is judged by the ratios to
the default's time in the same round.

What a program is timed by is the fastest of a few equal parts of its turn, as many for each: what
else the machine does only ever adds time, and the least disturbed part has the least of it (J. Chen
and J. Revels, Robust benchmarking in noisy environments, 2016). On a MobileNet of 1.7 ms and two
threads that has a quarter of the spread that means have.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.errors import UserError
from tilewright.measure.statistics import (
    Interval,
    Measurement,
    Verdict,
    judge,
    minimum_rounds,
    paired_ratio_interval,
)

# A call that takes longer is its own warm-up: what it finds in the caches is lost in it.
_SLOW_S = 0.1
# Of the time of a comparison, after which it may end before all rounds are done.
_LONG_SHARE = 0.1
# By how much a comparison takes longer that has too few rounds for any verdict.
_LATEST = 3.0


@dataclass(frozen=True)
class ComparisonPolicy:
    """How finalists are compared. Times in seconds.

    rounds: at most; max_s: no new round begins after this time, or, as long as there are too few
        for any verdict, after three times of it.
    confidence: that all verdicts of one comparison hold together: with k programs beside the
        default each interval is made at 1 - (1 - confidence) / k (Bonferroni), since the winner is
        picked for looking best.
    margin: differences below this part are `same` even when they are certain.
    min_sample_s: a shorter call is repeated until a turn lasts this long.
    filled_s: a turn of fewer calls than parts goes on until it has as many, or lasts this long.
    parts: of a turn, at most; the sample is the fastest.
    warm_calls: calls before each sample, for the caches.
    resamples, seed: of the bootstrap and of the rounds' orders.
    clear: where rounds take long, a tenth of `max_s` and more, they end when it is clear how each
        program stands to the default, and the fastest to the others: as many rounds as the
        confidence takes, and in all of them a ratio beyond this part, on the same side. None: all
        rounds are done.
    """

    rounds: int = 20
    max_s: float = 30.0
    confidence: float = 0.95
    margin: float = 0.01
    min_sample_s: float = 0.01
    filled_s: float = 0.0
    parts: int = 8
    warm_calls: int = 1
    resamples: int = 2000
    seed: int = 0
    clear: float | None = None

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.resamples < 1 or self.parts < 1 or self.warm_calls < 0:
            raise UserError("comparison policy: rounds, parts and resamples must be at least 1")
        if not 0 < self.confidence < 1 or not 0 <= self.margin < 1:
            raise UserError("comparison policy: confidence and margin must be between 0 and 1")

    def each_confidence(self, candidates: int) -> float:
        """The confidence of each interval, so that all of a comparison hold together (Bonferroni).

        Args:
            candidates: programs beside the default.
        """
        return 1 - (1 - self.confidence) / max(1, candidates)


@dataclass(frozen=True)
class Finalist:
    """One program of a comparison.

    measurement: its samples, one for each round. ratio: its time over the default's, with the
    interval that the verdict rests on (below 1 is faster).
    """

    measurement: Measurement
    ratio: Interval
    verdict: Verdict

    @property
    def speedup(self) -> Interval:
        """The default's time over this one's (above 1 is faster)."""
        high = math.inf if self.ratio.low == 0 else 1 / self.ratio.low
        low = 0.0 if math.isinf(self.ratio.high) else 1 / self.ratio.high
        return Interval(1 / self.ratio.value, low, high, self.ratio.confidence)


def interleave(
    calls: Sequence[Callable[[], object]],
    policy: ComparisonPolicy,
    *,
    executions: Sequence[int],
    clock: Callable[[], float] = time.perf_counter,
) -> list[Measurement]:
    """Time each call once per round, in random order. At least one round is done.

    Args:
        calls: one for each program; returns when its results are complete.
        policy: how many rounds, and how long.
        executions: how often each call runs its program before it returns.
        clock: seconds.

    Returns:
        A measurement for each call, one sample per round.
    """

    def timed(call: Callable[[], object], repeats: int) -> float:
        begin = clock()
        for _ in range(repeats):
            call()
        return clock() - begin

    turns, slow = [], []
    for call in calls:
        call_s = timed(call, 1)
        slow.append(call_s > _SLOW_S)
        if not slow[-1]:
            call_s = min(call_s, timed(call, 1))
        turn_s = max(policy.min_sample_s, min(policy.parts * call_s, policy.filled_s))
        turns.append(max(1, math.ceil(turn_s / call_s)) if call_s > 0 else 1)
    # As many for each: the fastest of more would be faster by chance alone.
    parts = min(policy.parts, turns[0])
    batches = [math.ceil(turn / parts) for turn in turns]

    def sampler(i: int) -> Callable[[], float]:
        def sample() -> float:
            for _ in range(0 if slow[i] else policy.warm_calls):
                calls[i]()
            best = min(timed(calls[i], batches[i]) for _ in range(parts))
            return best / (batches[i] * executions[i])

        return sample

    samples = interleaved_rounds([sampler(i) for i in range(len(calls))], policy, clock=clock)
    return [
        Measurement(tuple(s), executions_per_sample=b * e)
        for s, b, e in zip(samples, batches, executions, strict=True)
    ]


def interleaved_rounds(
    samplers: Sequence[Callable[[], float | None]],
    policy: ComparisonPolicy,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Take a sample of each once per round, in an order drawn anew. At least one round is done.

    A sampler that gives None instead of seconds takes part in no later round. The samples at one
    position are of one round for all that took part in every round.

    Args:
        samplers: each takes one sample and gives its seconds, or None to take part no more.
        policy: how many rounds, and how long.
        clock: seconds.

    Returns:
        The samples of each sampler.
    """
    rng = np.random.default_rng(policy.seed)
    samples: list[list[float]] = [[] for _ in samplers]
    left = set(range(len(samplers)))
    needed = minimum_rounds(policy.each_confidence(len(samplers) - 1))
    begin = clock()
    for done in range(policy.rounds):
        spent = clock() - begin
        enough = spent >= (policy.max_s if done >= needed else _LATEST * policy.max_s)
        if done and enough:
            break
        if spent >= _LONG_SHARE * policy.max_s and _is_clear(samples, policy):
            break
        for i in rng.permutation(len(samplers)):
            if i not in left:
                continue
            seconds = samplers[i]()
            if seconds is None:
                left.discard(int(i))
            else:
                samples[i].append(seconds)
    return samples


def _is_clear(samples: Sequence[Sequence[float]], policy: ComparisonPolicy) -> bool:
    """Whether more rounds could not change who is faster than whom, as `policy.clear` says.

    The extremes of so many rounds enclose the median with the confidence.
    """
    if policy.clear is None:
        return False
    done = len(samples[0])
    others = [one for one in samples[1:] if len(one) == done]
    if done < minimum_rounds(policy.each_confidence(len(samples) - 1)):
        return False
    times = np.array([samples[0], *others])
    best = int(np.argmin(np.median(times, axis=1)))

    def apart(ratios: NDArray[np.float64], by: float = policy.clear) -> bool:
        return bool(ratios.max() < 1 - by or ratios.min() > 1 + by)

    return all(apart(times[i] / times[j]) for i in range(len(times)) for j in {0, best} - {i})


def judge_all(measurements: Sequence[Measurement], policy: ComparisonPolicy) -> list[Finalist]:
    """Compare every program with the first, the default.

    Where there were too few rounds for the confidence nothing is claimed: interval (0, infinity),
    verdict `same`.

    Args:
        measurements: of programs timed in the same rounds; the first is the default.
        policy: its confidence, margin and bootstrap.
    """
    default, *others = measurements
    confidence = policy.each_confidence(len(others))
    judged = [Finalist(default, Interval(1.0, 1.0, 1.0, confidence), Verdict.SAME)]
    for one in others:
        ratio = paired_ratio_interval(
            one.samples,
            default.samples,
            confidence=confidence,
            resamples=policy.resamples,
            seed=policy.seed,
        )
        judged.append(Finalist(one, ratio, judge(ratio, policy.margin)))
    return judged
