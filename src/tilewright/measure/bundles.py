"""Jobs that a worker does together, because one of many takes less time than many of one.

What becomes of each of them is as if it had been done alone: a bundle whose worker dies, hangs or
refuses is undone, and its jobs are done one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.measure.jobs import Job, Result, WorkerTask

# More of them gain little: of eight kernels each takes 5% less than of four, of four 35% less than
# alone.
_MOST = 8
# Jobs for each worker from which on the last ones are kept for the end.
_MANY = 3


@dataclass(frozen=True)
class Bundle:
    """Jobs for one worker, by their places in the list that they come from."""

    places: tuple[int, ...]
    job: Job[Any, Any]

    def results(self, jobs: Sequence[Job[Any, Any]], result: Result[Any]) -> list[Result[Any]]:
        """What became of each job.

        Args:
            jobs: the list.
            result: of the bundle's own job.

        Returns:
            A result for each of `places`; none where they have to be done one by one.
        """
        if len(self.places) == 1:
            return [Result(jobs[self.places[0]], result.outcome, result.seconds)]
        found = result.outcome
        if not isinstance(found, list) or len(found) != len(self.places):
            return []
        seconds = result.seconds / len(found)
        return [Result(jobs[at], one, seconds) for at, one in zip(self.places, found, strict=True)]


def bundled(jobs: Sequence[Job[Any, Any]], workers: int, default_timeout_s: float) -> list[Bundle]:
    """Jobs in bundles: those that say that they can be done together, as evenly as there are
    workers; the others each in one of its own.

    Args:
        jobs: to be done, in any order.
        workers: that share them.
        default_timeout_s: of jobs that have none of their own.

    Returns:
        The bundles; what comes first in the list comes first there.
    """
    alike: dict[WorkerTask[Any, Any], list[int]] = {}
    for place, job in enumerate(jobs):
        if job.together is not None:
            alike.setdefault(job.together, []).append(place)
    found = [Bundle((place,), job) for place, job in enumerate(jobs) if job.together is None]
    for task, places in alike.items():
        for shared in _shares(places, workers):
            found.append(
                Bundle(shared, _joined(task, [jobs[at] for at in shared], default_timeout_s))
            )
    return sorted(found, key=lambda bundle: bundle.places[0])


def _shares(places: Sequence[int], workers: int) -> Iterator[tuple[int, ...]]:
    """Places in parts that differ by one at most, a multiple of the workers where that is fewer
    than there are places; where these are many, the last ones alone, for the workers that are done
    first: what a job takes is not known before."""
    alone = workers if workers > 1 and len(places) >= _MANY * workers else 0
    shared, last = places[: len(places) - alone], places[len(places) - alone :]
    rounds = -(-len(shared) // (_MOST * workers))
    parts = min(len(shared), rounds * workers)
    begin = 0
    for part in range(parts):
        end = begin + -(-(len(shared) - begin) // (parts - part))
        yield tuple(shared[begin:end])
        begin = end
    yield from ((place,) for place in last)


def _joined(
    task: WorkerTask[Any, Any], jobs: Sequence[Job[Any, Any]], default_timeout_s: float
) -> Job[Any, Any]:
    if len(jobs) == 1:
        return jobs[0]
    return Job(
        task,
        [job.request for job in jobs],
        sum(default_timeout_s if job.timeout_s is None else job.timeout_s for job in jobs),
        processor_time=all(job.processor_time for job in jobs),
        first_s=max(job.first_s for job in jobs),
    )
