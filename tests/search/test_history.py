import math

import numpy as np
import pytest
from synthetic import tiny

from tilewright.search.history import History, seconds
from tilewright.trial import Status, Trial


def members(n):
    space = tiny()
    return [c for c in space.ordered(range(space.order_size)) if c is not None][:n]


@pytest.mark.parametrize("time", [None, 0.0, -1.0, math.inf, math.nan])
def test_times_that_no_clock_shows_count_as_failures(time):
    (config,) = members(1)
    assert math.isnan(seconds(Trial(config, Status.OK, time)))
    assert math.isnan(seconds(Trial(config, Status.CRASHED, 1.0)))
    assert seconds(Trial(config, Status.OK, 2.0)) == 2.0


def test_the_order_is_that_of_the_configurations():
    trials = [Trial(c, Status.OK, 1.0 + i % 3) for i, c in enumerate(members(20))]
    trials[7] = Trial(trials[7].configuration, Status.RUN_ERROR)
    rng = np.random.default_rng(0)
    histories = []
    for _ in range(3):
        history = History()
        for i in rng.permutation(20):
            history.add([trials[i]])
        histories.append(history)
    for history in histories:
        assert history.trials == histories[0].trials
        assert np.array_equal(history.times(), histories[0].times(), equal_nan=True)
        assert history.best(30) == histories[0].best(30)
    best = histories[0].best(30)
    assert len(best) == 19
    assert [t.time_s for t in best] == sorted(t.time_s for t in best)
    assert histories[0].best(2) == best[:2]


def test_the_fastest_of_several_trials_counts():
    a, b = members(2)
    fast, slow, failed = (
        Trial(a, Status.OK, 1.0),
        Trial(a, Status.OK, 2.0),
        Trial(a, Status.WRONG_RESULT),
    )
    for order in ([fast, slow, failed], [failed, slow, fast], [slow, failed, fast, fast]):
        history = History()
        history.add(order)
        assert history.trials == [fast]
        assert history.seconds(a) == 1.0
    assert history.seconds(b) is None
    assert a in history
    assert b not in history
    history.add([Trial(b, Status.INVALID)])
    assert math.isnan(history.seconds(b))
    assert len(history) == 2
