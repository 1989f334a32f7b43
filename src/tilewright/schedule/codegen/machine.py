"""What code is generated for, as far as it decides the form of the code."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.schedule.codegen.expand import Widths
from tilewright.schedule.nest import GLOBAL, LOCAL, SHARED

_WORKGROUP_LOCAL = "#iree_codegen.workgroup_local"
_GPU_WORKGROUP = "#gpu.address_space<workgroup>"
# Of the 32 KB of stack that a dispatch may use: the rest is for what registers do not hold.
_STACK_SHARE = 0.5
# Memory of a workgroup on a CPU comes from its worker; beyond this it is a buffer of its own.
_CPU_LOCAL_BYTES = 512 << 10


@dataclass(frozen=True)
class Machine:
    """kind: `cpu` or `gpu`. widths: of vectors. features: what LLVM calls the processor's. name:
    of the target, for messages."""

    name: str
    kind: str
    widths: Widths
    features: frozenset[str] = frozenset()
    gathers: bool = True
    prefetches: bool = True
    stack_bytes: int = 32768
    subgroup: int | None = None

    @property
    def is_gpu(self) -> bool:
        return self.kind == "gpu"

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
