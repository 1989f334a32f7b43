"""Trials and configurations as text, exactly: what is read back equals what was stored.

A configuration is a JSON object with sorted keys and no spaces, tuples as arrays; equal
configurations have equal text, and `1` and `true` differ. JSON has no NaN and no infinity: they
become null, which in `samples` reads back as NaN and in `time_s` as None.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, cast

from tilewright.store.records import Json
from tilewright.trial import Configuration, Status, Trial, Value

MESSAGE_LIMIT = 16_384
"""Characters kept of a trial's message: compilers can print megabytes of IR."""


def dumps(value: object) -> str:
    """Strict, compact JSON with sorted keys; numbers that JSON cannot say become null."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def loads(text: str) -> Json:
    return cast(Json, json.loads(text))


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


def clean(text: str) -> str:
    """Text that can be stored: lone surrogates, as in undecodable output, are written out."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def encode_configuration(configuration: Configuration) -> str:
    """The canonical text of a configuration; TypeError for a value of another type."""
    for name, value in configuration.items:
        if not (
            type(value) in (int, str, bool)
            or (type(value) is tuple and all(type(v) in (int, bool) for v in value))
        ):
            raise TypeError(f"knob '{name}': {value!r} is not an int, str, bool or tuple of ints")
    return dumps(dict(configuration.items))


def decode_configuration(text: str) -> Configuration:
    return configuration_from_json(loads(text))


def configuration_from_json(data: Json) -> Configuration:
    """The configuration of a parsed JSON object; ValueError when it is none."""
    if not isinstance(data, dict):
        raise ValueError(f"a configuration is an object, not {data!r}")
    values: dict[str, Value] = {}
    for name, value in data.items():
        if isinstance(value, list):
            if not all(isinstance(v, int) for v in value):
                raise ValueError(f"knob '{name}': {value!r} is not a list of integers")
            values[name] = tuple(cast(list[int], value))
        elif isinstance(value, int | str):
            values[name] = value
        else:
            raise ValueError(f"knob '{name}': {value!r} is not an int, str, bool or list of ints")
    return Configuration.of(values)


def encode_trial(trial: Trial) -> tuple[Any, ...]:
    """The columns `TRIAL_COLUMNS` of a trial."""
    finite = trial.time_s is not None and math.isfinite(trial.time_s)
    return (
        encode_configuration(trial.configuration),
        str(trial.status),
        trial.time_s if finite else None,
        dumps(list(trial.samples)),
        clean(trial.message[:MESSAGE_LIMIT]),
        clean(trial.binary),
        clean(trial.origin),
        dumps(dict(trial.phase_s)),
    )


TRIAL_COLUMNS = (
    "configuration",
    "status",
    "time_s",
    "samples",
    "message",
    "binary_digest",
    "origin",
    "phase_s",
)


def decode_trial(row: Mapping[str, Any]) -> Trial:
    """The trial of a row that has the columns `TRIAL_COLUMNS`."""
    samples = json.loads(row["samples"])
    phases = json.loads(row["phase_s"])
    time_s = row["time_s"]
    return Trial(
        configuration=decode_configuration(row["configuration"]),
        status=Status(row["status"]),
        time_s=None if time_s is None else float(time_s),
        samples=tuple(math.nan if s is None else float(s) for s in samples),
        message=str(row["message"]),
        binary=str(row["binary_digest"]),
        origin=str(row["origin"]),
        phase_s={str(k): math.nan if v is None else float(v) for k, v in phases.items()},
    )
