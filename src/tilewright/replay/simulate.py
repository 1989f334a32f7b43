"""A search of a recorded space in simulated time, and what spaces of other shapes teach it.

The trials of other shapes that a search is told stand for what the database knows in tuning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tilewright.replay.arena import Arena, Race, open_arena
from tilewright.search.interface import Strategy, find_strategy
from tilewright.search.transfer import Experience, ranges
from tilewright.space.arrays import FloatArray, IntArray
from tilewright.space.interface import Space
from tilewright.trial import Configuration, Trial
from tilewright.tuning.stages import Source

MakeSearch = Callable[[Space, int, tuple[Trial, ...]], Source]
"""Makes a search of a space from a seed and the trials that are known beforehand."""

BATCH = 8
# A run that has not come near the optimum goes on for so many times random search's trials: so
# random search itself, whose median they are, has a median.
_PATIENCE = 1.25
EVALUATION, SECOND = "evaluation", "second"


@dataclass(frozen=True)
class Conditions:
    """What a search is told and how it is scored.

    - `per`: whether progress counts by `evaluation` or by simulated `second`.
    - `batch`: configurations asked for at a time (8, as in tuning).
    - `noisy`: it is told a single sample of each configuration instead of the robust time.
    - `prior`: whether the space has its prior.
    - `default`: whether it is told the trial of the compiler's own choice beforehand, as in tuning.
      That configuration then counts neither for the search nor for random search. Without, a random
      member of the space is shown as the default, and nothing is known.
    - `transfer`: of every other space of the same kind it is told this many trials, drawn at
      random anew in each run (see :func:`experience`).
    """

    per: str = EVALUATION
    batch: int = BATCH
    noisy: bool = False
    prior: bool = True
    default: bool = True
    transfer: int = 0

    def race(self, arena: Arena) -> Race:
        """What searches of the space are measured against.

        Args:
            arena: the space that is searched.
        """
        return arena.race(self.default, self.per == SECOND)


@dataclass(frozen=True)
class StrategyChoice:
    """A registered strategy with its options, and the label that results go under."""

    label: str
    name: str
    options: tuple[tuple[str, str], ...] = field(default=())

    def __call__(
        self,
        space: Space,
        seed: int,
        known: tuple[Trial, ...],
        experience: tuple[Experience, ...] = (),
    ) -> Strategy:
        return find_strategy(self.name)(space, seed, dict(self.options), known, experience)


@dataclass(frozen=True)
class SimulatedRun:
    """What one search did: the members it tried, in order, and what it was told of each (seconds,
    NaN for a failure); `seconds` is the simulated time after each."""

    members: IntArray
    told: FloatArray
    seconds: FloatArray


def simulate(arena: Arena, make: MakeSearch, conditions: Conditions, seed: int) -> SimulatedRun:
    """Search a space until the budget is used up.

    It goes on to a configuration near the optimum, or until random search would most likely have
    found one. What would follow the optimum itself is left out where it changes nothing, which is
    where times are told as they are. The same seed gives the same run.

    Args:
        arena: the space.
        make: makes the search.
        conditions: what it is told.
        seed: decides the search, and the noise.
    """
    race = conditions.race(arena)
    noise = np.random.default_rng([seed, 1]) if conditions.noisy else None
    space, known = _given(arena, conditions, seed)
    search = make(space, seed, known)
    tried: list[int] = []
    told: list[float] = []
    seen: set[Configuration] = set()
    best, seconds = math.inf, 0.0
    while _goes_on(race, conditions, len(tried), seconds, best):
        configs = [c for c in search.ask(conditions.batch) if c not in seen]
        if not configs:
            break
        seen.update(configs)
        batch = [arena.number[config] for config in configs]
        trials = [arena.trial(member, noise) for member in batch]
        search.tell(trials)
        tried += batch
        told += [t.time_s if t.ok and t.time_s is not None else math.nan for t in trials]
        best = min(best, float(race.values[batch].min()))
        if conditions.per == SECOND:
            seconds = float(arena.cost_s(np.array(tried, dtype=np.int64)).sum())
    members = np.array(tried, dtype=np.int64)
    return SimulatedRun(members, np.array(told, dtype=np.float64), np.cumsum(arena.cost_s(members)))


def _given(arena: Arena, conditions: Conditions, seed: int) -> tuple[Space, tuple[Trial, ...]]:
    """The space as the search sees it, and what it is told beforehand."""
    space = arena.space
    if conditions.default and arena.default is not None:
        trial = arena.trial(arena.number[arena.default])
        return space.seen_as(default=arena.default, prior=conditions.prior), (trial,)
    anywhere = int(np.random.default_rng([seed, 2]).integers(len(space.members)))
    return space.seen_as(default=space.members[anywhere], prior=conditions.prior), ()


def _goes_on(race: Race, conditions: Conditions, done: int, seconds: float, best: float) -> bool:
    if best <= race.optimum and not conditions.noisy:
        return False
    if conditions.per == SECOND:
        if seconds < race.budget * race.trial_s:
            return True
    elif done < race.budget:
        return True
    return best > race.near and done < _PATIENCE * race.random_trials


# -- what a run is worth ---------------------------------------------------------------------------


@dataclass(frozen=True)
class SearchScore:
    """A run against random search.

    `best` is the true time of the best so far at each step of the budget: of what looked best to
    the search; `explored` of what was best among what it tried (the same without noise). `trials`
    until a configuration near the optimum was tried (infinite: never).
    """

    best: FloatArray
    explored: FloatArray
    trials: float


def evaluate(arena: Arena, run: SimulatedRun, conditions: Conditions) -> SearchScore:
    """What a run found, against random search.

    Args:
        arena: the space.
        run: the run.
        conditions: those that it was made under.
    """
    race = conditions.race(arena)
    values = race.values[run.members]
    near = np.flatnonzero(arena.ok[run.members] & (values <= race.near))
    explored = np.minimum.accumulate(values) if len(values) else values
    best = explored
    if conditions.noisy:
        best = _looked_best(run.told, values)
    at = _done_at_steps(race, run, conditions)
    return SearchScore(
        best=_at(best, at, race.worst),
        explored=_at(explored, at, race.worst),
        trials=float(near[0]) + 1 if len(near) else math.inf,
    )


def _looked_best(told: FloatArray, values: FloatArray) -> FloatArray:
    """The true time of what looked best so far; the value of the first while nothing succeeded."""
    seen = np.where(np.isnan(told), np.inf, told)
    chosen = np.zeros(len(seen), dtype=np.int64)
    at = 0
    for i, time_s in enumerate(seen.tolist()):
        if time_s < seen[at]:
            at = i
        chosen[i] = at
    return values[chosen]


def _done_at_steps(race: Race, run: SimulatedRun, conditions: Conditions) -> IntArray:
    """How many trials were done at each step of the budget."""
    steps = np.arange(1, race.budget + 1)
    if conditions.per == SECOND:
        # A trial counts from when it is done.
        return np.searchsorted(run.seconds, steps * race.trial_s, side="right").astype(np.int64)
    return np.minimum(steps, len(run.members)).astype(np.int64)


def _at(curve: FloatArray, done: IntArray, before: float) -> FloatArray:
    """The curve after so many trials; `before` where there is none yet."""
    padded = np.concatenate([[before], curve])
    return padded[np.minimum(done, len(curve))]


def score(race: Race, best: FloatArray) -> float:
    """Mean over the budget of (random's expected best - the best so far) / (random's - optimum).

    1: at the optimum from the first; 0: as good as random search; below: worse. Steps at which
    random search is certain of the optimum are left out.

    Args:
        race: what the search is measured against.
        best: the best time after each step.
    """
    expected = race.expected[: race.budget]
    gap = expected - race.optimum
    open_ = gap > 1e-9 * race.optimum
    if not open_.any():
        return 1.0 if bool((best <= race.optimum).all()) else 0.0
    return float(((expected - best)[open_] / gap[open_]).mean())


def teachers(arena: Arena, paths: Iterable[Path]) -> list[Path]:
    """Those of the recorded spaces that are of the same kind and pipeline, and of other shapes.

    Args:
        arena: the space that is searched.
        paths: of the recordings to learn from.
    """
    subject = arena.recording.subject
    if subject is None:
        return []
    found = []
    for path in paths:
        other = open_arena(path).recording.subject
        if (
            other is not None
            and other.workload.kind == subject.workload.kind
            and other.workload.key != subject.workload.key
            and other.template.translation.pipeline == subject.template.translation.pipeline
        ):
            found.append(path)
    return found


def experience(paths: Sequence[Path], trials: int, seed: int) -> tuple[Experience, ...]:
    """Random trials of recorded spaces, to learn from.

    Args:
        paths: the spaces' files.
        trials: how many of each.
        seed: the same one draws the same.
    """
    return tuple(
        _drawn(open_arena(path), trials, np.random.default_rng([seed, number, 3]))
        for number, path in enumerate(paths)
    )


def _drawn(arena: Arena, trials: int, rng: np.random.Generator) -> Experience:
    drawn = rng.permutation(len(arena.rows))[:trials]
    times = np.where(arena.ok[drawn], arena.time_s[drawn], np.nan)
    described = arena.space.describe_many(arena.space.members)
    names = tuple(arena.space.descriptor_names)
    return Experience(names, described[drawn], times, ranges(described))
