"""What columns hold: texts, numbers and JSON, and configurations as JSON.

What is read back equals what was stored: a configuration is a JSON object with sorted keys and no
spaces, tuples as arrays; equal configurations have equal text, and `1` and `true` differ. JSON has
no NaN and no infinity: they become null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, cast

from tilewright.store.records import Json
from tilewright.trial import Configuration, Value


def dumps(value: object) -> str:
    """Strict, compact JSON with sorted keys; numbers that JSON cannot say become null.

    Args:
        value: what JSON can say.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


def clean(text: str) -> str:
    """Text that can be stored: lone surrogates, as in undecodable output, are written out.

    Args:
        text: any.
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def configuration_to_json(configuration: Configuration) -> dict[str, Value]:
    """The JSON object of a configuration; `dumps` makes the canonical text of it.

    Raises:
        TypeError: a value is of another type than those that knobs have.

    Args:
        configuration: of knobs.
    """
    for name, value in configuration.items:
        if not (
            type(value) in (int, str, bool)
            or (type(value) is tuple and all(type(v) in (int, bool) for v in value))
        ):
            raise TypeError(f"knob '{name}': {value!r} is not an int, str, bool or tuple of ints")
    return dict(configuration.items)


def configuration_from_json(data: Json) -> Configuration:
    """The configuration of a parsed JSON object.

    Args:
        data: what JSON was.

    Raises:
        ValueError: it is no configuration.
    """
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


def text(value: Any) -> str:
    """A text of a line or a record, as it can be stored.

    Args:
        value: what should be one.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a string")
    return clean(value)


def optional_number(value: Any) -> float | None:
    """A number, or None.

    Args:
        value: what `float` takes, or None.
    """
    return None if value is None else float(value)


def optional_integer(value: Any) -> int | None:
    """An integer, or None.

    Args:
        value: what `int` takes, or None.
    """
    return None if value is None else int(value)


def optional_json(value: Any) -> str | None:
    """As :func:`dumps`; None for None, which is no JSON then but nothing.

    Args:
        value: what JSON can say.
    """
    return None if value is None else dumps(value)
