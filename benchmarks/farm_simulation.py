"""A farm in simulated time: the decisions of `tilewright.cluster.dispatching`, as a run makes them,
with a thousand compile workers and fifty devices that fail, go away and dawdle.

    python benchmarks/farm_simulation.py
    python benchmarks/farm_simulation.py --compilers 100 --devices 5 --candidates 2000 --seed 3

Everything that decides is the real code; what is played is time: how long a candidate takes to
compile and to measure, the way to a worker and back, when a worker is lost and when another comes.
The bound is what no schedule can beat: all compiling shared out evenly over the compile workers,
all measuring over the devices, whichever is more, and the longest single candidate on its way
through both. Candidates are measured as they are compiled (a search waits for its batch to be
compiled); `--runs` runs share the farm.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import random
import time
from collections import Counter
from dataclasses import dataclass, field

from tilewright.cluster.dispatching import (
    COMPILE,
    DEVICE,
    Chunk,
    Dispatcher,
    FarmWorker,
    WorkItem,
)

# Spreads (of logarithms) of what candidates take; medians are options.
SPREAD = {COMPILE: 0.6, DEVICE: 0.4}
# Of candidates: those that hang until they are ended, and after how long.
HANGING, LIMIT_S = 0.002, 30.0
# To a worker and back, and for each chunk what packing and Dask take.
WAY_S = 0.02
DEFAULT_S = 0.1  # the default's time, once for each chunk that is measured
# A worker that dawdles is slower by this.
DAWDLING, SLOWER = 0.01, 20.0


@dataclass(order=True)
class Event:
    """Something that happens at a moment."""

    at: float
    order: int
    what: str = field(compare=False)
    run: int = field(compare=False, default=0)
    number: int = field(compare=False, default=0)
    address: str = field(compare=False, default="")


class Farm:
    """Workers, and the time they take; runs, each with a dispatcher of its own."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.rng = random.Random(args.seed)
        self.args = args
        self.now = 0.0
        self.events: list[Event] = []
        self.order = itertools.count()
        self.names = itertools.count()
        self.free_at: dict[str, float] = {}
        self.slower: dict[str, float] = {}
        self.workers: dict[str, FarmWorker] = {}
        self.runs = [Dispatcher() for _ in range(args.runs)]
        self.holding: list[Counter[str]] = [Counter() for _ in self.runs]
        self.chunks: dict[tuple[int, int], tuple[Chunk, float, float]] = {}
        self.cancelled: set[tuple[int, int]] = set()
        self.took: dict[tuple[str, str], float] = {}
        self.useful = Counter[str]()
        self.busy = Counter[str]()
        self.settled: list[Counter[str]] = [Counter() for _ in self.runs]
        self.lost_workers = self.lost_items = self.second = 0
        for role, count in ((COMPILE, args.compilers), (DEVICE, args.devices)):
            for _ in range(count):
                self.come(role)
        self.deciding_s = 0.0
        self.last_begun = 0.0

    def at(self, delay: float, what: str, **more: object) -> None:
        heapq.heappush(
            self.events,
            Event(self.now + delay, next(self.order), what, **more),  # type: ignore[arg-type]
        )

    def come(self, role: str) -> None:
        name = f"{role}{next(self.names)}"
        worker = FarmWorker(name, role, frozenset({"cuda"} if role == DEVICE else ()), name)
        self.workers[name] = worker
        self.free_at[name] = self.now
        self.slower[name] = SLOWER if self.rng.random() < DAWDLING else 1.0
        self.at(self.rng.expovariate(1 / self.args.life), "lose", address=name)
        for run in self.runs:
            run.add(worker)

    def seconds(self, item: WorkItem) -> float:
        """What an item takes on a worker as it should be; the same whatever is decided."""
        key = item.role, item.key
        if key not in self.took:
            rng = random.Random(f"{self.args.seed}/{item.role}/{item.key}")
            median = self.args.compile_s if item.role == COMPILE else self.args.measure_s
            hangs = rng.random() < HANGING
            self.took[key] = (
                LIMIT_S if hangs else median * math.exp(rng.gauss(0, SPREAD[item.role]))
            )
        return self.took[key]

    def begin(self, run: int, chunk: Chunk) -> None:
        self.second += chunk.second
        own = DEFAULT_S if chunk.items[0].role == DEVICE else 0.0
        slower = self.slower[chunk.address]
        seconds = own + sum(min(LIMIT_S, self.seconds(i) * slower) for i in chunk.items)
        start = max(self.now + WAY_S / 2, self.free_at[chunk.address])
        self.free_at[chunk.address] = start + seconds
        if chunk.items[0].role == DEVICE and not chunk.second:
            self.last_begun = max(self.last_begun, start)
        self.chunks[run, chunk.number] = chunk, start, seconds
        self.holding[run][chunk.address] += 1
        self.at(start + seconds + WAY_S / 2 - self.now, "done", run=run, number=chunk.number)

    def decide(self, run: int) -> None:
        began = time.process_time()
        chunks = self.runs[run].next(self.now)
        self.deciding_s += time.process_time() - began
        for chunk in chunks:
            self.begin(run, chunk)
        given_up, self.runs[run].given_up = self.runs[run].given_up, []
        for item, _ in given_up:
            self.settle(run, item)

    def settle(self, run: int, item: WorkItem) -> None:
        self.settled[run][item.key] += 1
        self.useful[item.role] += self.seconds(item)
        if item.role == COMPILE:
            # What is compiled is measured: as a run asks for it, as soon as it is there.
            measured = WorkItem(f"m{item.key}", DEVICE, "cuda", item.group)
            self.runs[run].submit([measured])

    def done(self, event: Event) -> None:
        found = self.chunks.pop((event.run, event.number), None)
        if found is None:
            return
        chunk, _, seconds = found
        role = chunk.items[0].role
        self.busy[role] += seconds
        self.holding[event.run][chunk.address] -= 1
        done, needless = self.runs[event.run].finish(event.number, self.now)
        for item in done:
            self.settle(event.run, item)
        for other in needless:
            self.chunks.pop((event.run, other.number), None)
            self.holding[event.run][other.address] -= 1
        self.decide(event.run)

    def lose(self, event: Event) -> None:
        worker = self.workers.pop(event.address)
        self.lost_workers += 1
        for run, dispatcher in enumerate(self.runs):
            for chunk in dispatcher.lose(event.address):
                self.lost_items += len(chunk.items)
                self.chunks.pop((run, chunk.number), None)
            self.holding[run].pop(event.address, None)
        # Its place is taken after a while.
        self.at(self.args.repair, "come", address=worker.role)

    def look(self) -> None:
        """What each run learns of the others, now and then, as from the scheduler's list."""
        if len(self.runs) > 1:
            total = Counter[str]()
            for held in self.holding:
                total.update(held)
            for run, dispatcher in enumerate(self.runs):
                dispatcher.observe({a: n - self.holding[run][a] for a, n in total.items()})
        for run in range(len(self.runs)):
            self.decide(run)
        self.at(2.0, "look")

    def simulate(self) -> float:
        """Do all candidates of all runs; seconds of simulated time."""
        wanted = self.args.candidates
        for run, dispatcher in enumerate(self.runs):
            tasks = [f"r{run}t{n}" for n in range(self.args.tasks)]
            dispatcher.submit(
                WorkItem(f"r{run}c{n}", COMPILE, group=tasks[n * len(tasks) // wanted])
                for n in range(wanted)
            )
        self.at(0.0, "look")
        while any(sum(settled.values()) < 2 * wanted for settled in self.settled):
            event = heapq.heappop(self.events)
            self.now = event.at
            if event.what == "done":
                self.done(event)
            elif event.what == "lose":
                self.lose(event)
            elif event.what == "come":
                self.come(event.address)
            else:
                self.look()
        return self.now


def main() -> None:
    """Simulate, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compilers", type=int, default=1000)
    parser.add_argument("--devices", type=int, default=50)
    parser.add_argument("--candidates", type=int, default=40_000, help="of each run")
    parser.add_argument("--tasks", type=int, default=40, help="of each run")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument(
        "--life", type=float, default=3600.0, help="mean seconds of a worker's life"
    )
    parser.add_argument("--repair", type=float, default=60.0, help="seconds until another comes")
    parser.add_argument("--compile-s", type=float, default=4.0, help="median of a candidate")
    parser.add_argument("--measure-s", type=float, default=0.25, help="median of a candidate")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    farm = Farm(args)
    began = time.perf_counter()
    makespan = farm.simulate()
    wall = time.perf_counter() - began
    total = args.candidates * args.runs
    work = {
        COMPILE: farm.useful[COMPILE] / args.compilers,
        DEVICE: farm.useful[DEVICE] / args.devices,
    }
    longest = max(
        farm.took[COMPILE, key] + farm.took.get((DEVICE, f"m{key}"), 0.0)
        for role, key in farm.took
        if role == COMPILE
    )
    bound = max(*work.values(), longest)
    doubled = sum(n > 1 for settled in farm.settled for n in settled.values())
    print(f"{total} candidates of {args.runs} runs")
    print(f"{args.compilers} compile workers, {args.devices} devices")
    print(f"makespan             {makespan:9.1f} s")
    print(
        f"bound                {bound:9.1f} s  (compiling {work[COMPILE]:.1f}, measuring "
        f"{work[DEVICE]:.1f}, longest candidate {longest:.1f})"
    )
    print(f"makespan / bound     {makespan / bound:9.3f}")
    print(f"last chunk begun     {farm.last_begun:9.1f} s")
    for role, count in ((COMPILE, args.compilers), (DEVICE, args.devices)):
        print(f"utilisation {role:<8} {farm.useful[role] / (count * makespan):9.1%}")
    print(f"workers lost         {farm.lost_workers:9d}  (with {farm.lost_items} candidates)")
    print(f"done a second time   {farm.second:9d}  chunks that were late")
    print(f"lost / doubled       {2 * total - sum(len(s) for s in farm.settled):9d} / {doubled}")
    print(f"deciding             {farm.deciding_s / total * 1e3:9.3f} ms for each candidate")
    print(f"simulated in         {wall:9.1f} s")


if __name__ == "__main__":
    main()
