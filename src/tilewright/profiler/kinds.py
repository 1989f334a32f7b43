"""The kinds of operations there are, by name. A new kind is a class, and its entry in a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from tilewright.errors import UnknownNameError
from tilewright.profiler import contractions, convolutions, other_kinds
from tilewright.profiler.operation import OperationKind

KINDS: Mapping[str, OperationKind] = MappingProxyType(
    {**contractions.KINDS, **convolutions.KINDS, **other_kinds.KINDS}
)


def find_kinds(names: Iterable[str], where: str = "--kind") -> tuple[OperationKind, ...]:
    """The kinds of these names, each once. Raises UnknownNameError, with the nearest match."""
    found: dict[str, OperationKind] = {}
    for name in names:
        if name not in KINDS:
            raise UnknownNameError("kind", name, KINDS, where)
        found[name] = KINDS[name]
    return tuple(found.values())
