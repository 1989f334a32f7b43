"""What on this machine makes times doubtful or a run fail, found before the run does."""

from __future__ import annotations

import enum
import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from tilewright.database_address import ServerAddress
from tilewright.errors import UserError
from tilewright.measure.huge_pages import huge_pages_on_request
from tilewright.measure.machine import Machine, is_busy, scales_frequency
from tilewright.toolchain import check_versions, versions
from tilewright.words import share

# Extras of the package, and a module that each brings.
_EXTRAS = {"onnx": "onnx", "gpu": "z3", "plot": "matplotlib"}
# Bytes that a run of a large network needs for programs and candidates, in memory and on the disk.
_ROOMY = 4 << 30
# The slower half of equal pieces of work over the fastest: beyond this, times are doubtful.
_STEADY = 1.1
_PIECES, _SIZE = 200, 192


class Health(enum.StrEnum):
    """What a check found: in order, better otherwise, a run fails."""

    OK = "ok"
    DOUBT = "doubt"
    BAD = "bad"


@dataclass(frozen=True)
class Finding:
    """One check. `advice`: what to do; empty where there is nothing."""

    name: str
    health: Health
    text: str
    advice: str = ""


def examine(
    machine: Machine, database: Path | ServerAddress, clock: Callable[[], float] = time.perf_counter
) -> Iterator[Finding]:
    """Check everything; takes about a second.

    Args:
        machine: as it is now.
        database: of the runs.
        clock: seconds, for equal pieces of work.

    Yields:
        The checks, as they are done.
    """
    yield _tools()
    yield _cores(machine, core_speeds())
    yield _quiet(machine)
    yield _frequency(machine)
    yield steadiness(machine, _pieces(clock))
    yield _room(machine)
    yield _storage(database)
    yield _pages()
    yield _extras()


def _tools() -> Finding:
    have = ", ".join(f"{name} {version}" for name, version in versions().items() if version)
    try:
        check_versions()
    except UserError as error:
        text, _, advice = str(error).partition("; run: ")
        return Finding("versions", Health.BAD, text, advice)
    return Finding("versions", Health.OK, have)


def core_speeds(folder: Path = Path("/sys/devices/system/cpu")) -> tuple[int, ...]:
    """How fast each processor is beside the others, as the system says it.

    Args:
        folder: of the system's files on processors.

    Returns:
        A number for each that this process may run on: `cpu_capacity` (Arm), else the highest
        frequency in kHz; nothing where the system says neither.
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        found = [folder / f"cpu{number}" / name for number in sorted(allowed)]
        if found and all(path.is_file() for path in found):
            return tuple(int(path.read_text()) for path in found)
    return ()


def _cores(machine: Machine, speeds: Sequence[int]) -> Finding:
    # Turbo differs a little from core to core on processors whose cores are all of one kind.
    if speeds and min(speeds) < 0.8 * max(speeds):
        fast = sum(speed >= 0.8 * max(speeds) for speed in speeds)
        return Finding(
            "cores",
            Health.DOUBT,
            f"{fast} fast and {len(speeds) - fast} slow processors",
            f"pin a run to the fast ones (taskset), and give it --threads {fast}: work is shared "
            "out in equal pieces, which the slow ones finish last",
        )
    cores = machine.cores or machine.threads
    text = f"{machine.threads} usable, {cores} cores"
    if machine.threads > cores:
        return Finding(
            "cores", Health.OK, f"{text}: one thread for each core is used, not their siblings"
        )
    return Finding("cores", Health.OK, text)


def _quiet(machine: Machine) -> Finding:
    if machine.load is None:
        return Finding("load", Health.OK, "not told by this system")
    text = f"{machine.load:.1f} on {machine.threads} processors"
    if is_busy(machine):
        return Finding("load", Health.DOUBT, text, "end what else runs, or wait: times are longer")
    return Finding("load", Health.OK, text)


def _frequency(machine: Machine) -> Finding:
    if scales_frequency(machine):
        return Finding(
            "frequency",
            Health.DOUBT,
            f"governor {machine.governor}: times change with it",
            "sudo cpupower frequency-set -g performance",
        )
    return Finding("frequency", Health.OK, machine.governor or "fixed, or not told")


def _pieces(clock: Callable[[], float]) -> list[float]:
    """Seconds of equal pieces of work, of one thread."""
    values = np.linspace(0.0, 1.0, _SIZE * _SIZE).reshape(_SIZE, _SIZE)
    found = []
    for _ in range(_PIECES):
        begin = clock()
        for _ in range(4):
            np.sort(values, axis=0)
        found.append(clock() - begin)
    return found


def steadiness(machine: Machine, seconds: Sequence[float]) -> Finding:
    """How much equal pieces of work differ.

    Args:
        machine: on which they were done.
        seconds: of each.
    """
    spread = float(np.quantile(seconds, 0.75)) / min(seconds)
    text = f"a quarter of equal pieces of work takes {share(spread - 1)} longer or more"
    if spread <= _STEADY:
        return Finding("steadiness", Health.OK, text)
    why = "see above"
    if machine.virtual and not is_busy(machine):
        why = "a virtual machine shares its processors with others"
    return Finding(
        "steadiness",
        Health.DOUBT,
        text,
        f"{why}; comparisons are interleaved, but small differences will not be seen",
    )


def _room(machine: Machine) -> Finding:
    memory, place = psutil.virtual_memory().available, tempfile.gettempdir()
    disk = shutil.disk_usage(place).free
    text = f"{memory / 2**30:.1f} GiB of memory, {disk / 2**30:.1f} GiB in {place}"
    if min(memory, disk) < _ROOMY:
        return Finding(
            "room", Health.DOUBT, text, "large networks need more; TMPDIR names another folder"
        )
    return Finding("room", Health.OK, text)


def _storage(database: Path | ServerAddress) -> Finding:
    if isinstance(database, ServerAddress):
        # Whether it answers, `tilewright db verify` says: nothing here needs a network.
        return Finding("database", Health.OK, str(database))
    place = database.parent
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        text = f"{database}: cannot be written ({error.strerror})"
        return Finding("database", Health.BAD, text, "name another: --db FILE")
    return Finding("database", Health.OK, str(database))


def _pages() -> Finding:
    if huge_pages_on_request():
        return Finding("huge pages", Health.OK, "given to programs that ask for them")
    return Finding(
        "huge pages",
        Health.OK,
        "not given: networks with many weights run some percent slower than they could",
        "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
    )


def _extras() -> Finding:
    missing = [name for name, module in _EXTRAS.items() if importlib.util.find_spec(module) is None]
    have = [name for name in _EXTRAS if name not in missing]
    text = f"installed: {', '.join(have) or 'none'}"
    if not missing:
        return Finding("extras", Health.OK, text)
    names = ",".join(missing)
    return Finding("extras", Health.OK, text, f"for more: pip install 'tilewright[{names}]'")
