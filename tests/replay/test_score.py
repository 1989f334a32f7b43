"""Scores over runs and spaces."""

import json
import math

import numpy as np
import pytest
from replay_support import foreign, recording, written

from tilewright.errors import UserError
from tilewright.replay.recording import Recording, knob_values
from tilewright.replay.score import (
    SpaceScores,
    StrategyScores,
    bootstrap,
    parse_strategy,
    score_strategies,
)
from tilewright.replay.simulate import Conditions
from tilewright.trial import Configuration, Status, Trial

RANDOM = parse_strategy("random")
GRID = parse_strategy("grid:steps=16")


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spaces")
    other = recording("other", noise=0.2, keep=lambda c: dict(c.items)["distribution_n"] != 32)
    return [written(folder, recording()), written(folder, other)]


@pytest.fixture(scope="module")
def scored(paths):
    return score_strategies(paths, [RANDOM, GRID], Conditions(), runs=60, seed=1)


def test_random_search_is_0_within_its_interval(scored):
    low, high = scored[0].interval
    assert low <= 0 <= high
    assert low <= scored[0].mean <= high


def test_the_form_of_the_json(scored):
    data = json.loads(json.dumps(scored[1].to_json(noisy=False), allow_nan=False))
    assert data["mean"] == pytest.approx(np.mean(list(data["spaces"].values())))
    assert list(data["spaces"]) == ["made_up", "other"]
    assert data["interval"][0] <= data["mean"] <= data["interval"][1]
    assert {"strategy", "random", "ratio"} == set(data["trials_to_5pct"]["other"])
    assert "lost_by_exploring" not in data


def test_the_seed_decides_and_the_number_of_processes_does_not(paths, scored):
    alone = score_strategies(paths, [RANDOM], Conditions(), runs=60, seed=1)[0]
    parallel = score_strategies(paths, [RANDOM], Conditions(), runs=60, seed=1, jobs=2)[0]
    other = score_strategies(paths, [RANDOM], Conditions(), runs=60, seed=2)[0]
    for mine, theirs, different in zip(alone.spaces, parallel.spaces, other.spaces, strict=True):
        assert np.array_equal(mine.scores, theirs.scores)
        assert np.array_equal(mine.trials, theirs.trials)
        assert np.allclose(mine.curve, theirs.curve)
        assert not np.array_equal(mine.scores, different.scores)
    assert np.array_equal(alone.spaces[0].scores, scored[0].spaces[0].scores)


def test_every_strategy_and_space_is_told_when_it_is_done(paths):
    done = []
    score_strategies(
        paths, [RANDOM, GRID], Conditions(), runs=2, on_space=lambda *args: done.append(args)
    )
    assert {(label, scores.space) for label, scores in done} == {
        (label, space) for label in ("random", "grid:steps=16") for space in ("made_up", "other")
    }


def test_what_noise_loses_is_split(paths):
    (found,) = score_strategies(paths[1:], [RANDOM], Conditions(noisy=True), runs=40)
    data = found.to_json(noisy=True)
    assert data["lost_by_selecting"] > 0
    assert data["lost_by_exploring"] + data["lost_by_selecting"] == pytest.approx(1 - data["mean"])


def test_medians_with_runs_that_did_not_get_there():
    def scores(trials):
        return SpaceScores("s", np.zeros(3), np.zeros(3), np.array(trials), np.zeros(3), 10)

    assert scores([2.0, math.inf, 4.0]).trials_ratio == pytest.approx(0.4)
    lost = StrategyScores("x", (scores([2.0, math.inf, math.inf]),))
    assert lost.to_json(False)["trials_to_5pct"]["s"] == {
        "strategy": None,
        "random": 10,
        "ratio": None,
    }
    assert lost.to_json(False)["trials_to_5pct_ratio"] is None


def test_bootstrap_intervals_cover_the_mean():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(100):
        low, high = bootstrap([rng.normal(1, 1, 40), rng.normal(3, 2, 40)])
        hits += low <= 2 <= high
    assert hits >= 85


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("simplex", "unknown strategy 'simplex'"),
        ("grid:step=4", "unknown option 'step'; did you mean 'steps'"),
        ("grid:steps", "NAME=VALUE"),
        ("grid:steps=one", "option steps = 'one'"),
        ("random:x=1", "unknown option 'x'"),
    ],
)
def test_a_wrong_strategy_is_one_line(text, told):
    with pytest.raises(UserError, match=told) as error:
        parse_strategy(text)
    assert "\n" not in str(error.value)


def test_old_names_of_strategies_are_known():
    assert parse_strategy("RandomTuner").name == "random"
    assert parse_strategy("RandomTuner").label == "RandomTuner"


def test_the_same_twice_is_refused(paths, tmp_path):
    with pytest.raises(UserError, match="--strategy random: given twice"):
        score_strategies(paths, [RANDOM, RANDOM], Conditions(), runs=1)
    copy = written(tmp_path, recording())
    with pytest.raises(UserError, match="two spaces of the name made_up"):
        score_strategies([paths[0], copy], [RANDOM], Conditions(), runs=1)


def test_simulated_time_needs_times(tmp_path):
    config = [Configuration.of({"a": i}) for i in range(4)]
    trials = [Trial(c, Status.OK, 1.0 + i) for i, c in enumerate(config)]
    path = written(tmp_path, Recording.of("timeless", knob_values(config), trials))
    score_strategies([path], [RANDOM], Conditions(), runs=2)
    with pytest.raises(UserError, match="timeless: it is not known how long"):
        score_strategies([path], [RANDOM], Conditions(per="second"), runs=2)


def test_a_space_without_a_default_is_scored(tmp_path):
    path = written(tmp_path, foreign([5.0, 4.0, None, 2.0, 6.0, 7.0, 3.0, 1.0]))
    (found,) = score_strategies([path], [RANDOM], Conditions(), runs=200)
    low, high = found.interval
    assert low <= 0 <= high
