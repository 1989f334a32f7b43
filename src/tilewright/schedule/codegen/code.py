"""Code between the loop nest and MLIR: loops unrolled, vectors explicit, addresses as sums.

Every value has a type and a number of lanes (0: a scalar), every address is a :class:`Linear` into
flat storage, so that it is plain which accesses meet. Values are made by :class:`Values`, equal
ones once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from tilewright.schedule.codegen.linear import Atom, Linear
from tilewright.schedule.nest import Intrinsic


@dataclass(eq=False, slots=True)
class Storage:
    """Flat memory: `size` elements of `dtype` in a scope; `global` ones are arguments of the
    kernel unless they are `allocated`."""

    name: str
    size: int
    dtype: str
    scope: str
    allocated: bool = False


@dataclass(eq=False, slots=True)
class Access:
    """Elements of a storage: one (lanes 0) or one for each lane at `place`, which then has the
    lane in it; `mask` (a vector of bools) says which lanes there are."""

    storage: Storage
    place: Linear
    lanes: int
    mask: Value | None

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for accesses of the same elements."""
        return (self.storage, self.place, self.lanes, self.mask)

    @property
    def contiguous(self) -> bool:
        """Whether the lanes are elements in a row (true of a single one)."""
        return self.lanes == 0 or self.place.without_lane()[1] == 1


class Value:
    """A scalar or a vector.

    op: `const` (data: the number), `index` (data: a Linear), `load` (data: an Access), `sign`
    (comparison of an index sum with 0: data is the pair of operator and Linear), `last` (the last
    lane of a vector, or the last of those in the mask that follows), `any` (whether any lane is
    true), `splat` (all lanes alike), or as in :mod:`tilewright.schedule.expr`: an operator of
    Binary, `not`, `select`, `guarded` (a select whose arms are evaluated only when taken), `cast`,
    `call` (data: the name).
    """

    __slots__ = ("args", "data", "dtype", "lanes", "loads", "loops", "op", "reads")

    def __init__(self, op: str, dtype: str, lanes: int, args: tuple[Value, ...], data: Any) -> None:
        self.op = op
        self.dtype = dtype
        self.lanes = lanes
        self.args = args
        self.data = data
        parts = [a.loops for a in args]
        below: list[tuple[Access, bool]] = []
        for number, argument in enumerate(args):
            guarded = op == "guarded" and number > 0
            below += [(access, guarded or c) for access, c in argument.loads]
        sums = (data,) if isinstance(data, Linear) else data[1:] if op == "sign" else ()
        if op == "load":
            below.append((data, False))
            sums = (data.place,)
            if data.mask is not None:
                parts.append(data.mask.loops)
                below += data.mask.loads
        for total in sums:
            parts.append(total.loops)
            for atom, _ in total.terms:
                below += atom_loads(atom)
        self.loops: frozenset[Atom] = frozenset().union(*parts)
        #: What it reads, each with whether that is read only under some condition.
        self.loads: tuple[tuple[Access, bool], ...] = tuple(dict.fromkeys(below))
        self.reads: frozenset[Storage] = frozenset(access.storage for access, _ in self.loads)


def atom_loads(atom: Atom) -> tuple[tuple[Access, bool], ...]:
    """What an atom reads from memory."""
    if not atom.volatile:
        return ()
    found: list[tuple[Access, bool]] = []
    for part in atom.args:
        if isinstance(part, Value):
            found += part.loads
        elif isinstance(part, Linear):
            for below, _ in part.terms:
                found += atom_loads(below)
    return tuple(found)


def place_loads(place: Linear) -> tuple[tuple[Access, bool], ...]:
    """What the atoms of a sum read from memory."""
    return tuple(load for atom, _ in place.terms for load in atom_loads(atom))


class Values:
    """Makes values, equal ones once."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], Value] = {}

    def make(
        self, op: str, dtype: str, args: tuple[Value, ...] = (), data: Any = None, lanes: int = 0
    ) -> Value:
        """A value with as many lanes as its arguments, or as given; `any` and `last` have none."""
        if op not in ("any", "last"):
            lanes = max(lanes, *(argument.lanes for argument in args), 0)
        key = (op, dtype, lanes, args, data.key if isinstance(data, Access) else data)
        if isinstance(data, float):
            # Equal floats may differ in their sign, and NaN equals nothing.
            key = (*key[:-1], data.hex())
        value = self._made.get(key)
        if value is None:
            value = self._made[key] = Value(op, dtype, lanes, args, data)
        return value

    def constant(self, number: bool | int | float, dtype: str) -> Value:
        return self.make("const", dtype, data=number)


@dataclass(eq=False, slots=True)
class Write:
    """Elements written at once: all values are computed before the first is written."""

    writes: tuple[tuple[Access, Value], ...]


@dataclass(eq=False, slots=True)
class Loop:
    """`atom` from 0 on; `workgroups`: the iterations are the dispatch's, in this dimension."""

    atom: Atom
    extent: int
    body: list[Code]


@dataclass(eq=False, slots=True)
class Branch:
    """`then` where the scalar condition holds, else `otherwise`."""

    condition: Value
    then: list[Code]
    otherwise: list[Code]


@dataclass(eq=False, slots=True)
class Scope:
    """`storage` exists while `body` runs."""

    storage: Storage
    body: list[Code]


@dataclass(eq=False, slots=True)
class Fence:
    """All threads of the workgroup wait for each other."""


@dataclass(eq=False, slots=True)
class Hint:
    """Fetch the cache lines of elements `place` to `place + length - 1`, which may not exist."""

    storage: Storage
    place: Linear
    length: int


@dataclass(eq=False, slots=True)
class Part:
    """A region for an intrinsic: its first element, and the strides and extents."""

    storage: Storage
    place: Linear
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(eq=False, slots=True)
class Tensorized:
    """An intrinsic in place of loops."""

    node: Intrinsic
    inputs: tuple[Part, ...]
    outputs: tuple[Part, ...]


Code: TypeAlias = Write | Loop | Branch | Scope | Fence | Hint | Tensorized
