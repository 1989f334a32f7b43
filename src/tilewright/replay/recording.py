"""A recorded space: every configuration of a space with what became of it.

A recording is measured once (:mod:`tilewright.replay.record`) and searched any number of times
without a machine (:mod:`tilewright.replay.simulate`). It holds the raw samples, so that a search
can be shown the noise as well as the truth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.space.arrays import BoolArray, FloatArray, IntArray
from tilewright.target import Target
from tilewright.tiling import DispatchTemplate
from tilewright.trial import Configuration, Status, Trial, Value
from tilewright.workload import Workload

ABSENT = -1
"""Stands in `Recording.indices` where a configuration lacks a knob, and in `Recording.program`
where there is no program."""

STATUSES = tuple(Status)

FOREIGN = "foreign"


@dataclass(frozen=True)
class KnobValues:
    """A knob of a recording and the values that it was recorded with, in their order."""

    name: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class RecordedDispatch:
    """The dispatch that was recorded: all that its search space is made from."""

    workload: Workload
    template: DispatchTemplate
    target: Target


@dataclass(frozen=True, eq=False)
class Recording:
    """Configurations with their outcomes. Arrays have one row for each configuration.

    - `indices`: shape (configurations, knobs), the position of each value in its knob's values,
      `ABSENT` where a configuration lacks a knob (those of another pipeline).
    - `status`: positions in `STATUSES`.
    - `time_s`: seconds of one execution; NaN unless ok.
    - `samples`: raw samples of all rows one after another, seconds of one execution; those of row
      i are `samples[offsets[i] : offsets[i + 1]]`.
    - `compile_s`, `measure_s`: seconds that the phases of a trial took.
    - `program`: rows with equal numbers have equal programs, which tuning measures once.

    `default` is the compiler's own choice, `subject` the dispatch; both are None for recordings of
    other tools. `facts` says how, when and on what it was recorded.
    """

    name: str
    knobs: tuple[KnobValues, ...]
    indices: IntArray
    status: IntArray
    time_s: FloatArray
    samples: npt.NDArray[np.float32]
    offsets: IntArray
    compile_s: FloatArray
    measure_s: FloatArray
    program: IntArray
    default: Configuration | None = None
    subject: RecordedDispatch | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def kind(self) -> str:
        """The kind of workload; `FOREIGN` where it is not known."""
        return FOREIGN if self.subject is None else self.subject.workload.kind

    @cached_property
    def ok(self) -> BoolArray:
        """Which rows have a time."""
        return np.asarray(self.status == STATUSES.index(Status.OK))

    @cached_property
    def configurations(self) -> tuple[Configuration, ...]:
        """The configuration of each row."""
        return tuple(
            Configuration.of(
                {
                    knob.name: knob.values[at]
                    for knob, at in zip(self.knobs, row, strict=True)
                    if at != ABSENT
                }
            )
            for row in self.indices.tolist()
        )

    def samples_of(self, row: int) -> FloatArray:
        """The raw samples of a row, shape (samples,)."""
        own = self.samples[self.offsets[row] : self.offsets[row + 1]]
        return own.astype(np.float64)

    def trial(self, row: int) -> Trial:
        """A row as the trial that it was."""
        time_s = float(self.time_s[row])
        phases = {"compile": float(self.compile_s[row]), "measure": float(self.measure_s[row])}
        return Trial(
            self.configurations[row],
            STATUSES[int(self.status[row])],
            time_s=None if math.isnan(time_s) else time_s,
            samples=tuple(self.samples_of(row).tolist()),
            phase_s={name: seconds for name, seconds in phases.items() if seconds > 0},
        )

    @staticmethod
    def of(
        name: str,
        knobs: Sequence[KnobValues],
        trials: Sequence[Trial],
        *,
        default: Configuration | None = None,
        subject: RecordedDispatch | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> Recording:
        """The recording of trials.

        Where a trial took over the result of an equal program, its measuring phase is that
        program's: which of them a search would measure depends on its order.

        Args:
            name: of the recording.
            knobs: with the values that the trials have.
            trials: each of another configuration.
            default: the compiler's own choice.
            subject: the dispatch.
            facts: how, when and on what it was recorded.
        """
        at = [{_same(v): i for i, v in enumerate(knob.values)} for knob in knobs]
        indices = np.full((len(trials), len(knobs)), ABSENT, dtype=np.int64)
        for row, trial in zip(indices, trials, strict=True):
            values = trial.configuration.values
            for column, knob in enumerate(knobs):
                if knob.name in values:
                    row[column] = at[column][_same(values[knob.name])]
        programs: dict[str, int] = {}
        program = np.array(
            [
                programs.setdefault(trial.binary, len(programs)) if trial.binary else ABSENT
                for trial in trials
            ],
            dtype=np.int64,
        )
        measure = np.array([t.phase_s.get("measure", 0.0) for t in trials], dtype=np.float64)
        for number in range(len(programs)):
            measure[program == number] = measure[program == number].max()
        counts = [len(trial.samples) for trial in trials]
        samples = [s for trial in trials for s in trial.samples]
        return Recording(
            name=name,
            knobs=tuple(knobs),
            indices=indices,
            status=np.array([STATUSES.index(t.status) for t in trials], dtype=np.int64),
            time_s=np.array(
                [t.time_s if t.ok and t.time_s is not None else np.nan for t in trials],
                dtype=np.float64,
            ),
            samples=np.array(samples, dtype=np.float32),
            offsets=np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64),
            compile_s=np.array([t.phase_s.get("compile", 0.0) for t in trials], dtype=np.float64),
            measure_s=measure,
            program=program,
            default=default,
            subject=subject,
            facts=dict(facts or {}),
        )


def knob_values(configurations: Sequence[Configuration]) -> tuple[KnobValues, ...]:
    """Every knob of the configurations with the values that occur, sizes in ascending order."""
    found: dict[str, dict[tuple[type, Value], Value]] = {}
    for configuration in configurations:
        for name, value in configuration.items:
            found.setdefault(name, {})[_same(value)] = value
    return tuple(
        KnobValues(name, _ordered(list(values.values()))) for name, values in found.items()
    )


def _ordered(values: list[Value]) -> tuple[Value, ...]:
    numbers = [v for v in values if isinstance(v, int)]
    return tuple(sorted(numbers)) if len(numbers) == len(values) else tuple(values)


def _same(value: Value) -> tuple[type, Value]:
    """Key under which values are compared: Python holds `True == 1`, a knob does not."""
    return type(value), value
