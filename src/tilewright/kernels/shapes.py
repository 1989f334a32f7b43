"""Sizes as users write them: numbers, ranges and lists for dimensions, and files of shapes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.errors import UnknownNameError, UserError
from tilewright.files import parse_json, read_text
from tilewright.kernels.kinds import KINDS
from tilewright.kernels.operation import ElementTypes, OperationKind, parse_types

# A mistyped range must not fill the disk.
MOST_SIZES = 10_000

_FORMS = "write 768, a list 64,128, or start:end:step such as 64:1024:128 (the end is included)"

# Entries of a shape file that describe it to people.
_REMARKS = ("group", "name", "comment")
# Dimensions as shape files of convolutions call them.
_FILE_ALIASES: Mapping[str, str] = {"n": "batch", "pad": "padding"}


@dataclass(frozen=True)
class SizeChoices:
    """The values that an option gives to dimensions; several dimensions take equal values."""

    option: str
    dimensions: tuple[str, ...]
    values: tuple[int, ...]

    def fits(self, kind: OperationKind) -> bool:
        """Whether the kind has these dimensions.

        Args:
            kind: any.
        """
        names = {d.name for d in kind.dimensions}
        return names.issuperset(self.dimensions)


@dataclass(frozen=True)
class Shape:
    """One shape of a file: sizes by dimension, and what else it says (None or '': nothing).

    where: its place, for messages.
    """

    kind: OperationKind
    dims: Mapping[str, int]
    types: ElementTypes | None = None
    layout: str = ""
    variant: str = ""
    where: str = ""


def dimension_options() -> dict[str, tuple[tuple[str, ...], str]]:
    """For each option `--problem-NAME`: the dimensions that it sets, and what they are."""
    found: dict[str, tuple[tuple[str, ...], str]] = {}
    for kind in KINDS.values():
        for dimension in kind.dimensions:
            found.setdefault(dimension.name, ((dimension.name,), dimension.about))
        for alias, dimensions in kind.aliases.items():
            found.setdefault(alias, (dimensions, f"sets {' and '.join(dimensions)}"))
    return found


def parse_sizes(text: str, option: str) -> tuple[int, ...]:
    """The values of `768`, `64,128` or `64:1024:128` (end included), or of a list of them.

    Args:
        text: as a user wrote it.
        option: what it was written for, for messages.

    Returns:
        Ascending within a range, otherwise as written; each once.

    Raises:
        UserError: it is none of these, or a range of more than `MOST_SIZES`.
    """
    values: dict[int, None] = {}
    for part in text.split(","):
        for value in _range(part.strip(), text, option):
            values[value] = None
    return tuple(values)


def _range(part: str, text: str, option: str) -> Sequence[int]:
    numbers = part.split(":")
    if len(numbers) > 3 or not all(n.isascii() and n.isdigit() and len(n) < 16 for n in numbers):
        raise UserError(f"{option}: '{text}' has no size '{part}'; {_FORMS}")
    start, *rest = map(int, numbers)
    end = rest[0] if rest else start
    step = rest[1] if len(rest) == 2 else 1
    if end < start:
        raise UserError(f"{option}: '{part}' ends before it begins; {_FORMS}")
    if step < 1:
        raise UserError(f"{option}: '{part}' has a step of 0; {_FORMS}")
    found = range(start, end + 1, step)
    if len(found) > MOST_SIZES:
        raise UserError(
            f"{option}: '{part}' is {len(found):,} sizes, more than {MOST_SIZES:,}; "
            "give a larger step"
        )
    return found


def read_shapes(path: Path) -> list[Shape]:
    """The shapes of a JSON file: a list of objects such as

        {"kind": "matmul", "m": 784, "n": 512, "k": 128, "types": ["f32", "f32", "f32"]}

    `kind` may have the variant behind it (`conv2d_nhwc_hwcf`); `types` (of lhs, rhs, result) and
    `layouts` (letters of the operands) may be left out.

    Args:
        path: the file.

    Returns:
        Its shapes, in their order.

    Raises:
        UserError: it cannot be read, or says what there is not; with the shape's place.
    """
    try:
        data = parse_json(read_text(path, "shape file"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: no JSON: {error}") from error
    if not isinstance(data, list) or not data or not all(isinstance(e, dict) for e in data):
        raise UserError(f"{path}: a shape file is a list of objects, with at least one in it")
    return [_shape(entry, f"{path}, shape {i + 1}") for i, entry in enumerate(data)]


def _shape(entry: dict[str, Any], where: str) -> Shape:
    given = {k: v for k, v in entry.items() if k not in _REMARKS}
    kind, variant = _kind(given.pop("kind", None), where)
    variant = str(given.pop("variant", variant))
    if variant and not kind.has_variant(variant):
        raise UnknownNameError("variant", variant, kind.variants, f"{where}: {kind.name}")
    types = given.pop("types", None)
    layouts = given.pop("layouts", None)
    return Shape(
        kind,
        _dims(kind, given, where),
        None if types is None else _types(kind, types, where),
        "" if layouts is None else _layout(kind, layouts, where),
        variant,
        where,
    )


def _kind(name: object, where: str) -> tuple[OperationKind, str]:
    """The kind, and the variant where the name has it behind it."""
    if isinstance(name, str) and name in KINDS:
        return KINDS[name], ""
    # The longest first: `conv2d_bias_relu_nhwc_hwcf` begins with `conv2d` too.
    for known in sorted(KINDS, key=len, reverse=True):
        kind = KINDS[known]
        variant = str(name).removeprefix(f"{known}_")
        if variant != name and kind.has_variant(variant):
            return kind, variant
    raise UnknownNameError("kind", str(name), KINDS, where)


def _dims(kind: OperationKind, given: Mapping[str, Any], where: str) -> dict[str, int]:
    known = {d.name: (d.name,) for d in kind.dimensions} | dict(kind.aliases)
    if kind.aliases:
        known |= {old: known[new] for old, new in _FILE_ALIASES.items()}
    dims: dict[str, int] = {}
    for name, value in given.items():
        if name == "co" and "co" not in known:
            # Depthwise convolutions of shape files say both; there is one number of channels.
            if value != given.get("ci"):
                raise UserError(f"{where}: co is {value}; {kind.name} has co = ci")
            continue
        if name not in known:
            allowed = ["kind", "types", "layouts", "variant", *_REMARKS, *known]
            raise UnknownNameError("key", name, allowed, where)
        if not isinstance(value, int) or isinstance(value, bool):
            raise UserError(f"{where}: {name} is {value!r}; sizes are whole numbers")
        dims.update(dict.fromkeys(known[name], value))
    return dims


def _types(kind: OperationKind, given: object, where: str) -> ElementTypes:
    if isinstance(given, str):
        return parse_types(given, where)
    names = [str(t) for t in given] if isinstance(given, list) else []
    if len(names) < 2 or len(set(names[:-1])) != 1:
        raise UserError(
            f"{where}: types are {given!r}; give those of the operands, which are equal, and that "
            'of the result, such as ["f16", "f16", "f32"]'
        )
    return ElementTypes(names[0], names[-1])


def _layout(kind: OperationKind, given: object, where: str) -> str:
    layout = "".join(map(str, given)) if isinstance(given, list) else str(given)
    # The result is row-major always; a file may say so.
    layout = layout[: len(kind.operands)] if len(layout) == len(kind.operands) + 1 else layout
    if layout not in kind.layouts:
        raise UnknownNameError("layout", layout, kind.layouts, f"{where}: {kind.name}")
    return layout


def predefined(kinds: Iterable[OperationKind]) -> list[Shape]:
    """The predefined shapes of the kinds.

    Args:
        kinds: whose.
    """
    return [Shape(kind, shape) for kind in kinds for shape in kind.shapes]
