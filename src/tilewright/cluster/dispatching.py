"""Which worker does what and when: chunks, places, retries, stragglers. Pure: knows no clock, no
network and no process, so that the same decisions drive a cluster and a simulation of one.

Work is handed out in chunks of items. Chunks are as long as `aim_s` while much is waiting, so that
what each costs on its way stays small beside it, and shorter towards the end, so that workers end
together (guided self-scheduling; Polychronopoulos and Kuck 1987). Compile workers have the next
chunk before they ask for it, but for the last ones; a device has one at a time. On a machine whose
processor is a device nothing is compiled while it measures: what waits to be measured goes first.
What a worker had when it was lost is done by others, what was lost twice alone, and what three
workers were lost with is given up. A chunk that takes far longer than expected is done a second
time by workers that have nothing else to do; the first to end counts.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

COMPILE, DEVICE = "compile", "device"
#: The label of every device that is a processor.
CPU = "cpu"

# Items that are passed over at most when a chunk is made.
_LOOK_AHEAD = 256


@dataclass(frozen=True)
class WorkItem:
    """Something to be done by one worker.

    key: no other has it. role: of the worker. label: that the worker must have, '' for any. group:
    items of one group are done together, by one worker, where there is a choice. limit_s: after
    which the worker itself ends it.
    """

    key: str
    role: str
    label: str = ""
    group: str = ""
    limit_s: float = 60.0


@dataclass(frozen=True)
class FarmWorker:
    """A worker as far as placing goes: its address, role, labels, and its machine's name."""

    address: str
    role: str
    labels: frozenset[str] = frozenset()
    host: str = ""

    def fits(self, item: WorkItem) -> bool:
        """Whether it can do an item.

        Args:
            item: of any role.
        """
        return self.role == item.role and (not item.label or item.label in self.labels)

    @property
    def needs_quiet(self) -> bool:
        """Whether what it measures is disturbed by compiling on its machine."""
        return self.role == DEVICE and CPU in self.labels


@dataclass(frozen=True)
class Chunk:
    """Items that one worker does one after the other. `second`: another has them, too."""

    number: int
    address: str
    items: tuple[WorkItem, ...]
    second: bool = False


@dataclass(frozen=True)
class DispatchPolicy:
    """The numbers behind the decisions; times in seconds.

    aim_s: of a chunk, by role. depth: chunks that a worker has at a time, by role. guess_s: of an
    item, until one is known. losses: after so many an item is given up. slow_factor, slow_s: a
    chunk is late when it takes more than the one times what is expected, and more than the other
    beside it. faults: after so many chunks in a row that a worker cannot do it gets no more.
    """

    aim_s: Mapping[str, float] = field(default_factory=lambda: {COMPILE: 1.0, DEVICE: 4.0})
    depth: Mapping[str, int] = field(default_factory=lambda: {COMPILE: 2, DEVICE: 1})
    guess_s: Mapping[str, float] = field(default_factory=lambda: {COMPILE: 1.0, DEVICE: 0.5})
    losses: int = 3
    slow_factor: float = 4.0
    slow_s: float = 10.0
    faults: int = 3


@dataclass
class _Running:
    chunk: Chunk
    since: float
    expected_s: float


class Dispatcher:
    """What waits, what runs where, and what is to be sent next. Driven by one thread.

    given_up: items that are no longer tried, with the reason, until the caller takes them.
    """

    def __init__(self, policy: DispatchPolicy | None = None) -> None:
        self.policy = policy or DispatchPolicy()
        self.workers: dict[str, FarmWorker] = {}
        self.given_up: list[tuple[WorkItem, str]] = []
        self._waiting: dict[tuple[str, str], deque[WorkItem]] = defaultdict(deque)
        self._running: dict[int, _Running] = {}
        self._on: dict[str, list[int]] = {}
        self._beside: dict[str, list[FarmWorker]] = defaultdict(list)
        # What would be looked for among all workers again and again.
        self._roomy: dict[str, set[str]] = defaultdict(set)
        self._idle: dict[str, dict[str, FarmWorker]] = defaultdict(dict)
        self._twice: set[int] = set()
        self._fits: dict[tuple[str, str], list[FarmWorker]] = {}
        self._busy: dict[str, int] = {}
        self._faults: dict[str, int] = {}
        self._losses: dict[str, int] = {}
        self._blocked: dict[str, set[str]] = {}
        self._open: set[str] = set()
        self._seconds: dict[tuple[str, str], float] = {}
        self._next = 0

    # -- what happens

    def add(self, worker: FarmWorker) -> None:
        """A worker has come.

        Args:
            worker: at an address of its own.
        """
        if worker.address not in self.workers:
            self.workers[worker.address] = worker
            self._on[worker.address] = []
            self._beside[worker.host].append(worker)
            self._fits.clear()
            self._changed(worker.address)

    def lose(
        self, address: str, why: str = "its worker was lost", *, suspect: bool = True
    ) -> list[Chunk]:
        """A worker has gone; what it had waits again.

        Args:
            address: of the worker; nothing happens for one that is not known.
            why: for what is given up.
            suspect: whether what it was doing may have been the reason.

        Returns:
            The chunks that it had.
        """
        worker = self.workers.pop(address, None)
        if worker is None:
            return []
        self._beside[worker.host].remove(worker)
        self._fits.clear()
        self._roomy[worker.role].discard(address)
        self._idle[worker.role].pop(address, None)
        lost = [self._running.pop(n).chunk for n in self._on.pop(address) if n in self._running]
        self._twice.difference_update(chunk.number for chunk in lost)
        # Of what it had it was doing the first; the rest was only waiting for it.
        for position, chunk in enumerate(lost):
            self._again(chunk, address, why, suspect=suspect and position == 0)
        self._busy.pop(address, None)
        return lost

    def submit(self, items: Iterable[WorkItem]) -> None:
        """Items are to be done; each is once in `finished` or in `given_up`.

        Args:
            items: with keys that are not being worked on.
        """
        for item in items:
            self._open.add(item.key)
            self._waiting[item.role, item.label].append(item)

    def withdraw(self, keys: Collection[str]) -> list[Chunk]:
        """Items need not be done any more.

        Args:
            keys: of the items.

        Returns:
            Chunks of which nothing is needed any more.
        """
        self._open -= set(keys)
        return [
            self._drop(one.chunk)
            for one in list(self._running.values())
            if not any(item.key in self._open for item in one.chunk.items)
        ]

    def finish(self, number: int, now: float) -> tuple[list[WorkItem], list[Chunk]]:
        """A chunk has come back.

        Args:
            number: of the chunk.
            now: seconds by any clock.

        Returns:
            The items whose results count (not those that another worker was faster with), and
            chunks of which nothing is needed any more.
        """
        one = self._running.pop(number, None)
        if one is None:
            return [], []
        chunk = one.chunk
        self._on[chunk.address].remove(number)
        self._changed(chunk.address)
        if self._faults.pop(chunk.address, 0) >= self.policy.faults:
            self._fits.clear()
        self._learn(chunk, now - one.since)
        done = [item for item in chunk.items if item.key in self._open]
        self._open.difference_update(item.key for item in done)
        twice = chunk.second or bool(self._twice)
        self._twice.discard(number)
        others = self.withdraw(()) if twice else []
        # What it has next begins now.
        for other in self._on[chunk.address]:
            self._running[other].since = now
        return done, others

    def fail(self, number: int, why: str) -> None:
        """A worker could not do a chunk, through no fault of the items.

        Args:
            number: of the chunk.
            why: what it says.
        """
        one = self._running.pop(number, None)
        if one is None:
            return
        address = one.chunk.address
        self._on[address].remove(number)
        self._changed(address)
        self._twice.discard(number)
        self._faults[address] = self._faults.get(address, 0) + 1
        self._fits.clear()
        self._again(one.chunk, address, why)

    def observe(self, busy: Mapping[str, int]) -> None:
        """What others have given workers to do.

        Args:
            busy: chunks, by the worker's address; none for those that are left out.
        """
        before, self._busy = self._busy, {address: n for address, n in busy.items() if n > 0}
        for address in before.keys() | self._busy.keys():
            self._changed(address)

    # -- what is to be done

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits or runs."""
        return not self._open

    @property
    def running(self) -> Sequence[Chunk]:
        """The chunks that workers have."""
        return [one.chunk for one in self._running.values()]

    def missing(self) -> list[tuple[str, str]]:
        """Roles and labels that items wait for and no worker has."""
        return [
            (role, label)
            for (role, label), queue in self._waiting.items()
            if any(item.key in self._open for item in queue)
            and not self._fitting(WorkItem("", role, label))
        ]

    def next(self, now: float) -> list[Chunk]:
        """What is to be sent to workers now.

        Args:
            now: seconds by any clock, the same as that of `finish`.
        """
        made: list[Chunk] = []
        # Devices are the few: they come first, and what waits for them keeps compilers away.
        for kind in sorted(self._waiting, key=lambda kind: kind[0] != DEVICE):
            made += self._hand_out(*kind, now)
        return made + self._seconds_for_late(now)

    # -- how

    def _fitting(self, item: WorkItem) -> list[FarmWorker]:
        kind = item.role, item.label
        if kind not in self._fits:
            most = self.policy.faults
            workers = self.workers.values()
            fits = (w for w in workers if w.fits(item))
            self._fits[kind] = [w for w in fits if self._faults.get(w.address, 0) < most]
        return self._fits[kind]

    def _changed(self, address: str) -> None:
        """Note whether a worker has room for another chunk, and whether it has nothing to do."""
        worker = self.workers.get(address)
        if worker is None:
            return
        load = self._load(worker)
        has_room = load < self.policy.depth[worker.role]
        (self._roomy[worker.role].add if has_room else self._roomy[worker.role].discard)(address)
        if load:
            self._idle[worker.role].pop(address, None)
        else:
            self._idle[worker.role][address] = worker

    def _load(self, worker: FarmWorker) -> int:
        return len(self._on[worker.address]) + self._busy.get(worker.address, 0)

    def _hand_out(self, role: str, label: str, now: float) -> list[Chunk]:
        """Chunks of what waits for one kind of worker, to those with least to do."""
        made: list[Chunk] = []
        queue = self._waiting[role, label]
        while queue and queue[0].key not in self._open:
            queue.popleft()
        if not queue:
            return made
        fitting = self._fitting(queue[0])
        depth = self.policy.depth[role]
        most = self.policy.faults
        roomy = (self.workers[address] for address in self._roomy[role])
        fit = (w for w in roomy if w.fits(queue[0]) and self._faults.get(w.address, 0) < most)
        ranked = [(self._load(w), w.address) for w in fit]
        heapq.heapify(ranked)
        while queue and ranked:
            load, address = heapq.heappop(ranked)
            worker = self.workers[address]
            # The last are for who has nothing: behind one that takes long they would wait for it.
            if load and len(queue) <= len(fitting):
                break
            if not self._is_quiet(worker):
                continue
            items = self._take(queue, worker, fitting)
            if not items:
                continue
            made.append(self._send(worker, items, now))
            if load + 1 < depth:
                heapq.heappush(ranked, (load + 1, address))
        return made

    def _is_quiet(self, worker: FarmWorker) -> bool:
        """Whether a worker disturbs nothing when it begins, and is not disturbed."""
        beside = self._beside[worker.host] if worker.host else []
        others = [w for w in beside if w.address != worker.address]
        if worker.needs_quiet:
            return not any(
                self._on[w.address] for w in others if w.role == COMPILE or w.needs_quiet
            )
        if worker.role == DEVICE:
            return True
        measuring = [w for w in others if w.needs_quiet]
        return not any(self._on[w.address] or self._is_wanted(w) for w in measuring)

    def _is_wanted(self, worker: FarmWorker) -> bool:
        """Whether something waits that this worker would begin with next."""
        return any(queue and worker.fits(queue[0]) for queue in self._waiting.values())

    def _take(
        self, queue: deque[WorkItem], worker: FarmWorker, fitting: Sequence[FarmWorker]
    ) -> tuple[WorkItem, ...]:
        """The next chunk for a worker: items of one group, as many as are right; none where all
        that wait are for others."""
        taken: list[WorkItem] = []
        left: list[WorkItem] = []
        room = 1
        while queue and len(taken) < room and len(left) < _LOOK_AHEAD:
            item = queue.popleft()
            if item.key not in self._open:
                continue
            if self._is_barred(item, worker, fitting):
                left.append(item)
            elif not taken:
                taken.append(item)
                room = self._room(item, len(queue) + 1, len(fitting))
            else:
                alike = item.group == taken[0].group and self._losses.get(item.key, 0) < 2
                (taken if alike else left).append(item)
        queue.extendleft(reversed(left))
        return tuple(taken)

    def _room(self, first: WorkItem, waiting: int, workers: int) -> int:
        """How many items a chunk has that begins with this one."""
        if self._losses.get(first.key, 0) > 1:
            return 1
        share = math.ceil(waiting / (self.policy.depth[first.role] * max(1, workers)))
        each = max(1e-3, self._expected(first))
        return max(1, min(share, round(self.policy.aim_s[first.role] / each)))

    def _is_barred(self, item: WorkItem, worker: FarmWorker, fitting: Sequence[FarmWorker]) -> bool:
        """Whether an item was lost with this worker, and there are others for it."""
        barred = self._blocked.get(item.key)
        return (
            barred is not None
            and worker.address in barred
            and any(w.address not in barred for w in fitting)
        )

    def _send(
        self, worker: FarmWorker, items: tuple[WorkItem, ...], now: float, second: bool = False
    ) -> Chunk:
        chunk = Chunk(self._next, worker.address, items, second)
        if second:
            self._twice.add(chunk.number)
        self._next += 1
        expected = sum(self._expected(item) for item in items)
        self._running[chunk.number] = _Running(chunk, now, expected)
        self._on[worker.address].append(chunk.number)
        self._changed(worker.address)
        return chunk

    def _seconds_for_late(self, now: float) -> list[Chunk]:
        """Chunks that are late, for workers that have nothing to do and for which nothing waits:
        shared out among them, so that what stands behind one that hangs does not wait again."""
        made: list[Chunk] = []
        roles = {role for role, idle in self._idle.items() if idle}
        if not roles:
            return made
        running = list(self._running.values())
        there = (o for o in running if not o.chunk.second and o.chunk.items[0].role in roles)
        late = [one for one in there if self._is_late(one, now)]
        if not late:
            return made
        copied = {i.key for one in running if one.chunk.second for i in one.chunk.items}
        most = self.policy.faults
        for one in late:
            wanted = (i for i in one.chunk.items if i.key in self._open and i.key not in copied)
            items = list(wanted)
            idle = [
                w
                for w in (self._idle[items[0].role].values() if items else ())
                if w.fits(items[0])
                and self._faults.get(w.address, 0) < most
                and self._is_quiet(w)
                and not self._is_wanted(w)
            ]
            each = math.ceil(len(items) / len(idle)) if idle else 0
            parts = [items[at : at + each] for at in range(0, len(items), each)] if each else []
            for worker, part in zip(idle, parts, strict=False):
                made.append(self._send(worker, tuple(part), now, second=True))
        return made

    def _is_late(self, one: _Running, now: float) -> bool:
        """Whether a chunk, or what its worker has before it, takes far longer than expected."""
        first = self._running[self._on[one.chunk.address][0]]
        expected = max(self.policy.slow_factor * first.expected_s, self.policy.slow_s)
        return now - first.since > expected

    def _again(self, chunk: Chunk, address: str, why: str, suspect: bool = True) -> None:
        """Have a chunk's items wait again, before all others, or give them up."""
        for item in reversed(chunk.items):
            if item.key not in self._open or self._is_elsewhere(item):
                continue
            if suspect:
                self._losses[item.key] = self._losses.get(item.key, 0) + 1
                self._blocked.setdefault(item.key, set()).add(address)
            if self._losses.get(item.key, 0) >= self.policy.losses:
                self._open.discard(item.key)
                self.given_up.append((item, why))
            else:
                self._waiting[item.role, item.label].appendleft(item)

    def _is_elsewhere(self, item: WorkItem) -> bool:
        return any(item in one.chunk.items for one in self._running.values())

    def _drop(self, chunk: Chunk) -> Chunk:
        del self._running[chunk.number]
        self._twice.discard(chunk.number)
        self._on[chunk.address].remove(chunk.number)
        self._changed(chunk.address)
        return chunk

    def _expected(self, item: WorkItem) -> float:
        known = self._seconds.get((item.role, item.group), self._seconds.get((item.role, "")))
        return self.policy.guess_s[item.role] if known is None else known

    def _learn(self, chunk: Chunk, seconds: float) -> None:
        """What an item took, as a mean in which older ones count less and less."""
        each = seconds / len(chunk.items)
        first = chunk.items[0]
        for group in {first.group, ""}:
            known = self._seconds.get((first.role, group))
            self._seconds[first.role, group] = each if known is None else 0.7 * known + 0.3 * each
