"""A recorded space: every configuration of a space with what became of it, and its file.

A recording is measured once (:mod:`tilewright.replay.record`) and searched any number of times
without a machine (:mod:`tilewright.replay.simulate`). It holds the raw samples, so that a search
can be shown the noise as well as the truth.

Its file is one compressed .npz, a JSON header and plain arrays in it. Version 1. The array `header`
is UTF-8 JSON: `format`, `version`, `name`, `knobs` (name and values of each), `statuses` (what the
numbers in `status` mean), `default` (a configuration or null), `subject` (workload, template,
target; or null) and `facts`. The other arrays are those of :class:`Recording`, in small types:
`indices` as unsigned integers whose largest value stands for an absent knob, `lengths` in place of
`offsets`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.errors import UnknownNameError, UserError
from tilewright.files import parse_json, user_file
from tilewright.space.arrays import BoolArray, FloatArray, IntArray
from tilewright.space.knobs import value_key
from tilewright.store.column_values import configuration_from_json
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
        at = [{value_key(v): i for i, v in enumerate(knob.values)} for knob in knobs]
        indices = np.full((len(trials), len(knobs)), ABSENT, dtype=np.int64)
        for row, trial in zip(indices, trials, strict=True):
            values = trial.configuration.values
            for column, knob in enumerate(knobs):
                if knob.name in values:
                    row[column] = at[column][value_key(values[knob.name])]
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
            found.setdefault(name, {})[value_key(value)] = value
    return tuple(
        KnobValues(name, _ordered(list(values.values()))) for name, values in found.items()
    )


def _ordered(values: list[Value]) -> tuple[Value, ...]:
    numbers = [v for v in values if isinstance(v, int)]
    return tuple(sorted(numbers)) if len(numbers) == len(values) else tuple(values)


FORMAT = "tilewright-recorded-space"
VERSION = 1
SUFFIX = ".npz"


def header_to_json(recording: Recording) -> dict[str, Any]:
    """All of a recording but its arrays."""
    subject = recording.subject
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": recording.name,
        "knobs": [[knob.name, list(knob.values)] for knob in recording.knobs],
        "statuses": [str(status) for status in STATUSES],
        "default": None if recording.default is None else dict(recording.default.items),
        "subject": None
        if subject is None
        else {
            "workload": subject.workload.to_json(),
            "template": subject.template.to_json(),
            "target": subject.target.to_json(),
        },
        "facts": dict(recording.facts),
    }


class Header:
    """A header that was read; KeyError, TypeError or ValueError when it is none.

    `codes` are the positions in `STATUSES` of the statuses that the file numbers from 0.
    """

    def __init__(self, data: Any) -> None:
        self.name = str(data["name"])
        self.knobs = tuple(KnobValues(str(k), tuple(map(_value, v))) for k, v in data["knobs"])
        if len({knob.name for knob in self.knobs}) < len(self.knobs):
            raise ValueError("two knobs of one name")
        statuses = [STATUSES.index(Status(text)) for text in data["statuses"]]
        self.codes = np.array(statuses, dtype=np.int64)
        self.default = None if data["default"] is None else configuration_from_json(data["default"])
        self.subject = None if data["subject"] is None else _subject(data["subject"])
        self.facts = dict(data["facts"])


def _value(data: Any) -> Value:
    if isinstance(data, list):
        return tuple(int(v) for v in data)
    if isinstance(data, bool | int | str):
        return data
    raise ValueError(f"{data!r} is no value of a knob")


def _subject(data: Any) -> RecordedDispatch:
    template = DispatchTemplate.from_json(data["template"])
    if not 0 <= template.root < len(template.ops):
        raise ValueError(f"root op {template.root} of {len(template.ops)}")
    return RecordedDispatch(
        Workload.from_json(data["workload"]), template, Target.from_json(data["target"])
    )


def write_recording(path: Path, recording: Recording) -> None:
    """Write a file; it appears whole, or not at all with a UserError."""
    widest = max((len(knob.values) for knob in recording.knobs), default=0)
    small: type[np.unsignedinteger[Any]] = np.uint8 if widest < 255 else np.uint16
    absent = np.iinfo(small).max
    header = json.dumps(header_to_json(recording), sort_keys=True).encode()
    arrays: dict[str, npt.NDArray[Any]] = {
        "header": np.frombuffer(header, dtype=np.uint8),
        "indices": np.where(recording.indices == ABSENT, absent, recording.indices).astype(small),
        "status": recording.status.astype(np.uint8),
        "time_s": recording.time_s,
        "samples": recording.samples,
        "lengths": np.diff(recording.offsets).astype(np.uint16),
        "compile_s": recording.compile_s.astype(np.float32),
        "measure_s": recording.measure_s.astype(np.float32),
        "program": recording.program.astype(np.int32),
    }
    with user_file(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def read_recording(path: Path) -> Recording:
    """Read a file; UserError when it is none, damaged, or of a newer version."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        header = parse_json(arrays["header"].tobytes().decode())
        if header["format"] != FORMAT:
            raise ValueError(f"its format is {header['format']!r}")
        version = header["version"]
        if not isinstance(version, int) or version < 1:
            raise ValueError(f"its version is {version!r}")
    except OSError as error:
        raise UserError(
            f"{path}: cannot read the recorded space ({error.strerror or error})"
        ) from error
    except Exception as error:
        # Damage can surface anywhere: in zip, in zlib, in NumPy's parser of headers, in JSON.
        raise _damaged(path, error) from error
    if version > VERSION:
        raise UserError(
            f"{path}: a recorded space of version {version}; this tilewright reads up to version "
            f"{VERSION}: install a newer one"
        )
    try:
        return _recording(Header(header), arrays)
    except Exception as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> UserError:
    why = f"no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
    return UserError(
        f"{path}: not a recorded space of tilewright, or damaged ({why}); make one with "
        "`tilewright replay record`"
    )


def _recording(header: Header, arrays: dict[str, npt.NDArray[Any]]) -> Recording:
    """The recording of a header and arrays that may be anything; ValueError says what is wrong."""
    raw = arrays["indices"]
    if raw.ndim != 2 or raw.dtype.kind != "u" or raw.shape[1] != len(header.knobs):
        raise ValueError(f"indices of shape {raw.shape} for {len(header.knobs)} knobs")
    count = len(raw)
    indices = np.where(raw == np.iinfo(raw.dtype).max, ABSENT, raw.astype(np.int64))
    for column, knob in zip(indices.T, header.knobs, strict=True):
        if count and int(column.max()) >= len(knob.values):
            raise ValueError(f"knob {knob.name} has no value number {int(column.max())}")
    if len(np.unique(indices, axis=0)) < count:
        raise ValueError("a configuration is there twice")
    codes = _whole(arrays, "status", count)
    if count and not 0 <= int(codes.min()) <= int(codes.max()) < len(header.codes):
        raise ValueError("an unknown status")
    lengths = _whole(arrays, "lengths", count)
    samples = np.asarray(arrays["samples"], dtype=np.float32)
    if (
        samples.ndim != 1
        or (count and int(lengths.min()) < 0)
        or int(lengths.sum()) != len(samples)
    ):
        raise ValueError(f"samples of shape {samples.shape} for {int(lengths.sum())}")
    recording = Recording(
        name=header.name,
        knobs=header.knobs,
        indices=indices,
        status=header.codes[codes] if count else np.zeros(0, dtype=np.int64),
        time_s=_numbers(arrays, "time_s", count),
        samples=samples,
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        compile_s=_numbers(arrays, "compile_s", count),
        measure_s=_numbers(arrays, "measure_s", count),
        program=_whole(arrays, "program", count),
        default=header.default,
        subject=header.subject,
        facts=header.facts,
    )
    _check_times(recording)
    return recording


def _check_times(recording: Recording) -> None:
    """What every reader relies on: a positive time for what is ok, and for nothing else."""
    timed = recording.time_s[recording.ok]
    if not (np.isfinite(timed).all() and (timed > 0).all()):
        raise ValueError("a configuration that is ok has no time")
    if not np.isnan(recording.time_s[~recording.ok]).all():
        raise ValueError("a configuration that failed has a time")
    for phase in (recording.compile_s, recording.measure_s):
        if not (np.isfinite(phase).all() and (phase >= 0).all()):
            raise ValueError("a phase of a trial took no possible time")
    if not (np.isfinite(recording.samples).all() and (recording.samples > 0).all()):
        raise ValueError("a sample that is no time")


def _whole(arrays: dict[str, npt.NDArray[Any]], name: str, count: int) -> IntArray:
    column = arrays[name]
    if column.shape != (count,) or column.dtype.kind not in "iu":
        raise ValueError(f"{name} has shape {column.shape} for {count} configurations")
    return column.astype(np.int64)


def _numbers(arrays: dict[str, npt.NDArray[Any]], name: str, count: int) -> FloatArray:
    column = arrays[name]
    if column.shape != (count,) or column.dtype.kind != "f":
        raise ValueError(f"{name} has shape {column.shape} for {count} configurations")
    return column.astype(np.float64)


_DATA = Path(__file__).parent / "data"


def shipped() -> dict[str, Path]:
    """The files of the recorded spaces that are part of the package, by name, in its order."""
    return {path.stem: path for path in sorted(_DATA.glob(f"*{SUFFIX}"))}


def find(text: str, where: str = "SPACE") -> Path:
    """A shipped space by its name, or a file by its path (one with a suffix or a separator).

    UserError with the names there are.
    """
    found = shipped()
    if text in found:
        return found[text]
    path = Path(text)
    if path.is_file():
        return path
    if path.suffix == SUFFIX or len(path.parts) > 1:
        raise UserError(f"{where} {text}: there is no such file")
    raise UnknownNameError("recorded space", text, found, where)


def find_all(texts: tuple[str, ...]) -> list[Path]:
    """The spaces named, or all that are shipped; UserError when there is none."""
    if texts:
        return [find(text) for text in dict.fromkeys(texts)]
    paths = list(shipped().values())
    if not paths:
        raise UserError("SPACE: no recorded spaces come with this installation; name a file")
    return paths
