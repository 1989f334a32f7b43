"""Trials as T4 results: spaces of ours for other tools, and theirs as recordings for ours.

Times in T4 are milliseconds, as Kernel Tuner writes them. What tilewright needs to make the very
same recording again (knobs, dispatch, statuses) is added under the key `tilewright`, which others
may ignore.

T4 is the JSON form in which auto-tuners exchange trials, agreed on by authors of them (Kernel
Tuner, KTT, BaCO, …); its schema is `results-schema.json` of
https://github.com/odgaard/TuningSchema, version 1.0.0. What it asks for is written down here; more
keys are allowed everywhere. Where its schema knows only reasons for being invalid, Kernel Tuner
adds `correct` for what is valid; both are accepted.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.errors import UnknownNameError, UserError
from tilewright.files import parse_json, write_text
from tilewright.replay.recording import FORMAT, Header, Recording, header_to_json, knob_values
from tilewright.replay.recording import VERSION as RECORDING_VERSION
from tilewright.store import Database
from tilewright.trial import Configuration, Status, Trial, Value

VERSION = "1.0.0"
CORRECT = "correct"
INVALIDITY = ("timeout", "compile", "runtime", "correctness", "constraints", CORRECT)

_NAMES = {str: "a text", dict: "an object", list: "an array", (int, float): "a number"}


@dataclass(frozen=True)
class Rule:
    """What a value must be: its type, one of some texts, a pattern; the rules of an object's keys
    (those in `required` must be there) or of an array's items."""

    type: Any = None
    choices: tuple[str, ...] = ()
    pattern: str = ""
    keys: dict[str, Rule] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    items: Rule | None = None


_TEXT, _NUMBER, _OBJECT, _ARRAY = Rule(str), Rule((int, float)), Rule(dict), Rule(list)

RESULT = Rule(
    dict,
    keys={
        "timestamp": _TEXT,
        "configuration": _OBJECT,
        "objectives": _ARRAY,
        "times": Rule(
            dict,
            keys={
                "compilation_time": _NUMBER,
                "runtimes": _ARRAY,
                "framework": _NUMBER,
                "search_algorithm": _NUMBER,
                "validation": _NUMBER,
            },
        ),
        "invalidity": Rule(str, choices=INVALIDITY),
        "correctness": _NUMBER,
        "measurements": Rule(
            list, items=Rule(dict, keys={"name": _TEXT, "value": Rule(), "unit": _TEXT})
        ),
    },
    required=("configuration", "times", "invalidity", "correctness"),
)

RESULTS = Rule(
    dict,
    keys={
        "schema_version": Rule(str, pattern=r"[0-9]+\.[0-9]+\.[0-9]+"),
        "results": Rule(list, items=RESULT),
    },
)


def violations(data: Any, rule: Rule = RESULTS, where: str = "") -> Iterator[str]:
    """What of some data is not as a rule says, each with its place: `results[3].times: …`.

    Args:
        data: from JSON.
        rule: what is asked for.
        where: the place of the data, '' for the whole.
    """
    place = where or "the file"
    if rule.type is not None and (
        not isinstance(data, rule.type) or (isinstance(data, bool) and rule.type is not bool)
    ):
        yield f"{place}: {_NAMES[rule.type]} is needed, not {_shown(data)}"
        return
    if rule.choices and data not in rule.choices:
        yield f"{place}: {_shown(data)} is not one of {', '.join(rule.choices)}"
    if rule.pattern and not re.fullmatch(rule.pattern, data):
        yield f"{place}: {_shown(data)} is not of the form {rule.pattern}"
    if rule.keys or rule.required:
        for key in rule.required:
            if key not in data:
                yield f"{place}: '{key}' is missing"
        for key, of_key in rule.keys.items():
            if key in data:
                yield from violations(data[key], of_key, f"{where}.{key}" if where else key)
    if rule.items is not None:
        for number, item in enumerate(data):
            yield from violations(item, rule.items, f"{where}[{number}]")


def _shown(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 40 else text[:39] + "…"


# -- what ours is in T4 ------------------------------------------------------------------------

OBJECTIVE = "time"
_OWN = "tilewright"
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}

_INVALIDITY = {
    Status.OK: CORRECT,
    Status.INVALID: "constraints",
    Status.COMPILE_ERROR: "compile",
    Status.COMPILE_TIMEOUT: "timeout",
    Status.RUN_ERROR: "runtime",
    Status.RUN_TIMEOUT: "timeout",
    Status.CRASHED: "runtime",
    Status.WRONG_RESULT: "correctness",
}
_STATUS = {
    CORRECT: Status.OK,
    "constraints": Status.INVALID,
    "compile": Status.COMPILE_ERROR,
    "timeout": Status.RUN_TIMEOUT,
    "runtime": Status.RUN_ERROR,
    "correctness": Status.WRONG_RESULT,
}


# -- writing ---------------------------------------------------------------------------------------


def to_t4(trials: Sequence[tuple[Trial, str]]) -> dict[str, Any]:
    """Trials as T4 results, each with when it was made (ISO 8601).

    Args:
        trials: of one space.
    """
    return {
        "schema_version": VERSION,
        "results": [_result(trial, timestamp) for trial, timestamp in trials],
    }


def recording_to_t4(recording: Recording) -> dict[str, Any]:
    """A recording as T4 results, with what makes it whole again.

    Args:
        recording: any recorded space.
    """
    trials = [recording.trial(row) for row in range(len(recording))]
    date = str(recording.facts.get("date", ""))
    data = to_t4([(trial, date) for trial in trials])
    for result, trial, program in zip(
        data["results"], trials, recording.program.tolist(), strict=True
    ):
        result[_OWN] = {"status": str(trial.status), "program": program}
    data[_OWN] = header_to_json(recording)
    return data


def _result(trial: Trial, timestamp: str) -> dict[str, Any]:
    phases = {name: _finite(1e3 * seconds) for name, seconds in trial.phase_s.items()}
    compiled = phases.get("compile", 0.0)
    times = {
        # The schema's name, and Kernel Tuner's.
        "compilation_time": compiled,
        "compilation": compiled,
        "benchmark": phases.get("measure", 0.0),
        "validation": 0.0,
        "framework": 0.0,
        "search_algorithm": 0.0,
        "runtimes": [1e3 * s for s in trial.samples if math.isfinite(s)],
    }
    measurements = []
    if trial.ok and trial.time_s is not None:
        measurements.append({"name": OBJECTIVE, "value": 1e3 * trial.time_s, "unit": "ms"})
    return {
        "timestamp": timestamp,
        "configuration": {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in trial.configuration.items
        },
        "times": times,
        "invalidity": _INVALIDITY[trial.status],
        "correctness": 0 if trial.status is Status.WRONG_RESULT else 1,
        "measurements": measurements,
        "objectives": [OBJECTIVE],
    }


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def write_t4(path: Path, data: Mapping[str, Any]) -> None:
    """Write T4 results; UserError when the file cannot be written.

    Args:
        path: of the file.
        data: in the T4 form.
    """
    write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


# -- reading ---------------------------------------------------------------------------------------


def read_t4(path: Path, name: str = "", objective: str | None = None) -> Recording:
    """The recording in a file of T4 results.

    Of several results of one configuration the first counts.

    Args:
        path: a file, .json or .json.gz.
        name: of the recording; by default its own, or the file's.
        objective: the measurement to be minimised, a time; by default the file's own.

    Raises:
        UserError: for a file that is no T4, or has other objectives than times.
    """
    data = _load(path)
    wrong = next(violations(data), None)
    if wrong is not None:
        raise UserError(f"{path}: not T4 results: {wrong}")
    results: list[dict[str, Any]] = data.get("results", [])
    if not results:
        raise UserError(f"{path}: there are no results in it")
    own = data.get(_OWN)
    label = name or path.name.partition(".")[0]
    if isinstance(own, dict) and own.get("format") == FORMAT:
        return _own_recording(path, name, own, results)
    trials = [_trial(path, number, r, objective) for number, r in enumerate(results)]
    names = {tuple(dict(t.configuration.items)) for t in trials}
    if len(names) > 1:
        one, other = sorted(names, key=len)[:2]
        odd = sorted({*one} ^ {*other})
        raise UserError(
            f"{path}: the results differ in their parameters ('{odd[0]}' is not in all of them)"
        )
    unique = {trial.configuration: trial for trial in reversed(trials)}
    kept = list(reversed(unique.values()))
    facts = {
        "imported": path.name,
        "duplicates": len(trials) - len(kept),
        "date": results[0].get("timestamp", ""),
    }
    return Recording.of(label, knob_values([t.configuration for t in kept]), kept, facts=facts)


def _load(path: Path) -> Any:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot read the T4 results ({error.strerror})") from error
    try:
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        return parse_json(raw)
    except (OSError, EOFError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error})") from error


def _own_recording(
    path: Path, name: str, header: dict[str, Any], results: Sequence[dict[str, Any]]
) -> Recording:
    """A recording that `recording_to_t4` wrote."""
    try:
        if header["version"] > RECORDING_VERSION:
            raise UserError(
                f"{path}: written by a newer tilewright (version {header['version']} of recorded "
                f"spaces; this one reads up to {RECORDING_VERSION}): install a newer one"
            )
        found = Header(header)
        trials = []
        for number, result in enumerate(results):
            trial = _trial(path, number, result, OBJECTIVE, Status(result[_OWN]["status"]))
            program = int(result[_OWN]["program"])
            binary = str(program) if program >= 0 else ""
            trials.append(
                Trial(
                    trial.configuration,
                    trial.status,
                    trial.time_s,
                    trial.samples,
                    binary=binary,
                    phase_s=trial.phase_s,
                )
            )
        return Recording.of(
            name or found.name,
            found.knobs,
            trials,
            default=found.default,
            subject=found.subject,
            facts=found.facts,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{path}: its part for tilewright is damaged ({error}); remove the key '{_OWN}' to "
            "read the rest"
        ) from error


def _trial(
    path: Path,
    number: int,
    result: Mapping[str, Any],
    objective: str | None,
    status: Status | None = None,
) -> Trial:
    place = f"{path}: results[{number}]"
    times = result["times"]
    found = status or _STATUS[result["invalidity"]]
    configuration = Configuration.of(
        {str(name): _value(value) for name, value in result["configuration"].items()}
    )
    time_s, unit = _time(place, result, objective) if found is Status.OK else (None, "ms")
    samples = tuple(_SECONDS[unit] * float(s) for s in times.get("runtimes", ()) if _is_time(s))
    compiled = times.get("compilation_time", times.get("compilation", 0.0))
    # Not every tool says how long measuring took as a whole.
    measured = times.get("benchmark", 1e3 * sum(samples))
    phases = {"compile": compiled, "measure": measured}
    return Trial(
        configuration,
        found,
        time_s=time_s,
        samples=samples,
        phase_s={name: 1e-3 * float(ms) for name, ms in phases.items() if _is_time(ms)},
    )


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _time(place: str, result: Mapping[str, Any], objective: str | None) -> tuple[float, str]:
    """The seconds of a result, and the unit that its times are in."""
    wanted = objective or next(iter(result.get("objectives") or [OBJECTIVE]))
    for measurement in result.get("measurements", ()):
        if measurement.get("name") != wanted:
            continue
        unit = str(measurement.get("unit", "")) or "ms"
        if unit not in _SECONDS:
            raise UserError(
                f"{place}: the objective {wanted} is in {unit}; only times can be minimised (in "
                f"{', '.join(_SECONDS)}): name another one with --objective"
            )
        value = measurement.get("value")
        if not _is_time(value):
            raise UserError(f"{place}: the objective {wanted} is {value!r}, which is no time")
        return _SECONDS[unit] * float(value), unit
    there = ", ".join(str(m.get("name")) for m in result.get("measurements", ())) or "none"
    raise UserError(f"{place}: there is no measurement {wanted} (there are: {there})")


def _value(value: Any) -> Value:
    """A parameter's value as one of a knob: whole numbers, texts, lists of whole numbers."""
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list) and all(type(v) is int for v in value):
        return tuple(value)
    return json.dumps(value)


def run_trials(database: str | Path | None, run: int, task: str | None) -> list[tuple[Trial, str]]:
    """The trials of one workload of a run.

    Args:
        database: its file or a server's URL; None for the default one.
        run: the run's number.
        task: has to be in the workload's name, where the run has several.

    Returns:
        Each trial with when it was stored (ISO 8601, UTC).

    Raises:
        UserError: when there is no such run, or not exactly one such workload.
    """
    with Database.open(database, create=False) as store:
        store.run(run)
        records = store.trial_records(run)
        names = {
            number: store.task(number).key.workload.name
            for number in dict.fromkeys(record.task_id for record in records)
        }
    if not records:
        raise UserError(f"--run {run}: the run has no trials")
    chosen = [number for number, name in names.items() if task is None or task in name]
    if not chosen:
        raise UnknownNameError("workload", task or "", names.values(), "--task")
    if len(chosen) > 1:
        several = ", ".join(names[number] for number in chosen)
        raise UserError(f"--run {run}: several workloads; name one with --task ({several})")
    return [
        (record.trial, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)))
        for record in records
        if record.task_id == chosen[0]
    ]
