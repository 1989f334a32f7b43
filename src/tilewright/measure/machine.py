"""Facts about this machine for the run manifest and for reports of measurements.

What it can do at most is measured: :mod:`tilewright.measure.peak`.
"""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from tilewright.target import Cache, caches, usable_cores

_SYS_CPU = Path("/sys/devices/system/cpu")
# Runnable processes for each processor from which times are doubtful.
_BUSY = 0.5


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
        """The fields by their names."""
        return asdict(self)

    def cache_bytes(self, level: int) -> int | None:
        """Size of the data (or unified) cache of a level.

        Args:
            level: 1 for the first.

        Returns:
            Bytes; None where the system does not say.
        """
        sizes = [c.bytes for c in self.caches if c.level == level and c.kind != "Instruction"]
        return max(sizes, default=None)


def describe() -> Machine:
    """The facts about this machine as they are now."""
    info = cpuinfo()
    flags = tuple(sorted((info.get("flags") or info.get("Features") or "").split()))
    name = info.get("model name") or info.get("Processor") or platform.processor()
    frequency = _read(_SYS_CPU / "cpu0/cpufreq/scaling_cur_freq")
    mhz = info.get("cpu MHz")
    return Machine(
        cpu=name or platform.machine(),
        architecture=platform.machine(),
        cores=psutil.cpu_count(logical=False),
        threads=usable_cores(),
        caches=caches(),
        memory_bytes=psutil.virtual_memory().total,
        features=flags,
        governor=_read(_SYS_CPU / "cpu0/cpufreq/scaling_governor"),
        frequency_mhz=float(frequency) / 1000 if frequency else float(mhz) if mhz else None,
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        virtual="hypervisor" in flags if flags else None,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
    )


def warnings(machine: Machine) -> tuple[str, ...]:
    """What makes times that are measured on this machine doubtful, a line for each.

    Args:
        machine: as it is now.
    """
    found = []
    if scales_frequency(machine):
        found.append(
            f"the processor changes its frequency (governor {machine.governor}), and times with "
            "it; set the governor to performance"
        )
    if is_busy(machine):
        found.append(
            f"other programs are running (load {machine.load:.1f} on {machine.threads} "
            "processors): times may be too long"
        )
    return tuple(found)


def is_busy(machine: Machine) -> bool:
    """Whether other programs keep a good part of the processors busy.

    Args:
        machine: as it is now.
    """
    return machine.load is not None and machine.load > _BUSY * machine.threads


def scales_frequency(machine: Machine) -> bool:
    """Whether the system lowers the frequency when there is little to do.

    Args:
        machine: as it is now.
    """
    return machine.governor not in (None, "performance")


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def cpuinfo() -> dict[str, str]:
    """The fields of the first processor in /proc/cpuinfo."""
    text = (_read(Path("/proc/cpuinfo")) or "").split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
