"""How long one candidate is timed: warm-up, adaptive repetitions, giving up early.

The loop knows nothing of IREE: it times a function by the wall clock, so it is tested with a clock
of its own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.errors import UserError
from tilewright.measure.statistics import Measurement, median_interval


@dataclass(frozen=True)
class TimingPolicy:
    """All that decides how many samples are taken. Times are in seconds.

    The defaults suit a search, where a candidate may take about as long to measure as to compile
    and the best are measured again in any case; `CAREFUL` is for numbers that are reported.

    warmup_max_s, warmup_max_calls: warm-up ends here at the latest; it ends before when two calls
        in a row differ by less than `warmup_tolerance` (relative).
    min_samples, max_samples: of a candidate that is not dropped. Fewer than `min_samples` are
        taken only when time runs out. 95% intervals of a median take 6.
    target: sampling ends when the interval of the median is within +- this part of the median.
    confidence: of that interval.
    min_sample_s: a shorter call is repeated within one sample until the sample lasts this long,
        so that the clock and the call's own cost stay small beside it.
    max_s: time for samples; one sample is always taken.
    drop_factor: a candidate whose first execution takes longer than this times the best so far is
        dropped with that one sample. None: never.
    hopeless_factor: of a candidate whose fastest sample takes longer than this times the best so
        far, no more than `min_samples` are taken. None: as many as of any other.
    drop_recheck_s: a first execution shorter than this is timed once more before it is dropped:
        the first pays for page faults and cold caches.
    deadline_s: no new call starts after this time from the beginning; a call that is already
        running is ended by the worker pool's own time limit.
    prime: the program runs once before any of this, unjudged. Drivers of GPUs finish compiling a
        kernel, or bring its code to the device, when it is first used: seconds for a kernel of
        microseconds.
    """

    warmup_max_s: float = 0.03
    warmup_max_calls: int = 3
    warmup_tolerance: float = 0.05
    min_samples: int = 6
    max_samples: int = 50
    target: float = 0.03
    confidence: float = 0.95
    min_sample_s: float = 200e-6
    max_s: float = 0.06
    drop_factor: float | None = 3.0
    hopeless_factor: float | None = None
    drop_recheck_s: float = 0.1
    deadline_s: float = 30.0
    prime: bool = False

    def __post_init__(self) -> None:
        for name in ("warmup_max_s", "warmup_tolerance", "min_sample_s", "drop_recheck_s"):
            if getattr(self, name) < 0:
                raise UserError(f"timing policy: {name} is {getattr(self, name)}, must be >= 0")
        for name in ("max_s", "deadline_s", "target"):
            if not getattr(self, name) > 0:
                raise UserError(f"timing policy: {name} is {getattr(self, name)}, must be > 0")
        if not 1 <= self.min_samples <= self.max_samples:
            raise UserError(
                f"timing policy: min_samples is {self.min_samples} and max_samples "
                f"{self.max_samples}; must be 1 <= min_samples <= max_samples"
            )
        if not 0 < self.confidence < 1:
            raise UserError(f"timing policy: confidence is {self.confidence}, must be in (0, 1)")
        if self.drop_factor is not None and self.drop_factor <= 1:
            raise UserError(f"timing policy: drop_factor is {self.drop_factor}, must be over 1")
        if self.hopeless_factor is not None and self.hopeless_factor <= 1:
            raise UserError(
                f"timing policy: hopeless_factor is {self.hopeless_factor}, must be over 1"
            )


CAREFUL = TimingPolicy(
    warmup_max_s=0.1, warmup_max_calls=10, target=0.02, max_s=0.5, drop_factor=None
)


def measure(
    call: Callable[[], object],
    policy: TimingPolicy,
    *,
    executions: int = 1,
    probe: Callable[[], object] | None = None,
    best_s: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Measurement:
    """Time a program: warm-up, then samples until they say enough.

    Args:
        call: runs the program `executions` times before it returns.
        policy: how many samples are taken.
        executions: in one call.
        probe: runs it once; the first look at a candidate that may be slow (`call` by default).
        best_s: seconds of the best candidate so far, on the machine as it is now.
        clock: seconds.
    """
    start = clock()

    def timed(function: Callable[[], object], count: int) -> float:
        begin = clock()
        function()
        return (clock() - begin) / count

    if policy.prime:
        (probe or call)()
    warmup: list[float] = []
    if best_s is not None and policy.drop_factor is not None:
        limit = policy.drop_factor * best_s
        first = timed(probe, 1) if probe else timed(call, executions)
        if first > limit:
            if first <= policy.drop_recheck_s:
                first = min(first, timed(call, executions))
            if first > limit:
                return Measurement((first,), dropped=True)
        warmup.append(first)

    begin = clock()
    last = math.inf
    for calls in range(policy.warmup_max_calls):
        now = clock()
        if calls and (now - begin >= policy.warmup_max_s or now - start >= policy.deadline_s):
            break
        current = timed(call, executions)
        warmup.append(current)
        if abs(current - last) <= policy.warmup_tolerance * current:
            break
        last = current

    call_s = warmup[-1] * executions if warmup else timed(call, executions) * executions
    batch = max(1, math.ceil(policy.min_sample_s / call_s)) if call_s > 0 else 1

    def sample() -> float:
        begin = clock()
        for _ in range(batch):
            call()
        return (clock() - begin) / (batch * executions)

    samples: list[float] = []
    converged = False
    enough = math.inf
    if best_s is not None and policy.hopeless_factor is not None:
        enough = policy.hopeless_factor * best_s
    begin = clock()
    while not samples or (
        len(samples) < policy.max_samples
        and clock() - begin < policy.max_s
        and clock() - start < policy.deadline_s
    ):
        samples.append(sample())
        if len(samples) >= policy.min_samples:
            interval = median_interval(samples, policy.confidence)
            converged = interval.relative_half_width <= policy.target
            if converged or min(samples) > enough:
                break
    return Measurement(
        samples=tuple(samples),
        executions_per_sample=batch * executions,
        warmup=tuple(warmup),
        converged=converged,
    )
