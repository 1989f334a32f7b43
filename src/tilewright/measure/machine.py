"""Facts about this machine for the run manifest, and what it can do at most.

The peaks are measured: GFLOP/s with a large NumPy (BLAS) f32 matmul, GB/s with NumPy copies of
arrays far larger than the last-level cache, counted as one read and one write as STREAM does
(J. McCalpin, "Memory Bandwidth and Machine Balance in Current High Performance Computers", 1995).
A good BLAS reaches over 90% of what the FMA units could do; how many threads it uses is decided
when it is loaded, so the measurement runs in a process of its own.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tilewright.errors import TilewrightError

_SYS_CPU = Path("/sys/devices/system/cpu")
_MATMUL_SIZE = 1536
_COPY_BYTES = 1 << 28
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Cache:
    """One cache as the first core sees it: `kind` is Data, Instruction or Unified."""

    level: int
    kind: str
    bytes: int
    shared_by: int


@dataclass(frozen=True)
class Machine:
    """What can be read without measuring. None or empty: the system does not say.

    cores: physical; threads: logical processors this process may run on; load: runnable processes,
    mean of the last minute; frequency_mhz: of the first core, now.
    """

    cpu: str
    architecture: str
    cores: int | None
    threads: int
    caches: tuple[Cache, ...]
    memory_bytes: int | None
    features: tuple[str, ...]
    governor: str | None
    frequency_mhz: float | None
    load: float | None
    virtual: bool | None
    system: str
    python: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def cache_bytes(self, level: int) -> int | None:
        """Size of the data (or unified) cache of a level."""
        sizes = [c.bytes for c in self.caches if c.level == level and c.kind != "Instruction"]
        return max(sizes, default=None)


@dataclass(frozen=True)
class Peak:
    """Measured limits with this many threads; `method` says how they were measured."""

    gflops: float
    gbytes_per_s: float
    threads: int
    method: str


def describe() -> Machine:
    """The facts about this machine as they are now."""
    info = _cpuinfo()
    flags = tuple(sorted((info.get("flags") or info.get("Features") or "").split()))
    name = info.get("model name") or info.get("Processor") or platform.processor()
    frequency = _read(_SYS_CPU / "cpu0/cpufreq/scaling_cur_freq")
    mhz = info.get("cpu MHz")
    return Machine(
        cpu=name or platform.machine(),
        architecture=platform.machine(),
        cores=_physical_cores(),
        threads=_usable_threads(),
        caches=_caches(_SYS_CPU / "cpu0/cache"),
        memory_bytes=_memory_bytes(),
        features=flags,
        governor=_read(_SYS_CPU / "cpu0/cpufreq/scaling_governor"),
        frequency_mhz=float(frequency) / 1000 if frequency else float(mhz) if mhz else None,
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        virtual="hypervisor" in flags if flags else None,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
    )


def measure_peak(threads: int, *, timeout_s: float = 60.0) -> Peak:
    """Measure the limits with `threads` threads; takes a second or two.

    Raises TilewrightError if the measuring process fails.
    """
    variables = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    environment = {
        **os.environ,
        **dict.fromkeys(variables, str(threads)),
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    command = [sys.executable, "-P", "-m", "tilewright.measure.machine", str(threads)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, env=environment, check=True
        )
    except (subprocess.SubprocessError, OSError) as error:
        raise TilewrightError(f"the peak of this machine cannot be measured: {error}") from error
    return Peak(**json.loads(done.stdout))


def _measure_here(threads: int) -> Peak:
    import numpy as np

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((_MATMUL_SIZE, _MATMUL_SIZE), dtype=np.float32) for _ in range(2))
    result = np.empty_like(a)
    flops = 2 * _MATMUL_SIZE**3
    gflops = max(flops / _seconds(lambda: np.matmul(a, b, out=result)) / 1e9 for _ in range(8))

    source, target = (np.full(_COPY_BYTES // 8, v, dtype=np.float64) for v in (1.0, 0.0))
    bounds = [len(source) * i // threads for i in range(threads + 1)]

    def copy() -> None:
        # NumPy lets go of the interpreter's lock while it copies.
        parts = [slice(x, y) for x, y in itertools.pairwise(bounds)]
        team = [threading.Thread(target=np.copyto, args=(target[p], source[p])) for p in parts[1:]]
        for one in team:
            one.start()
        np.copyto(target[parts[0]], source[parts[0]])
        for one in team:
            one.join()

    gbytes = max(2 * source.nbytes / _seconds(copy) / 1e9 for _ in range(5))
    method = f"NumPy {np.__version__}: f32 matmul of {_MATMUL_SIZE} cubed, copy of 256 MiB"
    return Peak(gflops, gbytes, threads, method)


def _seconds(action: Any) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def _cpuinfo() -> dict[str, str]:
    """The fields of the first processor in /proc/cpuinfo."""
    text = (_read(Path("/proc/cpuinfo")) or "").split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _caches(folder: Path) -> tuple[Cache, ...]:
    found = []
    for index in sorted(folder.glob("index*")):
        level, kind, size = (_read(index / name) for name in ("level", "type", "size"))
        if not (level and kind and size):
            continue
        shared = _count_cpus(_read(index / "shared_cpu_list") or "0")
        factor = _UNITS.get(size[-1], 1)
        digits = size[:-1] if size[-1] in _UNITS else size
        found.append(Cache(int(level), kind, int(digits) * factor, shared))
    return tuple(found)


def _count_cpus(ranges: str) -> int:
    """Length of a list such as `0-3,8`."""
    count = 0
    for part in ranges.split(","):
        low, _, high = part.partition("-")
        count += int(high or low) - int(low) + 1
    return count


def _physical_cores() -> int | None:
    cores = set()
    for topology in _SYS_CPU.glob("cpu[0-9]*/topology"):
        siblings = _read(topology / "thread_siblings_list")
        if siblings:
            cores.add(siblings)
    return len(cores) or None


def _usable_threads() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


if __name__ == "__main__":
    print(json.dumps(asdict(_measure_here(int(sys.argv[1])))))
