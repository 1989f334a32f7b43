"""Recorded spaces as files: one compressed .npz, a JSON header and plain arrays in it.

Version 1. The array `header` is UTF-8 JSON: `format`, `version`, `name`, `knobs` (name and values
of each), `statuses` (what the numbers in `status` mean), `default` (a configuration or null),
`subject` (workload, template, target; or null) and `facts`. The other arrays are those of
:class:`~tilewright.replay.recording.Recording`, in small types: `indices` as unsigned integers
whose largest value stands for an absent knob, `lengths` in place of `offsets`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.errors import UserError
from tilewright.files import user_file
from tilewright.replay.recording import (
    ABSENT,
    STATUSES,
    KnobValues,
    RecordedDispatch,
    Recording,
)
from tilewright.space.arrays import FloatArray, IntArray
from tilewright.store.codec import configuration_from_json
from tilewright.target import Target
from tilewright.tiling import DispatchTemplate
from tilewright.trial import Status, Value
from tilewright.workload import Workload

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
        header = json.loads(arrays["header"].tobytes().decode())
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
