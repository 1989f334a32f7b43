"""Many tuners on one store: is a trial lost or doubled, and what does storing cost?

    python benchmarks/many_tuners.py --tuners 8 --trials 5000
    python benchmarks/many_tuners.py --db postgresql+psycopg://me@host/empty --tune 3

Each tuner is a process with a run of its own; they share the tasks. The stores are a file of SQLite
and a PostgreSQL server of the system's packages, started for this in a temporary folder, where no
other is named. With --tune a program is tuned on both in turn, and the time that the run spent in
the store is put beside the time that it took.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from postgresql_server import find_programs, local_server
from tilewright.store import Database, RunRecord, TaskKey
from tilewright.store.steady import SteadyDatabase, open_database
from tilewright.trial import Configuration, Status, Trial
from tilewright.workload import Dim, Workload

_TASKS = 5
PROGRAM = Path(__file__).parent.parent / "examples" / "matmul.mlir"


@dataclass(frozen=True)
class Outcome:
    """What a store had of the trials of many tuners, and what it took.

    trials: that were made; stored, lost, doubled: of them; seconds: from the first to the last of
    all; each_ms, slowest_ms: of storing one, in the median and at most.
    """

    trials: int
    stored: int
    lost: int
    doubled: int
    seconds: float
    each_ms: float
    slowest_ms: float


def key(number: int) -> TaskKey:
    """One of the tasks that all tuners share."""
    dims = (Dim("m", 16 * (number + 1)), Dim("n", 32), Dim("k", 16, True))
    workload = Workload("contraction", dims, ("f32",) * 3, ("",), "b")
    return TaskKey(workload, "cpu", "3.13.0", "f")


def trial(number: int) -> Trial:
    """A trial with as much to store as one of a run has."""
    samples = tuple(1e-3 + 1e-6 * i for i in range(20))
    return Trial(Configuration.of({"tile": (number, 8)}), Status.OK, 1e-3, samples, "", "0" * 40,
                 "random", {"compile": 0.2, "measure": 0.05})  # fmt: skip


def tuner(place: str, trials: int, ready: Any, told: Any) -> None:
    """A process: a run that stores trials one by one and checkpoints in between."""
    with (
        tempfile.TemporaryDirectory() as folder,
        open_database(place, folder=Path(folder)) as store,
    ):
        run_id = store.begin_run(RunRecord("p.mlir", "p", "cpu", "3.13.0"))
        tasks = [store.task_id(key(number), 1e-3) for number in range(_TASKS)]
        ready.wait()
        took = []
        for number in range(trials):
            begin = time.perf_counter()
            assert store.record_trial(run_id, tasks[number % _TASKS], trial(number))
            took.append(time.perf_counter() - begin)
            if number % 50 == 0:
                store.put_state(run_id, "search", {"asked": number})
        store.finish_run(run_id)
        told.put((run_id, took))


def many(place: str, tuners: int, trials: int) -> Outcome:
    """Have so many tuners store so many trials in all, and look for each of them.

    Args:
        place: of the store, which has no other runs.
        tuners: processes.
        trials: of all together.

    Raises:
        RuntimeError: one of them failed.
    """
    # They begin with what this process has imported; where there is no fork, each imports it.
    forks = "fork" in multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("fork" if forks else "spawn")
    shares = [trials // tuners + (number < trials % tuners) for number in range(tuners)]
    ready, told = context.Barrier(tuners + 1), context.Queue()
    processes = [
        context.Process(target=tuner, args=(place, share, ready, told)) for share in shares
    ]
    for one in processes:
        one.start()
    ready.wait(300)
    begin = time.perf_counter()
    reports = [told.get(timeout=600) for _ in processes]
    seconds = time.perf_counter() - begin
    for one in processes:
        one.join()
        if one.exitcode:
            raise RuntimeError(f"a tuner ended with status {one.exitcode}")
    stored = lost = doubled = 0
    with Database.open(place, create=False) as store:
        for run_id, took in reports:
            records = store.trial_records(run_id)
            there = [one.trial.configuration for one in records]
            made = {trial(number).configuration for number in range(len(took))}
            stored += len(there)
            lost += len(made - set(there))
            doubled += (
                len(there)
                - len(set(there))
                + (len(records) - len({one.ordinal for one in records}))
            )
        assert len(store.runs()) == tuners
        assert len(store.listing()) == _TASKS
    times = sorted(second for _, took in reports for second in took)
    return Outcome(trials, stored, lost, doubled, seconds, 1e3 * times[len(times) // 2],
                   1e3 * times[-1])  # fmt: skip


class Clock:
    """The seconds that a process spends in the store, however its methods call each other."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls = 0
        self._inside = False

    def watch(self, kind: type) -> None:
        """Count what the public methods of a class take."""
        for name, function in list(vars(kind).items()):
            if callable(function) and (not name.startswith("_") or name == "__init__"):
                setattr(kind, name, self._timed(function))

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **others: Any) -> Any:
            if self._inside:
                return function(*args, **others)
            self._inside, begin = True, time.perf_counter()
            try:
                return function(*args, **others)
            finally:
                self._inside = False
                self.seconds += time.perf_counter() - begin
                self.calls += 1

        return timed


def tune(place: str, trials: int, program: Path, told: Any) -> None:
    """A process: one tuning run; how long it took, and how much of it in the store."""
    import tilewright

    clock = Clock()
    clock.watch(Database)
    clock.watch(SteadyDatabase)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        tilewright.tune(program, db=place, max_trials=trials, effort="quick", fresh=True,
                        output=Path(folder) / "out")  # fmt: skip
        told.put((time.perf_counter() - begin, clock.seconds, clock.calls))


@contextlib.contextmanager
def stores(named: str | None) -> Iterator[dict[str, str]]:
    """A file, and a server: the one that is named, else one of the system's packages."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        places = {"SQLite": str(Path(folder) / "tuners.db")}
        programs = find_programs()
        if named is not None:
            places["PostgreSQL"] = named
        elif isinstance(programs, str):
            print(f"no PostgreSQL: {programs}", file=sys.stderr)
        else:
            server = stack.enter_context(local_server(programs))
            places["PostgreSQL"] = server.make("tuners")
        yield places


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tuners", type=int, default=8)
    parser.add_argument("--trials", type=int, default=5000, help="of all tuners together")
    parser.add_argument("--db", metavar="URL", help="an empty database on a server")
    parser.add_argument("--tune", type=int, default=0, metavar="N", help="tune N times on each")
    parser.add_argument("--tune-trials", type=int, default=16, metavar="N")
    parser.add_argument("--program", type=Path, default=PROGRAM)
    arguments = parser.parse_args()
    with stores(arguments.db) as places:
        print("| store | tuners | trials | stored | lost | doubled | s | ms each | ms at most |")
        print("| --- | --: | --: | --: | --: | --: | --: | --: | --: |")
        for name, place in places.items():
            got = many(place, arguments.tuners, arguments.trials)
            print(f"| {name} | {arguments.tuners} | {got.trials} | {got.stored} | {got.lost} | "
                  f"{got.doubled} | {got.seconds:.1f} | {got.each_ms:.2f} | {got.slowest_ms:.0f} |",
                  flush=True)  # fmt: skip
        if not arguments.tune:
            return
        print("\n| tune on | run | s | s in the store | share | calls |")
        print("| --- | --: | --: | --: | --: | --: |")
        context = multiprocessing.get_context("spawn")
        for number in range(arguments.tune):
            for name, place in places.items():
                told: Any = context.Queue()
                child = context.Process(
                    target=tune, args=(place, arguments.tune_trials, arguments.program, told)
                )
                child.start()
                seconds, inside, calls = told.get(timeout=1800)
                child.join()
                print(f"| {name} | {number + 1} | {seconds:.1f} | {inside:.2f} | "
                      f"{inside / seconds:.2%} | {calls} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
