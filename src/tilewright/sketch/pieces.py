"""Pieces of parallel work: some for each core, or one in all where there is little to do.

Handing a piece to another core wakes a thread, which takes longer than a small kernel does: with
two workers a product of 32 by 120 numbers took 31 us from dispatch to dispatch in one piece and 37
in two, an image of 28x28x72 that is scaled 38 and 42.
"""

from __future__ import annotations

from tilewright.space.knobs import TileKnob
from tilewright.space.turns import turns
from tilewright.target import Target

# Seconds: of waking the thread of another core and waiting for it.
_WAKE_S = 8e-6
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


def shared_seconds(one_core: float, count: int, target: Target, piece: float) -> float:
    """The time of work in pieces that all cores share.

    Args:
        one_core: seconds that the work takes on one core.
        count: how many pieces there are.
        target: has the cores.
        piece: seconds that each costs besides.

    Returns:
        Seconds, with what it costs to wake another core where there is something for it.
    """
    done = float(turns(count, target.cores, spread=True))
    woken = _WAKE_S if count > 1 and target.cores > 1 else 0.0
    return one_core * done / count + done * piece + woken


def pieces_for(one_core: float, pieces: int, target: Target) -> int:
    """The value of the knob to begin with: `pieces`, or one in all where that takes less time.

    Args:
        one_core: seconds that the work takes on one core, estimated.
        pieces: for each core, where cores are worth waking.
        target: has the cores.
    """
    if target.cores == 1:
        return pieces
    return pieces if one_core * (1 - 1 / target.cores) > _WAKE_S else _ONE_IN_ALL
