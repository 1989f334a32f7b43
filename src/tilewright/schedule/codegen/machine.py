"""What code is generated for, as far as it decides the form of the code."""

from __future__ import annotations

import functools
import platform
from dataclasses import dataclass
from pathlib import Path

from tilewright.gpu_target import CUDA, ROCM, GpuTarget
from tilewright.schedule.codegen.expand import Widths
from tilewright.schedule.nest import GLOBAL, LOCAL, SHARED
from tilewright.target import Target, parse_target

_WORKGROUP_LOCAL = "#iree_codegen.workgroup_local"
_GPU_WORKGROUP = "#gpu.address_space<workgroup>"
# Of the stack that a dispatch may use: the rest is for what registers do not hold.
_STACK_SHARE = 0.5
# Memory of a workgroup on a CPU comes from its worker; beyond this it is a buffer of its own.
_CPU_LOCAL_BYTES = 512 << 10
# Registers in the longest vectors that are made: LLVM splits them, and its time grows with them.
_REGISTERS_IN_VECTOR = 4
# What Linux calls extensions of Arm processors, and LLVM's names.
_ARM_NAMES = {"asimd": "neon", "asimddp": "dotprod", "fphp": "fullfp16", "asimdhp": "fullfp16"}


@dataclass(frozen=True)
class Machine:
    """A processor.

    name: of the target, for messages. widths: of vectors, in bytes. features: extensions that the
    processor has, by LLVM's names without underscores (`avx512f`, `avx512vnni`, `neon`). gathers:
    whether vectors can be loaded and stored with their elements anywhere. prefetches: whether a
    prefetch does anything. subgroup: threads of a subgroup, 0 on CPUs. backend: IREE's.
    """

    name: str
    widths: Widths
    backend: str = "llvm-cpu"
    features: frozenset[str] = frozenset()
    gathers: bool = True
    prefetches: bool = True
    stack_bytes: int = 32768
    subgroup: int = 0

    @property
    def is_gpu(self) -> bool:
        return self.backend != "llvm-cpu"

    def memory_space(self, scope: str, size: int, used: int) -> str | None:
        """Where storage of `size` bytes lives when `used` bytes of the stack are taken: None for
        the stack, else the memory space's attribute."""
        if self.is_gpu:
            return _GPU_WORKGROUP if scope == SHARED else None
        if used + size <= self.stack_bytes * _STACK_SHARE and scope in (GLOBAL, SHARED, LOCAL):
            return None
        return _WORKGROUP_LOCAL

    def needs_buffer(self, size: int) -> bool:
        """Whether storage of so many bytes is too large for a workgroup's own memory."""
        return not self.is_gpu and size > _CPU_LOCAL_BYTES


def machine_for(target: str | Target | None = None) -> Machine:
    """The machine of a target: its name as :func:`tilewright.target.parse_target` takes it, or the
    target itself; this processor without one."""
    if target is None or isinstance(target, str):
        target = parse_target(target or "cpu")
    return _machine(target)


@functools.cache
def _machine(target: Target) -> Machine:
    if isinstance(target, GpuTarget):
        register = target.vector_bytes
        return Machine(
            target.name,
            Widths(register, register),
            target.backend,
            frozenset((target.architecture,)),
            gathers=False,
            prefetches=target.backend in (CUDA, ROCM),
            subgroup=target.subgroup,
        )
    if target.cpu == "host" and not target.features:
        register, features = target.vector_bytes, host_features()
    else:
        register, features = _of_compiler(target)
    widths = Widths(register, _REGISTERS_IN_VECTOR * register)
    return Machine(target.name, widths, features=features, stack_bytes=target.stack_bytes)


def _of_compiler(target: Target) -> tuple[int, frozenset[str]]:
    """Bytes of a vector register and the extensions of a processor that is not this one."""
    listed, register = target.features, target.vector_bytes
    if not listed:
        from tilewright.measure.peak_worker import processor

        _, listed, register = processor({}, target.flags)
    names = (name[1:] for name in listed.split(",") if name.startswith("+"))
    return register, frozenset(name.replace("_", "") for name in names)


@functools.cache
def host_features() -> frozenset[str]:
    """Extensions of this processor, as Linux tells them; none elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    key = "Features" if platform.machine() == "aarch64" else "flags"
    line = next((one for one in text.splitlines() if one.startswith(key)), "")
    names = line.partition(":")[2].split()
    return frozenset(_ARM_NAMES.get(name, name.replace("_", "")) for name in names)
