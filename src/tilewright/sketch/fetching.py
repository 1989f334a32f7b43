"""Operands fetched ahead: what the next tiles read comes while the present ones are computed.

A network reads its weights once in each call, from memory or from a cache that many processors
share. Of several tiles that read the same panel, one after the other, the first waits for it; while
the others are computed there is time for the next panel to come into the second-level cache.
"""

from __future__ import annotations

from math import ceil, log, prod

from tilewright.schedule.nest import LINE_BYTES
from tilewright.schedule.stage import Stage
from tilewright.schedule.tensor import IterVar, Tensor
from tilewright.schedule.types import bits

# About how many lines are asked for together, by loops around those of the sums: in the innermost
# loop, one at a time, they would take registers from the sums.
_LINES = 4
# Multiply-adds of vectors beside which a line is asked for at most: about as long as it takes from
# memory, of which all cores have a part.
_WORK_PER_LINE = 8
# Of the second-level cache, for the data that comes; as much is read meanwhile.
_CACHE_SHARE = 0.3


def fetched_ahead(
    stage: Stage,
    tensor: Tensor,
    tiles: IterVar,
    steps: IterVar,
    *,
    count: int,
    turns: int,
    share: int,
    cache_bytes: int,
    work: int = _WORK_PER_LINE,
) -> tuple[IterVar, ...]:
    """Has what the next iteration of a loop over tiles reads fetched in this one, bit by bit.

    Args:
        stage: the sums.
        tensor: what they read.
        tiles: the loop, of the sums or around them.
        steps: a loop of the sums, inside of `tiles`, that is split for it.
        count: iterations of `steps`.
        turns: how often `steps` runs in an iteration of `tiles`.
        share: in how many iterations of `tiles` all of the tensor is read.
        cache_bytes: of the second-level cache.
        work: multiply-adds of vectors in an iteration of `steps`: with more of them there is time
            for more lines.

    Returns:
        The loops that `steps` became: itself, where there is no next data, or it would come too
        late, or too much of it.
    """
    size = prod(tensor.shape) * bits(tensor.dtype) / 8 / share
    lines = ceil(size / LINE_BYTES)
    most = turns * count * max(1, work // _WORK_PER_LINE)
    if share == 1 or lines > most or size > _CACHE_SHARE * cache_bytes:
        return (steps,)
    each = lines / (turns * count)
    sizes = (size for size in range(1, count + 1) if count % size == 0)
    factor = min(sizes, key=lambda size: abs(log(size * each / _LINES)))
    outer, inner = stage.split(steps, factor)
    stage.prefetch(tensor, tiles, 1, during=outer)
    return outer, inner
