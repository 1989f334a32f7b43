"""Which memory lives in registers: the elements that a loop reads and writes in the same places.

Storage is kept in registers over a loop when every access in it is to places that stay where they
are while the loop runs, and any two of these places are the same or apart. It is read before the
loop and written after it. Storage that lives within a scope is kept in registers throughout, if its
places are so over the whole scope: then there is no memory at all.
So are, over a loop's body, the elements that it stores to several times: an unrolled reduction
stores its sums once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.schedule.codegen.code import (
    Access,
    Branch,
    Code,
    Fence,
    Loop,
    Scope,
    Storage,
    Tensorized,
    Write,
    place_loads,
)
from tilewright.schedule.codegen.linear import Atom
from tilewright.schedule.nest import LOCAL

# More values than this are no longer registers, and cost the compiler more than they bring.
_MOST = 96


@dataclass(slots=True)
class Uses:
    """What some code does with a storage: its accesses (by key, each with whether it is certain to
    happen), the keys of those written, whether any is, how many stores are written out, and whether
    there is a use of another kind than loads and stores."""

    accesses: dict[Access, bool] = field(default_factory=dict)
    keys: set[Any] = field(default_factory=set)
    written: bool = False
    stores: int = 0
    opaque: bool = False

    def add(self, access: Access, certain: bool) -> None:
        self.accesses[access] = self.accesses.get(access, False) or certain

    def join(self, other: Uses, certain: bool) -> None:
        for access, sure in other.accesses.items():
            self.add(access, sure and certain)
        self.keys |= other.keys
        self.written |= other.written
        self.stores += other.stores
        self.opaque |= other.opaque


class Analysis:
    """Uses of storage by code, found once for each list of code."""

    def __init__(self) -> None:
        self._uses: dict[int, dict[Storage, Uses]] = {}
        self._loops: dict[int, frozenset[Atom]] = {}
        self._kept: list[Sequence[Code]] = []

    def uses(self, body: Sequence[Code]) -> dict[Storage, Uses]:
        """What the code does with each storage."""
        found = self._uses.get(id(body))
        if found is None:
            found = {}
            for code in body:
                self._add(found, code)
            self._uses[id(body)] = found
            self._kept.append(body)
        return found

    def written(self, body: Sequence[Code]) -> set[Storage]:
        """The storages that the code changes."""
        return {s for s, uses in self.uses(body).items() if uses.written}

    def loops(self, body: Sequence[Code]) -> frozenset[Atom]:
        """The loops within the code."""
        found = self._loops.get(id(body))
        if found is None:
            parts: set[Atom] = set()
            for code in body:
                if isinstance(code, Loop):
                    parts.add(code.atom)
                for below in bodies(code):
                    parts |= self.loops(below)
            found = self._loops[id(body)] = frozenset(parts)
        return found

    def fences(self, body: Sequence[Code]) -> bool:
        """Whether threads wait for each other within the code."""
        return any(
            isinstance(code, Fence) or any(self.fences(below) for below in bodies(code))
            for code in body
        )

    def _add(self, found: dict[Storage, Uses], code: Code) -> None:
        def of(storage: Storage) -> Uses:
            return found.setdefault(storage, Uses())

        def loads(accesses: Iterable[tuple[Access, bool]]) -> None:
            for access, conditional in accesses:
                of(access.storage).add(access, not conditional)

        match code:
            case Write():
                for access, value in code.writes:
                    uses = of(access.storage)
                    uses.add(access, True)
                    uses.keys.add(access.key)
                    uses.written = True
                    uses.stores += 1
                    loads(value.loads)
                    loads(place_loads(access.place))
                    if access.mask is not None:
                        loads(access.mask.loads)
            case Branch():
                loads(code.condition.loads)
            case Tensorized():
                for part in (*code.inputs, *code.outputs):
                    of(part.storage).opaque = True
                    loads(place_loads(part.place))
                for part in code.outputs:
                    of(part.storage).written = True
        certain = not isinstance(code, Branch)
        for below in bodies(code):
            for storage, uses in self.uses(below).items():
                of(storage).join(uses, certain)

    def in_loop(self, loop: Loop, kept: Iterable[Storage]) -> list[Access]:
        """The places to hold in registers over a loop, of storages that are not already."""
        return self._held(loop.body, self.loops(loop.body) | {loop.atom}, kept)

    def in_body(self, body: Sequence[Code], kept: Iterable[Storage]) -> list[Access]:
        """The places to hold in registers over some code, of storages that are not already: those
        that it would store to several times."""
        return [
            access
            for access in self._held(body, self.loops(body), kept)
            if (uses := self.uses(body)[access.storage]).stores > len(uses.keys)
        ]

    def _held(
        self, body: Sequence[Code], moving: frozenset[Atom], kept: Iterable[Storage]
    ) -> list[Access]:
        held: list[Access] = []
        already = set(kept)
        fenced: bool | None = None
        for storage, uses in self.uses(body).items():
            if storage in already or not uses.written or uses.opaque:
                continue
            if storage.allocated and self._allocates(body, storage):
                continue
            places = _apart(uses, moving)
            if places is None or not all(
                sure or (storage.allocated and _inside(access)) for access, sure in places.items()
            ):
                continue
            if storage.scope != LOCAL:
                fenced = self.fences(body) if fenced is None else fenced
                if fenced:
                    continue
            held += places
        return held

    def in_scope(self, scope: Scope) -> list[Access] | None:
        """The places of a scope's storage if all can be in registers throughout, else None."""
        uses = self.uses(scope.body).get(scope.storage)
        if uses is None:
            return []
        if uses.opaque:
            return None
        if scope.storage.scope != LOCAL and self.fences(scope.body):
            return None
        places = _apart(uses, self.loops(scope.body))
        return None if places is None else list(places)

    def _allocates(self, body: Sequence[Code], storage: Storage) -> bool:
        return any(
            (isinstance(code, Scope) and code.storage is storage)
            or any(self._allocates(below, storage) for below in bodies(code))
            for code in body
        )


def bodies(code: Code) -> tuple[list[Code], ...]:
    """The lists of code directly within."""
    match code:
        case Loop() | Scope():
            return (code.body,)
        case Branch():
            return (code.then, code.otherwise)
    return ()


def _inside(access: Access) -> bool:
    return access.place.low >= 0 and access.place.high < access.storage.size


def _apart(uses: Uses, moving: frozenset[Atom]) -> dict[Access, bool] | None:
    """One access for each place, and whether one of it is certain; None if places may meet, or
    move with these loops."""
    by_key: dict[object, tuple[Access, bool]] = {}
    for access, certain in uses.accesses.items():
        place, mask = access.place, access.mask
        if not access.contiguous or place.volatile or place.loops & moving:
            return None
        if mask is not None and (mask.reads or mask.loops & moving):
            return None
        known = by_key.get(access.key)
        by_key[access.key] = (known[0], known[1] or certain) if known else (access, certain)
        if len(by_key) > _MOST:
            return None
    ordered = sorted((access for access, _ in by_key.values()), key=lambda a: _start(a)[1])
    for one, other in itertools.pairwise(ordered):
        (terms, start), (others, next_start) = _start(one), _start(other)
        if terms != others or start + max(1, one.lanes) > next_start:
            return None
    return dict(by_key.values())


def _start(access: Access) -> tuple[object, int]:
    """The first element: the terms without the lane, and the constant."""
    first, _ = access.place.without_lane()
    return first.terms, first.constant
