"""The recorded spaces that come with tilewright."""

import math
from collections import Counter

import pytest

from tilewright.errors import UserError
from tilewright.replay.arena import open_arena
from tilewright.replay.recording import find, find_all, shipped

SPACES = shipped()


def test_there_are_enough_of_every_kind():
    kinds = Counter(open_arena(path).recording.kind for path in SPACES.values())
    assert len(SPACES) >= 8
    assert kinds["contraction"] >= 5
    assert kinds["convolution"] >= 2
    assert kinds["depthwise_convolution"] >= 1
    assert kinds["reduction"] >= 1
    assert sum(path.stat().st_size for path in SPACES.values()) < 6_000_000


@pytest.mark.parametrize("name", SPACES)
def test_a_space_is_whole(name):
    arena = open_arena(SPACES[name])
    recording = arena.recording
    assert recording.name == name
    assert arena.notes == ()
    # A full product, all of it valid today, the compiler's own choice in it.
    assert 500 <= len(recording) <= 3000
    assert len(recording) == math.prod(len(knob.values) for knob in recording.knobs)
    assert arena.space.order_size == len(recording)
    assert recording.default == arena.space.tables.inner.default
    assert arena.default is not None
    assert arena.space.has_prior


@pytest.mark.parametrize("name", SPACES)
def test_its_measurements_are_there(name):
    arena = open_arena(SPACES[name])
    recording = arena.recording
    assert arena.ok.mean() > 0.5
    counts = [len(recording.samples_of(row)) for row in range(len(recording)) if recording.ok[row]]
    assert min(counts) >= 1
    assert sum(counts) / len(counts) >= 5
    assert (recording.compile_s > 0).all()
    assert (recording.measure_s[recording.ok] > 0).all()
    for fact in ("processor", "threads", "date", "iree", "timing"):
        assert recording.facts[fact]
    race = arena.race(True)
    assert race.optimum < race.median < race.worst
    assert 1 < race.budget < len(recording)


def test_spaces_are_found_by_name_and_by_file(tmp_path):
    name, path = next(iter(SPACES.items()))
    assert find(name) == path
    assert find(str(path)) == path
    assert find_all(()) == list(SPACES.values())
    assert find_all((name, name)) == [path]
    with pytest.raises(UserError, match=f"did you mean '{name}'"):
        find(name[:-1])
    with pytest.raises(UserError, match="there is no such file"):
        find(str(tmp_path / "x.npz"))
