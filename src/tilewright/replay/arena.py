"""A recorded space ready to be searched: what became of each member, and what random would find.

What random search finds is computed exactly. It draws without replacement. With the N values in
ascending order, the best of t draws is above the i-th with probability C(N - i, t) / C(N, t) (none
of the i smallest is drawn), so

    E(t) = v[1] + sum over i from 1 to N - 1 of (v[i + 1] - v[i]) * C(N - i, t) / C(N, t)

A configuration that failed has no time; until something has succeeded the best so far is taken to
be the worst time that was measured. A failure therefore counts as that value, which leaves the
formula as it is.

In simulated time there is no such formula: trials of different cost make the number of trials done
by a moment depend on what they found. There the mean over many random orders is taken, always the
same ones. (Baselines and budgets of this kind: F.-J. Willemsen, R. Schoonhoven,
J. Filipovic, J. O. Torring, R. van Nieuwpoort and B. van Werkhoven, "A methodology for comparing
optimization algorithms for auto-tuning", Future Generation Computer Systems 159, 2024.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import UserError
from tilewright.replay.recording import ABSENT, STATUSES, Recording, read_recording
from tilewright.replay.space import open_space
from tilewright.space.arrays import BoolArray, FloatArray, IntArray
from tilewright.trial import Configuration, Status, Trial, Value

CLOSED = 0.95
"""Share of the gap between the median and the optimum that random search closes in its budget."""

NEAR = 1.05
"""A configuration is near the optimum when it takes at most this times as long."""

# Random orders that a curve over time is the mean of, as far as so many draws in all allow.
_LEAST_ORDERS, _MOST_ORDERS, _DRAWS = 512, 8192, 5_000_000
_TOGETHER = 256


def expected_best(values: FloatArray) -> FloatArray:
    """E(1), …, E(N) of random search over these values, shape (N,).

    `values` holds the time of each configuration, of those that failed the worst time.

    Args:
        values: times of the members, in seconds.
    """
    ascending = np.sort(values)
    count = len(ascending)
    steps = np.diff(ascending)
    rank = np.arange(1, count)
    # The chance that none of the i smallest has been drawn, i = 1 to N - 1; now after no draw.
    above = np.ones(count - 1, dtype=np.float64)
    found = np.empty(count, dtype=np.float64)
    for draws in range(count):
        above = above * np.maximum(0, count - rank - draws) / (count - draws)
        found[draws] = ascending[0] + steps @ above
    return found


def expected_best_by_time(
    values: FloatArray, costs: Callable[[IntArray], FloatArray], step_s: float
) -> FloatArray:
    """Random search's mean best so far at moments of simulated time.

    A trial counts from when it is done; before the first the best so far is the worst value.

    Args:
        values: the time of each configuration in seconds, of those that failed the worst time;
            shape (N,).
        costs: seconds that trials take, for many orders at once: positions in `values`, shape
            (orders, N), to seconds of the same shape.
        step_s: seconds between the moments.

    Returns:
        Seconds at `step_s`, 2 `step_s`, …; shape (N,).
    """
    count = len(values)
    times = step_s * np.arange(1, count + 1)
    orders = max(_LEAST_ORDERS, min(_MOST_ORDERS, _DRAWS // count))
    rng = np.random.default_rng(0)
    total = np.zeros(count, dtype=np.float64)
    for first in range(0, orders, _TOGETHER):
        rows = min(_TOGETHER, orders - first)
        drawn = rng.permuted(np.tile(np.arange(count), (rows, 1)), axis=1)
        done = np.cumsum(costs(drawn), axis=1)
        best = np.minimum.accumulate(values[drawn], axis=1)
        # The cost of all trials adds up to the last time, but for rounding.
        best = np.column_stack([np.full(rows, values.max()), best])
        for finished, found in zip(done, best, strict=True):
            total += found[np.searchsorted(finished, times * (1 + 1e-12), side="right")]
    return total / orders


def budget(expected: FloatArray, optimum: float, median: float) -> int:
    """Steps after which random search has closed `CLOSED` of the gap between median and optimum.

    Args:
        expected: its expected best after 1, 2, … steps, in seconds.
        optimum: the least time, in seconds.
        median: of the times, in seconds.
    """
    aim = optimum + (1 - CLOSED) * (median - optimum)
    # The last value is the optimum itself, but for rounding.
    reached = np.flatnonzero(expected <= aim + 1e-12 * median)
    return int(reached[0]) + 1 if len(reached) else len(expected)


def random_trials(count: int, good: int, chance: float = 0.5) -> int:
    """Draws without replacement until a good configuration has come.

    Args:
        count: how many configurations there are.
        good: how many of them are good, at least 1.
        chance: with which one of them is to have come.
    """
    missed = 1.0
    for draws in range(count):
        missed *= max(0, count - good - draws) / (count - draws)
        if 1 - missed >= chance - 1e-12:
            return draws + 1
    return count


@dataclass(frozen=True, eq=False)
class Race:
    """What a search of a space is measured against.

    `counts` tells the members that take part: all, but the default where the search is told it
    beforehand. `values` has the time of each member (of a failure the worst time of all),
    `expected` random search's expected best after 1, 2, … steps, `budget` how many of them are
    scored, `random_trials` its median number of trials to a configuration near the optimum. A step
    is an evaluation; of a race in simulated time it is `trial_s` seconds, what a trial costs on
    average when all are done.
    """

    counts: BoolArray
    values: FloatArray
    expected: FloatArray
    optimum: float
    median: float
    worst: float
    budget: int
    random_trials: int
    trial_s: float

    @property
    def near(self) -> float:
        """A time up to which a configuration is near the optimum."""
        return self.optimum * NEAR


class Arena:
    """A recording as searches meet it. Arrays have a row for each member of `space`."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.space, self.notes = open_space(recording)
        at = {config: row for row, config in enumerate(recording.configurations)}
        self.rows: IntArray = np.array([at[m] for m in self.space.members], dtype=np.int64)
        self.ok: BoolArray = recording.ok[self.rows]
        self.time_s: FloatArray = recording.time_s[self.rows]
        self.compile_s: FloatArray = recording.compile_s[self.rows]
        self.measure_s: FloatArray = recording.measure_s[self.rows]
        self.program: IntArray = recording.program[self.rows]
        self.number = self.space.tables.row
        self._races: dict[tuple[bool, bool], Race] = {}
        if not self.ok.any():
            raise UserError(f"{recording.name}: every configuration failed: nothing to search for")

    @property
    def name(self) -> str:
        """The recording's name."""
        return self.recording.name

    @property
    def default(self) -> Configuration | None:
        """The compiler's own choice, where it is a member that was measured."""
        found = self.recording.default
        return found if found is not None and found in self.number else None

    def status(self, member: int) -> Status:
        """What became of a member, by its number.

        Args:
            member: its row.
        """
        return STATUSES[int(self.recording.status[self.rows[member]])]

    @cached_property
    def _samples(self) -> tuple[FloatArray, ...]:
        return tuple(self._corrected(member) for member in range(len(self.rows)))

    def _corrected(self, member: int) -> FloatArray:
        raw = self.recording.samples_of(int(self.rows[member]))
        if not self.ok[member] or len(raw) == 0:
            return raw
        # What `time_s` was corrected by: the machine's speed then, not the noise of a sample.
        drift = float(np.quantile(raw, 0.25)) / float(self.time_s[member])
        return np.asarray(raw / drift)

    def trial(self, member: int, rng: np.random.Generator | None = None) -> Trial:
        """The trial of a member as a search is told it: with its time, or with a generator one of
        its samples, corrected for drift as the time is.

        Args:
            member: its row.
            rng: draws one of its samples; without it the time is the recorded one.
        """
        status = self.status(member)
        config = self.space.members[member]
        phases = {
            "compile": float(self.compile_s[member]),
            "measure": float(self.measure_s[member]),
        }
        if status is not Status.OK:
            return Trial(config, status, phase_s=phases)
        time_s = float(self.time_s[member])
        if rng is None:
            return Trial(config, status, time_s=time_s, phase_s=phases)
        samples = self._samples[member]
        drawn = float(samples[rng.integers(len(samples))]) if len(samples) else time_s
        return Trial(config, status, time_s=drawn, samples=(drawn,), phase_s=phases)

    def cost_s(self, members: IntArray) -> FloatArray:
        """Simulated seconds of trials in this order, shape (trials,), or of many orders of the same
        members, shape (orders, trials): each compiles; one whose program is equal to that of one
        before is not measured again.

        Args:
            members: their rows.
        """
        programs = self.program[members]
        measured = np.ones(members.shape, dtype=np.bool_)
        numbers, counts = np.unique(np.atleast_2d(programs)[0], return_counts=True)
        for number in numbers[(counts > 1) & (numbers != ABSENT)]:
            equal = programs == number
            measured &= ~equal | (np.cumsum(equal, axis=-1) == 1)
        return np.asarray(self.compile_s[members] + np.where(measured, self.measure_s[members], 0))

    def race(self, without_default: bool, by_time: bool = False) -> Race:
        """What is to be found, with or without the default as something to be found, in evaluations
        or in simulated time.

        UserError when no time is below the median: then there is nothing to be better at; or when
        it is not known how long trials took.

        Args:
            without_default: the default does not take part.
            by_time: steps are of simulated time.
        """
        key = without_default, by_time
        found = self._races.get(key)
        if found is None:
            found = self._race(without_default)
            if by_time:
                found = self._in_time(found)
            self._races[key] = found
        return found

    def _in_time(self, race: Race) -> Race:
        """The same race with steps of time in place of evaluations."""
        if not race.trial_s > 0:
            raise UserError(f"{self.name}: it is not known how long its trials took")
        members = np.flatnonzero(race.counts)
        expected = expected_best_by_time(
            race.values[members], lambda drawn: self.cost_s(members[drawn]), race.trial_s
        )
        end = budget(expected, race.optimum, race.median)
        return replace(race, expected=expected, budget=end)

    def _race(self, without_default: bool) -> Race:
        counts = np.ones(len(self.rows), dtype=np.bool_)
        if without_default and self.default is not None:
            counts[self.number[self.default]] = False
        timed = self.time_s[counts & self.ok]
        if len(timed) == 0 or not float(timed.min()) < float(np.median(timed)):
            raise UserError(
                f"{self.name}: no configuration is faster than the median; there is nothing to "
                "search for"
            )
        worst, optimum, median = float(timed.max()), float(timed.min()), float(np.median(timed))
        values = np.where(self.ok, self.time_s, worst)
        expected = expected_best(values[counts])
        near = int((timed <= optimum * NEAR).sum())
        return Race(
            counts=counts,
            values=values,
            expected=expected,
            optimum=optimum,
            median=median,
            worst=worst,
            budget=budget(expected, optimum, median),
            random_trials=random_trials(int(counts.sum()), near),
            trial_s=float(self.cost_s(np.flatnonzero(counts)).mean()),
        )


@lru_cache(maxsize=64)
def open_arena(path: Path) -> Arena:
    """The arena of a file; read once in a process.

    Args:
        path: of the recording.
    """
    return Arena(read_recording(path))


# Of what is known of a recording, what a reader wants to see.
_RECORDED = ("processor", "threads", "date", "iree", "program", "dispatch", "imported")


@dataclass(frozen=True)
class Description:
    """What `tilewright replay show` shows. Times in seconds; None where there is no default.

    `knobs` holds the values of those that vary, `failures` the number of configurations by status.
    `optimum` is the best configuration, in words. `budget` and `random_trials` count random
    search's trials: to close 95% of the gap between the median and the optimum, and (as a median)
    to come within 5% of it.
    """

    name: str
    kind: str
    workload: str
    configurations: int
    ok: int
    failures: dict[str, int]
    knobs: dict[str, tuple[Value, ...]]
    optimum_s: float
    median_s: float
    worst_s: float
    default_s: float | None
    optimum: str
    budget: int
    random_trials: int
    recorded: dict[str, Any]
    notes: tuple[str, ...]


def describe_space(path: Path) -> Description:
    """The description of a file; UserError when it cannot be read, or there is nothing to find.

    Args:
        path: of the recording.
    """
    arena = open_arena(path)
    race = arena.race(True)
    recording = arena.recording
    statuses = Counter(arena.status(member) for member in range(len(arena.rows)))
    default = arena.default
    default_s = None
    if default is not None and arena.ok[arena.number[default]]:
        default_s = float(arena.time_s[arena.number[default]])
    varied = {knob.name: knob.values for knob in recording.knobs if len(knob.values) > 1}
    return Description(
        name=recording.name,
        kind=recording.kind,
        workload="" if recording.subject is None else recording.subject.workload.name,
        configurations=len(arena.rows),
        ok=statuses[Status.OK],
        failures={str(s): n for s, n in sorted(statuses.items()) if s is not Status.OK},
        knobs=varied,
        optimum_s=race.optimum,
        median_s=race.median,
        worst_s=race.worst,
        default_s=default_s,
        optimum=_words(arena, list(varied)),
        budget=race.budget,
        random_trials=race.random_trials,
        recorded={key: recording.facts[key] for key in _RECORDED if recording.facts.get(key)},
        notes=arena.notes,
    )


def _words(arena: Arena, varied: list[str]) -> str:
    race = arena.race(True)
    best = int(np.where(arena.ok & race.counts, arena.time_s, np.inf).argmin())
    values = dict(arena.space.members[best].items)
    return ", ".join(f"{name} {values[name]}" for name in varied if name in values)
