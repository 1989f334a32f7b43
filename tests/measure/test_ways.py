"""The runtime's choices for a program: which there are, and how they are timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.argument import ArgumentType
from tilewright.measure import ways
from tilewright.measure.comparison import ComparisonPolicy
from tilewright.measure.device_options import DeviceOptions, physical_cores
from tilewright.measure.inputs import InputFile, InputSet
from tilewright.measure.jobs import Job, WorkerFailure, WorkerState
from tilewright.measure.timing import Repetition
from tilewright.measure.ways import WaysRequest, time_ways, ways_to_run


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whatever this machine offers, nothing."""
    monkeypatch.setattr("tilewright.measure.device_options.batch_processes_allowed", lambda: False)
    monkeypatch.setattr(ways, "huge_pages_on_request", lambda: False)
    monkeypatch.setattr("tilewright.measure.device_options.physical_cores", lambda: 0)


def test_ways_are_the_calling_thread_and_workers() -> None:
    def shown(threads: int) -> list[tuple[str, int | None]]:
        return [(one.uri, one.threads) for one in ways_to_run(threads)]

    alone = ("local-sync", None)
    assert shown(1) == [alone]
    assert shown(2) == [alone, ("local-task", 2)]
    assert shown(6) == [alone, *(("local-task", n) for n in (2, 4, 6))]
    assert shown(8) == [alone, *(("local-task", n) for n in (2, 4, 8))]


def test_all_threads_are_tried_with_huge_pages_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "huge_pages_on_request", lambda: True)
    assert ways_to_run(1)[1:] == [DeviceOptions("local-sync", huge_pages=True)]
    assert [one.huge_pages for one in ways_to_run(8)] == [False] * 4 + [True]
    assert ways_to_run(8)[-1].threads == 8


def test_as_many_workers_as_cores_are_tried_on_cores_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tilewright.measure.device_options.physical_cores", lambda: 4)
    assert [one.pinned for one in ways_to_run(4)] == [False, True, True, False, True]
    *_, kept, moved, awake = ways_to_run(4)
    assert kept.worker_flags == ["--task_topology_max_group_count=4"]
    assert moved.worker_flags == ["--task_topology_group_count=4"]
    assert awake.worker_flags == [*kept.worker_flags, "--task_worker_spin_us=10"]
    assert awake == replace(kept, spin_us=10)
    assert not ways_to_run(8)[-1].pinned, "no core for each"
    monkeypatch.setattr(ways, "huge_pages_on_request", lambda: True)
    last = [(one.huge_pages, one.pinned) for one in ways_to_run(4)[2:]]
    assert last == [(False, True), (True, True), (False, False), (True, False), (False, True)]


def test_cores_are_those_that_the_process_may_run_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cpu, siblings in enumerate(("0,4", "1,5", "2,6", "3,7", "0,4", "1,5")):
        place = tmp_path / f"cpu{cpu}" / "topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(siblings)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 4, 5}, raising=False)
    assert physical_cores(str(tmp_path)) == 2
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 9}, raising=False)
    assert physical_cores(str(tmp_path)) == 0, "the system does not tell of all"
    assert not DeviceOptions.cpu(1).pinned


def test_a_process_like_any_other_is_tried_where_there_are_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tilewright.measure.device_options.batch_processes_allowed", lambda: True)
    assert [one.schedules_batch for one in ways_to_run(2)] == [False, True, False]
    assert ways_to_run(2)[2] == replace(DeviceOptions.cpu(2), batch=False)
    assert ways_to_run(1) == [DeviceOptions("local-sync")], "nobody waits for another there"


class Pool:
    """A worker whose programs take what is said of its device, or fail."""

    seconds: dict[str, float | None]
    asked: list[tuple[str, int | None]]

    def __init__(self, count: int, *, setup: Job[DeviceOptions, None], **_: object) -> None:
        self.uri = setup.request.uri
        self.pending = 0

    def submit(self, job: Job[object, object]) -> None:
        assert job.request is INPUTS, "what samples need, before the first of them"
        self.pending += 1

    def poll(self) -> list[object]:
        self.pending -= 1
        return []

    def ask(self, task: object, request: object, timeout_s: float) -> object:
        assert not self.pending
        self.asked.append((self.uri, request.iterations))  # type: ignore[attr-defined]
        seconds = self.seconds[self.uri]
        return WorkerFailure("crashed", "gone") if seconds is None else Repetition(7, seconds, 0)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Sequence[tuple[str, int | None]]:
    monkeypatch.setattr(ways, "WorkerPool", Pool)
    Pool.seconds, Pool.asked = {"local-sync": 1e-3, "local-task": 2e-3}, []
    return Pool.asked


INPUTS = InputSet("k", (InputFile("a.npy", ArgumentType("f32", (4, 5))),))
REQUEST = WaysRequest("p.vmfb", INPUTS, "net", 2, 2, ComparisonPolicy(rounds=9, max_s=3.0), 5.0)


def test_a_caller_that_could_stay_awake_is_tried_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ways_to_run(4, polls=True) == ways_to_run(4), "workers that may meet on a core"
    monkeypatch.setattr("tilewright.measure.device_options.physical_cores", lambda: 4)
    *others, asleep = ways_to_run(4, polls=True)
    assert others == ways_to_run(4)
    assert asleep == replace(DeviceOptions.cpu(4), polls=False)
    assert ways_to_run(1, polls=True) == ways_to_run(1), "nobody to wait for"


def test_each_is_timed_in_every_round(timed: Sequence[tuple[str, int | None]]) -> None:
    found = time_ways(WorkerState(), REQUEST)
    assert [one.device for one in found] == [DeviceOptions.cpu(2), DeviceOptions.cpu(1)]
    assert [one.samples for one in found] == [(2e-3,) * 9, (1e-3,) * 9]
    counts = [n for uri, n in timed if uri == "local-sync"]
    assert counts[0] is None
    assert set(counts[1:]) == {7}, "as many iterations in each round"


def test_one_that_fails_takes_no_more_part(timed: Sequence[tuple[str, int | None]]) -> None:
    Pool.seconds["local-sync"] = None
    assert [len(one.samples) for one in time_ways(WorkerState(), REQUEST)] == [9, 0]
    assert sum(uri == "local-sync" for uri, _ in timed) == 1
