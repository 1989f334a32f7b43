"""The timing loop, drift correction and interleaving, on a clock of the test's own."""

import itertools
import random
from dataclasses import replace

import pytest

from tilewright.errors import UserError
from tilewright.measure.comparison import ComparisonPolicy, interleave, judge_all
from tilewright.measure.statistics import Measurement, Verdict, minimum_rounds
from tilewright.measure.timing import (
    CAREFUL,
    InterleavedBaseline,
    Repetition,
    TimingPolicy,
    measure,
    repeat,
)

POLICY = replace(CAREFUL, drop_factor=3.0)


class Machine:
    """A clock that programs move on; `speed` slows everything down."""

    def __init__(self):
        self.now = 0.0
        self.speed = 1.0
        self.calls = 0

    def clock(self):
        return self.now

    def program(self, *seconds):
        """A call taking these seconds in turn, the last for ever."""
        times = itertools.chain(seconds, itertools.repeat(seconds[-1]))

        def call():
            self.calls += 1
            self.now += next(times) * self.speed

        return call


@pytest.fixture
def machine():
    return Machine()


def test_a_steady_program_stops_at_the_fewest_samples(machine):
    result = measure(machine.program(0.01), POLICY, clock=machine.clock)
    assert len(result.samples) == 6
    assert result.converged
    assert result.median_s == pytest.approx(0.01)
    assert result.executions_per_sample == 1


def test_the_first_use_of_a_kernel_is_not_judged(machine):
    call = machine.program(5.0, 0.01)
    dropped = measure(call, POLICY, best_s=0.01, clock=machine.clock)
    assert dropped.dropped
    call = machine.program(5.0, 0.01)
    kept = measure(call, replace(POLICY, prime=True), best_s=0.01, clock=machine.clock)
    assert not kept.dropped
    assert kept.median_s == pytest.approx(0.01)


def test_warmup_goes_on_until_stable_and_is_no_sample(machine):
    result = measure(machine.program(0.09, 0.05, 0.02, 0.01), POLICY, clock=machine.clock)
    assert result.warmup == pytest.approx((0.09, 0.05))
    result = measure(
        machine.program(0.04, 0.03, 0.02, 0.01),
        replace(POLICY, warmup_max_s=10),
        clock=machine.clock,
    )
    assert result.warmup == pytest.approx((0.04, 0.03, 0.02, 0.01, 0.01))
    assert max(result.samples) == pytest.approx(0.01)


def test_a_long_call_is_its_own_warmup(machine):
    policy = replace(POLICY, max_s=0.1, long_s=0.03)
    result = measure(machine.program(0.12, 0.08), policy, clock=machine.clock)
    assert (result.samples, result.warmup) == (pytest.approx((0.12,)), ())
    result = measure(machine.program(0.04), policy, clock=machine.clock)
    assert len(result.samples) == machine.calls - 1 == 3, "until the time for samples has passed"
    result = measure(machine.program(0.02), policy, clock=machine.clock)
    assert result.warmup == pytest.approx((0.02, 0.02)), "a short one is warmed up"


def test_a_long_first_look_is_the_warmup(machine):
    policy = replace(POLICY, max_s=0.1, long_s=0.03)
    result = measure(machine.program(0.12, 0.08), policy, best_s=0.07, clock=machine.clock)
    assert (result.samples, result.warmup) == (pytest.approx((0.08, 0.08)), pytest.approx((0.12,)))


def test_short_calls_are_batched(machine):
    result = measure(machine.program(10e-6), POLICY, executions=2, clock=machine.clock)
    assert result.executions_per_sample >= 2 * 20
    assert result.median_s == pytest.approx(5e-6)


def test_a_short_program_is_looked_at_until_its_workers_are_awake(machine):
    asleep = [80e-6] * 40
    slow = measure(machine.program(*asleep, 20e-6), POLICY, best_s=20e-6, clock=machine.clock)
    assert not slow.dropped
    assert slow.median_s == pytest.approx(20e-6)
    machine.calls = 0
    call = machine.program(80e-6)
    assert measure(call, POLICY, best_s=20e-6, clock=machine.clock).dropped
    assert machine.calls * 80e-6 == pytest.approx(POLICY.drop_look_s, rel=0.05)


def test_a_noisy_program_gets_more_samples_up_to_the_caps(machine):
    rng = random.Random(0)
    noisy = machine.program(*(rng.uniform(0.001, 0.003) for _ in range(1000)))
    result = measure(noisy, replace(POLICY, max_samples=30), clock=machine.clock)
    assert len(result.samples) == 30
    assert not result.converged
    result = measure(noisy, replace(POLICY, max_samples=1000, max_s=0.05), clock=machine.clock)
    assert 15 < len(result.samples) < 60


def test_a_program_longer_than_the_budget_gets_one_sample(machine):
    result = measure(machine.program(40.0), POLICY, clock=machine.clock)
    assert result.samples == (40.0,)


def test_a_slow_candidate_is_dropped_after_one_execution(machine):
    bench = machine.program(9.0 * 64)
    result = measure(
        bench,
        POLICY,
        executions=64,
        probe=machine.program(9.0),
        best_s=1.0,
        clock=machine.clock,
    )
    assert result.dropped
    assert result.samples == (9.0,)
    assert machine.calls == 1


def test_a_cold_first_execution_is_no_reason_to_drop(machine):
    result = measure(machine.program(0.05, 0.01), POLICY, best_s=0.01, clock=machine.clock)
    assert not result.dropped
    assert result.median_s == pytest.approx(0.01)


@pytest.mark.parametrize(("best_s", "samples"), [(0.001, 5), (0.002, 30), (None, 30)])
def test_of_a_hopeless_candidate_no_more_samples_are_taken_than_must(machine, best_s, samples):
    rng = random.Random(0)
    noisy = machine.program(*(rng.uniform(0.0022, 0.0032) for _ in range(1000)))
    policy = replace(POLICY, min_samples=5, max_samples=30, hopeless_factor=1.5, drop_factor=None)
    result = measure(noisy, policy, best_s=best_s, clock=machine.clock)
    assert len(result.samples) == samples
    assert not result.dropped


def test_nothing_is_dropped_when_told_so(machine):
    policy = replace(POLICY, drop_factor=None)
    assert not measure(machine.program(0.5), policy, best_s=0.01, clock=machine.clock).dropped


@pytest.mark.parametrize(
    "options",
    [
        {"min_samples": 0},
        {"min_samples": 9, "max_samples": 8},
        {"confidence": 1.0},
        {"drop_factor": 0.5},
        {"hopeless_factor": 1.0},
        {"max_s": 0},
        {"warmup_max_s": -1},
    ],
)
def test_impossible_policies_are_refused(options):
    with pytest.raises(UserError, match="timing policy"):
        TimingPolicy(**options)


def timed(seconds):
    return Measurement((seconds,))


def test_drift_is_divided_out():
    baseline = InterleavedBaseline("default.vmfb", every=2, limit=4.0)
    assert baseline.due
    baseline.observe(1.0)
    assert baseline.correct(timed(0.5)).time_s == 0.5
    assert not baseline.due
    assert baseline.correct(timed(0.5)).time_s == 0.5
    assert baseline.due
    baseline.observe(2.0)
    assert baseline.correct(timed(1.0)).time_s == 0.5
    assert baseline.reference_s == 1.0


def test_the_baselines_own_noise_is_not_applied():
    baseline = InterleavedBaseline("default.vmfb", limit=4.0)
    baseline.observe(1.0)
    baseline.observe(1.02)
    assert baseline.drift == 1.0


def test_a_change_of_mode_around_a_candidate_makes_no_record():
    baseline = InterleavedBaseline("default.vmfb", limit=4.0)
    baseline.observe(2.0)
    corrected = baseline.correct(timed(1.0), baseline_after_s=1.0)
    assert corrected.time_s == pytest.approx(2.0)
    assert baseline.drift == 0.5
    corrected = baseline.correct(timed(1.0), baseline_after_s=2.0)
    assert corrected.time_s == pytest.approx(2.0), "as slow before as it says"
    assert baseline.drift == 1.0


def test_a_resumed_run_keeps_its_reference():
    baseline = InterleavedBaseline("default.vmfb", reference_s=1.0, limit=4.0)
    baseline.observe(3.0)
    assert baseline.correct(timed(3.0)).time_s == 1.0


def test_what_slows_only_the_default_makes_no_record():
    """Another process on one of two cores: the default takes thrice as long, not the others."""
    baseline = InterleavedBaseline("default.vmfb")
    baseline.observe(1.0)
    baseline.observe(3.0)
    assert baseline.correct(timed(1.0)).time_s == pytest.approx(0.8)
    baseline.observe(0.1)
    assert baseline.correct(timed(1.0)).time_s == pytest.approx(1.25)


def test_interleaving_times_all_in_every_round_in_changing_order(machine):
    order = []

    def program(name, seconds):
        def call():
            order.append(name)
            machine.now += seconds * machine.speed

        return call

    policy = ComparisonPolicy(rounds=12, warm_calls=0, min_sample_s=0.0)
    calls = [program("a", 1.0), program("b", 0.9)]
    measured = interleave(calls, policy, executions=[1, 2], clock=machine.clock)
    assert [len(m.samples) for m in measured] == [12, 12]
    assert measured[1].median_s == pytest.approx(0.45)
    rounds = [tuple(order[i : i + 2]) for i in range(2, len(order), 2)]
    assert set(rounds) == {("a", "b"), ("b", "a")}


def test_verdicts_survive_a_machine_of_two_speeds(machine):
    rng = random.Random(1)

    def program(seconds):
        def call():
            machine.now += seconds * machine.speed * rng.uniform(0.998, 1.002)

        return call

    class Clock:
        """Every round or so the machine changes its speed."""

        def __call__(self):
            machine.speed = 1.0 if int(machine.now / 40) % 2 else 1.8
            return machine.now

    policy = ComparisonPolicy(rounds=20, max_s=1e9, min_sample_s=0.0, warm_calls=0)
    calls = [program(1.0), program(0.9), program(1.0), program(1.2)]
    judged = judge_all(interleave(calls, policy, executions=[1] * 4, clock=Clock()), policy)
    assert [f.verdict for f in judged] == [
        Verdict.SAME,
        Verdict.FASTER,
        Verdict.SAME,
        Verdict.SLOWER,
    ]
    assert judged[1].speedup.low < 1 / 0.9 < judged[1].speedup.high


def test_a_sample_is_the_least_disturbed_part_of_a_turn(machine):
    calls_made = [0, 0]

    def program(i, seconds):
        def call():
            calls_made[i] += 1
            disturbed = calls_made[i] % 3  # all calls but every third
            machine.now += seconds * (3.0 if disturbed else 1.0)

        return call

    policy = ComparisonPolicy(rounds=10, warm_calls=0, min_sample_s=0.08, parts=8, max_s=1e9)
    calls = [program(0, 0.01), program(1, 0.009)]
    quiet, faster = interleave(calls, policy, executions=[1, 1], clock=machine.clock)
    assert quiet.median_s == pytest.approx(0.01)
    assert faster.median_s == pytest.approx(0.009)
    means = ComparisonPolicy(rounds=10, warm_calls=0, min_sample_s=0.08, parts=1, max_s=1e9)
    (disturbed,) = interleave([program(0, 0.01)], means, executions=[1], clock=machine.clock)
    assert disturbed.median_s > 0.015


def test_without_time_for_enough_rounds_nothing_is_claimed(machine):
    policy = ComparisonPolicy(rounds=20, max_s=1.0, min_sample_s=0.0)
    calls = [machine.program(1.0), machine.program(0.5)]
    judged = judge_all(interleave(calls, policy, executions=[1, 1], clock=machine.clock), policy)
    assert judged[1].verdict is Verdict.SAME
    assert judged[1].ratio.value == pytest.approx(0.5)
    assert len(judged[1].measurement.samples) < minimum_rounds(policy.confidence)


def test_a_comparison_takes_longer_where_a_few_more_rounds_allow_a_verdict(machine):
    policy = ComparisonPolicy(rounds=20, max_s=7.0, min_sample_s=0.0)
    calls = [machine.program(1.0), machine.program(0.5)]
    judged = judge_all(interleave(calls, policy, executions=[1, 1], clock=machine.clock), policy)
    assert judged[1].verdict is Verdict.FASTER
    assert len(judged[1].measurement.samples) == minimum_rounds(policy.confidence)


def test_what_is_clear_takes_no_more_rounds_than_its_confidence(machine):
    policy = ComparisonPolicy(rounds=40, max_s=100.0, min_sample_s=0.0, clear=0.05)

    def rounds(*seconds):
        calls = [machine.program(one) for one in seconds]
        measured = interleave(calls, policy, executions=[1] * len(calls), clock=machine.clock)
        return len(measured[0].samples)

    assert rounds(1.0, 0.5) == max(minimum_rounds(0.95), 7)  # seven rounds are a tenth of the time
    assert rounds(1.0, 0.5, 0.3) == minimum_rounds(policy.each_confidence(2))
    assert rounds(0.5, 0.49) == 40, "too near to the default"
    assert rounds(0.5, 0.2, 0.198) == 40, "which is best is not clear"
    assert rounds(0.02, 0.01) == 40, "all rounds are soon done"


def test_more_finalists_need_stronger_evidence():
    policy = ComparisonPolicy()
    assert policy.each_confidence(1) == pytest.approx(0.95)
    assert policy.each_confidence(10) == pytest.approx(0.995)


class Clocks:
    """A call that takes `seconds`, by the wall and twice that of the processors."""

    def __init__(self, seconds: float, first: float | None = None) -> None:
        self.now = 0.0
        self.calls = 0
        self.seconds = seconds
        self.first = first

    def call(self) -> None:
        self.now += self.first if self.first is not None and self.calls == 0 else self.seconds
        self.calls += 1

    def repeat(self, **options) -> Repetition:
        return repeat(self.call, clock=lambda: self.now, cpu_clock=lambda: 2 * self.now, **options)


def test_iterations_are_found_that_last_long_enough():
    clocks = Clocks(0.003)
    done = clocks.repeat(iterations=None, min_time_s=0.5)
    assert done.iterations * 0.003 >= 0.5
    assert abs(done.real_s - 0.003) < 1e-9
    assert abs(done.cpu_s - 0.006) < 1e-9
    assert clocks.calls < 4 * done.iterations, "finding them takes no more than the time itself"


def test_a_slow_call_runs_once_beside_the_first():
    clocks = Clocks(7.0)
    assert clocks.repeat(iterations=None, min_time_s=0.5).iterations == 1
    assert clocks.calls == 2


def test_the_first_call_is_not_counted():
    done = Clocks(0.25, first=90.0).repeat(iterations=None, min_time_s=0.5)
    assert abs(done.real_s - 0.25) < 1e-9


def test_a_given_number_of_iterations_is_kept():
    clocks = Clocks(0.001)
    done = clocks.repeat(iterations=3, min_time_s=100.0)
    assert (done.iterations, clocks.calls) == (3, 3)
    assert abs(done.real_s - 0.001) < 1e-12


def test_a_clock_that_stands_still_ends():
    calls = []
    done = repeat(
        lambda: calls.append(1),
        iterations=None,
        min_time_s=1e-9,
        clock=iter(range(1000)).__next__,
        cpu_clock=lambda: 0.0,
    )
    assert done.iterations == 1
    assert done.cpu_s == 0.0
