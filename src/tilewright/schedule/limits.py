"""What a GPU has room for, and whether a program's kernels need more."""

from __future__ import annotations

from math import prod

from tilewright.gpu_target import CUDA, ROCM, GpuTarget
from tilewright.schedule import nest
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.nest import Kernel, LoopProgram, statements
from tilewright.schedule.tensor import BLOCK_TAGS, THREAD_TAGS
from tilewright.schedule.types import bits

# Threads of a workgroup in each dimension, and altogether. Vulkan's are the least that a device
# may have with the subgroup operations that IREE expects.
_THREADS = {CUDA: (1024, 1024, 64), ROCM: (1024, 1024, 1024)}
_OTHER_THREADS = (1024, 1024, 64)
_ALL_THREADS = 1024
_WORKGROUPS = {
    CUDA: (2**31 - 1, 65535, 65535),
    ROCM: (2**31 - 1, 65535, 65535),
}
_OTHER_WORKGROUPS = (65535, 65535, 65535)


def check_limits(program: LoopProgram, target: GpuTarget) -> None:
    """Raises ScheduleError where a kernel needs more threads, workgroups or shared memory than
    the target has, with the numbers."""
    for kernel in program.kernels:
        where = f"kernel '{kernel.name}' on {target.name}"
        _check_threads(kernel, target, where)
        grid = _WORKGROUPS.get(target.backend, _OTHER_WORKGROUPS)
        for tag, limit in zip(BLOCK_TAGS, grid, strict=True):
            if kernel.grid.get(tag, 1) > limit:
                raise ScheduleError(
                    f"{where}: {kernel.grid[tag]} workgroups in {tag}; allowed: {limit}; split "
                    "the axis further"
                )
        used = shared_bytes(kernel)
        if used > target.workgroup_memory:
            raise ScheduleError(
                f"{where}: {used} bytes of shared memory; allowed: {target.workgroup_memory}; "
                "compute the shared stages at an inner axis, or use smaller tiles"
            )


def _check_threads(kernel: Kernel, target: GpuTarget, where: str) -> None:
    limits = _THREADS.get(target.backend, _OTHER_THREADS)
    for tag, limit in zip(THREAD_TAGS, limits, strict=True):
        if kernel.block.get(tag, 1) > limit:
            raise ScheduleError(
                f"{where}: {kernel.block[tag]} threads in {tag}; allowed: {limit}; split the axis "
                "with a smaller factor"
            )
    threads = prod(kernel.block.values())
    if threads > _ALL_THREADS:
        extents = " x ".join(f"{tag} {extent}" for tag, extent in kernel.block.items())
        raise ScheduleError(
            f"{where}: {threads} threads in a workgroup ({extents}); allowed: {_ALL_THREADS}; "
            "split the axes with smaller factors"
        )


def shared_bytes(kernel: Kernel) -> int:
    """Bytes of shared memory that a kernel allocates."""
    return sum(
        stmt.buffer.size * bits(stmt.buffer.dtype) // 8
        for stmt in statements(kernel.body)
        if isinstance(stmt, nest.Allocate)
        and (stmt.buffer.scope == nest.SHARED or "." in stmt.buffer.scope)
    )
