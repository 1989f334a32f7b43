"""How workgroups are shared out: one at a time, eight at a time where there are many."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.space.turns import is_spread, makespan, turns


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
def test_makespan_is_that_of_the_busiest_core_where_all_have_the_same(cores: int) -> None:
    for each in (1e-6, 1e-4):
        for count in (cores, 2 * cores, 8 * cores, 60 * cores):
            assert float(makespan(count, cores, each)) == pytest.approx(count // cores * each)


def test_cores_that_wait_long_fall_asleep_which_costs_the_next_dispatch() -> None:
    for cores in (2, 8):
        assert float(makespan(1, cores, 8e-6)) == pytest.approx(8e-6)
        assert float(makespan(1, cores, 40e-6)) > 50e-6
        # One of the last round has more to do than the others.
        assert float(makespan(cores + 1, cores, 40e-6)) > 90e-6
        assert float(makespan(cores + 1, cores, 4e-6)) == pytest.approx(8e-6)


def test_makespan_of_one_core_is_all_of_its_work() -> None:
    assert makespan(np.array([1, 7, 200]), 1, 1e-6).tolist() == pytest.approx([1e-6, 7e-6, 2e-4])


def test_uneven_large_workgroups_take_longer_than_small_ones() -> None:
    work = 700e-6
    spent = [float(makespan(count, 2, work / count)) for count in (1, 3, 7, 15, 28)]
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
