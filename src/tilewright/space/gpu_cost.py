"""A rough estimate of what a tiling costs on a GPU: which candidates to try first.

Workgroups run in waves over the device's processors. One takes as long as its arithmetic or as
bringing its operands from the L2 cache, whichever is longer, and few threads keep neither busy.
The numbers are those of a processor of 2020 by the clock; only ratios matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.space.arrays import FloatArray
from tilewright.target import GpuTarget
from tilewright.tiling import OpTemplate
from tilewright.trial import Configuration
from tilewright.workload import Workload

# Multiply-adds and bytes from L2 in one clock of one processor, and the threads that sustain them.
_MATRIX, _SCALAR, _BYTES = 1024.0, 64.0, 64.0
_BUSY_THREADS = 256.0
# Clocks that a workgroup costs however little it does.
_OVERHEAD = 2000.0


def tile_prior(
    workload: Workload,
    target: GpuTarget,
    root: OpTemplate,
    tiles: Mapping[int, FloatArray],
    threads: FloatArray,
    matrix: bool,
) -> FloatArray:
    """Minus the logarithm of the estimated clocks of many configurations.

    Args:
        workload: gives the loops.
        target: gives the processors.
        root: gives the loops that index each operand, and the size of elements.
        tiles: the workgroup's size of each parallel loop, shape (configurations,); reductions are
            walked whole.
        threads: of a workgroup, shape (configurations,).
        matrix: whether matrix instructions compute.

    Returns:
        Shape (configurations,).
    """
    element_bytes = max(1.0, root.element_bits / 8)
    shape = np.shape(threads)
    groups, points, read = np.ones(shape), np.ones(shape), np.zeros(shape)
    sizes = []
    for loop, dim in enumerate(workload.dims):
        extent = max(1, dim.size)
        size = tiles.get(loop, np.float64(extent if dim.reduction else 1))
        sizes.append(np.broadcast_to(np.asarray(size, dtype=np.float64), shape))
        points = points * sizes[loop]
        if not dim.reduction:
            groups = groups * np.ceil(extent / sizes[loop])
    for loops in root.operand_loops[:-1]:
        block = np.full(shape, element_bytes)
        for loop in loops:
            block = block * sizes[loop]
        read = read + block
    busy = np.minimum(1.0, threads / _BUSY_THREADS)
    compute = points / ((_MATRIX if matrix else _SCALAR) * busy)
    moved = read / (_BYTES * busy)
    waves = np.ceil(groups / target.processors)
    clocks = waves * (np.maximum(compute, moved) + _OVERHEAD)
    return np.asarray(-np.log(clocks), dtype=np.float64)


def columns(configs: Sequence[Configuration]) -> dict[str, list[Any]]:
    """The values of each knob over many configurations of one space."""
    rows = [dict(config.items) for config in configs]
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
