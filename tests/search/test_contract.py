"""What every registered strategy promises; a new one is tested by being registered."""

import numpy as np
import pytest
from synthetic import Problem, matmul, rugged, tiny

from tilewright.search import create_strategy, strategies
from tilewright.space import Constraint, SearchSpace, TileKnob, UnionSpace
from tilewright.trial import Configuration, Status, Trial

# What strategies promise does not hang on the size of their models.
SMALL = {
    "auto": {"pool": 128, "steps": 16},
    "guided": {"pool": 128, "steps": 16},
    "xgboost": {"rounds": 12, "chains": 8, "iterations": 12},
}

FAILURES = [s for s in Status if s is not Status.OK]


@pytest.fixture(params=list(strategies()))
def name(request):
    return request.param


def create(name, space, seed, known=()):
    return create_strategy(name, space, seed, SMALL.get(name), known=known)


def thin():
    """Forty members of 64,000 combinations, known only to a scalar check."""
    knobs = [TileKnob(n, tuple(range(40))) for n in "abc"]
    rule = Constraint("line", ("a", "b", "c"), lambda a, b, c: a == b == c, lambda *v: "off")
    return SearchSpace("thin", knobs, [rule], Configuration.of({"a": 0, "b": 0, "c": 0}))


def union():
    return UnionSpace("both", [tiny(), thin()])


def all_of(space):
    return {c for c in space.ordered(range(space.order_size)) if c is not None}


def ok(config, time=None):
    return Trial(config, Status.OK, time or 1e-3 * (1 + len(repr(config.items)) % 7))


def failed(config, status=Status.CRASHED):
    return Trial(config, status)


@pytest.mark.parametrize("make", [tiny, lambda: matmul(256, 192, 64).space], ids=["tiny", "matmul"])
def test_only_members_and_never_twice(name, make):
    space = make()
    strategy = create(name, space, seed=1)
    seen = set()
    for _ in range(8):
        configs = strategy.ask(7)
        assert len(configs) <= 7
        assert all(space.contains(c) for c in configs)
        assert len(set(configs)) == len(configs)
        assert not seen & set(configs)
        seen |= set(configs)
        strategy.tell([ok(c) for c in configs])


def test_never_twice_without_tells(name):
    strategy = create(name, matmul(64, 64, 64).space, seed=1)
    asked = [c for _ in range(6) for c in strategy.ask(8)]
    assert len(set(asked)) == len(asked) == 48


@pytest.mark.parametrize("batch", [1, 3, 40])
def test_as_many_as_asked_for(name, batch):
    problem = rugged(1)
    strategy = create(name, problem.space, seed=1)
    for _ in range(3):
        configs = strategy.ask(batch)
        assert len(configs) == batch
        strategy.tell([problem.trial(c) for c in configs])


@pytest.mark.parametrize("told", [ok, failed], ids=["ok", "failed"])
def test_a_space_of_one_point(name, told):
    space = tiny().restrict({"a": [1], "b": [1], "peel": [False], "order": [(0, 1)]}).space
    strategy = create(name, space, seed=0)
    assert strategy.ask(5) == [space.default]
    assert strategy.ask(5) == []
    strategy.tell([told(space.default)])
    assert strategy.ask(5) == []


def test_a_space_without_knobs(name):
    space = SearchSpace("scalar", [], [], Configuration(()))
    strategy = create(name, space, seed=0)
    assert strategy.ask(2) == [space.default]
    strategy.tell([ok(space.default)])
    assert strategy.ask(2) == []


@pytest.mark.parametrize("make", [tiny, thin, union], ids=["tiny", "thin", "union"])
def test_exhausts_a_small_space_completely(name, make):
    space = make()
    strategy = create(name, space, seed=3)
    seen = []
    while configs := strategy.ask(9):
        seen += configs
        strategy.tell([ok(c) for c in configs])
        assert len(seen) <= space.order_size
    assert set(seen) == all_of(space)
    assert strategy.ask(9) == []
    strategy.tell([failed(seen[0])])
    assert strategy.ask(1) == []


def test_same_seed_same_proposals(name):
    problem = rugged(3)

    def run(seed):
        strategy = create(name, problem.space, seed)
        out = []
        for _ in range(4):
            out.append(strategy.ask(8))
            strategy.tell([problem.trial(c) for c in out[-1]])
        return out

    assert run(5) == run(5)
    if name != "grid":
        assert run(5) != run(6)


PROBLEMS = {
    "rugged": lambda: rugged(3),
    "matmul": lambda: matmul(128, 96, 64),
    "two pipelines": lambda: Problem("both", union(), lambda c: 1e-3 * (1 + len(repr(c)) % 7)),
}


@pytest.mark.parametrize("kind", PROBLEMS)
def test_order_of_telling_does_not_matter(name, kind):
    """The same set of trials told between two asks, in another order and in other calls."""
    problem = PROBLEMS[kind]()
    rng = np.random.default_rng(0)
    known = [problem.trial(c) for c in problem.space.sample(rng, 6)]
    other = [known[i] for i in rng.permutation(len(known))]
    first = create(name, problem.space, 4, known=known)
    second = create(name, problem.space, 4, known=other[:3])
    second.tell(other[3:])
    waiting: list[Trial] = []
    for turn in range(6):
        configs = first.ask(8)
        assert second.ask(8) == configs
        # Some trials come in only after the next ask.
        trials = waiting + [problem.trial(c) for c in configs]
        late = 3 if turn % 2 else 0
        trials, waiting = trials[: len(trials) - late], trials[len(trials) - late :]
        first.tell(trials)
        for i in rng.permutation(len(trials)):
            second.tell([trials[i]])


def test_trials_of_one_configuration_count_once(name):
    problem = rugged(3)
    default = problem.trial(problem.space.default)
    slower = Trial(default.configuration, Status.OK, 10 * (default.time_s or 1))
    broken = Trial(default.configuration, Status.RUN_TIMEOUT)
    once = create(name, problem.space, 2, known=[default])
    often = create(name, problem.space, 2, known=[broken, default, slower, default])
    for _ in range(3):
        configs = once.ask(8)
        assert often.ask(8) == configs
        for strategy in (once, often):
            strategy.tell([problem.trial(c) for c in configs])


def test_survives_failures_only(name):
    strategy = create(name, matmul(128, 128, 128).space, seed=0)
    for i in range(6):
        configs = strategy.ask(6)
        assert len(configs) == 6
        strategy.tell([failed(c, FAILURES[(i + j) % len(FAILURES)]) for j, c in enumerate(configs)])


def test_known_trials_are_not_proposed_again(name):
    space = tiny()
    members = sorted(all_of(space), key=lambda c: repr(c.items))
    known = [ok(c) if i % 3 else failed(c) for i, c in enumerate(members[::2])]
    strategy = create(name, space, seed=0, known=known)
    seen = set()
    while configs := strategy.ask(5):
        seen |= set(configs)
    assert seen == set(members) - {t.configuration for t in known}


def test_takes_trials_it_never_asked_for(name):
    space = tiny()
    strategy = create(name, space, seed=0)
    told = space.sample(np.random.default_rng(9), 4)
    strategy.tell([ok(c) for c in told])
    strategy.tell([])
    seen = set()
    while configs := strategy.ask(50):
        seen |= set(configs)
    assert seen == all_of(space) - set(told)


def test_default_outside_a_restricted_space(name):
    space = tiny().restrict({"a": [2, 4]}).space
    assert not space.default_is_member
    strategy = create(name, space, seed=0, known=[ok(space.default, 1e-3)])
    seen = set()
    while configs := strategy.ask(3):
        strategy.tell([ok(c) for c in configs])
        seen |= set(configs)
    assert seen == all_of(space)


def test_odd_trials_do_not_raise(name):
    strategy = create(name, tiny(), seed=0)
    a, b, c, d = strategy.ask(4)
    strategy.tell([Trial(a, Status.OK, None), ok(b, 0.0), ok(c, float("inf")), ok(d, 1e-300)])
    strategy.tell([ok(d), ok(d)])
    assert len(strategy.ask(4)) == 4


@pytest.mark.parametrize("n", [0, -1])
def test_asking_for_none(name, n):
    assert create(name, tiny(), seed=0).ask(n) == []
