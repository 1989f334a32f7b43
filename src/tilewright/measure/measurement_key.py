"""What a measurement holds for: the machine, the device and the build of the compiler.

Two measurements with equal keys may take each other's place; where anything differs, the one only
hints at the other. What the system does not tell of stays empty, and is then equal to nothing told.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.metadata
import json
import runpy
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from tilewright.measure import gpu_state
from tilewright.measure.jobs import WorkerFailure, WorkerState
from tilewright.measure.machine import Machine, cpuinfo, describe
from tilewright.measure.pool import WorkerPool
from tilewright.target import Target

# Beginnings of the names that systems give to vector instructions.
_VECTORS = ("sse", "ssse", "avx", "fma", "f16c", "amx", "asimd", "neon", "sve", "sme", "bf16",
            "i8mm", "fphp", "dotprod", "vsx", "altivec")  # fmt: skip
# Of one processor, by the names of /proc/cpuinfo on x86 and on Arm.
_STEPPING = ("cpu family", "model", "stepping", "CPU implementer", "CPU part", "CPU variant",
             "CPU revision")  # fmt: skip
_TIMEOUT_S = 30.0
_UNKNOWN = "not known"
_MULTIPROCESSORS = 16  # cuDeviceGetAttribute: CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT


@dataclass(frozen=True)
class MeasurementKey:
    """Under what a measurement was taken.

    stepping: the numbers that the maker gives this kind of processor; extensions: its vector
    instructions; cores: physical; processors: logical ones that the process may use; threads: that
    the program ran on; memory_gib: to the next whole one; gpu, compute_units, driver: of the
    device, where it is none of the processor's; compiler: its version and commit.
    """

    processor: str = ""
    stepping: str = ""
    extensions: tuple[str, ...] = ()
    cores: int = 0
    processors: int = 0
    threads: int = 0
    caches: tuple[str, ...] = ()
    virtual: bool | None = None
    memory_gib: int = 0
    gpu: str = ""
    compute_units: int = 0
    driver: str = ""
    compiler: str = ""

    def of_run(self, target: Target) -> Self:
        """The key of a machine as that of a run, which is compiled here.

        Args:
            target: with the threads that programs run on.
        """
        # Of a GPU the target's cores are those that compile.
        threads = 0 if target.is_gpu else target.cores
        return replace(self, threads=threads, compiler=compiler_build())

    @property
    def digest(self) -> str:
        """A short digest of all of it: equal digests, equal keys."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """The fields by their names."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The key of `to_json`; what a later version added is left out.

        Args:
            data: what JSON was.
        """
        known = {field.name for field in fields(cls)} & data.keys()
        values: dict[str, Any] = {
            name: tuple(data[name]) if isinstance(data[name], list) else data[name]
            for name in known
        }
        return cls(**values)


@dataclass(frozen=True)
class KeyComparison:
    """One field of the key of a record beside that of now, as texts."""

    field: str
    recorded: str
    now: str

    @property
    def equal(self) -> bool:
        """Whether they are the same, and known."""
        return self.recorded == self.now != _UNKNOWN

    @property
    def unknown(self) -> bool:
        """Whether the record does not say."""
        return self.recorded == _UNKNOWN


def compare_measured(
    recorded: MeasurementKey | None,
    now: MeasurementKey | None,
    apart_from: Collection[str] = (),
) -> tuple[KeyComparison, ...]:
    """Every field of a key beside that of a measurement taken now.

    Args:
        recorded: the key; None where that is not known.
        now: what would be measured under; None where that is not known.
        apart_from: fields that do not matter.
    """
    texts = [
        {name: _UNKNOWN if key is None else _text(value) for name, value in asdict(known).items()}
        for key in (recorded, now)
        for known in (key or MeasurementKey(),)
    ]
    return tuple(
        KeyComparison(name.replace("_", " "), texts[0][name], texts[1][name])
        for name in texts[0]
        if name not in apart_from
    )


def why_other(compared: Collection[KeyComparison]) -> str:
    """In which fields keys differ, in words; '' where they are equal.

    Args:
        compared: the fields.
    """
    differing = [one.field for one in compared if not one.equal]
    if any(one.unknown for one in compared):
        return "the record does not say what it was measured on"
    return f"other {', '.join(differing)}" if differing else ""


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value in (None, "", 0) else str(value)


def measurement_key(
    target: Target, uri: str = "", machine: Machine | None = None
) -> MeasurementKey:
    """The key of what is measured on this machine now.

    Args:
        target: with the threads that programs run on.
        uri: the runtime's device, by default the target's.
        machine: this one, by default as it is now.
    """
    device = uri or target.device if target.is_gpu else "local-task"
    return machine_key(device, machine).of_run(target)


def machine_key(uri: str, machine: Machine | None = None) -> MeasurementKey:
    """What the key of a measurement on this machine says whatever runs, and whoever compiled it.

    Args:
        uri: the runtime's device.
        machine: this one, by default as it is now.
    """
    machine = machine or describe()
    info = cpuinfo()
    gpu = ("", 0, "") if uri.startswith("local-") else _gpu(uri)
    return MeasurementKey(
        processor=machine.cpu,
        stepping=", ".join(f"{name} {info[name]}" for name in _STEPPING if name in info),
        extensions=tuple(
            one for one in machine.features if one.startswith(_VECTORS) and one != "smep"
        ),
        cores=machine.cores or 0,
        processors=machine.threads,
        caches=tuple(
            f"L{one.level} {one.kind} {one.bytes >> 10} KiB of {one.shared_by}"
            for one in machine.caches
        ),
        virtual=machine.virtual,
        memory_gib=-(-(machine.memory_bytes or 0) // 2**30),
        gpu=gpu[0],
        compute_units=gpu[1],
        driver=gpu[2],
    )


@functools.cache
def compiler_build() -> str:
    """Version and commit of the installed compiler."""
    package = importlib.metadata.distribution("iree-base-compiler")
    # Read, not imported: the package brings the whole compiler into the process.
    path = Path(str(package.locate_file("iree/compiler/version.py")))
    try:
        commit = str(runpy.run_path(str(path))["REVISIONS"]["IREE"])
    except (OSError, KeyError, TypeError, SyntaxError):
        commit = ""
    return f"{package.version} {commit[:12]}".strip()


def _gpu(uri: str) -> tuple[str, int, str]:
    """Name, compute units and driver of a GPU; a driver that hangs is not waited for."""
    with WorkerPool(1, timeout_s=_TIMEOUT_S) as pool:
        found = pool.ask(gpu_facts, uri)
    return ("", 0, "") if isinstance(found, WorkerFailure) else found


# In the workers


def gpu_facts(_state: WorkerState, uri: str) -> tuple[str, int, str]:
    """Task: name, compute units and version of the driver of a device of the runtime.

    Args:
        _state: what the worker keeps.
        uri: such as `cuda://0` or `hip`.
    """
    backend, _, place = uri.partition("://")
    if backend == "cuda":
        return _cuda(int(place) if place.isdigit() else 0)
    import iree.runtime as runtime

    found = runtime.get_driver(backend).query_available_devices()
    names = [str(one["name"]) for one in found if place in (one["path"], "")]
    # Of AMD's the kernel's driver tells its version; compute units nobody does without a context.
    module = Path("/sys/module/amdgpu/version")
    version = module.read_text().strip() if backend == "hip" and module.is_file() else ""
    return (names or [""])[0], 0, version


def _cuda(index: int) -> tuple[str, int, str]:
    name, units, version = "", ctypes.c_int(0), ""
    state = gpu_state.read(f"cuda://{index}")
    nvml = gpu_state.library()
    if state is not None:
        name = state.name
        text = ctypes.create_string_buffer(96)
        if nvml.nvmlSystemGetDriverVersion(text, ctypes.c_uint(len(text))) == 0:
            version = text.value.decode(errors="replace")
    cuda = ctypes.CDLL("libcuda.so.1")
    device = ctypes.c_int()
    if cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), index) == 0:
        cuda.cuDeviceGetAttribute(ctypes.byref(units), _MULTIPROCESSORS, device)
    return name, units.value, version
