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

from tilewright.errors import UserError
from tilewright.measure.statistics import (
    Interval,
    Measurement,
    Verdict,
    judge,
    paired_ratio_interval,
)


@dataclass(frozen=True)
class ComparisonPolicy:
    """How finalists are compared. Times in seconds.

    rounds: at most; max_s: no new round begins after this time.
    confidence: that all verdicts of one comparison hold together: with k programs beside the
        default each interval is made at 1 - (1 - confidence) / k (Bonferroni), since the winner is
        picked for looking best.
    margin: differences below this part are `same` even when they are certain.
    min_sample_s: a shorter call is repeated until a turn lasts this long.
    parts: of a turn, at most; the sample is the fastest.
    warm_calls: calls before each sample, for the caches.
    resamples, seed: of the bootstrap and of the rounds' orders.
    """

    rounds: int = 20
    max_s: float = 30.0
    confidence: float = 0.95
    margin: float = 0.01
    min_sample_s: float = 0.01
    parts: int = 8
    warm_calls: int = 1
    resamples: int = 2000
    seed: int = 0

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

    turns = []
    for call in calls:
        call_s = min(timed(call, 1), timed(call, 1))
        turns.append(max(1, math.ceil(policy.min_sample_s / call_s)) if call_s > 0 else 1)
    # As many for each: the fastest of more would be faster by chance alone.
    parts = min(policy.parts, turns[0])
    batches = [math.ceil(turn / parts) for turn in turns]

    def sampler(i: int) -> Callable[[], float]:
        def sample() -> float:
            for _ in range(policy.warm_calls):
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
    begin = clock()
    for done in range(policy.rounds):
        if done and clock() - begin >= policy.max_s:
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
