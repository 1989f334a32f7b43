"""A rough estimate of what a tiling costs on a GPU: which candidates to try first.

Workgroups run in waves over the device's processors. One takes as long as its arithmetic or as
bringing its operands from the L2 cache, whichever is longer, and few threads keep neither busy.
The numbers are those of a processor of 2020 by the clock; only ratios matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.gpu_target import GpuTarget
from tilewright.space.interface import FloatArray
from tilewright.trial import Configuration
from tilewright.workload import Workload

# Multiply-adds and bytes from L2 in one clock of one processor, and the threads that sustain them.
_MATRIX, _SCALAR, _BYTES = 1024.0, 64.0, 64.0
_BUSY_THREADS = 256.0
# Clocks that a workgroup costs however little it does.
_OVERHEAD = 2000.0


def estimate(
    extents: Sequence[int],
    reduction: Sequence[bool],
    tiles: Mapping[int, FloatArray],
    threads: FloatArray,
    operand_loops: Sequence[Sequence[int]],
    element_bytes: float,
    processors: int,
    matrix: bool,
) -> FloatArray:
    """Clocks for many configurations, shape (configurations,).

    `tiles`: the workgroup's size of each parallel loop; reductions are walked whole.
    `operand_loops`: the loops that index each input.
    """
    shape = np.shape(threads)
    sizes = [
        np.broadcast_to(np.asarray(tiles.get(i, 1 if not r else e), dtype=np.float64), shape)
        for i, (e, r) in enumerate(zip(extents, reduction, strict=True))
    ]
    groups = np.ones(shape)
    points = np.ones(shape)
    for size, extent, is_sum in zip(sizes, extents, reduction, strict=True):
        points = points * size
        if not is_sum:
            groups = groups * np.ceil(extent / size)
    read = np.zeros(shape)
    for loops in operand_loops:
        block = np.ones(shape)
        for loop in loops:
            block = block * sizes[loop]
        read = read + block * element_bytes
    busy = np.minimum(1.0, threads / _BUSY_THREADS)
    compute = points / ((_MATRIX if matrix else _SCALAR) * busy)
    moved = read / (_BYTES * busy)
    waves = np.ceil(groups / processors)
    return np.asarray(waves * (np.maximum(compute, moved) + _OVERHEAD), dtype=np.float64)


class TilePrior:
    """The prior of a space by its workgroup tiles: minus the logarithm of the estimate."""

    def __init__(
        self,
        workload: Workload,
        target: GpuTarget,
        operand_loops: Sequence[Sequence[int]],
        element_bits: int,
        matrix: bool,
    ) -> None:
        self._workload = workload
        self._target = target
        self._operand_loops = tuple(tuple(loops) for loops in operand_loops[:-1])
        self._bytes = max(1.0, element_bits / 8)
        self._matrix = matrix

    def __call__(self, tiles: Mapping[int, FloatArray], threads: FloatArray) -> FloatArray:
        dims = self._workload.dims
        clocks = estimate(
            [max(1, d.size) for d in dims],
            [d.reduction for d in dims],
            tiles,
            threads,
            self._operand_loops,
            self._bytes,
            self._target.processors,
            self._matrix,
        )
        return np.asarray(-np.log(clocks), dtype=np.float64)


def columns(configs: Sequence[Configuration]) -> dict[str, list[Any]]:
    """The values of each knob over many configurations of one space."""
    names = [name for name, _ in configs[0].items] if configs else []
    return {name: [config.values[name] for config in configs] for name in names}
