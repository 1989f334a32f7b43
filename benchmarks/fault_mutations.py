"""Hostile variants of files: bytes, lines, tokens and JSON values that are changed by chance."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

_NUMBERS = (
    *("0", "-1", "1", "2", "7", "63", "64", "65", "2147483648", "4294967296"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808"),
    *("340282366920938463463374607431768211456", "1e308", "1e999", "-0.0", "0.5", "1e-320"),
)
_WORDS = (
    *("nan", "inf", "true", "false", "null", "None", "?", "*", "@main", "%0", "#map"),
    *("tensor<4xf32>", "f16", "index", "()", "{}", "[]", "<>"),
)
_TEXTS = (
    "",
    " ",
    "\0",
    "\n",
    "../../../../etc/passwd",
    "/etc/passwd",
    "$(touch EXECUTED)",
    "`touch EXECUTED`; touch EXECUTED",
    "__import__('os').system('touch EXECUTED')",
    "%s%n%(here)s{0}",
    "\ud7ff\u202e\u0000\U0001f600",
    "a" * 70_000,
    "-o",
    "--help",
)
_DEEP = 100_000
_TOKEN = re.compile(rb"[A-Za-z_][\w.]*|\d+(?:\.\d+)?|[^\s\w]|\s+")


def mutated(data: bytes, chance: random.Random, suffix: str) -> bytes:
    """A hostile variant of a file.

    Args:
        data: the file as it should be.
        chance: decides what is changed.
        suffix: of the file's name: JSON, lines of JSON and texts are also changed by what they
            mean.

    Returns:
        The file's new content, which now and then is what it was.
    """
    kinds: list[Callable[[bytes, random.Random], bytes]] = [_bytes, _cut, _chunks]
    if suffix in (".json", ".jsonl"):
        kinds += [_json_lines] * 6
    if suffix in (".mlir", ".toml", ".cfg", ".json", ".csv", ".txt", ".jsonl"):
        kinds += [_tokens] * 4 + [_lines, _deep, _numbers, _numbers]
    if not data:
        return chance.randbytes(chance.choice((0, 1, 100)))
    return chance.choice(kinds)(data, chance)


def _bytes(data: bytes, chance: random.Random) -> bytes:
    """Some bits flipped, or bytes taken for others."""
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8, 64))):
        place = chance.randrange(len(found))
        if chance.random() < 0.5:
            found[place] ^= 1 << chance.randrange(8)
        else:
            found[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    return bytes(found)


def _cut(data: bytes, chance: random.Random) -> bytes:
    """The file up to some place, now and then with something else behind it."""
    end = chance.choice((0, 1, chance.randrange(len(data)), len(data) - 1))
    return data[:end] + chance.choice((b"", b"", b"\0" * 4096, chance.randbytes(64)))


def _chunks(data: bytes, chance: random.Random) -> bytes:
    """A part that is left out, comes twice, is moved, or is random."""
    first, last = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    part = data[first : min(last, first + 65536)]
    rest = data[:first] + data[first + len(part) :]
    place = chance.randrange(len(rest) + 1)
    put = chance.choice((b"", part + part, part, chance.randbytes(min(4096, len(part)))))
    return rest[:place] + put + rest[place:]


def _lines(data: bytes, chance: random.Random) -> bytes:
    """A line that is left out, comes again, or stands elsewhere."""
    lines = data.splitlines(keepends=True)
    line = lines.pop(chance.randrange(len(lines)))
    for _ in range(chance.choice((0, 1, 2, 1000))):
        lines.insert(chance.randrange(len(lines) + 1), line)
    return b"".join(lines)


def _tokens(data: bytes, chance: random.Random) -> bytes:
    """Words, numbers or signs exchanged for others, of the file or not."""
    tokens = _TOKEN.findall(data)
    if not tokens:
        return _bytes(data, chance)
    for _ in range(chance.choice((1, 1, 2, 3, 10))):
        place = chance.randrange(len(tokens))
        kind = chance.randrange(5)
        if kind == 0:
            tokens[place] = chance.choice(tokens)
        elif kind == 1:
            other = chance.randrange(len(tokens))
            tokens[place], tokens[other] = tokens[other], tokens[place]
        elif kind == 2:
            tokens[place] = b""
        elif kind == 3:
            tokens[place] = chance.choice(_NUMBERS + _WORDS).encode()
        else:
            tokens[place] = chance.choice(_TEXTS).encode()
    return b"".join(tokens)


def _numbers(data: bytes, chance: random.Random) -> bytes:
    """One number of the file exchanged for an extreme one."""
    places = list(re.finditer(rb"\d+(?:\.\d+)?(?:e[+-]?\d+)?", data))
    if not places:
        return _bytes(data, chance)
    found = chance.choice(places)
    return data[: found.start()] + chance.choice(_NUMBERS).encode() + data[found.end() :]


def _deep(data: bytes, chance: random.Random) -> bytes:
    """Brackets that open and never close, deeper than a parser can follow."""
    place = chance.randrange(len(data) + 1)
    sign = chance.choice((b"[", b"{", b"(", b"<", b'{"a":', b"[[1],", b"tuple<", b"-"))
    return data[:place] + sign * _DEEP + data[place:]


def _json_lines(data: bytes, chance: random.Random) -> bytes:
    """A value of the JSON, or of one of its lines, exchanged for one of another kind."""
    try:
        return json.dumps(changed_value(json.loads(data), chance)).encode()
    except ValueError:
        pass
    lines = data.splitlines()
    place = chance.randrange(len(lines))
    try:
        lines[place] = json.dumps(changed_value(json.loads(lines[place]), chance)).encode()
    except ValueError:
        return _tokens(data, chance)
    return b"\n".join(lines) + b"\n"


def changed_value(value: Any, chance: random.Random) -> Any:
    """JSON with one place of it changed.

    Args:
        value: as JSON has it; it is changed itself.
        chance: decides where and how.
    """
    places: list[tuple[Any, Any]] = []

    def walk(one: Any) -> None:
        if isinstance(one, dict | list):
            pairs = one.items() if isinstance(one, dict) else enumerate(one)
            for key, inner in list(pairs)[:200]:
                places.append((one, key))
                walk(inner)

    walk(value)
    if not places:
        return _other_value(chance)
    for _ in range(chance.choice((1, 1, 1, 3))):
        owner, key = chance.choice(places)
        kind = chance.randrange(8)
        if kind == 0 and isinstance(owner, dict):
            owner.pop(key, None)
        elif kind == 1 and isinstance(owner, dict):
            owner[chance.choice(_TEXTS)] = _other_value(chance)
        elif isinstance(owner, dict) or key < len(owner):
            owner[key] = _other_value(chance)
    return value


def _other_value(chance: random.Random) -> Any:
    values: list[Any] = [
        None,
        True,
        [],
        {},
        [[]],
        {"a": None},
        *map(float, ("nan", "inf", "-inf", "1e308", "-1")),
        *(0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**30),
        *_TEXTS,
    ]
    return chance.choice(values)
