"""How workgroups are shared out: one at a time, eight at a time where there are many."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.space.turns import is_spread, turns


@pytest.mark.parametrize(
    ("cores", "workgroups", "most"),
    [
        (1, (9,), (9,)),
        (2, (1, 2, 3, 15, 20, 40, 42, 64), (1, 1, 2, 8, 12, 24, 24, 32)),
        (4, (20, 33, 36), (5, 9, 12)),
        (16, (127, 128, 129), (8, 8, 9)),
    ],
)
def test_the_busiest_core(cores: int, workgroups: tuple[int, ...], most: tuple[int, ...]) -> None:
    assert tuple(turns(workgroups, cores)) == most
    assert tuple(float(turns(one, cores)) for one in workgroups) == most


def test_many_at_once() -> None:
    counts = np.arange(1, 300)
    for cores in (1, 2, 3, 8):
        assert turns(counts, cores).tolist() == [_simulated(int(n), cores) for n in counts]


def test_spread_workgroups_go_one_by_one() -> None:
    for cores in (1, 2, 3, 8):
        for count in (15, 16, 20, 40, 64 * cores, 64 * cores + 1):
            spread = bool(is_spread(count, cores))
            assert spread == (cores > 1 and 8 * cores <= count <= 64 * cores)
            own = float(turns(count, cores, spread=True))
            assert own == (-(-count // cores) if spread else float(turns(count, cores)))


def _simulated(workgroups: int, cores: int) -> int:
    """Cores that each take the next ones when they have done theirs."""
    at_once = 8 if workgroups >= 8 * cores else 1
    done = [0] * cores
    while workgroups:
        free = done.index(min(done))
        taken = min(at_once, workgroups)
        done[free] += taken
        workgroups -= taken
    return max(done)
