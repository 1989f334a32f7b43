"""How workgroups are shared out: one at a time, eight at a time where there are many."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.space.turns import LATE_S, is_spread, makespan, turns


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


@pytest.mark.parametrize("cores", [2, 3, 8])
def test_makespan_of_cores_that_begin_late(cores: int) -> None:
    # Too short for any to fall asleep, one to some of a late core's waiting.
    for each in (0.3 * LATE_S, LATE_S, 1.5 * LATE_S):
        for count in (*range(1, 2 * cores), 8 * cores, 9 * cores + 1, 60 * cores):
            free = [0.0, *[LATE_S] * (cores - 1)]
            done = 0.0
            for _ in range(count):
                first = free.index(min(free))
                free[first] += each
                done = max(done, free[first])
            assert float(makespan(count, cores, each)) == pytest.approx(done)


def test_makespan_of_one_core_is_all_of_its_work() -> None:
    assert makespan(np.array([1, 7, 200]), 1, 1e-6).tolist() == pytest.approx([1e-6, 7e-6, 2e-4])


def test_many_small_workgroups_are_done_before_few_large_ones() -> None:
    work = 700e-6
    spent = [float(makespan(count, 2, work / count)) for count in (1, 2, 14, 28, 56)]
    assert spent == sorted(spent, reverse=True)


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
