"""Events are plain data that can be kept, compared and sent on."""

import dataclasses
import pickle

import pytest

from tilewright.tuning import events
from tilewright.tuning.events import Event, Note, PhaseStarted, ignore


def test_every_event_is_frozen_and_an_event():
    kinds = [
        kind
        for kind in vars(events).values()
        if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
    ]
    assert len(kinds) >= 7
    assert all(dataclasses.fields(kind) for kind in kinds)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Note("a").text = "b"


def test_events_travel_between_processes():
    event = PhaseStarted("search", "two dispatches")
    assert pickle.loads(pickle.dumps(event)) == event


def test_a_listener_that_does_nothing():
    assert ignore(Note("a")) is None
