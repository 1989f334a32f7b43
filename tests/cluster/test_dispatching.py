"""Which worker does what: chunks, places, losses, stragglers; without a network or a clock."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tilewright.cluster.dispatching import (
    COMPILE,
    CPU,
    DEVICE,
    Dispatcher,
    DispatchPolicy,
    FarmWorker,
    WorkItem,
)


def compilers(count: int, host: str = "") -> list[FarmWorker]:
    return [FarmWorker(f"c{n}", COMPILE, host=host) for n in range(count)]


def device(name: str = "d0", label: str = "cuda", host: str = "") -> FarmWorker:
    return FarmWorker(name, DEVICE, frozenset({label, name}), host)


def dispatcher(*workers: FarmWorker, **policy: object) -> Dispatcher:
    made = Dispatcher(DispatchPolicy(**policy))  # type: ignore[arg-type]
    for worker in workers:
        made.add(worker)
    return made


def items(count: int, role: str = COMPILE, label: str = "", group: str = "g") -> list[WorkItem]:
    return [WorkItem(f"{role}{group}{n}", role, label, group) for n in range(count)]


def test_work_is_shared_out_and_chunks_end_small() -> None:
    farm = dispatcher(*compilers(4), guess_s={COMPILE: 0.1, DEVICE: 0.1})
    farm.submit(items(200))
    sizes: list[int] = []
    done = Counter[str]()
    now = 0.0
    while not farm.is_idle:
        chunks = farm.next(now)
        sizes += [len(chunk.items) for chunk in chunks]
        now += 1.0
        oldest = min(farm.running, key=lambda chunk: chunk.number)
        found, needless = farm.finish(oldest.number, now)
        done.update(item.key for item in found)
        assert not needless
    assert len(done) == 200
    assert set(done.values()) == {1}
    assert sizes[0] == 10
    assert sizes[-1] == 1


def test_a_compiler_has_its_next_chunk_and_a_device_has_not() -> None:
    farm = dispatcher(*compilers(1), device())
    farm.submit(items(100) + items(100, DEVICE, "cuda"))
    roles = Counter(chunk.items[0].role for chunk in farm.next(0.0))
    assert roles == {COMPILE: 2, DEVICE: 1}


def test_items_of_one_group_go_together() -> None:
    farm = dispatcher(device())
    mixed = [
        one
        for pair in zip(items(6, DEVICE), items(6, DEVICE, group="h"), strict=True)
        for one in pair
    ]
    farm.submit(mixed)
    (chunk,) = farm.next(0.0)
    assert {item.group for item in chunk.items} == {"g"}
    assert len(chunk.items) > 1


def test_only_a_device_with_the_label_is_asked() -> None:
    farm = dispatcher(device("d0", "cuda"), device("d1", "hip"))
    farm.submit(items(1, DEVICE, "hip") + items(1, DEVICE, "metal"))
    (chunk,) = farm.next(0.0)
    assert chunk.address == "d1"
    assert farm.missing() == [(DEVICE, "metal")]


def test_a_lost_worker_costs_its_chunk_and_nothing_else() -> None:
    farm = dispatcher(*compilers(2), guess_s={COMPILE: 0.5, DEVICE: 0.5})
    farm.submit(items(8))
    first = farm.next(0.0)
    lost = {i.key for chunk in first if chunk.address == "c0" for i in chunk.items}
    farm.lose("c0")
    done: list[str] = []
    while not farm.is_idle:
        farm.next(1.0)
        for chunk in list(farm.running):
            assert chunk.address == "c1"
            done += [item.key for item in farm.finish(chunk.number, 2.0)[0]]
    assert lost < set(done)
    assert len(done) == len(set(done)) == 8


def test_what_kills_its_workers_is_found_alone_and_given_up() -> None:
    farm = dispatcher(*compilers(12), guess_s={COMPILE: 0.25, DEVICE: 0.5})
    farm.submit(items(60))
    done: set[str] = set()
    lost = 0
    while not farm.is_idle:
        farm.next(0.0)
        chunk = min(farm.running, key=lambda chunk: chunk.number)
        if any(item.key == "compileg7" for item in chunk.items):
            farm.lose(chunk.address)
            lost += 1
        else:
            done.update(item.key for item in farm.finish(chunk.number, 0.0)[0])
    assert [item.key for item, _ in farm.given_up] == ["compileg7"]
    assert lost == 3
    assert len(done) == 59


def test_a_worker_that_cannot_is_asked_no_more() -> None:
    farm = dispatcher(*compilers(2), faults=2, losses=99)
    farm.submit(items(20))
    for _ in range(50):
        farm.next(0.0)
        for chunk in list(farm.running):
            if chunk.address == "c0":
                farm.fail(chunk.number, "its disk is full")
            else:
                farm.finish(chunk.number, 0.0)
    assert farm.is_idle
    farm.submit(items(5, group="more"))
    assert {chunk.address for chunk in farm.next(0.0)} == {"c1"}


def test_a_late_chunk_is_done_twice_and_counts_once() -> None:
    farm = dispatcher(*compilers(2), slow_s=5.0, guess_s={COMPILE: 1.0, DEVICE: 1.0})
    farm.submit(items(2))
    slow, quick = farm.next(0.0)
    farm.finish(quick.number, 1.0)
    assert not farm.next(4.0)
    (second,) = farm.next(6.0)
    assert second.second
    assert second.items == slow.items
    assert not farm.next(7.0)
    found, needless = farm.finish(second.number, 8.0)
    assert [item.key for item in found] == [slow.items[0].key]
    assert [chunk.number for chunk in needless] == [slow.number]
    assert farm.finish(slow.number, 9.0) == ([], [])
    assert farm.is_idle


def test_a_late_chunk_is_shared_out_among_those_with_nothing_to_do() -> None:
    one = {COMPILE: 1, DEVICE: 1}
    farm = dispatcher(*compilers(1), guess_s={COMPILE: 0.1, DEVICE: 0.1}, slow_s=1.0, depth=one)
    farm.submit(items(9))
    (slow,) = farm.next(0.0)
    for worker in compilers(3)[1:]:
        farm.add(worker)
    # That something waits for a device, of which there is none, keeps no compile worker.
    farm.submit(items(1, DEVICE, "cuda"))
    copies = farm.next(9.0)
    assert {chunk.address for chunk in copies} == {"c1", "c2"}
    assert [len(chunk.items) for chunk in copies] == [5, 4]
    assert {item for chunk in copies for item in chunk.items} == set(slow.items)
    done = [item for chunk in copies for item in farm.finish(chunk.number, 10.0)[0]]
    assert set(done) == set(slow.items)
    assert not farm.running


def test_the_first_candidate_is_compiled_alone() -> None:
    farm = dispatcher(*compilers(2))
    farm.submit(items(100))
    assert [len(chunk.items) for chunk in farm.next(0.0)] == [1] * 4


def test_compiling_and_measuring_on_one_processor_take_turns() -> None:
    measuring = FarmWorker("d0", DEVICE, frozenset({CPU}), "here")
    farm = dispatcher(*compilers(2, "here"), FarmWorker("c9", COMPILE, host="there"), measuring)
    farm.submit(items(40))
    begun = farm.next(0.0)
    assert {chunk.address for chunk in begun} == {"c0", "c1", "c9"}
    farm.submit(items(4, DEVICE, CPU))
    assert not farm.next(0.0)
    for chunk in begun:
        farm.finish(chunk.number, 1.0)
    later = {chunk.address for chunk in farm.next(1.0)}
    assert later == {"d0", "c9"}


def test_what_others_gave_a_worker_counts() -> None:
    farm = dispatcher(*compilers(2))
    farm.observe({"c0": 2})
    farm.submit(items(1))
    assert [chunk.address for chunk in farm.next(0.0)] == ["c1"]


def test_what_is_withdrawn_is_not_done() -> None:
    farm = dispatcher(*compilers(1))
    wanted = items(50)
    farm.submit(wanted)
    begun = farm.next(0.0)
    needless = farm.withdraw([item.key for item in wanted])
    assert {chunk.number for chunk in needless} == {chunk.number for chunk in begun}
    assert farm.is_idle
    assert not farm.next(1.0)


@pytest.mark.parametrize("seed", range(20))
def test_everything_is_done_once_whatever_happens(seed: int) -> None:
    """Workers come, go, fail and dawdle at random."""
    rng = random.Random(seed)
    farm = dispatcher(*compilers(3, "h0"), device("d0", CPU, "h0"), device("d1"), slow_s=2.0)
    names = iter(f"new{n}" for n in range(10_000))
    farm.submit(items(60) + items(30, DEVICE, CPU) + items(30, DEVICE, "cuda", "h"))
    expected = 120
    settled = Counter[str]()
    now = 0.0
    for _ in range(5000):
        if farm.is_idle:
            break
        farm.next(now)
        now += rng.random()
        running = list(farm.running)
        what = rng.random()
        if running and what < 0.75:
            chunk = rng.choice(running)
            settled.update(item.key for item in farm.finish(chunk.number, now)[0])
        elif running and what < 0.85:
            farm.fail(rng.choice(running).number, "no reason")
        elif what < 0.92 and farm.workers:
            gone = farm.workers[rng.choice(sorted(farm.workers))]
            farm.lose(gone.address)
            farm.add(FarmWorker(next(names), gone.role, gone.labels, gone.host))
        else:
            farm.add(FarmWorker(next(names), COMPILE, host=rng.choice(["h0", "h1"])))
    settled.update(item.key for item, _ in farm.given_up)
    assert farm.is_idle
    assert len(settled) == expected
    assert set(settled.values()) == {1}
