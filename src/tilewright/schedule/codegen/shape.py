"""Questions about the shape of a nest: what to unroll, how wide its vectors are."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.schedule import nest
from tilewright.schedule.expr import Expr, Load
from tilewright.schedule.nest import Stmt
from tilewright.schedule.types import bits
from tilewright.schedule.walk import children, inner

if TYPE_CHECKING:
    from tilewright.schedule.codegen.expand import Widths


def kind_of(loop: nest.For) -> str:
    """What a loop is, its own pragmas considered."""
    if loop.kind == nest.SERIAL:
        for pragma, kind in (("vectorize", nest.VECTORIZED), ("unroll", nest.UNROLLED)):
            if pragma in loop.pragmas:
                return kind
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
    """The loop with what its pragmas say: `vectorize`, `unroll`, `auto_unroll_max_step`."""
    pragmas = loop.pragmas
    if not pragmas or loop.kind != nest.SERIAL:
        return loop
    if kind_of(loop) != nest.SERIAL:
        return replace(loop, kind=kind_of(loop))
    if "auto_unroll_max_step" in pragmas:
        limit = int(pragmas["auto_unroll_max_step"] or 0)
        depth = int(pragmas.get("auto_unroll_max_depth", 8))
        marked = _marked(loop, limit, depth)
        assert isinstance(marked, nest.For)
        return replace(marked, pragmas={})
    return loop


def _marked(stmt: Stmt, limit: int, depth: int) -> Stmt:
    """A statement whose loops of few enough steps in all are unrolled, from the inside out."""
    match stmt:
        case nest.Seq():
            return replace(stmt, body=tuple(_marked(part, limit, depth) for part in stmt.body))
        case nest.Allocate():
            return replace(stmt, body=_marked(stmt.body, limit, depth))
        case nest.If():
            otherwise = stmt.otherwise
            return replace(
                stmt,
                then=_marked(stmt.then, limit, depth),
                otherwise=None if otherwise is None else _marked(otherwise, limit, depth),
            )
        case nest.For():
            body = _marked(stmt.body, limit, depth)
            small = steps(stmt) <= limit and nested(stmt) <= depth
            kind = nest.UNROLLED if kind_of(stmt) == nest.SERIAL and small else stmt.kind
            return replace(stmt, body=body, kind=kind)
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
