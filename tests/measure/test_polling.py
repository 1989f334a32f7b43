"""Waiting for calls awake: when it ends, and what must not end before a call has."""

import os
from collections.abc import Callable
from dataclasses import replace

import measured_programs
import numpy as np
import pytest

from tilewright.ir.session import CompilerSession
from tilewright.measure import polling
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.polling import polled
from tilewright.measure.runtime import Device

# IREE makes `main` and `main$async` of it.
FENCED = """
func.func @main(%a: !torch.vtensor<[4,8],f32>) -> !torch.vtensor<[4,8],f32> {
  %two = torch.constant.int 2
  %r = torch.aten.mul.Scalar %a, %two : !torch.vtensor<[4,8],f32>, !torch.int
      -> !torch.vtensor<[4,8],f32>
  return %r : !torch.vtensor<[4,8],f32>
}
"""


class Timeline:
    """One that has come to 1 when it was looked at so often, or when it was waited for."""

    def __init__(self, looks: int, failure: str = "") -> None:
        self.looks, self.failure, self.waits = looks, failure, 0

    def query(self) -> int:
        if self.failure:
            raise RuntimeError(self.failure)
        self.looks -= 1
        return int(self.looks < 0 or self.waits > 0)

    def wait(self, value: int) -> None:
        assert value == 1
        self.waits += 1


def call_of(timeline: Timeline, begin: Callable[[], object]) -> Callable[[], object]:
    """A call that one thing begins, and that has ended as its timeline says."""

    def prepare(after: object, done: object) -> tuple[Callable[[], object], list[str]]:
        assert after == (timeline, 0)
        assert done == (timeline, 1)
        return begin, ["result"]

    return polled(prepare, lambda: timeline, lambda on, value: (on, value), False)


def test_its_end_is_seen_without_sleeping(monkeypatch: pytest.MonkeyPatch) -> None:
    given_up = []
    monkeypatch.setattr(os, "sched_yield", lambda: given_up.append(1))
    timeline = Timeline(5)
    assert call_of(timeline, lambda: None)() == ["result"]
    assert (timeline.waits, len(given_up)) == (0, 5)


def test_who_runs_for_long_is_waited_for_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "_AWAKE_S", 0.0)
    timeline = Timeline(10**9)
    assert call_of(timeline, lambda: None)() == ["result"]
    assert timeline.waits == 1


def test_an_interrupted_call_has_ended_before_its_memory_is_free() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    timeline = Timeline(10**9)
    with pytest.raises(KeyboardInterrupt):
        call_of(timeline, interrupted)()
    assert timeline.waits == 1


@pytest.mark.parametrize("look", [1, 2, 3])
def test_an_interruption_between_looks_waits_for_the_end(
    look: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at the last look, behind which the caller would have slept."""
    monkeypatch.setattr(polling, "_AWAKE_S", 0.0 if look == 2 else 10.0)

    class Interrupted(Timeline):
        seen = 0

        def query(self) -> int:
            self.seen += 1
            if self.seen == look:
                raise KeyboardInterrupt
            return super().query()

    timeline = Interrupted(10**9)
    with pytest.raises(KeyboardInterrupt):
        call_of(timeline, lambda: None)()
    assert timeline.waits == 1


def test_what_did_not_begin_is_not_waited_for() -> None:
    def refused() -> None:
        raise ValueError("shapes")

    timeline = Timeline(10**9)
    with pytest.raises(ValueError, match="shapes"):
        call_of(timeline, refused)()
    assert timeline.waits == 0


def test_a_failure_on_the_device_is_told() -> None:
    with pytest.raises(RuntimeError, match="lost"):
        call_of(Timeline(0, "lost"), lambda: None)()


@pytest.mark.parametrize("awake_s", [0.0, 5.0], ids=["asleep", "awake"])
def test_programs_with_fences_compute_the_same(
    awake_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "_AWAKE_S", awake_s)
    flags = (*measured_programs.CPU_FLAGS, "--iree-input-type=torch")
    vmfb = CompilerSession(flags).compile(FENCED)
    pinned = replace(DeviceOptions.cpu(2), pinned=True)
    sleeping = (DeviceOptions.cpu(1), replace(pinned, polls=False), replace(pinned, pinned=False))
    for way in sleeping:
        assert not Device(way, shared=False).load(vmfb).polls("main")
    device = Device(pinned, shared=False)
    program = device.load(vmfb)
    assert program.polls("main")
    assert not program.polls("other")
    for number in range(200):
        given = np.full((4, 8), number, np.float32)
        (found,) = program.outputs(program.bind("main", [device.upload(given)])())
        np.testing.assert_array_equal(found, 2 * given)
