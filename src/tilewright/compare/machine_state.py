"""The state of the machine around a comparison: what it is, how busy and how fast."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.measure import gpu_state
from tilewright.measure.devices import devices
from tilewright.measure.machine import Machine, describe, warnings
from tilewright.measure.peak import Peak

# A peak that has moved by more than this makes the times of a comparison doubtful.
PEAK_MOVED = 0.1

_SYS_CPU = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Moment:
    """What can change: load (runnable processes, mean of a minute), frequencies in MHz of every
    processor where they can be read, the measured peak (None: not measured), and a GPU's clocks,
    temperature and power where its driver tells them (see :mod:`tilewright.measure.gpu_state`)."""

    load: float | None
    frequencies: tuple[float, ...]
    gflops: float | None = None
    gbytes_per_s: float | None = None
    gpu: dict[str, Any] | None = None


@dataclass(frozen=True)
class MachineState:
    """The machine, and the moments before and after."""

    machine: dict[str, Any]
    before: Moment
    after: Moment

    @property
    def peak_moved(self) -> float | None:
        """By what part the peak changed, of GFLOP/s or GB/s, whichever moved more."""
        pairs = (
            (self.before.gflops, self.after.gflops),
            (self.before.gbytes_per_s, self.after.gbytes_per_s),
        )
        moves = [abs(b / a - 1) for a, b in pairs if a and b]
        return max(moves, default=None)

    @property
    def gflops(self) -> float | None:
        """The higher peak of both: what the machine can do when nothing disturbs it."""
        return max((m.gflops for m in (self.before, self.after) if m.gflops), default=None)

    @property
    def gbytes_per_s(self) -> float | None:
        found = [m.gbytes_per_s for m in (self.before, self.after) if m.gbytes_per_s]
        return max(found, default=None)

    def warnings(self) -> tuple[str, ...]:
        """What makes the times doubtful, a line for each."""
        found = list(self.machine.get("warnings", ()))
        moved = self.peak_moved
        if moved is not None and moved > PEAK_MOVED:
            found.append(
                f"the machine's peak moved by {100 * moved:.0f}% while this was measured (from "
                f"{_peak(self.before)} to {_peak(self.after)}): compare within a round only"
            )
        if any(moment.gpu and moment.gpu["throttled"] for moment in (self.before, self.after)):
            found.append("the GPU held its clocks back: compare within a round only")
        return tuple(found)

    @staticmethod
    def from_json(data: dict[str, Any]) -> MachineState:
        """What `ComparisonRun.to_json` wrote of it.

        Args:
            data: one entry.
        """
        before, after = (
            Moment(**{**data[when], "frequencies": tuple(data[when]["frequencies"])})
            for when in ("before", "after")
        )
        return MachineState(data["machine"], before, after)


def machine_facts(device: str = "") -> dict[str, Any]:
    """What the machine is, with warnings about the state that it is in.

    Args:
        device: of a GPU, whose name is told as the runtime's driver gives it; '' for processors.
    """
    machine: Machine = describe()
    facts = machine.to_json()
    del facts["features"]
    # What is said of a processor's governor and load is nothing to a GPU.
    told = [] if device else list(warnings(machine))
    return {**facts, "warnings": told, **({"gpu": device_name(device)} if device else {})}


def device_name(uri: str) -> str:
    """The name that a driver has for its device, the first where the URI names none; the URI itself
    where the driver does not say.

    Args:
        uri: as the runtime takes it, such as `cuda://0`.
    """
    driver, _, path = uri.partition("://")
    found = devices(driver)
    number = int(path) if path.isdigit() else 0
    if path.isdigit() or not path:
        return found[number].name if number < len(found) else uri
    return next((one.name for one in found if one.uri == uri), uri)


def moment(peak: Peak | None = None, device: str = "") -> Moment:
    """The machine now.

    Args:
        peak: where it has been measured just now.
        device: of a GPU; '' for processors.
    """
    gpu = gpu_state.read(device) if device else None
    return Moment(
        os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        _frequencies(),
        peak.gflops if peak else None,
        peak.gbytes_per_s if peak else None,
        gpu.to_json() if gpu else None,
    )


def _frequencies() -> tuple[float, ...]:
    files = sorted(_SYS_CPU.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
    found = []
    for file in files:
        try:
            found.append(float(file.read_text()) / 1000)
        except (OSError, ValueError):
            return ()
    if found:
        return tuple(found)
    frequency = describe().frequency_mhz
    return (frequency,) if frequency else ()


def _peak(moment: Moment) -> str:
    return f"{moment.gflops or 0:.0f} GFLOP/s and {moment.gbytes_per_s or 0:.1f} GB/s"
