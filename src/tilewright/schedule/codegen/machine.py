"""What code is generated for, as far as it decides the form of the code."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tilewright.errors import UserError
from tilewright.measure.jobs import WorkerFailure
from tilewright.measure.machine import cpuinfo
from tilewright.measure.processor import processor
from tilewright.schedule import compiler
from tilewright.schedule.nest import SHARED
from tilewright.target import CUDA, ROCM, GpuTarget, Target, parse_target

_WORKGROUP_LOCAL = "#iree_codegen.workgroup_local"
_GPU_WORKGROUP = "#gpu.address_space<workgroup>"
_GPU_PRIVATE = "#gpu.address_space<private>"
_SPIRV_PRIVATE = "#spirv.storage_class<Function>"
# Of the stack that a dispatch may use: the rest is for what registers do not hold.
_STACK_SHARE = 0.5
# Of the second-level cache, which is what memory a workgroup has on a CPU.
_CACHE_SHARE = 0.5
# Registers in the longest vectors that are made: LLVM splits them, and its time grows with them.
_REGISTERS_IN_VECTOR = 4
# The longest vectors that SPIR-V has.
_SPIRV_LANES = 4
# Extensions of processors that round floats to integers by one instruction.
_ROUNDING = frozenset({"avx", "neon", "sse4.1"})
# Those that multiply and add at once.
_FUSING = frozenset({"fma", "avx512f", "neon"})
# What Linux calls extensions of processors, and LLVM's names; others differ by underscores.
_LINUX_NAMES = {
    "asimd": "neon",
    "asimddp": "dotprod",
    "fphp": "fullfp16",
    "asimdhp": "fullfp16",
    "amx_tile": "amx-tile",
    "amx_int8": "amx-int8",
    "amx_bf16": "amx-bf16",
}
#: Vectors of one vectorized loop that are written out; more become a loop over them.
PIECES_UNROLLED = 8


@dataclass(frozen=True)
class Widths:
    """register: bytes of a vector register. vector: bytes of the longest vectors made. lanes: of
    the longest vectors that there are, where that is a limit."""

    register: int
    vector: int
    lanes: int | None = None

    def pieces(self, extent: int, element_bytes: int) -> tuple[tuple[int, int], list[int]]:
        """Vectors that a loop is made of.

        All are powers of two: LLVM fills up others to the next one, with registers that then lack.

        >>> Widths(register=64, vector=256).pieces(77, element_bytes=4)
        ((1, 64), [8, 4, 1])

        Args:
            extent: iterations of the loop.
            element_bytes: of the widest element that it computes with.

        Returns:
            How many of the longest vectors and the lanes of each; the lanes of the others.
        """
        longest = max(1, self.vector // element_bytes)
        if self.lanes is not None:
            longest = min(longest, self.lanes)
        count, rest = divmod(extent, longest)
        lanes = [1 << bit for bit in reversed(range(rest.bit_length())) if rest >> bit & 1]
        return (count, longest), lanes

    def registers_written(self, extent: int, element_bytes: int) -> int:
        """Registers that a loop's vectors take in code: many vectors are a loop, written once.

        >>> Widths(register=32, vector=128).registers_written(8192 + 8, element_bytes=4)
        5

        Args:
            extent: iterations of the loop.
            element_bytes: of the widest element that it computes with.
        """
        (count, longest), rest = self.pieces(extent, element_bytes)
        written = [longest] * (1 if count > PIECES_UNROLLED else count) + rest
        return sum(-(-lanes * element_bytes // self.register) for lanes in written)


@dataclass(frozen=True)
class Processor:
    """A processor.

    name: of the target, for messages. widths: of vectors, in bytes. features: extensions that the
    processor has, by LLVM's names without underscores (`avx512f`, `avx512vnni`, `neon`). subgroup:
    threads of a subgroup, 0 on CPUs. backend: IREE's. registers: of vectors. stack_bytes,
    workgroup_bytes: that a kernel has on a CPU. cores: that share its workgroups on a CPU.
    """

    name: str
    widths: Widths
    backend: str = "llvm-cpu"
    features: frozenset[str] = frozenset()
    stack_bytes: int = 32768
    workgroup_bytes: int = 128 << 10
    subgroup: int = 0
    registers: int = 32
    cores: int = 1

    @property
    def is_gpu(self) -> bool:
        """Whether the code is for a GPU."""
        return self.backend != "llvm-cpu"

    @property
    def is_llvm(self) -> bool:
        """Whether LLVM makes the code, not a driver of SPIR-V: it has loads and stores of some
        lanes of a vector, prefetches, and can be told which buffers are distinct."""
        return self.backend in ("llvm-cpu", CUDA, ROCM)

    @property
    def rounds(self) -> bool:
        """Whether it is a CPU that rounds floats to integers by one instruction: others would call
        a function of a library."""
        return not self.is_gpu and not self.features.isdisjoint(_ROUNDING)

    @property
    def fuses(self) -> bool:
        """Whether it is a CPU with an instruction for `a * b + c`: others would call a function."""
        return not self.is_gpu and not self.features.isdisjoint(_FUSING)

    def on_stack(self, scope: str, size: int, used: int) -> bool:
        """Whether storage is on the stack (on GPUs: a thread's own).

        Args:
            scope: of the buffer.
            size: bytes.
            used: bytes of the stack that are taken.
        """
        if self.is_gpu:
            # Scopes of intrinsics (`wmma.accumulator`) are what several threads hold together.
            return scope != SHARED and "." not in scope
        return used + size <= self.stack_bytes * _STACK_SHARE

    def memory_space(self, on_stack: bool) -> str | None:
        """The attribute of the memory space of allocated storage; None for the default one.

        Args:
            on_stack: whether the storage is on the stack.
        """
        if self.is_gpu:
            if not on_stack:
                return _GPU_WORKGROUP
            return _GPU_PRIVATE if self.backend in (CUDA, ROCM) else _SPIRV_PRIVATE
        return None if on_stack else _WORKGROUP_LOCAL


def machine_for(target: str | Target | None = None) -> Processor:
    """The processor of a target.

    Args:
        target: its name as :func:`tilewright.target.parse_target` takes it, or the target itself;
            this processor without one.

    Raises:
        UserError: there is no such target, or the compiler does not know its processor.
    """
    if target is None or isinstance(target, str):
        target = parse_target(target or "cpu")
    return _machine(target)


@functools.cache
def _machine(target: Target) -> Processor:
    if isinstance(target, GpuTarget):
        register = target.vector_bytes
        spirv = target.backend not in (CUDA, ROCM)
        return Processor(
            target.name,
            Widths(register, register, _SPIRV_LANES if spirv else None),
            target.backend,
            frozenset((target.architecture,)),
            subgroup=target.subgroup,
        )
    if target.cpu == "host" and not target.features:
        register, features = target.vector_bytes, host_features()
    else:
        register, features = _of_compiler(target)
    registers = 32 if register >= 64 or "avx512f" in features or "neon" in features else 16
    return Processor(
        target.name,
        Widths(register, _REGISTERS_IN_VECTOR * register),
        features=features,
        stack_bytes=target.stack_bytes,
        workgroup_bytes=int(target.l2_bytes * _CACHE_SHARE),
        registers=registers,
        cores=target.cores,
    )


def _of_compiler(target: Target) -> tuple[int, frozenset[str]]:
    """Bytes of a vector register and the extensions of a processor that is not this one."""
    listed, register = target.features, target.vector_bytes
    if not listed:
        found = compiler.ask(processor, target.flags)
        if isinstance(found, WorkerFailure):
            raise UserError(f"target {target.name}: {found.message}")
        _, listed, register = found
    names = (name[1:] for name in listed.split(",") if name.startswith("+"))
    return register, frozenset(name.replace("_", "") for name in names)


@functools.cache
def host_features() -> frozenset[str]:
    """Extensions of this processor, as Linux tells them; none elsewhere."""
    said = cpuinfo()
    names = (said.get("flags") or said.get("Features") or "").split()
    return frozenset(_LINUX_NAMES.get(name, name.replace("_", "")) for name in names)
