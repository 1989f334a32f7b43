"""A recorded space as strategies see it: the space itself, held to what was recorded."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from replay_support import foreign, recording

from tilewright.errors import UserError
from tilewright.replay.recording import KnobValues
from tilewright.replay.space import open_space
from tilewright.search import create_strategy, strategies
from tilewright.space import Space
from tilewright.space.descriptors import PRIOR
from tilewright.trial import Configuration

MADE = recording()


@pytest.fixture(scope="module")
def space():
    return open_space(MADE)[0]


def changed(config, **values):
    return Configuration.of({**dict(config.items), **values})


def test_it_is_a_space_of_what_was_recorded(space):
    assert isinstance(space, Space)
    assert set(space.members) == set(MADE.configurations)
    assert space.order_size == 108
    assert space.ordered(range(108)) == list(space.members)
    assert space.default == MADE.default
    assert space.default_is_member
    size = space.size_estimate(np.random.default_rng(0))
    assert (size.points, size.exact) == (108, True)


def test_numbers_are_those_of_the_space_itself(space):
    inner = space.tables.inner
    some = list(space.members[::7])
    stranger = changed(space.default, distribution_m=128)
    for configs in (some, [*some, stranger], []):
        assert np.array_equal(space.encode_many(configs), inner.encode_many(configs))
        assert np.array_equal(space.describe_many(configs), inner.describe_many(configs))
        assert np.array_equal(space.prior_many(configs), inner.prior_many(configs))
    assert space.prior(some[0]) == inner.prior(some[0])


def test_neighbours_are_those_of_the_space_itself(space):
    inner = space.tables.inner
    for reach in (1, 2):
        for config in space.members[::11]:
            mine = list(space.neighbours(config, np.random.default_rng(5), reach))
            theirs = list(inner.neighbours(config, np.random.default_rng(0), reach))
            assert Counter(mine) == Counter(theirs)
            differing = [
                sum(a != b for a, b in zip(c.items, config.items, strict=True)) for c in mine
            ]
            assert differing == sorted(differing)
    again = [list(space.neighbours(space.default, np.random.default_rng(s))) for s in (1, 1, 2)]
    assert again[0] == again[1] != again[2]


def test_samples_are_uniform(space):
    drawn = Counter(space.sample(np.random.default_rng(0), 108 * 1000))
    assert set(drawn) == set(space.members)
    assert max(drawn.values()) < 1.4 * min(drawn.values())


def test_what_was_not_recorded_is_no_member(space):
    stranger = changed(space.default, distribution_m=128)
    assert not space.contains(stranger)
    assert space.violations(stranger)
    assert list(space.contains_many([stranger, space.default])) == [False, True]
    assert space.contains(space.nearest_valid(stranger))


def test_without_the_prior_no_number_tells_of_it(space):
    blind = space.seen_as(default=space.default, prior=False)
    assert not blind.has_prior
    assert not blind.prior_many(blind.members).any()
    column = blind.descriptor_names.index(PRIOR)
    assert not blind.describe_many(blind.members)[:, column].any()
    assert space.describe_many(space.members)[:, column].any()


def test_a_space_with_gaps():
    made = recording(keep=lambda c: dict(c.items)["vector_reduction_k"] != 2)
    space, notes = open_space(made)
    assert space.order_size == 72
    assert notes == ("today's space has configurations that were not recorded; they are left out",)
    for config in space.members:
        assert all(space.contains(c) for c in space.neighbours(config, np.random.default_rng(0)))
    moved = space.step_many(space.members, np.random.default_rng(0), 2)
    assert all(space.contains(c) for c in moved)


def test_recorded_configurations_that_are_invalid_today_are_left_out():
    # As if a constraint had come since: vectors beyond today's limit are recorded.
    subject = MADE.subject
    small = replace(subject, target=replace(subject.target, max_vector_bytes=1024))
    space, notes = open_space(replace(MADE, subject=small))
    assert 0 < space.order_size < 108
    assert len(notes) == 1
    assert f"{108 - space.order_size} of 108 recorded configurations" in notes[0]


def test_a_knob_that_is_gone_is_said():
    odd = replace(
        MADE,
        knobs=(*MADE.knobs, KnobValues("moon_phase", (1,))),
        indices=np.column_stack([MADE.indices, np.zeros(108, dtype=np.int64)]),
    )
    with pytest.raises(UserError, match="no knob 'moon_phase'; record the space anew"):
        open_space(odd)


def test_a_workload_that_has_no_space():
    subject = MADE.subject
    template = replace(
        subject.template, translation=replace(subject.template.translation, pipeline="Gone")
    )
    with pytest.raises(UserError, match=r"no search space for .* pipeline Gone"):
        open_space(replace(MADE, subject=replace(subject, template=template)))


def test_restriction(space):
    held = space.restrict({"vector_reduction_k": [1]}).space
    assert held.order_size == 36
    assert all(dict(c.items)["vector_reduction_k"] == 1 for c in held.members)
    with pytest.raises(UserError, match="unknown knob 'k'"):
        space.restrict({"k": [1]})
    with pytest.raises(UserError, match="leaves nothing"):
        space.restrict({"vector_reduction_k": [64]})


def test_another_tools_space():
    made = foreign([1.0, 2.0, 3.0, None, 5.0, 6.0, 7.0])
    space, notes = open_space(made)
    assert not notes
    assert not space.has_prior
    assert set(space.members) == set(made.configurations)
    missing = Configuration.of({"block": 48, "mode": "c"})
    assert not space.contains(missing)
    assert space.contains(space.nearest_valid(missing))
    near = list(space.neighbours(space.members[0], np.random.default_rng(0)))
    assert near
    assert all(space.contains(c) for c in near)
    stepped = space.step_many(space.members, np.random.default_rng(0))
    assert all(space.contains(c) for c in stepped)


def test_an_empty_recording():
    with pytest.raises(UserError, match="nothing in this recording"):
        open_space(replace(MADE, indices=MADE.indices[:0]))


@pytest.mark.parametrize("name", strategies())
@pytest.mark.parametrize(
    "made",
    [
        recording(keep=lambda c: dict(c.items)["vector_reduction_k"] == 1),
        foreign([1.0, None, 3.0, 4.0, 2.0, 1.5, 9.0]),
    ],
    ids=["own", "foreign"],
)
def test_every_strategy_finds_its_way_through(name, made):
    space, _ = open_space(made)
    strategy = create_strategy(name, space, seed=3)
    found = []
    for _ in range(40):
        configs = strategy.ask(8)
        if not configs:
            break
        assert all(space.contains(c) for c in configs)
        found += configs
        rows = [made.configurations.index(c) for c in configs]
        strategy.tell([made.trial(row) for row in rows])
    assert len(set(found)) == len(found) == space.order_size
