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
#: After which time a worker begins that has been woken, in seconds.
LATE_S = 16e-6
# What waking the others takes the one that does it; and how long workgroups may be for none to fall
# asleep. In a network of convolutions of 350 us, two workers, 37 us lay between a dispatch's work
# and the next one's begin with 2 to 14 workgroups (from 25 us each on), 12 with 28.
_WAKING_S = 15e-6
_AWAKE_S = 25e-6


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
    """The time of a dispatch of equal workgroups in a program, where workers fall asleep.

    A worker that has nothing to do spins for a while and then sleeps. Who begins the next dispatch
    wakes it first, which takes time, and it begins late. Of small workgroups the one that began
    does more, and all are done at about the same time, so that none sleeps; where each has one
    large one, the last is late for all, and the others sleep again.

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
    others = cores - 1
    late = LATE_S / np.maximum(each, 1e-12)
    # The last to be done is the worker that began at once, or one of the others.
    first = np.minimum(count, np.ceil((count + others * np.ceil(late)) / cores))
    other = np.ceil((count - np.floor(late)) / cores)
    other = np.where(other > 0, late + other, count)
    one_by_one = count < AT_ONCE * cores
    if spread:
        one_by_one |= is_spread(count, cores)
    many = np.maximum(busiest, (count + others * late) / cores)
    spent = each * np.where(one_by_one, np.minimum(first, other), many)
    asleep = _WAKING_S * np.clip(each / _AWAKE_S - 1.0, 0.0, 1.0)
    return np.asarray(spent + np.where(count > 1, asleep, 0.0))
