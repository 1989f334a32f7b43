"""What the system does to a tuning run: disks that fill up, clocks that jump, processes that are
stopped, memory that ends, databases that are damaged, and eight runs at once on one database.

Every case runs `tilewright tune` as a process, and looks at how it ended, at what it told of its
trials, and at what the database and the result folder have.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import fault_commands
import fault_seeds
from fault_commands import Ended, run_command
from fault_kills import KilledRun

_TUNE = (
    "tune product.mlir --max-trials 8 --effort quick --variants default --kernels off "
    "--strategy random --no-report"
)
_HERE = Path(__file__).resolve().parent


def _limit_s() -> float:
    """For a run of few trials, on this machine as it is now."""
    return 4 * fault_commands.limit_s()


@dataclass(frozen=True)
class Place:
    """Folders of one case."""

    folder: Path
    chance: random.Random

    @property
    def home(self) -> Path:
        """The home folder of what is run."""
        return self.folder / "home"

    def tune(self, more: str, **options: Any) -> Ended:
        """Tune, with more options."""
        return run_command(f"{_TUNE} {more}".split(), self.folder, self.home, _limit_s(), **options)


Fault = Callable[[Place], tuple[str, list[str]]]


def _wrong(ended: Ended, *allowed: int) -> list[str]:
    """What is wrong with how a command ended."""
    found = [] if ended.status in allowed else [f"ended with status {ended.status}"]
    if ended.status not in (0, None):
        errors = [line for line in ended.err.splitlines() if line.startswith("error:")]
        if len(errors) != 1 or "internal error" in ended.err:
            found.append(f"says: {ended.err.strip()[-300:]}")
    if "Traceback" in ended.err + ended.out:
        found.append("printed a traceback")
    return found


def _trials(database: Path) -> int:
    """How many trials a database has; -1 where it is damaged."""
    try:
        with contextlib.closing(sqlite3.connect(database)) as opened:
            if opened.execute("PRAGMA integrity_check").fetchone()[0] != "ok":
                return -1
            return int(opened.execute("SELECT count(*) FROM trials").fetchone()[0])
    except sqlite3.DatabaseError:
        return -1


# -- disks that fill up ----------------------------------------------------------------------------


@contextlib.contextmanager
def _small_disk(folder: Path, kilobytes: int) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    size = f"size={kilobytes}k"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _full_disk(where: str) -> Fault:
    """A disk with little room for the database, the results or temporary files; then with more."""

    def fault(place: Place) -> tuple[str, list[str]]:
        if os.geteuid() != 0:
            return "not run: needs root to mount a small disk", []
        disk = place.home / "tmp" if where == "temporary files" else place.folder / "disk"
        # From nothing at all to just enough.
        kilobytes = int(4 * 2 ** place.chance.uniform(0, 10))
        options = {
            "database": "--db disk/trials.db -o tuned",
            "results": "--db trials.db -o disk/tuned",
            "temporary files": "--db trials.db -o tuned",
            "everything": "--db disk/trials.db -o disk/tuned --events disk/events.jsonl",
        }[where]
        database = place.folder / ("disk" if "disk/trials" in options else ".") / "trials.db"
        with _small_disk(disk, kilobytes):
            first = place.tune(options)
            faults = _wrong(first, 0, 2)
            before = _trials(database) if database.exists() and database.stat().st_size else 0
            if before < 0 and first.status == 0:
                faults.append("the database is damaged")
            subprocess.run(["mount", "-o", "remount,size=256m", str(disk)], check=True)
            second = place.tune(f"{options} --resume")
            faults += _wrong(second, 0)
            after = _trials(database)
            if after < max(before, 8):
                faults.append(f"{before} trials were stored, {after} at the end")
        return f"{kilobytes} KiB: status {first.status}, then {second.status}", faults

    return fault


# -- clocks ----------------------------------------------------------------------------------------


def _clock(place: Place) -> tuple[str, list[str]]:
    """The clock of the day jumps by up to days, to and fro, each time that it is read."""
    script = str(_HERE / "fault_clock.py")
    ended = place.tune("--db trials.db -o tuned", script=script)
    faults = _wrong(ended, 0)
    listed = run_command(
        ["db", "list", "--db", "trials.db"], place.folder, place.home, 60, script=script
    )
    faults += _wrong(listed, 0)
    if (stored := _trials(place.folder / "trials.db")) != 8:
        faults.append(f"{stored} of 8 trials are stored")
    return f"status {ended.status}", faults


# -- processes that are stopped --------------------------------------------------------------------


def _stopped(what: str) -> Fault:
    """The main process, a worker or all of them are stopped for some seconds, then go on."""

    def fault(place: Place) -> tuple[str, list[str]]:
        run = KilledRun(place.folder / "run", place.chance.randrange(1 << 30))
        life = run.start()
        times = 0
        for _ in range(3):
            until = time.monotonic() + place.chance.uniform(0.2, 2.0)
            while not life.over and time.monotonic() < until:
                time.sleep(0.02)
            if life.over:
                break
            with contextlib.suppress(psutil.Error):
                main = psutil.Process(life.pid)
                workers = main.children()
                chosen = {
                    "main process": [main],
                    "worker": workers and [place.chance.choice(workers)],
                    "all of them": [main, *workers],
                }[what]
                for process in chosen:
                    process.send_signal(signal.SIGSTOP)
                time.sleep(place.chance.choice((0.5, 3.0)))
                times += 1
                for process in chosen:
                    with contextlib.suppress(psutil.Error):
                        process.send_signal(signal.SIGCONT)
        faults = run.end(life)
        if not run.finished:
            faults.append("did not finish")
        return f"{times} stops", faults

    return fault


# -- databases that are damaged --------------------------------------------------------------------


def _damaged(how: str) -> Fault:
    """A database with its log, as a killed run leaves them, is damaged; then used again."""

    def fault(place: Place) -> tuple[str, list[str]]:
        more = f"--db trials.db -o tuned --seed {place.chance.randrange(4)}"
        database = place.folder / "trials.db"

        def has_some() -> bool:
            if not database.exists():
                return False
            with contextlib.suppress(sqlite3.DatabaseError):
                return _trials(database) >= 3
            return False

        run = KilledRun(place.folder / "run", place.chance.randrange(1 << 30))
        life = run.start()
        database = run.folder / "trials.db"
        while not life.over and not has_some():
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.kill(life.pid, signal.SIGKILL)
        faults = run.end(life)
        files = [f for f in (run.folder / f"trials.db{s}" for s in ("", "-wal")) if f.exists()]
        chosen = place.chance.choice([f for f in files if f.stat().st_size] or files)
        data = bytearray(chosen.read_bytes())
        if how == "cut off":
            data = data[: place.chance.randrange(len(data) + 1)]
        else:
            for _ in range(place.chance.choice((1, 8, 200))):
                data[place.chance.randrange(len(data))] ^= 1 << place.chance.randrange(8)
        for file in (run.folder / f"trials.db{s}" for s in ("", "-wal", "-shm")):
            if file.exists():
                shutil.move(file, place.folder / file.name)
        (place.folder / chosen.name).write_bytes(data)
        said = []
        for line in ("db list --db trials.db", "db export all.jsonl --db trials.db"):
            found = run_command(line.split(), place.folder, place.home, 60)
            faults += _wrong(found, 0, 2)
            said.append(str(found.status))
        ended = place.tune(f"{more} --resume")
        faults += _wrong(ended, 0, 2)
        return f"{chosen.suffix}: status {', '.join(said)}, tune {ended.status}", faults

    return fault


# -- memory that ends ------------------------------------------------------------------------------


def _memory(place: Place) -> tuple[str, list[str]]:
    """All processes of a run may have only so much memory each."""
    megabytes = int(100 * 2 ** place.chance.uniform(0, 5))
    script = str(_HERE / "fault_memory.py")
    line = f"{megabytes} {_TUNE} --db trials.db -o tuned"
    ended = run_command(line.split(), place.folder, place.home, _limit_s(), script=script)
    faults = _wrong(ended, 0, 2)
    # With room enough it goes on.
    again = place.tune("--db trials.db -o tuned --resume")
    faults += _wrong(again, 0)
    if (stored := _trials(place.folder / "trials.db")) < 8:
        faults.append(f"{stored} of 8 trials are stored")
    return f"{megabytes} MB: status {ended.status}, then {again.status}", faults


# -- several runs ----------------------------------------------------------------------------------


def _eight(place: Place) -> tuple[str, list[str]]:
    """Eight runs at once, on one database that none of them has made yet."""
    lines = [
        f"{sys.executable} -m tilewright {_TUNE} --seed {seed} --db trials.db -o tuned-{seed}"
        for seed in range(8)
    ]
    environment = fault_commands.environment(place.home)
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    processes = [
        subprocess.Popen(
            line.split(),
            cwd=place.folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for line in lines
    ]
    faults = []
    for number, process in enumerate(processes):
        try:
            _, err = process.communicate(timeout=600)
        except subprocess.TimeoutExpired:
            process.kill()
            err = process.communicate()[1]
        faults += [f"run {number}: {f}" for f in _wrong(Ended(process.returncode, "", err, 0), 0)]
    stored = _trials(place.folder / "trials.db")
    if stored != 64:
        faults.append(f"{stored} trials are stored, of 64")
    return f"{stored} trials", faults


# -- clusters --------------------------------------------------------------------------------------


class _Cluster:
    """A scheduler, a compile worker and a device worker, each a process that can be killed."""

    def __init__(self, home: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        self._home = home
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("scheduler", "compile", "device"):
            self.start(name)

    def start(self, name: str) -> None:
        """Start a process of the cluster, again where it has been killed."""
        port = self.address.rpartition(":")[2]
        line = (
            f"cluster scheduler --port {port}"
            if name == "scheduler"
            else f"worker --scheduler {self.address} --role {name} --quiet"
        )
        environment = fault_commands.environment(self._home)
        environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        self._processes[name] = subprocess.Popen(
            [sys.executable, "-m", "tilewright", *line.split()],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def kill(self, name: str) -> None:
        """Kill a process, and nothing that it has started."""
        self._processes[name].kill()
        self._processes[name].wait()

    def close(self) -> None:
        """End all of it."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _cluster(victim: str) -> Fault:
    """A process of a cluster is killed at a random moment of a run, and started again."""

    def fault(place: Place) -> tuple[str, list[str]]:
        if importlib.util.find_spec("distributed") is None:
            return "not run: needs the extra cluster", []
        cluster = _Cluster(place.home)
        kills, faults = 0, list[str]()
        try:
            seed = place.chance.randrange(1 << 30)
            run = KilledRun(place.folder / "run", seed, f"--cluster {cluster.address}")
            while not run.finished and run.lives < 6 and not faults:
                life = run.start()
                until = time.monotonic() + place.chance.uniform(2.0, 20.0)
                while not life.over and time.monotonic() < until and kills < 3:
                    time.sleep(0.05)
                if not life.over and kills < 3:
                    cluster.kill(victim)
                    kills += 1
                    time.sleep(place.chance.uniform(0.0, 3.0))
                    cluster.start(victim)
                # A run may end with a line that says that there is no scheduler, and is resumed.
                faults += run.end(life, killed=2)
            if not run.finished:
                faults.append(f"not finished after {run.lives} starts")
        finally:
            cluster.close()
        return f"{kills} kills", faults

    return fault


# -- what the compiler is known to crash on --------------------------------------------------------

_DEPTHWISE = """func.func @main(%x: tensor<1x{h}x{h}x{c}xf32>, %w: tensor<3x3x{c}xf32>)
    -> tensor<1x{o}x{o}x{c}xf32> {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x{o}x{o}x{c}xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<1x{o}x{o}x{c}xf32>)
      -> tensor<1x{o}x{o}x{c}xf32>
  %r = linalg.depthwise_conv_2d_nhwc_hwc
      {{dilations = dense<1> : tensor<2xi64>, strides = dense<{s}> : tensor<2xi64>}}
      ins(%x, %w : tensor<1x{h}x{h}x{c}xf32>, tensor<3x3x{c}xf32>)
      outs(%f : tensor<1x{o}x{o}x{c}xf32>) -> tensor<1x{o}x{o}x{c}xf32>
  return %r : tensor<1x{o}x{o}x{c}xf32>
}}
"""


def _depthwise(place: Place) -> tuple[str, list[str]]:
    """Depthwise convolutions, some configurations of which crash LLVM or hang it."""
    c, o, s = (place.chance.choice(of) for of in ((96, 132, 144, 192), (28, 30, 56), (1, 2)))
    h = (o - 1) * s + 3
    (place.folder / "product.mlir").write_text(_DEPTHWISE.format(h=h, c=c, o=o, s=s))
    ended = place.tune(
        f"--db trials.db -o tuned --max-trials 32 --seed {place.chance.randrange(99)}"
    )
    faults = _wrong(ended, 0)
    if (stored := _trials(place.folder / "trials.db")) != 32:
        faults.append(f"{stored} of 32 trials are stored")
    with contextlib.closing(sqlite3.connect(place.folder / "trials.db")) as opened:
        rows = opened.execute("SELECT status, count(*) FROM trials GROUP BY status").fetchall()
    return ", ".join(f"{count} {status}" for status, count in sorted(rows)), faults


#: Each fault with how many of a hundred cases are of it.
FAULTS: dict[str, tuple[Fault, int]] = {
    "full disk: database": (_full_disk("database"), 12),
    "full disk: results": (_full_disk("results"), 12),
    "full disk: temporary files": (_full_disk("temporary files"), 12),
    "full disk: everything": (_full_disk("everything"), 8),
    "clock jumps": (_clock, 6),
    "main process stopped": (_stopped("main process"), 6),
    "worker stopped": (_stopped("worker"), 6),
    "all processes stopped": (_stopped("all of them"), 4),
    "database cut off": (_damaged("cut off"), 8),
    "database with flipped bits": (_damaged("flipped"), 8),
    "memory limit": (_memory, 10),
    "eight runs on one database": (_eight, 2),
    "depthwise convolutions": (_depthwise, 6),
    "cluster: scheduler killed": (_cluster("scheduler"), 4),
    "cluster: compile worker killed": (_cluster("compile"), 2),
    "cluster: device worker killed": (_cluster("device"), 2),
}


def run_case(folder: Path, seed: int, number: int) -> dict[str, Any]:
    """Do one case.

    Args:
        folder: for its files; made anew.
        seed: of chance.
        number: of the case; says which fault it is.
    """
    order = [name for name, (_, share) in FAULTS.items() for _ in range(share)]
    random.Random(seed).shuffle(order)
    name = order[number % len(order)]
    shutil.rmtree(folder, ignore_errors=True)
    place = Place(folder, random.Random(f"{seed} {number}"))
    place.home.mkdir(parents=True)
    (folder / "product.mlir").write_text(fault_seeds.TUNED)
    status, faults = FAULTS[name][0](place)
    return {"case": number, "group": name, "status": status, "faults": faults}
