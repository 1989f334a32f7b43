"""How long a program takes, and a machine whose speed changes meanwhile.

`measure` times one candidate: warm-up, adaptive repetitions, giving up early. `repeat` times a
fixed number of calls as a whole, which is what `tilewright bench` repeats and reports: the number
of iterations grows until one repetition lasts long enough, as in Google Benchmark, and is the same
for all repetitions; processor time is that of the whole process, the device's worker threads
included. Both know nothing of IREE: they time a function by the wall clock, so they are tested with
a clock of their own.

Clock frequency, neighbours on the same host and thread placement move run times by far more than
two good candidates differ, for seconds or minutes at a time. The compiler's default is therefore
timed again every few candidates in the same process, and each candidate's time is divided by

    drift = baseline now / baseline at the reference

so that all times of a dispatch are as if taken at the reference moment. Small changes of the
baseline are its own noise and are not applied; nor are large ones applied in full, since what makes
the default two or three times as slow for a moment seldom slows a candidate as much, and one that
is divided by it would seem a record. A candidate that would be the new best is worth a second look:
the baseline is timed right after it too and the faster of both is used, so a sudden change of mode
between a candidate and its baseline does not make a record. The numbers that are reported at the
end do not rest on this but on `comparison.interleave`, which pairs every sample with one of the
default.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.errors import UserError
from tilewright.measure.device_options import Parameters
from tilewright.measure.inputs import InputSet
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
    drop_look_s: what is shorter is timed again until this long has passed: of programs of tens of
        microseconds the first milliseconds pay for workers that have fallen asleep, too.
    deadline_s: no new call starts after this time from the beginning; a call that is already
        running is ended by the worker pool's own time limit.
    prime: the program runs once before any of this, unjudged. Drivers of GPUs finish compiling a
        kernel, or bring its code to the device, when it is first used: seconds for a kernel of
        microseconds.
    long_s: a call that takes longer needs no warm-up, since what the first one pays besides is
        little of it: the first is a sample. None: all calls are warmed up.
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
    drop_look_s: float = 5e-3
    deadline_s: float = 30.0
    prime: bool = False
    long_s: float | None = None

    def __post_init__(self) -> None:
        for name in (
            "warmup_max_s",
            "warmup_tolerance",
            "min_sample_s",
            "drop_recheck_s",
            "drop_look_s",
        ):
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
        for name in ("drop_factor", "hopeless_factor"):
            factor = getattr(self, name)
            if factor is not None and factor <= 1:
                raise UserError(f"timing policy: {name} is {factor}, must be over 1")


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
            again, until = first <= policy.drop_recheck_s, clock() + policy.drop_look_s
            while again and first > limit:
                first = min(first, timed(call, executions))
                again = clock() < until
            if first > limit:
                return Measurement((first,), dropped=True)
        warmup.append(first)

    begin = clock()
    last = math.inf
    samples: list[float] = []
    long_s = math.inf if policy.long_s is None else policy.long_s
    looked_at_s = sum(warmup)
    for calls in range(policy.warmup_max_calls if looked_at_s <= long_s else 0):
        now = clock()
        if calls and (now - begin >= policy.warmup_max_s or now - start >= policy.deadline_s):
            break
        current = timed(call, executions)
        if current * executions > long_s:
            samples.append(current)
            break
        warmup.append(current)
        if abs(current - last) <= policy.warmup_tolerance * current:
            break
        last = current

    known = samples or warmup
    call_s = known[-1] * executions if known else timed(call, executions) * executions
    batch = max(1, math.ceil(policy.min_sample_s / call_s)) if call_s > 0 else 1

    def sample() -> float:
        begin = clock()
        for _ in range(batch):
            call()
        return (clock() - begin) / (batch * executions)

    converged = False
    enough = math.inf
    if best_s is not None and policy.hopeless_factor is not None:
        enough = policy.hopeless_factor * best_s
    begin = clock() - sum(samples) * executions
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


# How a trial run that was too short is extended: to what the time so far asks for and a bit more,
# but not blindly far beyond what has been seen.
_MARGIN = 1.4
_MAX_GROWTH = 10.0
_MAX_ITERATIONS = 1_000_000_000


@dataclass(frozen=True)
class Repetition:
    """Seconds of one iteration: wall time, and processor time of all threads together."""

    iterations: int
    real_s: float
    cpu_s: float


def repeat(
    call: Callable[[], object],
    *,
    iterations: int | None,
    min_time_s: float,
    clock: Callable[[], float] = time.perf_counter,
    cpu_clock: Callable[[], float] = time.process_time,
) -> Repetition:
    """One repetition of a benchmark.

    Args:
        call: what is timed.
        iterations: calls; None finds the number with which a repetition lasts
            `min_time_s`, after one call so that what happens only once (page faults, lazy loading)
            is not in it.
        min_time_s: seconds.
        clock: seconds.
        cpu_clock: seconds of processor time of all threads.
    """

    def timed(iterations: int) -> Repetition:
        cpu, real = cpu_clock(), clock()
        for _ in range(iterations):
            call()
        real, cpu = clock() - real, cpu_clock() - cpu
        return Repetition(iterations, real / iterations, cpu / iterations)

    if iterations is not None:
        return timed(iterations)
    call()
    number = 1
    while True:
        done = timed(number)
        total = done.real_s * number
        if total >= min_time_s or number >= _MAX_ITERATIONS:
            return done
        growth = _MARGIN * min_time_s / max(total, 1e-9)
        number = min(max(math.ceil(number * min(growth, _MAX_GROWTH)), number + 1), _MAX_ITERATIONS)


@dataclass
class InterleavedBaseline:
    """The state of the correction for one dispatch.

    vmfb: path of the compiled default.
    every: candidates between two timings of it (0: before each).
    tolerance: changes of the baseline up to this part are taken for noise.
    limit: the drift that is corrected at most, as a factor either way.
    reference_s: seconds at the reference; the first timing of the baseline unless given (a resumed
        run gives that of the earlier part, so that its times can be compared).
    inputs, parameters: its own, where the candidates have others.
    """

    vmfb: str
    every: int = 8
    tolerance: float = 0.03
    limit: float = 1.25
    reference_s: float | None = None
    now_s: float | None = None
    since: int = 0
    inputs: InputSet | None = None
    parameters: Parameters | None = None

    @property
    def due(self) -> bool:
        """Whether the baseline is to be timed before the next candidate."""
        return self.now_s is None or self.since >= self.every

    @property
    def drift(self) -> float:
        """How much slower the machine is now than at the reference (1 within the tolerance)."""
        if self.reference_s is None or self.now_s is None:
            return 1.0
        return self._ratio(self.now_s)

    def _ratio(self, now_s: float) -> float:
        assert self.reference_s is not None
        ratio = now_s / self.reference_s
        if abs(ratio - 1) <= self.tolerance:
            return 1.0
        return min(max(ratio, 1 / self.limit), self.limit)

    def observe(self, baseline_s: float) -> None:
        """The baseline was timed just now.

        Args:
            baseline_s: seconds that it took.

        Raises:
            ValueError: they are not positive.
        """
        if not baseline_s > 0:
            raise ValueError(f"a baseline of {baseline_s} seconds")
        if self.reference_s is None:
            self.reference_s = baseline_s
        self.now_s = baseline_s
        self.since = 0

    def correct(self, candidate: Measurement, baseline_after_s: float | None = None) -> Measurement:
        """The candidate with its drift filled in; counts it.

        Args:
            candidate: as measured.
            baseline_after_s: the baseline timed right after the candidate, if it was; the drift is
                then the smaller of before and after.
        """
        drift = self.drift
        self.since += 1
        if baseline_after_s is not None and self.reference_s is not None and self.now_s is not None:
            drift = self._ratio(min(self.now_s, baseline_after_s))
            self.observe(baseline_after_s)
        return replace(candidate, drift=drift)
