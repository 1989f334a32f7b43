"""Searches in simulated time: what they are told, what they cost, what they are worth."""

import math
from dataclasses import replace

import numpy as np
import pytest
from replay_support import Told, foreign, recording, seconds

from tilewright.errors import UserError
from tilewright.replay.arena import Arena
from tilewright.replay.recording import Recording, knob_values
from tilewright.replay.simulate import (
    Conditions,
    SimulatedRun,
    StrategyChoice,
    evaluate,
    score,
    simulate,
)
from tilewright.trial import Configuration, Status, Trial

RANDOM = StrategyChoice("random", "random")
PLAIN = Conditions()


@pytest.fixture(scope="module")
def arena():
    return Arena(recording())


@pytest.fixture(scope="module")
def noisy():
    return Arena(recording(noise=0.4))


def told(worst_first=False):
    return lambda space, seed, known: Told(space, worst_first)


def worth(arena, make, conditions=PLAIN, seed=0):
    run = simulate(arena, make, conditions, seed)
    return score(conditions.race(arena), evaluate(arena, run, conditions).best)


class Spy:
    """Remembers what it was made with, and proposes members in their order."""

    def __init__(self, space, seed, known):
        self.space, self.known, self.told = space, known, []
        self._waiting = [c for c in space.members if c not in {t.configuration for t in known}]

    def ask(self, n):
        out, self._waiting = self._waiting[:n], self._waiting[n:]
        return out

    def tell(self, trials):
        self.told += trials


def spied(arena, conditions, seed=0):
    spies = []

    def make(space, seed, known):
        spies.append(Spy(space, seed, known))
        return spies[-1]

    simulate(arena, make, conditions, seed)
    return spies[0]


@pytest.mark.parametrize("per", ["evaluation", "second"])
@pytest.mark.parametrize("default", [True, False])
def test_the_optimum_at_once_is_1(arena, per, default):
    conditions = Conditions(per=per, default=default)
    found = worth(arena, told(), conditions)
    # In simulated time the first trial has to be done first.
    assert found == pytest.approx(1) if per == "evaluation" else 0.9 < found <= 1


def test_the_worst_first_is_far_below_0(arena):
    assert worth(arena, told(worst_first=True)) < -1


@pytest.fixture(scope="module")
def uneven():
    """Fast configurations compile slowly, failures fast; some programs are equal."""
    made = recording()
    slow = np.where(made.ok, 1e-3 / np.nan_to_num(made.time_s, nan=1e-3), 0.1) ** 2
    program = np.arange(len(made)) // 2 * 2 + np.arange(len(made)) % 3 % 2
    return Arena(replace(made, compile_s=slow, measure_s=2 * slow[::-1], program=program))


@pytest.mark.parametrize("per", ["evaluation", "second"])
@pytest.mark.parametrize("default", [True, False])
def test_random_search_is_0(uneven, default, per):
    arena = uneven
    conditions = Conditions(default=default, per=per)
    scores = np.array([worth(arena, RANDOM, conditions, seed) for seed in range(400)])
    error = scores.std() / np.sqrt(len(scores))
    assert abs(scores.mean()) < 4 * error
    assert error < 0.1


def test_the_same_seed_is_the_same_run(noisy):
    runs = [simulate(noisy, RANDOM, Conditions(noisy=True), seed) for seed in (1, 1, 2)]
    assert np.array_equal(runs[0].members, runs[1].members)
    assert np.array_equal(runs[0].told, runs[1].told, equal_nan=True)
    assert not np.array_equal(runs[0].members, runs[2].members)


def test_the_default_is_told_and_counts_for_nobody(arena):
    spy = spied(arena, PLAIN)
    (known,) = spy.known
    assert known.configuration == arena.default == spy.space.default
    assert known.time_s == pytest.approx(seconds(arena.default))
    race = arena.race(True)
    assert race.counts.sum() == len(arena.rows) - 1
    assert not race.counts[arena.number[arena.default]]


def test_without_the_default_nothing_is_known_and_the_space_shows_any_member(arena):
    spies = [spied(arena, Conditions(default=False), seed) for seed in range(8)]
    assert all(spy.known == () for spy in spies)
    assert len({spy.space.default for spy in spies}) > 3
    assert all(arena.space.contains(spy.space.default) for spy in spies)
    assert arena.race(False).counts.all()


def test_without_the_prior(arena):
    assert not spied(arena, Conditions(prior=False)).space.has_prior
    assert spied(arena, PLAIN).space.has_prior


def test_trials_are_told_as_they_were_recorded(arena):
    spy = spied(arena, PLAIN)
    statuses = {t.status for t in spy.told}
    assert Status.OK in statuses
    for t in spy.told:
        assert t.time_s == (seconds(t.configuration) if t.ok else None)


def test_noise_is_single_samples_of_that_configuration(noisy):
    spy = spied(noisy, Conditions(noisy=True))
    differ = 0
    for t in (t for t in spy.told if t.ok):
        member = noisy.number[t.configuration]
        samples = noisy.recording.samples_of(int(noisy.rows[member]))
        assert np.isclose(samples, t.time_s, rtol=1e-5).any()
        differ += not math.isclose(t.time_s, noisy.time_s[member])
    assert differ > 10


def test_samples_are_corrected_for_drift_as_the_time_was():
    config = [Configuration.of({"a": i}) for i in range(3)]
    # Measured while the machine was twice as slow.
    trials = [Trial(c, Status.OK, 1.0 + i, (2.0 + 2 * i,) * 5) for i, c in enumerate(config)]
    arena = Arena(Recording.of("drift", knob_values(config), trials))
    drawn = arena.trial(0, np.random.default_rng(0))
    assert drawn.time_s == pytest.approx(1.0)


def test_what_is_lost_by_exploring_and_by_selecting():
    config = [Configuration.of({"a": i}) for i in range(4)]
    times = [4.0, 3.0, 2.0, 1.0]
    trials = [Trial(c, Status.OK, t, (t,)) for c, t in zip(config, times, strict=True)]
    arena = Arena(Recording.of("split", knob_values(config), trials))
    conditions = Conditions(noisy=True, default=False)
    # 2 was tried, and looked worse than 3.
    run = SimulatedRun(np.array([1, 2]), np.array([0.5, 0.9]), np.array([1.0, 2.0]))
    outcome = evaluate(arena, run, conditions)
    steps = len(outcome.best)
    assert outcome.explored.tolist() == [3.0, 2.0, 2.0, 2.0][:steps]
    assert outcome.best.tolist() == [3.0, 3.0, 3.0, 3.0][:steps]
    assert outcome.trials == math.inf


def test_before_any_success_the_best_is_the_worst_time():
    times = [None, None, 3.0, 1.0, 2.0, 5.0]
    arena = Arena(foreign(times))
    run = SimulatedRun(np.array([0, 1, 3]), np.array([np.nan, np.nan, 1.0]), np.arange(3.0))
    for noisy in (False, True):
        outcome = evaluate(arena, run, Conditions(noisy=noisy))
        assert outcome.best[:3].tolist() == [5.0, 5.0, 1.0]
        assert outcome.trials == 3


def test_equal_programs_are_measured_once():
    config = [Configuration.of({"a": i}) for i in range(3)]
    phases = {"compile": 1.0, "measure": 10.0}
    trials = [
        Trial(config[0], Status.OK, 2.0, (2.0,), binary="x", phase_s=phases),
        Trial(config[1], Status.OK, 2.0, (2.0,), binary="x", phase_s=phases),
        Trial(config[2], Status.OK, 1.0, (1.0,), binary="y", phase_s=phases),
    ]
    arena = Arena(Recording.of("equal", knob_values(config), trials))
    assert arena.cost_s(np.array([0, 2, 1])).tolist() == [11.0, 11.0, 1.0]
    assert arena.cost_s(np.array([1, 0])).tolist() == [11.0, 1.0]
    orders = np.array([[0, 2, 1], [1, 0, 2], [2, 1, 0]])
    assert arena.cost_s(orders).tolist() == [arena.cost_s(order).tolist() for order in orders]


def test_in_simulated_time_a_trial_counts_when_it_is_done(arena):
    conditions = Conditions(per="second")
    race = arena.race(True, by_time=True)
    best = int(np.where(race.counts & arena.ok, arena.time_s, np.inf).argmin())
    run = SimulatedRun(np.array([best]), np.array([1.0]), np.array([2.5 * race.trial_s]))
    found = evaluate(arena, run, conditions).best
    assert found[:2].tolist() == [race.worst] * 2
    assert (found[2:] == race.optimum).all()


def test_a_search_that_gives_up_keeps_what_it_has(arena):
    class OnlyTwo(Spy):
        def ask(self, n):
            return [] if self.told else super().ask(2)

    run = simulate(arena, OnlyTwo, PLAIN, 0)
    assert len(run.members) == 2
    outcome = evaluate(arena, run, PLAIN)
    assert len(outcome.best) == arena.race(True).budget
    assert outcome.best[-1] == outcome.best[1]


def test_a_search_that_finds_nothing_at_all(arena):
    class Nothing(Spy):
        def ask(self, n):
            return []

    outcome = evaluate(arena, simulate(arena, Nothing, PLAIN, 0), PLAIN)
    assert (outcome.best == arena.race(True).worst).all()
    assert outcome.trials == math.inf


def test_runs_end_with_the_budget_or_near_the_optimum(arena):
    race = arena.race(True)
    late = simulate(arena, told(worst_first=True), PLAIN, 0)
    assert len(late.members) >= max(race.budget, race.random_trials)
    early = simulate(arena, told(), PLAIN, 0)
    assert evaluate(arena, early, PLAIN).trials == 1
    assert len(early.members) == 8
    # What one sample says can still be wrong; so there the budget is used up.
    noisy = replace(PLAIN, noisy=True)
    assert race.budget <= len(simulate(arena, told(), noisy, 0).members) < race.budget + 8


@pytest.mark.parametrize(
    ("times", "told"),
    [([None] * 4, "every configuration failed"), ([2.0] * 5, "faster than the median")],
)
def test_nothing_to_search_for(times, told):
    with pytest.raises(UserError, match=told):
        Arena(foreign(times)).race(True)
