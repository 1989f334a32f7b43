"""Jobs that a worker does together become what each of them would alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import worker_faults as faults

from tilewright.measure.bundles import bundled
from tilewright.measure.jobs import Job, Result
from tilewright.measure.pool import WorkerPool

LIMIT_S = 20.0


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2, timeout_s=LIMIT_S) as pool:
        yield pool


def job(payload: Any, **more: Any) -> Job[Any, Any]:
    return Job(faults.done_alone, payload, together=faults.done_together, **more)


def outcomes(results: list[Result[Any]]) -> list[Any]:
    return [r.failure.kind if r.failure is not None else r.value for r in results]


@pytest.mark.parametrize(
    ("jobs", "workers", "sizes"),
    [
        (1, 2, [1]),
        (2, 2, [1, 1]),
        (3, 2, [2, 1]),
        (5, 2, [3, 2]),
        (6, 2, [2, 2, 1, 1]),
        (8, 2, [3, 3, 1, 1]),
        (8, 16, [1] * 8),
        (18, 2, [8, 8, 1, 1]),
        (19, 2, [5, 4, 4, 4, 1, 1]),
        (20, 1, [7, 7, 6]),
    ],
)
def test_workers_get_as_much_each(jobs: int, workers: int, sizes: list[int]) -> None:
    given = [job(number, timeout_s=2.0, first_s=5.0) for number in range(jobs)]
    found = bundled(given, workers, LIMIT_S)
    assert [len(bundle.places) for bundle in found] == sizes
    assert sorted(place for bundle in found for place in bundle.places) == list(range(jobs))
    for bundle in found:
        assert bundle.job.timeout_s == 2.0 * len(bundle.places)
        assert bundle.job.first_s == 5.0


def test_others_stay_alone_and_in_their_order() -> None:
    echo = [Job(faults.echo, number) for number in range(2)]
    found = bundled([echo[0], job(1), job(2), echo[1], job(3)], 1, LIMIT_S)
    assert [bundle.places for bundle in found] == [(0,), (1, 2, 4), (3,)]
    assert found[1].job.timeout_s == 3 * LIMIT_S


def test_results_come_for_each_job(pool: WorkerPool) -> None:
    seen: list[Result[Any]] = []
    jobs = [job(number, tag=f"job {number}") for number in range(7)]
    results = pool.run(jobs, seen.append)
    how = ["together"] * 5 + ["alone"] * 2
    assert [r.value for r in results] == list(zip(how, range(7), strict=True))
    assert [r.job for r in results] == jobs
    assert sorted(r.job.tag for r in seen) == [j.tag for j in jobs]


def test_a_job_that_fails_is_the_only_one_that_does(pool: WorkerPool) -> None:
    results = pool.run([job(0), job("raise"), job(2), job(3)])
    assert outcomes(results) == [("together", 0), "error", ("together", 2), ("together", 3)]
    assert results[1].failure is not None
    assert results[1].failure.error_type == "ValueError"
    assert results[1].failure.message == "not this one"


@pytest.mark.parametrize(("harm", "kind"), [("die", "crashed"), ("hang", "timeout")])
def test_a_job_that_takes_its_worker_along_is_the_only_one(
    pool: WorkerPool, harm: str, kind: str
) -> None:
    """The others of its bundle are done once more, one by one; those of another one are not."""
    results = pool.run([job(number, timeout_s=0.7) for number in (0, harm, 2, 3)])
    assert outcomes(results) == [("alone", 0), kind, ("together", 2), ("together", 3)]


def test_an_answer_for_other_jobs_is_none(pool: WorkerPool) -> None:
    results = pool.run([job(number) for number in ("lose", 1, 2, 3)])
    assert outcomes(results)[:2] == [("alone", "lose"), ("alone", 1)]
