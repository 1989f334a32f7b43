"""What code is generated for and measured on: processors and GPUs, their limits and flags, and the
names that users write, such as `cpu`, `cpu:znver4`, `cuda:sm_80`.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

from tilewright.errors import UnknownNameError, UserError

#: By how much constants may become larger that IREE evaluates ahead, as programs with kernels are
#: compiled; the rest it computes in every run. Told nothing, it takes 2^20.
PACKED_AHEAD_BYTES = 1 << 27
_LARGER_FLAG = "--iree-opt-const-expr-max-size-increase-threshold"
#: What tells the compiler so.
PACKED_AHEAD_FLAG = f"{_LARGER_FLAG}={PACKED_AHEAD_BYTES}"
SPEC_FLAG = "--iree-codegen-tuning-spec-path="
# The same for backends that IREE 3.13 does not hand the path of a tuning spec to (CUDA, SPIR-V):
# they take the spec as a library of their own strategies. A library that does not parse is only
# complained about, so it has to be proven that a spec given like this was applied.
LIBRARY_FLAG = "--iree-codegen-transform-dialect-library="


@dataclass(frozen=True)
class Target:
    """A device and the limits that search spaces and priors are made from.

    `cpu` is LLVM's name of the processor or `host`; sizes are in bytes; `cores` is the number of
    worker threads of the runtime. `resolved` is what the compiler made of `host`: it identifies the
    target in the database, so that results are only reused on the same kind of processor.
    """

    name: str
    cpu: str
    cores: int
    vector_bytes: int
    vector_registers: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    max_vector_bytes: int
    stack_bytes: int = 32768
    resolved: str = ""
    features: str = ""

    @property
    def is_gpu(self) -> bool:
        """Whether code runs on a GPU."""
        return False

    @property
    def declaration(self) -> str:
        """The text of the device's attribute, for a target that no flag selects; '' else."""
        return ""

    @property
    def spec_flag(self) -> str:
        """The flag of `iree-compile` that a tuning spec's path is put behind."""
        return SPEC_FLAG

    @property
    def key(self) -> str:
        """What must be equal for measurements to be comparable: processor, features, threads."""
        return f"llvm-cpu/{self.resolved or self.cpu}/{self.vector_bytes}B/{self.cores}t"

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of `iree-compile` that select this target."""
        return (
            "--iree-hal-target-device=local",
            "--iree-hal-local-target-device-backends=llvm-cpu",
            f"--iree-llvmcpu-target-cpu={self.cpu}",
        )

    @property
    def device(self) -> str:
        """The runtime's device: one thread runs inline, more need the task system."""
        return "local-sync" if self.cores == 1 else "local-task"

    def lanes(self, element_bits: int) -> int:
        """Elements of this width in one vector register (at least 1).

        Args:
            element_bits: width of an element.
        """
        return max(1, self.vector_bytes * 8 // max(8, element_bits))

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The target of `to_json`; what a later version added is left out.

        Args:
            data: what JSON was.
        """
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in names})

    def with_vectors(self, resolved: str, features: str, vector_bytes: int) -> Target:
        """The target with what the compiler says of the processor.

        Args:
            resolved: LLVM's name of the processor.
            features: LLVM's list of what the processor can do.
            vector_bytes: of a vector register.
        """
        registers = 32 if vector_bytes >= 64 or "neon" in features else 16
        return replace(
            self,
            vector_bytes=vector_bytes,
            vector_registers=registers,
            max_vector_bytes=512 * vector_bytes,
            resolved=resolved,
            features=features,
        )


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class Cache:
    """One cache as the first core sees it: `kind` is Data, Instruction or Unified."""

    level: int
    kind: str
    bytes: int
    shared_by: int


@cache
def caches(folder: str = "/sys/devices/system/cpu/cpu0/cache") -> tuple[Cache, ...]:
    """The caches of the first core; what the system does not tell of is left out.

    Args:
        folder: of sysfs.
    """
    found = []
    for index in sorted(Path(folder).glob("index*")):
        try:
            level, kind, size = (
                (index / name).read_text().strip() for name in ("level", "type", "size")
            )
            shared = index / "shared_cpu_list"
            cpus = shared.read_text().strip() if shared.exists() else "0"
            unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1:], 1)
            number = int(size.rstrip("KMG")) * unit
            found.append(Cache(int(level), kind, number, _count_cpus(cpus)))
        except (OSError, ValueError):
            continue
    return tuple(found)


def _count_cpus(ranges: str) -> int:
    """Length of a list such as `0-3,8`."""
    count = 0
    for part in ranges.split(","):
        low, _, high = part.partition("-")
        count += int(high or low) - int(low) + 1
    return count


def cache_sizes() -> tuple[int, int, int]:
    """Bytes of the data caches of one core at levels 1, 2 and 3; else common sizes."""
    data = {one.level: one.bytes for one in caches() if one.kind != "Instruction"}
    return data.get(1, 32 << 10), data.get(2, 1 << 20), data.get(3, 16 << 20)


CUDA, ROCM, VULKAN, METAL = "cuda", "rocm", "vulkan", "metal"


@dataclass(frozen=True)
class GpuBackend:
    """A kind of GPU: names of its targets, the compiler's backend, the runtime's driver.

    `device` is what `--iree-hal-target-device=` takes and `flag` the option with the target's name;
    `reads_specs`: whether the backend reads tuning specs where the CPU's does.
    """

    name: str
    device: str
    driver: str
    flag: str
    architectures: tuple[str, ...]
    default: str
    reads_specs: bool = False


# All but those of `EXPLICIT` are names that IREE 3.13 takes; a test compiles for them.
BACKENDS = {
    backend.name: backend
    for backend in (
        GpuBackend(
            CUDA,
            "cuda",
            "cuda",
            "--iree-cuda-target",
            (
                *("sm_60", "sm_61", "sm_62", "sm_70", "sm_72", "sm_75", "sm_80", "sm_86", "sm_87"),
                *("sm_89", "sm_90", "sm_120", "sm_121", "pascal", "volta", "turing", "ampere"),
                *("ada", "a100", "rtx3070", "rtx3080", "rtx3080ti", "rtx3090", "rtx3090ti"),
                *("rtx4070", "rtx4080", "rtx4090"),
            ),
            "sm_80",
        ),
        GpuBackend(
            ROCM,
            "hip",
            "hip",
            "--iree-rocm-target",
            (
                *("gfx908", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1101", "gfx1103"),
                *("gfx1150", "gfx1151", "gfx1200", "gfx1201", "gfx1250", "mi100", "mi210", "mi250"),
                *("mi250x", "mi300a", "mi300x", "mi308x", "mi325x", "mi350x", "mi355x", "cdna1"),
                *("cdna2", "rx7700xt", "rx7800xt", "rx7900xt", "rx7900xtx", "rx9060xt", "rx9070xt"),
                *("v710", "w7800", "w7900", "r9700"),
            ),
            "gfx942",
            reads_specs=True,
        ),
        GpuBackend(
            VULKAN,
            "vulkan",
            "vulkan",
            "--iree-vulkan-target",
            (
                *("pascal", "volta", "turing", "ampere", "ada", "a100", "rtx3080", "rtx3090"),
                *("rtx4090", "sm_80", "sm_86", "sm_89", "rdna1", "rdna2", "rdna3", "rdna4"),
                *("rx7900xtx", "rx9070xt", "gfx1100", "cdna2", "cdna3", "gfx942", "adreno"),
                *("adreno-650", "adreno-740", "valhall", "valhall1", "valhall4", "mali-g77"),
                *("mali-g78", "mali-g715", "vp_android_baseline_2022"),
            ),
            "ampere",
        ),
        GpuBackend(METAL, "metal", "metal", "", (), ""),
    )
}

_NVIDIA_MMA = ", ".join(
    f"<{name}>"
    for name in (
        "NV_MMA_SYNC_F32_16x8x16_F16",
        "NV_MMA_SYNC_F16_16x8x16_F16",
        "NV_MMA_SYNC_F32_16x8x16_BF16",
        "NV_WMMA_F32_16x16x16_F16",
        "NV_WMMA_F16_16x16x16_F16",
    )
)

# Targets that the compiler has no name for but takes when their properties are written out, and
# what is used instead where it does not. Hopper runs the instructions of Ampere; IREE has no use
# for its own (wgmma) yet. PTX 7.8 is the first with sm_90. Shared memory: 227 KiB for a block.
EXPLICIT = {
    (CUDA, "sm_90"): (
        '#hal.device.target<"cuda", [#hal.executable.target<"cuda", "cuda-nvptx-fb", '
        '{iree_codegen.target_info = #iree_gpu.target<arch = "sm_90", features = "+ptx78", '
        "wgp = <compute = fp64|fp32|fp16|int64|int32|int16|int8, storage = b64|b32|b16|b8, "
        "subgroup = shuffle|arithmetic, dot = dp4xi8toi32, "
        f"mma = [{_NVIDIA_MMA}], subgroup_size_choices = [32], "
        "max_workgroup_sizes = [1024, 1024, 1024], max_thread_count_per_workgroup = 1024, "
        "max_workgroup_memory_bytes = 232448, "
        "max_workgroup_counts = [2147483647, 65535, 65535]>>}>]> : !hal.device"
    )
}
FALLBACKS = {(CUDA, "sm_90"): "sm_89"}

# Processors (streaming multiprocessors, compute units) of the device, for priors only: with another
# number the same configurations are tried in another order.
_PROCESSORS = {
    "sm_90": 132,
    "a100": 108,
    "sm_80": 108,
    "gfx942": 304,
    "mi300x": 304,
    "rtx4090": 128,
}


# Of the last cache before memory, for how many copies of operands are taken in turn.
_L2_BYTES = {
    "sm_80": 40 << 20,
    "a100": 40 << 20,
    "sm_86": 6 << 20,
    "sm_89": 72 << 20,
    "rtx4090": 72 << 20,
    "sm_90": 50 << 20,
    "gfx942": 256 << 20,
    "mi300x": 256 << 20,
}


@dataclass(frozen=True)
class GpuTarget(Target):
    """A GPU that code is generated for. `uri` is the runtime's device.

    `declared` is the text of the `#hal.device.target` attribute that the program must carry for
    a target that no flag selects; '' for the others. `cores` counts the compile workers.
    """

    backend: str = ""
    architecture: str = ""
    uri: str = ""
    declared: str = ""
    processors: int = 80
    workgroup_memory: int = 48 << 10
    subgroup: int = 32

    @property
    def registers(self) -> int:
        """32-bit registers that a thread can have."""
        return 512 if self.subgroup == 64 else 256

    @property
    def is_gpu(self) -> bool:
        return True

    @property
    def declaration(self) -> str:
        return self.declared

    @property
    def key(self) -> str:
        return f"{self.backend}/{self.architecture or self.backend}"

    @property
    def flags(self) -> tuple[str, ...]:
        backend = BACKENDS[self.backend]
        if self.declared:
            return ()
        device = (f"--iree-hal-target-device={backend.device}",)
        if not backend.flag or not self.architecture:
            return device
        return (*device, f"{backend.flag}={self.architecture}")

    @property
    def device(self) -> str:
        return self.uri

    @property
    def spec_flag(self) -> str:
        return SPEC_FLAG if BACKENDS[self.backend].reads_specs else LIBRARY_FLAG

    def with_vectors(self, resolved: str, features: str, vector_bytes: int) -> GpuTarget:
        """The target itself: a GPU has no vectors of this kind.

        Args:
            resolved: name of a processor.
            features: of a processor.
            vector_bytes: of a processor.
        """
        return self


def target_names() -> list[str]:
    """Every GPU target, as `--target` takes it."""
    return [
        f"{backend.name}:{architecture}" if architecture else backend.name
        for backend in BACKENDS.values()
        for architecture in (backend.architectures or ("",))
    ]


def example_names() -> list[str]:
    """One target of each backend, as `--target` takes it."""
    return [f"{b.name}:{b.default}" if b.default else b.name for b in BACKENDS.values()]


def parse_gpu_target(name: str, cores: int, device: str | None = None) -> GpuTarget:
    """A GPU by its name.

    Args:
        name: `cuda:sm_80`, `rocm:gfx942`, `vulkan:ampere`, `metal`; the backend must be one of
            `BACKENDS`.
        cores: how many threads compile.
        device: the runtime's device (`cuda://0`), by default the driver's first.

    Raises:
        UserError: for an architecture that the backend does not have.
    """
    kind, _, architecture = name.partition(":")
    backend = BACKENDS[kind]
    if not backend.architectures:
        if ":" in name:
            raise UserError(f"--target: '{name}': {kind} has no architectures; write {kind}")
    elif not architecture:
        if name.endswith(":"):
            raise UserError(
                f"--target: '{name}' lacks an architecture; write {kind}:{backend.default}"
            )
        architecture = backend.default
    elif architecture not in backend.architectures:
        names = [f"{kind}:{one}" for one in backend.architectures]
        raise UnknownNameError("target", name, names, "--target")
    known = architecture if kind != VULKAN else ""
    return GpuTarget(
        name=name,
        cpu="",
        cores=cores,
        vector_bytes=16,
        vector_registers=32,
        l1_bytes=64 << 10,
        l2_bytes=_L2_BYTES.get(architecture, 32 << 20),
        l3_bytes=0,
        max_vector_bytes=16,
        resolved=architecture,
        backend=kind,
        architecture=architecture,
        uri=device or backend.driver,
        declared=EXPLICIT.get((kind, architecture), ""),
        processors=_PROCESSORS.get(architecture, 80),
        workgroup_memory=_shared_memory(kind, known),
        subgroup=64 if kind == ROCM and architecture.startswith(("gfx9", "mi", "cdna")) else 32,
    )


def _shared_memory(kind: str, architecture: str) -> int:
    """Bytes of shared memory that a workgroup may use at least."""
    if kind == ROCM:
        return 160 << 10 if architecture in ("gfx950", "mi350x", "mi355x") else 64 << 10
    if kind != CUDA:
        return 32 << 10
    return {"sm_80": 166912, "a100": 166912, "sm_87": 166912, "sm_90": 232448}.get(
        architecture, 48 << 10
    )


def fallback_of(target: Target) -> Target | None:
    """What stands in for a target that the compiler may refuse; None for the others.

    Args:
        target: any.
    """
    if not isinstance(target, GpuTarget) or not target.declared:
        return None
    name = f"{target.backend}:{FALLBACKS[target.backend, target.architecture]}"
    return parse_gpu_target(name, target.cores, target.uri)


CPU = "cpu"


def parse_target(name: str, threads: int | None = None) -> Target:
    """The target of a name.

    Args:
        name: `cpu` (this machine), `cpu:NAME` with LLVM's name of a processor, or a GPU, such as
            `cuda:sm_80` or `metal`.
        threads: worker threads of the runtime, by default one for each core that this process may
            use; of a GPU those that compile.

    Raises:
        UserError: for another kind of target, or an impossible number of threads.
    """
    kind, _, processor = name.partition(":")
    if kind in BACKENDS:
        return parse_gpu_target(name, threads or usable_cores())
    if kind != CPU:
        raise UnknownNameError("target", name, ["cpu", "cpu:NAME", *example_names()], "--target")
    if name.endswith(":"):
        raise UserError(
            "--target: 'cpu:' lacks a processor; write cpu for this machine or cpu:znver4"
        )
    if threads is not None and not 1 <= threads <= 1024:
        raise UserError(f"--threads: {threads} is not possible; allowed: 1 to 1024")
    l1, l2, l3 = cache_sizes()
    vector = _host_vector_bytes()
    return Target(
        name=name,
        cpu=processor or "host",
        cores=threads or usable_cores(),
        vector_bytes=vector,
        vector_registers=32 if vector == 64 or platform.machine() == "aarch64" else 16,
        l1_bytes=l1,
        l2_bytes=l2,
        l3_bytes=l3,
        max_vector_bytes=512 * vector,
    )


@cache
def _host_vector_bytes() -> int:
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return 16
    words = set(info.split())
    if "avx512f" in words:
        return 64
    return 32 if "avx2" in words or "avx" in words else 16
