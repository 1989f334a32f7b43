"""The structure of T4 results, the JSON form in which auto-tuners exchange trials, and its check.

T4 was agreed on by authors of auto-tuners (Kernel Tuner, KTT, BaCO, …); its schema is
`results-schema.json` of https://github.com/odgaard/TuningSchema, version 1.0.0. What it asks for is
written down here; more keys are allowed everywhere. Where its schema knows only reasons for being
invalid, Kernel Tuner adds `correct` for what is valid; both are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

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
