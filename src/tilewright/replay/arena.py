"""A recorded space ready to be searched: what became of each member, and what random would find."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from tilewright.errors import UserError
from tilewright.replay.curve import (
    NEAR,
    budget,
    expected_best,
    expected_best_by_time,
    random_trials,
)
from tilewright.replay.recording import ABSENT, STATUSES, Recording
from tilewright.replay.recording_file import read_recording
from tilewright.replay.space import open_space
from tilewright.space.arrays import BoolArray, FloatArray, IntArray
from tilewright.trial import Configuration, Status, Trial


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
        """What became of a member, by its number."""
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
        its samples, corrected for drift as the time is."""
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
        before is not measured again."""
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
    """The arena of a file; read once in a process."""
    return Arena(read_recording(path))
