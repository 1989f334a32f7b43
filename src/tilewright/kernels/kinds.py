"""The kinds of operations there are, by name: a new one is a module, and its line in `_MODULES`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from tilewright.errors import UnknownNameError, UserError
from tilewright.kernels.operation import (
    ROW_MAJOR,
    Operation,
    OperationKind,
    grouped_dimensions,
    make_operation,
)
from tilewright.registration import registered

# Modules of this package, each of which has its kinds in `KINDS`; in the order of help texts.
_MODULES = (
    "contractions",
    "convolutions",
    "reductions",
    "attention",
    "elementwise",
)


KINDS: Mapping[str, OperationKind] = MappingProxyType(
    {one.name: one for one in registered("tilewright.kernels", _MODULES, "KINDS")}
)

EXAMPLE = "matmul_768x512x1024_f16t_f16t_f16t"


def find_kinds(names: Iterable[str], where: str = "--kind") -> tuple[OperationKind, ...]:
    """The kinds of these names, each once.

    Args:
        names: as `KINDS` has them.
        where: the option that named them, for messages.

    Raises:
        UnknownNameError: there is no such kind; with the nearest match.
    """
    found: dict[str, OperationKind] = {}
    for name in names:
        if name not in KINDS:
            raise UnknownNameError("kind", name, KINDS, where)
        found[name] = KINDS[name]
    return tuple(found.values())


def parse_operation(name: str) -> Operation:
    """The operation of a name.

    Args:
        name: as `Operation.name` writes it.

    Raises:
        UserError: it names none.
    """
    for kind in KINDS.values():
        match = _pattern(kind).fullmatch(name)
        if match is not None and kind.has_variant(match["variant"] or ""):
            return _matched(kind, match, name)
    raise UserError(f"'{name}' names no operation; a name is such as {EXAMPLE}")


def _matched(kind: OperationKind, match: re.Match[str], name: str) -> Operation:
    words = match["operands"].split("_")
    types = {word[:-1] for word in words[:-1]}
    variant = match["variant"] or ""
    layout = "".join(word[-1] for word in words[:-1])
    found = [t for t in kind.types(variant) if {t.operand} == types and t.result == words[-1][:-1]]
    if not found or layout not in kind.layouts or words[-1][-1] != ROW_MAJOR:
        raise UserError(
            f"'{name}': {kind.name} has no operands {match['operands']} (types: "
            f"{', '.join(t.name for t in kind.types(variant))}; layouts: {', '.join(kind.layouts)})"
        )
    sizes = [int(s) for s in re.findall(r"[0-9]+", match["sizes"])]
    dims = {d.name: size for d, size in zip(kind.dimensions, sizes, strict=True)}
    return make_operation(kind, dims, found[0], layout, variant)


def _pattern(kind: OperationKind) -> re.Pattern[str]:
    sizes = "_".join(
        re.escape(word) + "x".join(["[0-9]+"] * len(dimensions))
        for word, dimensions in grouped_dimensions(kind)
    )
    variant = "(?:_(?P<variant>[a-z_]+))?" if kind.variants != ("",) else "(?P<variant>)"
    operands = "_".join(["[a-z]+[0-9]+[tn]"] * (len(kind.operands) + 1))
    return re.compile(f"{kind.name}{variant}_(?P<sizes>{sizes})_(?P<operands>{operands})")
