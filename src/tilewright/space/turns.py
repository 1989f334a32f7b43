"""How workgroups are shared out among the workers of IREE's task system.

Each worker takes the next workgroup of a dispatch when it is done with the one before, as long as
there are fewer than eight for each worker. Of more, it takes eight at a time (`task/executor` and
`task/tuning.h` of the runtime): of forty workgroups one of two workers has twenty-four. Kernels of
our own are shared out one by one there, too: of eight workgroups that are taken at once, seven have
nothing to do (`is_spread`). Where there are few, some that have nothing to do follow (`AWAKE`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.space.arrays import FloatArray

#: IREE_TASK_DISPATCH_MAX_TILES_PER_SHARD_RESERVATION.
AT_ONCE = 8
# For each core: where there are more, eight at a time are small parts of the work, and calls that
# do nothing (some 15 ns each) would add up.
_MOST_SPREAD = 64
#: So many workgroups at least keep the workers from falling asleep before the next dispatch: the
#: runtime sends one away that has nothing to do where the next four have eight at most
#: (`hal/drivers/local_task/block_processor`, the warm retainers).
AWAKE = 9
# A worker that has nothing to do spins for so long and sleeps then; what it costs the next dispatch
# to wake it and to have it late.
_SPIN_S = 10e-6
_ASLEEP_S = 15e-6


def is_spread(workgroups: Any, cores: int) -> Any:
    """Whether our own kernels put seven empty workgroups behind each, so that the runtime hands out
    one at a time.

    Args:
        workgroups: how many there are that do something, a number or an array of such.
        cores: workers.

    Returns:
        A truth value, or an array of such.
    """
    count = np.asarray(workgroups)
    return (cores > 1) & (count >= AT_ONCE * cores) & (count <= _MOST_SPREAD * cores)


def turns(workgroups: Any, cores: int, *, spread: bool = False) -> FloatArray:
    """How many workgroups of equal work the busiest core does, one after the other.

    Args:
        workgroups: how many there are, a number or an array of such.
        cores: workers.
        spread: whether they are of a kernel of our own, see `is_spread`.

    Returns:
        As many numbers as were given.
    """
    count = np.asarray(workgroups, dtype=np.float64)
    single = count < AT_ONCE * cores
    if spread:
        single |= is_spread(count, cores)
    at_once = np.where(single, 1, AT_ONCE)
    shares, rest = count // at_once, count % at_once
    # What is left behind the last whole share goes to a core that has nothing to do then.
    last = np.where(shares % cores > 0, at_once, rest)
    return np.asarray(shares // cores * at_once + last)


def makespan(workgroups: Any, cores: int, each_s: Any, *, spread: bool = True) -> FloatArray:
    """The time of a dispatch of equal workgroups in a program, with what the next one loses.

    A worker that has nothing to do while others go on falls asleep soon, and is late for the next
    dispatch. (Where that has few workgroups, those that do nothing keep the runtime from sending
    workers away.)

    Args:
        workgroups: how many there are, a number or an array of such.
        cores: workers.
        each_s: seconds that a workgroup takes.
        spread: as for `turns`.

    Returns:
        Seconds, as many as were given.
    """
    count, each = np.asarray(workgroups, dtype=np.float64), np.asarray(each_s, dtype=np.float64)
    busiest = turns(count, cores, spread=spread)
    if cores == 1:
        return np.asarray(busiest * each)
    least = np.maximum(0.0, (count - busiest) // (cores - 1))
    waiting = (busiest - least) * each
    return np.asarray(busiest * each + _ASLEEP_S * np.clip(waiting / _SPIN_S - 1.0, 0.0, 1.0))
