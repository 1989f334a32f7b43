"""Questions about the shape of a nest: what to unroll, how wide its vectors are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tilewright.schedule import nest
from tilewright.schedule.expr import Expr
from tilewright.schedule.nest import Load, Stmt, inner
from tilewright.schedule.types import bits
from tilewright.schedule.walk import children

if TYPE_CHECKING:
    from tilewright.schedule.codegen.expand import Widths


def kind_of(loop: nest.For) -> str:
    """What a loop is, its own pragmas considered."""
    if loop.kind == nest.SERIAL and loop.pragmas:
        if "vectorize" in loop.pragmas:
            return nest.VECTORIZED
        if "unroll" in loop.pragmas and loop.pragmas.get("unroll_explicit", True):
            return nest.UNROLLED
    return loop.kind


def has_vectors(stmt: Stmt) -> bool:
    """Whether a vectorized loop, or what cannot be in one, is within."""
    if isinstance(stmt, nest.For) and kind_of(stmt) == nest.VECTORIZED and stmt.extent > 1:
        return True
    if isinstance(stmt, nest.Intrinsic | nest.Barrier):
        return True
    return any(has_vectors(part) for part in inner(stmt))


def statements(stmt: Stmt) -> int:
    """Statements that there are once all unrolled loops within are written out."""
    if isinstance(stmt, nest.For):
        written_out = kind_of(stmt) == nest.UNROLLED
        return statements(stmt.body) * (stmt.extent if written_out else 1)
    below = inner(stmt)
    return sum(statements(part) for part in below) if below else 1


def widest_bytes(stmt: Stmt) -> int:
    """Bytes of the widest element that is computed with in a statement."""
    widest = 1

    def look(expr: Expr) -> None:
        nonlocal widest
        if isinstance(expr, Load) or expr.dtype not in ("index", "bool"):
            widest = max(widest, bits(expr.dtype) // 8)
        for child in children(expr):
            look(child)

    def visit(part: Stmt) -> None:
        stores = (
            (part,)
            if isinstance(part, nest.Store)
            else part.stores
            if isinstance(part, nest.StoreAll)
            else ()
        )
        for store in stores:
            look(store.value)
        for below in inner(part):
            visit(below)

    visit(stmt)
    return widest


def pieces(extent: int, element_bytes: int, widths: Widths) -> tuple[tuple[int, int], list[int]]:
    """Vectors that a loop is made of: (how many, lanes of each) of the longest, lanes of the rest.

    All are powers of two: LLVM fills up others to the next one, with registers that then lack.

    >>> from tilewright.schedule.codegen.expand import Widths
    >>> pieces(77, 4, Widths(register=64, vector=256))
    ((1, 64), [8, 4, 1])
    """
    longest = max(1, widths.vector // element_bytes)
    if widths.lanes is not None:
        longest = min(longest, widths.lanes)
    count, rest = divmod(extent, longest)
    lanes = []
    while rest:
        power = 1 << (rest.bit_length() - 1)
        lanes.append(power)
        rest -= power
    return (count, longest), lanes


def unroll_marked(loop: nest.For) -> nest.For:
    """The loop with what its pragmas say: `vectorize`, `unroll`, and the limits up to which loops
    within it are unrolled as well: `auto_unroll_max_step` (statements), `auto_unroll_max_extent`
    (iterations), `auto_unroll_max_depth` (loops within each other). With `unroll_explicit` false
    the loops are left to LLVM."""
    pragmas = loop.pragmas
    if not pragmas or loop.kind != nest.SERIAL:
        return loop
    if kind_of(loop) != nest.SERIAL:
        return replace(loop, kind=kind_of(loop))
    limits = _Limits(
        int(pragmas.get("auto_unroll_max_step") or 0),
        int(pragmas.get("auto_unroll_max_extent") or 0),
        int(pragmas.get("auto_unroll_max_depth", 8)),
    )
    if (limits.steps or limits.extent) and pragmas.get("unroll_explicit", True):
        marked = _marked(loop, limits)
        assert isinstance(marked, nest.For)
        return replace(marked, pragmas={})
    return loop


@dataclass(frozen=True)
class _Limits:
    steps: int
    extent: int
    depth: int

    def hold(self, loop: nest.For) -> bool:
        """Whether a loop is small enough to be unrolled."""
        small = steps(loop) <= self.steps or loop.extent <= self.extent
        return small and nested(loop) <= self.depth


def _marked(stmt: Stmt, limits: _Limits) -> Stmt:
    """A statement whose loops within the limits are unrolled, from the inside out."""
    match stmt:
        case nest.Seq():
            return replace(stmt, body=tuple(_marked(part, limits) for part in stmt.body))
        case nest.Allocate():
            return replace(stmt, body=_marked(stmt.body, limits))
        case nest.If():
            otherwise = stmt.otherwise
            return replace(
                stmt,
                then=_marked(stmt.then, limits),
                otherwise=None if otherwise is None else _marked(otherwise, limits),
            )
        case nest.For():
            unrolled = kind_of(stmt) == nest.SERIAL and limits.hold(stmt)
            kind = nest.UNROLLED if unrolled else stmt.kind
            return replace(stmt, body=_marked(stmt.body, limits), kind=kind)
    return stmt


def steps(stmt: Stmt) -> int:
    """Statements run, vectorized loops counted as one step."""
    if isinstance(stmt, nest.For):
        return steps(stmt.body) * (1 if kind_of(stmt) == nest.VECTORIZED else stmt.extent)
    below = inner(stmt)
    return sum(steps(part) for part in below) if below else 1


def nested(stmt: Stmt) -> int:
    """Loops around the innermost statement."""
    deepest = max((nested(part) for part in inner(stmt)), default=0)
    return deepest + (1 if isinstance(stmt, nest.For) and kind_of(stmt) != nest.VECTORIZED else 0)
