"""Strategies scored on recorded spaces: many runs of each, in parallel processes."""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import UserError
from tilewright.replay.arena import open_arena
from tilewright.replay.recording import shipped
from tilewright.replay.simulate import (
    Conditions,
    SearchScore,
    StrategyChoice,
    evaluate,
    experience,
    score,
    simulate,
    teachers,
)
from tilewright.search.interface import find_strategy
from tilewright.search.strategy_options import parse_assignments
from tilewright.space.arrays import FloatArray

RUNS = 200
RESAMPLES = 2000
CONFIDENCE = 0.95
# Runs that a process does before it reports back, at most.
_CHUNK = 25
# Libraries of learned strategies would each start a thread for every core.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, eq=False)
class SpaceScores:
    """The runs of one strategy on one space.

    `scores` and `explored` have one row for each run (they differ only where a single sample was
    told), `trials` how many it took to come near the optimum (infinite: it did not), `curve` the
    mean over the runs of the best so far at each step of the budget, in seconds. `random_trials`:
    what random search takes, as a median.
    """

    space: str
    scores: FloatArray
    explored: FloatArray
    trials: FloatArray
    curve: FloatArray
    random_trials: int

    @property
    def mean(self) -> float:
        """Mean over the runs."""
        return float(self.scores.mean())

    @property
    def median_trials(self) -> float:
        """Median over the runs; infinite when half of them or more did not come near."""
        return float(np.sort(self.trials)[len(self.trials) // 2])

    @property
    def trials_ratio(self) -> float:
        """Trials to come near the optimum, over those of random search."""
        return self.median_trials / self.random_trials


@dataclass(frozen=True, eq=False)
class StrategyScores:
    """The runs of one strategy on all spaces."""

    label: str
    spaces: tuple[SpaceScores, ...]

    @property
    def mean(self) -> float:
        """Mean over the spaces."""
        return float(np.mean([space.mean for space in self.spaces]))

    @property
    def interval(self) -> tuple[float, float]:
        """Percentile-bootstrap interval (95%) of the mean: the runs of each space are drawn anew,
        the spaces are the same. The same scores give the same interval."""
        return bootstrap([space.scores for space in self.spaces])

    @property
    def explored(self) -> float:
        """The mean, had the best configuration that was tried been recognised."""
        return float(np.mean([space.explored.mean() for space in self.spaces]))

    @property
    def trials_ratio(self) -> float:
        """Median over the spaces."""
        return float(np.median([space.trials_ratio for space in self.spaces]))

    def to_json(self, noisy: bool) -> dict[str, Any]:
        """Plain data for JSON; with `noisy` also what was lost by exploring and by selecting."""
        data: dict[str, Any] = {
            "mean": self.mean,
            "interval": list(self.interval),
            "spaces": {space.space: space.mean for space in self.spaces},
            "intervals": {space.space: list(bootstrap([space.scores])) for space in self.spaces},
            "trials_to_5pct": {
                space.space: {
                    "strategy": _finite(space.median_trials),
                    "random": space.random_trials,
                    "ratio": _finite(space.trials_ratio),
                }
                for space in self.spaces
            },
            "trials_to_5pct_ratio": _finite(self.trials_ratio),
        }
        if noisy:
            data["lost_by_exploring"] = 1 - self.explored
            data["lost_by_selecting"] = self.explored - self.mean
        return data


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def bootstrap(groups: Sequence[FloatArray], seed: int = 0) -> tuple[float, float]:
    """Percentile-bootstrap interval of the mean of the groups' means.

    B. Efron and R. Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13: values are
    drawn with replacement within each group.
    """
    rng = np.random.default_rng(seed)
    means = np.zeros(RESAMPLES, dtype=np.float64)
    for values in groups:
        drawn = rng.integers(len(values), size=(RESAMPLES, len(values)))
        means += values[drawn].mean(axis=1)
    low, high = np.quantile(means / len(groups), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def parse_strategy(text: str) -> StrategyChoice:
    """`NAME` or `NAME:option=value,option=value`; UserError for what is unknown or not allowed."""
    name, _, rest = text.partition(":")
    where = "--strategy"
    found = find_strategy(name.strip(), where)
    options = parse_assignments(rest.split(","), f"{where} {text}:") if rest else {}
    found.check(options)
    return StrategyChoice(text, found.name, tuple(options.items()))


# -- running ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Chunk:
    """Some runs of one strategy on one space; `teachers` are the spaces that it learns from."""

    choice: StrategyChoice
    path: Path
    conditions: Conditions
    seeds: tuple[int, ...]
    teachers: tuple[Path, ...] = ()


def _work(chunk: _Chunk) -> list[SearchScore]:
    arena = open_arena(chunk.path)
    found = []
    for seed in chunk.seeds:
        told = experience(chunk.teachers, chunk.conditions.transfer, seed)
        make = partial(chunk.choice, experience=told)
        run = simulate(arena, make, chunk.conditions, seed)
        found.append(evaluate(arena, run, chunk.conditions))
    return found


def score_strategies(
    paths: Sequence[Path],
    choices: Sequence[StrategyChoice],
    conditions: Conditions,
    *,
    runs: int = RUNS,
    seed: int = 0,
    jobs: int = 1,
    on_space: Callable[[str, SpaceScores], object] = lambda label, scores: None,
) -> list[StrategyScores]:
    """Run every strategy on every space.

    Run number r has the same seed for every strategy. The result depends on `seed`, not on `jobs`.

    Args:
        paths: the spaces' files, of different names.
        choices: the strategies, each once.
        conditions: what they are told, and how they are scored.
        runs: of each strategy on each space.
        seed: decides all runs.
        jobs: the number of processes.
        on_space: told what is done, in any order.

    Raises:
        UserError: for a space that cannot be read or scored, or a choice that is there twice.
    """
    labels = [choice.label for choice in choices]
    for label in labels:
        if labels.count(label) > 1:
            # Their results would fall together.
            raise UserError(f"--strategy {label}: given twice; give it once")
    names = [open_arena(path).name for path in paths]
    for path, name in zip(paths, names, strict=True):
        if names.count(name) > 1:
            raise UserError(f"{path}: there are two spaces of the name {name}; leave one out")
        conditions.race(open_arena(path))
    others = dict.fromkeys([*paths, *shipped().values()]) if conditions.transfer else {}
    learned_from = {path: teachers(open_arena(path), others) for path in paths}
    size = max(1, min(_CHUNK, math.ceil(runs * len(paths) * len(choices) / (4 * jobs))))
    chunks = [
        _Chunk(
            choice,
            path,
            conditions,
            tuple(_seed(seed, name, r) for r in numbers),
            tuple(learned_from[path]),
        )
        for choice in choices
        for path, name in zip(paths, names, strict=True)
        for numbers in _split(runs, size)
    ]
    gathered: dict[tuple[str, Path], dict[int, list[SearchScore]]] = {}
    finished: dict[tuple[str, Path], SpaceScores] = {}
    wanted = len(_split(runs, size))
    with _results(chunks, jobs) as results:
        for number, done in results:
            chunk = chunks[number]
            key = chunk.choice.label, chunk.path
            parts = gathered.setdefault(key, {})
            parts[number] = done
            if len(parts) == wanted:
                in_order = [outcome for i in sorted(parts) for outcome in parts[i]]
                finished[key] = _joined(chunk, in_order)
                on_space(chunk.choice.label, finished[key])
    return [
        StrategyScores(choice.label, tuple(finished[choice.label, path] for path in paths))
        for choice in choices
    ]


def _split(runs: int, size: int) -> list[range]:
    return [range(first, min(first + size, runs)) for first in range(0, runs, size)]


def _seed(seed: int, space: str, run: int) -> int:
    text = f"{seed}/{space}/{run}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "little")


def _joined(chunk: _Chunk, outcomes: Sequence[SearchScore]) -> SpaceScores:
    arena = open_arena(chunk.path)
    race = chunk.conditions.race(arena)
    return SpaceScores(
        space=arena.name,
        scores=np.array([score(race, o.best) for o in outcomes], dtype=np.float64),
        explored=np.array([score(race, o.explored) for o in outcomes], dtype=np.float64),
        trials=np.array([o.trials for o in outcomes], dtype=np.float64),
        curve=np.mean([o.best for o in outcomes], axis=0),
        random_trials=race.random_trials,
    )


@contextmanager
def _results(
    chunks: Sequence[_Chunk], jobs: int
) -> Iterator[Iterator[tuple[int, list[SearchScore]]]]:
    """The results with the chunks' numbers, as they come; when it is left, nothing goes on."""
    if jobs == 1:
        yield ((number, _work(chunk)) for number, chunk in enumerate(chunks))
        return
    before = set(multiprocessing.active_children())
    # Fresh processes: what this one has loaded may hold threads and locks.
    context = multiprocessing.get_context("spawn")
    with _single_threaded():
        pool = ProcessPoolExecutor(min(jobs, len(chunks)), context, initializer=_leave_signals)
        futures: dict[Future[list[SearchScore]], int] = {
            pool.submit(_work, chunk): number for number, chunk in enumerate(chunks)
        }
    try:
        yield ((futures[future], future.result()) for future in as_completed(futures))
    except BrokenProcessPool as error:
        raise UserError(
            "--jobs: a process ended of itself, most likely for lack of memory; try fewer"
        ) from error
    except BaseException:
        for process in set(multiprocessing.active_children()) - before:
            process.kill()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _leave_signals() -> None:
    """Ctrl-C is for the process that leads; it ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Processes started within have numeric libraries of one thread each."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
