"""Statistics: known values, coverage of the intervals, determinism."""

import math

import numpy as np
import pytest

from tilewright.measure.statistics import (
    Interval,
    Measurement,
    Verdict,
    bootstrap_interval,
    judge,
    median_interval,
    minimum_rounds,
    paired_ratio_interval,
)


@pytest.mark.parametrize(
    ("count", "rank"),
    # Le Boudec 2010, table A.1: 95% intervals of the median are [x(j), x(k)].
    [(6, 1), (7, 1), (8, 1), (9, 2), (10, 2), (12, 3), (15, 4), (20, 6), (30, 10)],
)
def test_median_interval_matches_the_published_ranks(count, rank):
    samples = [float(i) for i in range(1, count + 1)]
    interval = median_interval(samples, 0.95)
    assert (interval.low, interval.high) == (rank, count + 1 - rank)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_too_few_samples_claim_nothing(count):
    interval = median_interval([1.0] * count)
    assert (interval.low, interval.high) == (0.0, math.inf)


def test_median_interval_of_very_many_samples_is_finite():
    assert median_interval(list(np.linspace(1, 2, 5000))).relative_half_width < 0.2


def test_intervals_cover_the_median_of_a_bimodal_skewed_distribution():
    rng = np.random.default_rng(0)
    hits_order = hits_boot = 0
    for seed in range(200):
        samples = rng.exponential(size=15) + rng.choice([1.0, 2.0], size=15, p=[0.6, 0.4])
        # Where 0.6 exp(-(x - 1)) + 0.4 exp(-(x - 2)) is one half.
        truth = math.log((0.6 * math.e + 0.4 * math.e**2) / 0.5)
        order = median_interval(samples.tolist())
        boot = bootstrap_interval(samples.tolist(), seed=seed, resamples=400)
        hits_order += order.low <= truth <= order.high
        hits_boot += boot.low <= truth <= boot.high
    assert hits_order >= 183
    assert hits_boot >= 176


def test_bootstrap_is_deterministic_and_encloses_its_estimate():
    samples = list(np.random.default_rng(1).normal(10, 1, size=30))
    one, two = (bootstrap_interval(samples, seed=3) for _ in range(2))
    assert one == two
    assert one.low <= one.value <= one.high
    assert bootstrap_interval(samples, lambda x: x.mean(axis=-1)).value == np.mean(samples)


def test_paired_ratios_cancel_the_two_speeds_of_a_bimodal_machine():
    rng = np.random.default_rng(3)
    speed = rng.choice([1.0, 2.0], size=20)
    default = speed * rng.normal(1.0, 0.002, size=20)
    candidate = speed * rng.normal(0.97, 0.002, size=20)
    paired = paired_ratio_interval(candidate.tolist(), default.tolist())
    assert judge(paired, 0.01) is Verdict.FASTER
    assert paired.half_width < 0.005
    alone = bootstrap_interval(candidate.tolist())
    assert alone.half_width > 10 * paired.half_width


def test_equal_programs_are_rarely_called_different():
    rng = np.random.default_rng(4)
    wrong = 0
    for seed in range(200):
        a, b = rng.lognormal(0, 0.05, size=(2, 12))
        ratio = paired_ratio_interval(a.tolist(), b.tolist(), seed=seed, resamples=400)
        wrong += judge(ratio) is not Verdict.SAME
    assert wrong <= 24


def test_too_few_rounds_give_no_verdict():
    assert minimum_rounds(0.95) == 6
    ratio = paired_ratio_interval([1.0] * 5, [2.0] * 5)
    assert ratio.value == 0.5
    assert judge(ratio) is Verdict.SAME
    assert judge(paired_ratio_interval([1.0] * 6, [2.0] * 6)) is Verdict.FASTER


def test_unpaired_lengths_are_refused():
    with pytest.raises(ValueError, match="paired"):
        paired_ratio_interval([1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.9, 0.985, Verdict.FASTER),
        (0.9, 0.995, Verdict.SAME),
        (1.005, 1.2, Verdict.SAME),
        (1.02, 1.2, Verdict.SLOWER),
        (0.5, 1.5, Verdict.SAME),
    ],
)
def test_judge_wants_the_whole_interval_beyond_the_margin(low, high, verdict):
    assert judge(Interval((low + high) / 2, low, high, 0.95), 0.01) is verdict


def test_a_measurement_is_corrected_for_drift():
    measurement = Measurement((2.0, 2.2, 2.1), 16, (3.0,), False, True, 2.0)
    assert measurement.median_s == 2.1
    assert measurement.quartile_s == pytest.approx(2.05)
    assert measurement.time_s == pytest.approx(1.025)
