"""What the kernels of a schedule need of a GPU, and what it has room for."""

from __future__ import annotations

from math import prod

from tilewright.schedule import nest
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.nest import Kernel, LoopProgram, statements
from tilewright.schedule.tensor import BLOCK_TAGS, THREAD_TAGS
from tilewright.schedule.types import bits
from tilewright.target import CUDA, ROCM, GpuTarget

# Threads of a workgroup and workgroups, in each dimension. Where nothing is said they are the least
# that a device may have with the subgroup operations that IREE expects.
_THREADS = {ROCM: (1024, 1024, 1024)}
_LEAST_THREADS = (1024, 1024, 64)
_ALL_THREADS = 1024
_WORKGROUPS = dict.fromkeys((CUDA, ROCM), (2**31 - 1, 65535, 65535))
_LEAST_WORKGROUPS = (65535, 65535, 65535)


def check_limits(program: LoopProgram, target: GpuTarget) -> None:
    """Checks that a target has the threads, workgroups and shared memory that kernels need.

    Args:
        program: whose kernels are looked at.
        target: the GPU.

    Raises:
        ScheduleError: a kernel needs more; it says how much, and how much there is.
    """
    limits = (
        *zip(THREAD_TAGS, _THREADS.get(target.backend, _LEAST_THREADS), strict=True),
        *zip(BLOCK_TAGS, _WORKGROUPS.get(target.backend, _LEAST_WORKGROUPS), strict=True),
    )
    for kernel in program.kernels:
        where = f"kernel '{kernel.name}' on {target.name}"
        for tag, limit in limits:
            used = {**kernel.block, **kernel.grid}.get(tag, 1)
            if used > limit:
                what, how = ("threads", "split the axis with a smaller factor")
                if tag in BLOCK_TAGS:
                    what, how = ("workgroups", "split the axis further")
                raise ScheduleError(f"{where}: {used} {what} in {tag}; allowed: {limit}; {how}")
        threads = prod(kernel.block.values())
        if threads > _ALL_THREADS:
            extents = " x ".join(f"{tag} {extent}" for tag, extent in kernel.block.items())
            raise ScheduleError(
                f"{where}: {threads} threads in a workgroup ({extents}); allowed: {_ALL_THREADS}; "
                "split the axes with smaller factors"
            )
        used = shared_bytes(kernel)
        if used > target.workgroup_memory:
            raise ScheduleError(
                f"{where}: {used} bytes of shared memory; allowed: {target.workgroup_memory}; "
                "compute the shared stages at an inner axis, or use smaller tiles"
            )


def shared_bytes(kernel: Kernel) -> int:
    """Bytes of shared memory that a kernel allocates.

    Args:
        kernel: before reductions over threads are written out.
    """
    return sum(
        stmt.buffer.size * bits(stmt.buffer.dtype) // 8
        for stmt in statements(kernel.body)
        if isinstance(stmt, nest.Allocate)
        and (stmt.buffer.scope == nest.SHARED or "." in stmt.buffer.scope)
    )
