"""Verdicts on two results: what changed beyond the noise, and what is none of that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from comparisons import M32, M64, STATE, row, run, timed

from tilewright.compare import ComparisonRun, ProviderOutcome, diff
from tilewright.compare.diff import DiffVerdict, fastest_ratio, mean_ratio
from tilewright.errors import UserError


def verdicts(*changes: object) -> list[str]:
    return [str(c.verdict) for c in changes]  # type: ignore[attr-defined]


def test_equal_runs_are_the_same() -> None:
    old, new = run(row(seed=1), row(M32, seed=2)), run(row(seed=3), row(M32, seed=4))
    assert verdicts(*diff(old, new)) == ["same", "same"]


def test_slower_and_faster() -> None:
    old = run(row(seed=1), row(M32, seed=2))
    new = run(row(seed=3, seconds=1.1e-3), row(M32, seed=4, seconds=0.9e-3))
    assert verdicts(*diff(old, new)) == ["slower", "faster"]


def test_a_change_within_the_margin_is_none() -> None:
    old, new = run(row(seed=1)), run(row(seed=1, seconds=1.03e-3))
    assert verdicts(*diff(old, new)) == ["same"]
    assert verdicts(*diff(old, new, margin=0.01)) == ["slower"]


def test_what_is_noisy_takes_a_larger_change() -> None:
    """Noise that makes samples shorter, too, so that the fast ones tell as little as the others."""

    def noisy(seed: int, seconds: float = 1e-3) -> ComparisonRun:
        spread = np.exp(np.random.default_rng(seed).normal(0, 0.4, 15))
        return run(timed(row(), seconds * spread))

    old = noisy(1)
    assert verdicts(*diff(old, noisy(2, 1.1e-3))) == ["same"]
    assert verdicts(*diff(old, noisy(2, 5e-3))) == ["slower"]


def test_moments_of_interference_are_not_a_slow_down() -> None:
    """A third of the samples far too long: something else ran."""
    disturbed = row(seed=2)
    samples = [s * (3.0 if i % 3 == 0 else 1.0) for i, s in enumerate(disturbed.samples)]
    assert verdicts(*diff(run(row(seed=1)), run(timed(disturbed, samples)))) == ["same"]


def test_interference_in_every_sample_but_not_all_of_it_is_none_either() -> None:
    new = row(seed=2)
    new = replace(new, samples=tuple(1.3 * s for s in new.samples))
    assert verdicts(*diff(run(row(seed=1)), run(new))) == ["same"]
    new = replace(new, fastest=tuple(1.1 * s for s in new.fastest))
    assert verdicts(*diff(run(row(seed=1)), run(new))) == ["slower"]


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (ProviderOutcome.OK, ProviderOutcome.FAILED, DiffVerdict.BROKEN),
        (ProviderOutcome.OK, ProviderOutcome.CRASHED, DiffVerdict.BROKEN),
        (ProviderOutcome.OK, ProviderOutcome.SKIPPED, DiffVerdict.GONE),
        (ProviderOutcome.FAILED, ProviderOutcome.OK, DiffVerdict.FIXED),
        (ProviderOutcome.FAILED, ProviderOutcome.CRASHED, DiffVerdict.NONE),
        (ProviderOutcome.SKIPPED, ProviderOutcome.SKIPPED, DiffVerdict.NONE),
    ],
)
def test_outcomes(before: ProviderOutcome, after: ProviderOutcome, verdict: DiffVerdict) -> None:
    (change,) = diff(run(row(outcome=before)), run(row(outcome=after)))
    assert change.verdict is verdict
    assert change.ratio is None


def test_rows_of_one_side_only() -> None:
    changes = diff(run(row(M64)), run(row(M32)))
    assert verdicts(*changes) == ["gone", "new"]
    assert not any(c.verdict.is_regression for c in changes)
    assert mean_ratio(changes) is None


def test_many_rows_give_no_more_false_alarms() -> None:
    names = [f"matmul_{i}x4x4_f32t_f32t_f32t" for i in range(1, 101)]
    old = run(*(row(n, seed=i, noise=0.05) for i, n in enumerate(names)))
    new = run(*(row(n, seed=1000 + i, noise=0.05) for i, n in enumerate(names)))
    assert set(verdicts(*diff(old, new))) == {"same"}


def test_other_threads_or_another_processor_cannot_be_compared() -> None:
    with pytest.raises(UserError, match="threads"):
        diff(run(row()), run(row(), threads=2))
    other = replace(STATE, machine={"cpu": "another"})
    with pytest.raises(UserError, match="another"):
        diff(run(row()), run(row(), state=other))


def test_a_busy_machine_is_seen_through_by_processor_time() -> None:
    """One thread that had half a processor: twice the wall time, and the same processor time."""
    quiet, busy = row(seed=1, cores=1.0), row(seed=2, seconds=2e-3, cores=0.5)
    quiet = replace(quiet, processor=quiet.samples)
    busy = replace(busy, processor=tuple(s / 2 for s in busy.samples))
    (change,) = diff(run(quiet), run(busy))
    assert change.verdict is DiffVerdict.SAME
    assert change.by_processor
    slower = replace(busy, processor=tuple(1.2 * s for s in busy.processor))
    (change,) = diff(run(quiet), run(slower))
    assert change.verdict is DiffVerdict.SLOWER
    # Two threads may use less of two processors for reasons of their own.
    (change,) = diff(run(quiet, threads=2), run(busy, threads=2))
    assert change.verdict is DiffVerdict.SLOWER


@pytest.mark.parametrize("rounds", [6, 15, 25])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
@pytest.mark.parametrize("shape", ["one-sided", "two-sided", "interference"])
def test_intervals_hold_as_often_as_they_say(rounds: int, confidence: float, shape: str) -> None:
    """Of what is 10% slower, in simulated runs: the bounds hold the ratio as often as claimed."""
    rng = np.random.default_rng(7)
    draws = {
        "one-sided": lambda: 1 + rng.exponential(0.03, rounds),
        "two-sided": lambda: np.exp(rng.normal(0, 0.05, rounds)),
        "interference": lambda: 1 + rng.exponential(np.where(rng.random(rounds) < 0.3, 1.0, 0.01)),
    }
    draw, held, count = draws[shape], 0, 1000
    for _ in range(count):
        found = fastest_ratio(1.1 * draw(), draw(), confidence)
        assert found.low <= found.value <= found.high
        held += found.low <= 1.1 <= found.high
    # Three standard deviations of so many tries.
    assert held / count >= confidence - 3 * (confidence * (1 - confidence) / count) ** 0.5


def test_too_few_rounds_claim_nothing() -> None:
    found = fastest_ratio([2.0, 2.1, 2.2], [1.0, 1.1, 1.2], 0.99)
    assert (found.value, found.low, found.high) == (2.0, 0.0, np.inf)
    small = fastest_ratio([2.0, 2.1, 2.2], [1.0, 1.1, 1.2], 0.85)
    assert (small.low, small.high) == pytest.approx((2.0 / 1.2, 2.2 / 1.0))


def test_the_margin_is_that_of_all_verdicts() -> None:
    """A ratio of 0.961 is within 4% of 1: `judge` says the same."""
    exact = timed(row(), [1e-3] * 15)
    faster = timed(row(), [0.961e-3] * 15)
    assert verdicts(*diff(run(exact), run(faster))) == ["same"]
    assert verdicts(*diff(run(exact), run(timed(row(), [0.959e-3] * 15)))) == ["faster"]
