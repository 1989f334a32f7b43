"""How workgroups are shared out among the workers of IREE's task system.

Each worker takes the next workgroup of a dispatch when it is done with the one before, as long as
there are fewer than eight for each worker. Of more, it takes eight at a time (`task/executor` and
`task/tuning.h` of the runtime): of forty workgroups one of two workers has twenty-four.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.space.arrays import FloatArray

# IREE_TASK_DISPATCH_MAX_TILES_PER_SHARD_RESERVATION.
_AT_ONCE = 8


def turns(workgroups: Any, cores: int) -> FloatArray:
    """How many workgroups of equal work the busiest core does, one after the other.

    Args:
        workgroups: how many there are, a number or an array of such.
        cores: workers.

    Returns:
        As many numbers as were given.
    """
    count = np.asarray(workgroups, dtype=np.float64)
    at_once = np.where(count < _AT_ONCE * cores, 1, _AT_ONCE)
    shares, rest = count // at_once, count % at_once
    # What is left behind the last whole share goes to a core that has nothing to do then.
    last = np.where(shares % cores > 0, at_once, rest)
    return np.asarray(shares // cores * at_once + last)
