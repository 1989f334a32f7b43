"""Pieces of parallel work: some for each core, or one in all where there is little to do.

A piece that another core takes costs a little; work that one core does alone lets the others fall
asleep, and they are late for what comes next.
"""

from __future__ import annotations

from tilewright.space.knobs import TileKnob
from tilewright.space.turns import makespan
from tilewright.target import Target

# Seconds: that sharing work out costs, and each piece of it.
_SHARED_S, _PIECE_S = 1.5e-6, 1e-6
_ONE_IN_ALL = 0


def pieces_knob(target: Target) -> TileKnob:
    """How many pieces of work each core has; 0: one piece in all, which one core does.

    Args:
        target: has the cores.
    """
    a_core = (1, 2, 4, 8, 16)
    return TileKnob("pieces", a_core if target.cores == 1 else (_ONE_IN_ALL, *a_core))


def piece_count(pieces: int, target: Target) -> int:
    """In how many pieces work is divided.

    Args:
        pieces: a value of the knob.
        target: has the cores.
    """
    return max(1, pieces * target.cores)


def shared_seconds(one_core: float, count: int, target: Target, piece: float = _PIECE_S) -> float:
    """The time of work in pieces that all cores share.

    Args:
        one_core: seconds that the work takes on one core.
        count: how many pieces there are.
        target: has the cores.
        piece: seconds that each costs besides.

    Returns:
        Seconds, with what it costs to share it out.
    """
    shared = _SHARED_S if count > 1 and target.cores > 1 else 0.0
    return float(makespan(count, target.cores, one_core / count + piece)) + shared


def pieces_for(one_core: float, pieces: int, target: Target) -> int:
    """The value of the knob to begin with: `pieces`, or one in all where that takes less time.

    Args:
        one_core: seconds that the work takes on one core, estimated.
        pieces: for each core, where there is work for several.
        target: has the cores.
    """
    if target.cores == 1:
        return pieces
    counts = {n: piece_count(n, target) for n in (_ONE_IN_ALL, pieces)}
    return min(counts, key=lambda n: shared_seconds(one_core, counts[n], target))
