"""Clocks, temperature and power of NVIDIA GPUs while they are measured, by NVML.

NVML is the driver's own library: where there is none, or the device is another maker's, there is
simply nothing to say. It is called by ctypes, so that no package is needed.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import asdict, dataclass
from typing import Any

_LIBRARIES = ("libnvidia-ml.so.1", "nvml.dll")
_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_TEMPERATURE_GPU = 0


@dataclass(frozen=True)
class GpuState:
    """A GPU at one moment: clocks in MHz, degrees Celsius, watts; `throttled`: bits of NVML's
    reasons for lower clocks (0: none)."""

    name: str
    sm_mhz: int
    memory_mhz: int
    celsius: int
    watts: float
    throttled: int

    def to_json(self) -> dict[str, Any]:
        """The fields by their names."""
        return asdict(self)


@functools.cache
def library() -> Any:
    """NVML, initialised; None where there is none."""
    for name in _LIBRARIES:
        try:
            found = ctypes.CDLL(name)
        except OSError:
            continue
        if found.nvmlInit_v2() == 0:
            return found
    return None


def read(uri: str) -> GpuState | None:
    """The state of the GPU that a device of the runtime is, by its number; None if unknown.

    Args:
        uri: of the device, such as `cuda://0`.
    """
    if not uri.startswith("cuda"):
        return None
    nvml = library()
    if nvml is None:
        return None
    number = uri.rpartition("/")[2]
    index = int(number) if number.isdigit() else 0
    handle = ctypes.c_void_p()
    if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != 0:
        return None
    name = ctypes.create_string_buffer(96)
    nvml.nvmlDeviceGetName(handle, name, ctypes.c_uint(len(name)))
    reasons = ctypes.c_ulonglong()
    nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle, ctypes.byref(reasons))
    return GpuState(
        name.value.decode(errors="replace"),
        _number(nvml.nvmlDeviceGetClockInfo, handle, _SM_CLOCK),
        _number(nvml.nvmlDeviceGetClockInfo, handle, _MEMORY_CLOCK),
        _number(nvml.nvmlDeviceGetTemperature, handle, _TEMPERATURE_GPU),
        _number(nvml.nvmlDeviceGetPowerUsage, handle) / 1000,
        int(reasons.value),
    )


def _number(function: Any, handle: Any, *which: int) -> int:
    value = ctypes.c_uint()
    status = function(handle, *map(ctypes.c_uint, which), ctypes.byref(value))
    return int(value.value) if status == 0 else 0
