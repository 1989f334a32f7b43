"""What this machine can do at most: arithmetic by element type, and memory.

Measured with kernels that do nothing else (:mod:`tilewright.ir.peak_kernels`), compiled by IREE and
run by its runtime on as many threads as the programs to be compared with it. Each is tried several
times, and the highest rate counts: what else runs on a machine only ever adds time.

The peak of an element type is that of the fastest instruction that multiplies and adds its
elements, with more terms for each instruction where there are such, or that of a wider type which
its kernels may compute in. It is measured once for each machine and number of threads, and kept in
the user's cache folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tilewright import scratch
from tilewright.errors import TilewrightError
from tilewright.files import parse_json, user_folder_file, write_whole
from tilewright.ir.peak_instructions import STREAMS, Kernel
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.compile_worker import compile_pool
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.machine import Machine, describe, is_busy
from tilewright.measure.peak_tasks import (
    BestRequest,
    PeakBuildRequest,
    PeakPlanRequest,
    best_time,
    build_kernel,
    plan_kernels,
)
from tilewright.measure.pool import Job, WorkerFailure
from tilewright.target import parse_target
from tilewright.toolchain import installed_version

# Raised when other numbers come out for the same machine.
_METHOD = 1
_FILE = "peak.json"

_WORKGROUPS_PER_THREAD = 16
_ROUNDS = 5
_ROUND_S = 0.06
# Arrays of memory kernels and their sum have to be far larger than the last cache; the sum must
# still leave most of the memory free.
_ARRAY_BYTES = (64 << 20, 512 << 20)
_MEMORY_SHARE = 16
# A kernel this far behind another of its type is not tried again.
_HOPELESS = 0.8
_JOB_TIMEOUT_S = 60.0

#: The order in which people look for element types.
FLOAT_FIRST = ("f32", "f64", "f16", "bf16", "i8", "i16", "i32")

# What kernels of a narrow type may compute in instead, in the order to be filled in.
_COMPUTED_IN = (("i16", "i32"), ("i8", "i16"), ("f16", "f32"), ("bf16", "f32"))


@dataclass(frozen=True)
class Peak:
    """Measured limits with this many threads.

    compute: GFLOP/s (for integers 10^9 operations a second) by the element type of the operands, a
    multiply-add counted as two. memory: GB/s by what is done, as the program asks for the bytes.
    instructions: what reached them, in words. measured_at: seconds since 1970. busy: other programs
    were at work then, and the numbers may be too low.
    """

    threads: int
    cpu: str
    compute: Mapping[str, float]
    memory: Mapping[str, float]
    instructions: Mapping[str, str]
    method: str
    measured_at: float
    busy: bool = False

    @property
    def gflops(self) -> float:
        """Of f32."""
        return self.compute["f32"]

    @property
    def gbytes_per_s(self) -> float:
        """Of main memory, the highest of all kinds of access."""
        return max(self.memory.values())

    def share(self, gflops: float, element_type: str) -> float | None:
        """Part of the peak (1: all of it) of a kernel.

        Args:
            gflops: that it reaches.
            element_type: of its operands.

        Returns:
            None for a type that no peak was measured for.
        """
        peak = self.compute.get(element_type)
        return gflops / peak if peak else None

    def to_json(self) -> dict[str, Any]:
        """The fields by their names."""
        return asdict(self)


def machine_peak(
    threads: int,
    *,
    refresh: bool = False,
    at_least: Mapping[str, float] | None = None,
    cache: Path | None = None,
) -> Peak:
    """The peak of this machine, measured now unless it has been before; that takes ten to twenty
    seconds.

    One that was measured while the machine was busy is measured again when it is not.

    Args:
        threads: that the kernels run on.
        refresh: measure anew and forget what was known.
        at_least: GFLOP/s by element type that were just seen; where one is above the peak as known,
            it is measured again, and the higher of both is kept.
        cache: the file, by default that of :func:`cache_path`.

    Raises:
        TilewrightError: nothing can be measured.
    """
    file = cache or cache_path()
    key = _key(describe(), threads)
    known = None if refresh else _read(file).get(key)
    seen = at_least or {}
    if known and _holds(known) and all(known.compute.get(t, r) >= r for t, r in seen.items()):
        return known
    measured = measure_peak(threads)
    if known:
        measured = _higher(measured, known)
    _write(file, key, measured)
    return measured


def cached_peak(threads: int, *, cache: Path | None = None) -> Peak | None:
    """What :func:`machine_peak` would return without measuring, if anything.

    Args:
        threads: that the kernels ran on.
        cache: the file, by default that of :func:`cache_path`.
    """
    known = _read(cache or cache_path()).get(_key(describe(), threads))
    return known if known and _holds(known) else None


def _holds(known: Peak) -> bool:
    return not known.busy or is_busy(describe())


def measure_peak(threads: int) -> Peak:
    """Measure the peak; nothing is read from the cache or written to it.

    Args:
        threads: that the kernels run on.

    Raises:
        TilewrightError: nothing can be measured.
    """
    with peak_meter(threads) as meter:
        return meter.read()


@dataclass
class PeakMeter:
    """The peak measured as often as one likes, from kernels that are compiled once."""

    machine: Machine
    threads: int
    kernels: list[tuple[Kernel, Path]]
    benchmark: Benchmark

    def read(self, rounds: int = _ROUNDS) -> Peak:
        """The peak as it is now.

        Args:
            rounds: times that each kernel is tried.

        Raises:
            TilewrightError: nothing can be measured.
        """
        rates = _rates(self.benchmark, self.kernels, rounds)
        # What is far behind now is so the next time.
        best: dict[str, float] = {}
        for kernel, rate in rates.items():
            best[kernel.limit] = max(rate, best.get(kernel.limit, 0.0))
        self.kernels = [
            (k, path) for k, path in self.kernels if rates.get(k, 0.0) >= _HOPELESS * best[k.limit]
        ]
        return _peak(self.machine, self.threads, rates, rounds)


@contextlib.contextmanager
def peak_meter(threads: int) -> Iterator[PeakMeter]:
    """Compile the kernels and open a worker for them; all is gone at the end.

    Args:
        threads: that the kernels run on.

    Yields:
        What reads the peak.

    Raises:
        TilewrightError: nothing can be measured.
    """
    machine = describe()
    request = PeakPlanRequest(
        parse_target("cpu", threads).flags,
        _WORKGROUPS_PER_THREAD * threads,
        _array_bytes(machine),
    )
    with scratch.folder() as folder:
        kernels = _build(request, folder)
        with Benchmark(DeviceOptions.cpu(threads), timeout_s=_JOB_TIMEOUT_S) as benchmark:
            yield PeakMeter(machine, threads, kernels, benchmark)


def cache_path() -> Path:
    """The file with the peaks: in `$TILEWRIGHT_CACHE`, else in the user's cache folder."""
    if named := os.environ.get("TILEWRIGHT_CACHE"):
        return Path(named).expanduser() / _FILE
    return user_folder_file("cache", _FILE)


# -- measuring -------------------------------------------------------------------------------------


def _array_bytes(machine: Machine) -> int:
    low, high = _ARRAY_BYTES
    wanted = min(max(low, machine.cache_bytes(3) or machine.cache_bytes(2) or 0), high)
    return min(wanted, (machine.memory_bytes or 16 * low) // _MEMORY_SHARE)


def _build(request: PeakPlanRequest, folder: Path) -> list[tuple[Kernel, Path]]:
    """The kernels that compile; those that do not are left out."""
    with compile_pool(min(4, parse_target("cpu").cores), timeout_s=_JOB_TIMEOUT_S) as compilers:
        kernels = compilers.ask(plan_kernels, request)
        if isinstance(kernels, WorkerFailure):
            raise TilewrightError(f"the peak cannot be measured: {kernels.message}")
        results = compilers.run(
            Job(build_kernel, PeakBuildRequest(kernel, request.flags, folder / f"{number}.vmfb"))
            for number, kernel in enumerate(kernels)
        )
    return [(k, r.value) for k, r in zip(kernels, results, strict=True) if r.failure is None]


def _rates(
    benchmark: Benchmark, kernels: list[tuple[Kernel, Path]], rounds: int
) -> dict[Kernel, float]:
    """The highest rate of each kernel, in 10^9 a second; what fails is left out.

    The rounds go through all kernels, so that none depends on one moment.
    """
    rates: dict[Kernel, float] = {}
    for number in range(rounds):
        for kernel, vmfb in kernels:
            rate = rates.get(kernel, 0.0)
            leading = max((r for k, r in rates.items() if k.limit == kernel.limit), default=0.0)
            if number and rate < _HOPELESS * leading:
                continue
            seconds = benchmark.ask(best_time, BestRequest(kernel, vmfb, _ROUND_S))
            if not isinstance(seconds, WorkerFailure):
                rates[kernel] = max(rate, kernel.work / seconds / 1e9)
    return rates


def _peak(
    machine: Machine, threads: int, rates: Mapping[Kernel, float], rounds: int = _ROUNDS
) -> Peak:
    best: dict[str, float] = {}
    words: dict[str, str] = {}
    for kernel, rate in rates.items():
        if rate > best.get(kernel.limit, 0.0):
            best[kernel.limit], words[kernel.limit] = rate, kernel.name
    memory = {kind: best.pop(kind) for kind in STREAMS if kind in best}
    compute = best
    if "f32" not in compute or not memory:
        raise TilewrightError("the peak of this machine cannot be measured: no kernel of it runs")
    for narrow, wide in _COMPUTED_IN:
        if compute.get(wide, 0.0) > compute.get(narrow, 0.0):
            compute[narrow], words[narrow] = compute[wide], words[wide]
    return Peak(
        threads,
        machine.cpu,
        compute,
        memory,
        {kind: words[kind] for kind in compute},
        f"IREE {installed_version('iree-base-compiler')}: the best of {rounds} rounds",
        time.time(),
        is_busy(machine),
    )


def _higher(one: Peak, other: Peak) -> Peak:
    """The higher of two measurements of one machine, number by number; `one` gives the time."""
    compute, words = dict(one.compute), dict(one.instructions)
    for element_type, rate in other.compute.items():
        if rate > compute.get(element_type, 0.0):
            compute[element_type] = rate
            words[element_type] = other.instructions.get(element_type, "")
    kinds = {*one.memory, *other.memory}
    memory = {k: max(one.memory.get(k, 0.0), other.memory.get(k, 0.0)) for k in sorted(kinds)}
    return replace(one, compute=compute, memory=memory, instructions=words)


# -- the cache -------------------------------------------------------------------------------------


def _key(machine: Machine, threads: int) -> str:
    """What must be equal for a measured peak to hold."""
    facts = (
        _METHOD,
        machine.cpu,
        machine.architecture,
        machine.features,
        machine.cores,
        machine.threads,
        [asdict(cache) for cache in machine.caches],
        installed_version("iree-base-compiler"),
        threads,
    )
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:20]


def _read(file: Path) -> dict[str, Peak]:
    """The peaks of a cache file; what cannot be read is not there."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        return {key: Peak(**fields) for key, fields in parse_json(file.read_bytes()).items()}
    return {}


def _write(file: Path, key: str, peak: Peak) -> None:
    """Keep a peak; where it cannot be written, it is measured again next time."""
    known = {k: p.to_json() for k, p in _read(file).items()} | {key: peak.to_json()}
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, (json.dumps(known, indent=1) + "\n").encode())
