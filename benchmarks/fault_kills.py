"""Tuning runs that are killed at random moments and gone on with.

`tilewright tune --resume` is started again and again on one database; its main process, a compile
worker or the benchmark worker is killed by SIGKILL at a moment drawn at random. A run that has
finished is followed by one with another seed. Whatever the run has told of a trial (the lines of
`--events`, which come after the trial is stored) has to be in the database, once, and in the end in
trials.csv, once.
"""

from __future__ import annotations

import collections
import contextlib
import csv
import json
import os
import random
import select
import shutil
import signal
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import fault_commands
import fault_seeds
import warm_start

TRIALS = 24
# By their memory limit compile workers are told from the benchmark worker.
_COMPILE_LIMIT = 4 << 30
MAIN, COMPILE, BENCHMARK = "main process", "compile worker", "benchmark worker"


@dataclass
class Life:
    """One process of a run, from its start to its end."""

    pid: int
    began: float
    events: Path
    err: int
    handle: int

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return bool(select.select([self.handle], [], [], 0)[0])


class KilledRun:
    """A run that is started, killed and started again, until it has finished."""

    def __init__(self, folder: Path, seed: int, more: str = "", trials: int = TRIALS) -> None:
        """A run that has not begun.

        Args:
            folder: for its files; made anew.
            seed: of its candidates.
            more: options of the command.
            trials: how many it makes.
        """
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "home").mkdir(parents=True)
        (folder / "product.mlir").write_text(fault_seeds.TUNED)
        self.folder, self.seed, self.more, self.trials = folder, seed, more, trials
        self.told: collections.Counter[str] = collections.Counter()
        self.lives = 0
        self.finished = False

    def start(self) -> Life:
        """Start the command, or start it again."""
        self.lives += 1
        events = self.folder / f"events-{self.lives}.jsonl"
        arguments = (
            f"tune product.mlir --max-trials {self.trials} --effort quick --variants default "
            f"--kernels off --strategy random --seed {self.seed} --resume --no-report "
            f"--db trials.db -o tuned --events {events} {self.more}"
        )
        files = (os.open(os.devnull, os.O_RDWR), os.memfd_create("stderr"))
        start = warm_start.Start(
            tuple(arguments.split()),
            fault_commands.environment(self.folder / "home"),
            str(self.folder),
            files,
            os.getpid(),
            module="tilewright",
        )
        pid = warm_start.warm_process().fork(start).pid
        os.close(files[0])
        return Life(pid, time.monotonic(), events, files[1], os.pidfd_open(pid))

    def end(self, life: Life, killed: int = 0) -> list[str]:
        """Wait for a process, and look at what it left.

        Args:
            life: the process, which has ended, or is about to.
            killed: how many of its workers were killed. What loses two for one job ends with a
                line that says so, and is gone on with.

        Returns:
            What is wrong.
        """
        faults = []
        longest_s = 5 * fault_commands.limit_s()
        if not select.select([life.handle], [], [], longest_s)[0]:
            os.kill(life.pid, signal.SIGKILL)
            faults.append(f"hung: not done after {longest_s:.0f} s")
        status = os.waitstatus_to_exitcode(os.waitpid(life.pid, 0)[1])
        said = os.pread(life.err, 1 << 16, 0).decode(errors="replace")
        os.close(life.err)
        os.close(life.handle)
        allowed = (0, -signal.SIGKILL, 2) if killed > 1 else (0, -signal.SIGKILL)
        if status not in allowed:
            faults.append(f"ended with status {status}: {said.strip()[-300:]}")
        if "Traceback" in said:
            faults.append(f"printed a traceback: {said[-1500:]}")
        self._read(life.events)
        faults += self._check()
        if status == 0:
            self.finished = True
            faults += self._check_table()
        return faults

    def _read(self, events: Path) -> None:
        lines = events.read_text(errors="replace").splitlines() if events.exists() else []
        for line in lines:
            with contextlib.suppress(ValueError):
                data = json.loads(line)
                if data["event"] == "trial_done":
                    self.told[_name(data["trial"]["configuration"])] += 1

    def _stored(self) -> list[str]:
        """Configurations of all trials in the database; read as another program would."""
        if not (self.folder / "trials.db").exists():
            return []
        with contextlib.closing(sqlite3.connect(self.folder / "trials.db")) as database:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'trials'").fetchone():
                return []
            rows = database.execute("SELECT configuration FROM trials").fetchall()
        return [_name(json.loads(row[0])) for row in rows]

    def _check(self) -> list[str]:
        stored = collections.Counter(self._stored())
        faults = []
        if lost := [one for one in self.told if not stored[one]]:
            faults.append(f"{len(lost)} trials lost")
        if double := [one for one, count in stored.items() if count > 1]:
            faults.append(f"{len(double)} trials stored twice")
        if again := [one for one, count in self.told.items() if count > 1]:
            faults.append(f"{len(again)} trials done twice")
        return faults

    def _check_table(self) -> list[str]:
        with (self.folder / "tuned" / "trials.csv").open() as file:
            rows = [_name(json.loads(row["knobs"])) for row in csv.DictReader(file)]
        stored = self._stored()
        if sorted(rows) != sorted(stored):
            return [f"trials.csv has {len(rows)} trials, the database {len(stored)}"]
        return [] if len(set(rows)) == len(rows) else ["trials.csv has a trial twice"]


def _name(knobs: Any) -> str:
    return json.dumps(knobs, sort_keys=True)


def kills(
    folder: Path, seed: int, numbers: list[int], trials: int = TRIALS
) -> Iterator[dict[str, Any]]:
    """Kill processes of runs at random moments; a line for each kill.

    Args:
        folder: for the runs' files.
        seed: of what is killed, and when.
        numbers: of the kills.
        trials: of each run.
    """
    chance = random.Random(f"{seed} {numbers[:1]}")
    left = iter(numbers)
    number = next(left, None)
    runs, whole_s = 0, 4.0
    while number is not None:
        run = KilledRun(folder, chance.randrange(1 << 30), trials=trials)
        runs += 1
        while not run.finished and number is not None:
            life = run.start()
            lines: list[dict[str, Any]] = []
            while number is not None:
                # A moment of the whole length of a run, or right away: starts are short.
                wait_s = chance.uniform(0.0, whole_s) * chance.choice((0.1, 1.0))
                until = time.monotonic() + wait_s
                while not life.over and time.monotonic() < until:
                    time.sleep(min(0.01, max(0.0, until - time.monotonic())))
                if life.over:
                    break
                victim = chance.choice((MAIN, MAIN, COMPILE, BENCHMARK))
                if not _kill(life.pid, victim):
                    continue
                lines.append(
                    {
                        "case": number,
                        "group": victim,
                        "after_s": round(time.monotonic() - life.began, 3),
                        "status": "killed",
                        "run": runs,
                        "faults": [],
                    }
                )
                number = next(left, None)
                if victim == MAIN:
                    break
            faults = run.end(life, sum(line["group"] != MAIN for line in lines))
            if run.finished:
                whole_s = max(1.0, 0.5 * whole_s + 0.5 * (time.monotonic() - life.began))
            if lines:
                lines[-1]["faults"] = faults
                yield from lines
            elif faults:
                raise RuntimeError(f"a run that nobody touched: {faults}")
    while not run.finished:
        # What is left of the last run: it has to come to its end.
        if faults := run.end(run.start()):
            raise RuntimeError(f"the last run: {faults}")


def _kill(pid: int, victim: str) -> bool:
    """Kill the process, or one of its workers; whether there was one."""
    if victim == MAIN:
        os.kill(pid, signal.SIGKILL)
        return True
    try:
        workers = [p for p in psutil.Process(pid).children() if _is_worker(p)]
        if not workers:
            return False
        chosen = [p for p in workers if (_limit(p) == _COMPILE_LIMIT) is (victim == COMPILE)]
        if not chosen:
            return False
        chosen[0].send_signal(signal.SIGKILL)
    except psutil.Error:
        return False
    return True


def _is_worker(process: psutil.Process) -> bool:
    return process.status() != psutil.STATUS_ZOMBIE and os.getsid(process.pid) == process.pid


def _limit(process: psutil.Process) -> int:
    return int(process.rlimit(psutil.RLIMIT_DATA)[0])
