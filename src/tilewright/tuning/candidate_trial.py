"""One candidate trial: what becomes of a compiled candidate that is checked and timed.

A candidate is anything that can be compiled and timed: a configuration of a dispatch, a schedule,
an operation of the profiler, a whole program. That it crashes, hangs or computes something else is
a status here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from tilewright.measure.benchmark import Benchmark
from tilewright.measure.benchmark_worker import MAIN, VerifyRequest
from tilewright.measure.device_options import Parameters
from tilewright.measure.inputs import InputSet
from tilewright.measure.pool import WorkerFailure
from tilewright.measure.statistics import Measurement
from tilewright.measure.timing import InterleavedBaseline, TimingPolicy
from tilewright.measure.verify import Comparison
from tilewright.trial import Status
from tilewright.words import milliseconds, times

# A candidate that was dropped early is checked all the same, which takes one call more, unless its
# call takes longer than both of these: seconds, and times the best.
_CHECKED_S, _CHECKED_FACTOR = 1.0, 10.0


NOT_VERIFIED = "nothing (--no-verify)"
"""The method of a reference that nothing is compared with."""


@dataclass(frozen=True)
class Reference:
    """What a candidate must compute of its inputs, and how closely; see `measure.verify`.

    `expected` and `sensitivity` are .npz files. `element_types`: of each result, as coarse as it is
    rounded to on its way; None: their own. `method` says how the results were computed:
    `float64 NumPy`, or what else. `expected` is None where the interpreter does not know the
    dispatch (`unsupported` says which op), and another compile must serve; and where the method is
    `NOT_VERIFIED`, and every result passes.
    """

    inputs: InputSet
    expected: Path | None
    element_types: tuple[str, ...] | None = None
    reduction_length: int = 1
    accumulation_type: str | None = None
    integer_slack: int = 0
    sensitivity: Path | None = None
    method: str = ""
    unsupported: str = ""


@dataclass(frozen=True)
class Tested:
    """What running a candidate showed.

    status: `ok`, or how it failed. message: why it is not ok, or that it was dropped early, in one
        line. comparisons: of each result with the reference, where it was checked. measurement: of
        its time, where it was timed.
    """

    status: Status = Status.OK
    message: str = ""
    comparisons: tuple[Comparison, ...] = ()
    measurement: Measurement | None = None

    @property
    def ok(self) -> bool:
        """Whether it did what it should."""
        return self.status is Status.OK


@dataclass(frozen=True)
class CandidateTester:
    """Runs compiled candidates for one thing: all on the same inputs, against one reference.

    repeats: executions in one submission when a candidate is timed. timeout_s: for each check and
    each timing, None for the benchmark's own.
    """

    benchmark: Benchmark
    reference: Reference
    repeats: int = 1
    timeout_s: float | None = None
    function: str = MAIN
    parameters: Parameters = field(default_factory=Parameters)

    def check(self, vmfb: Path) -> Tested:
        """Compare a candidate's results with the reference.

        Args:
            vmfb: the candidate.

        Returns:
            `ok`, `wrong_result` with the element that is off by most, or how it failed.
        """
        wanted = self.reference
        if wanted.method == NOT_VERIFIED:
            return Tested()
        assert wanted.expected is not None
        request = VerifyRequest(
            str(vmfb),
            wanted.inputs,
            str(wanted.expected),
            wanted.reduction_length,
            wanted.element_types,
            self.function,
            self.parameters,
            wanted.accumulation_type,
            wanted.integer_slack,
            str(wanted.sensitivity) if wanted.sensitivity else None,
        )
        found = self.benchmark.verify(request, timeout_s=self.timeout_s)
        if isinstance(found, WorkerFailure):
            return Tested(found.run_status, found.message)
        wrong = next((one for one in found if not one.ok), None)
        if wrong is not None:
            return Tested(Status.WRONG_RESULT, str(wrong), tuple(found))
        return Tested(comparisons=tuple(found))

    def time(
        self,
        vmfb: Path,
        policy: TimingPolicy,
        best_s: float | None = None,
        baseline: InterleavedBaseline | None = None,
    ) -> Tested:
        """Time a candidate, whatever it computes.

        Args:
            vmfb: the candidate.
            policy: how many samples are taken.
            best_s: seconds of the best candidate; one that is far slower may be dropped early.
            baseline: corrects for drift.

        Returns:
            `ok` with a measurement, or how it failed.
        """
        found = self.benchmark.time(
            str(vmfb),
            self.reference.inputs,
            repeats=self.repeats,
            best_s=best_s,
            baseline=baseline,
            policy=policy,
            function=self.function,
            parameters=self.parameters,
            timeout_s=self.timeout_s,
        )
        if isinstance(found, WorkerFailure):
            return Tested(found.run_status, found.message)
        dropped = "dropped early: far slower than the best" if found.dropped else ""
        return Tested(message=dropped, measurement=found)

    def test(
        self,
        vmfb: Path,
        policy: TimingPolicy,
        best_s: float | None = None,
        baseline: InterleavedBaseline | None = None,
    ) -> Tested:
        """Time a candidate and check its results, also of one that was dropped early.

        That is judged by one call, which a busy machine can make slow: it is `ok` only when it was
        checked. One that takes too long to be called again is a `run_timeout`.

        Args:
            vmfb: the candidate.
            policy: how many samples are taken.
            best_s: seconds of the best candidate.
            baseline: corrects for drift.

        Returns:
            The measurement with what the check said; of one that fails the check, its status.
        """
        timed = self.time(vmfb, policy, best_s, baseline)
        found = timed.measurement
        if found is None:
            return timed
        if found.dropped and best_s is not None:
            call_s = min(found.samples)
            if call_s > max(_CHECKED_S, _CHECKED_FACTOR * best_s):
                slow = f"{milliseconds(call_s)} ms, {times(call_s / best_s)} the best's time"
                return replace(timed, status=Status.RUN_TIMEOUT, message=f"{slow}: not checked")
        checked = self.check(vmfb)
        return replace(checked, message=checked.message or timed.message, measurement=found)
