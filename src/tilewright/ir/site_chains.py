"""Which dispatches belong together as one kernel, by their loops: chains over rows, attention,
products with what is elementwise around them, windows over what a product makes.

A chain over rows reduces one or several times over the same rows, with elementwise ops between:
layer norm, softmax. What it reads of a row can stay in a cache, or in registers, from one op to the
next. Attention is such a chain between two contractions, of which one makes the rows and the other
reduces over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from iree.compiler import ir

from tilewright.ir.classify import is_product_sum
from tilewright.ir.loops import OpLoops, find_loops, uses_of_loops
from tilewright.ir.reference.access import indexing_maps
from tilewright.ir.site_module import IsolatedSite, needed
from tilewright.ir.walk import walk

_RESHAPES = ("tensor.collapse_shape", "tensor.expand_shape")
_SOFTMAX = "linalg.softmax"


class Chain(Enum):
    """What ops make together, or could make with what comes before them.

    PRODUCT: sums of products with elementwise ops behind. MOVES: products
    or windows with padding or transposes of operands before. BAND: windows over what a product
    makes. GATED: products that read what elementwise ops make.
    """

    NONE = 0
    ELEMENTWISE = 1
    ROWS = 2
    HALF_ATTENTION = 3
    ATTENTION = 4
    PRODUCT = 5
    MOVES = 6
    BAND = 7
    GATED = 8


@dataclass(frozen=True)
class _Reduction:
    """A reduction: the loops that it keeps and those that it reduces; loops of one step left out.

    contraction: it adds up products of two operands.
    """

    kept: frozenset[int]
    reduced: frozenset[int]
    contraction: bool


def chain_of(site: IsolatedSite) -> Chain:
    """What the ops of a site make together.

    Args:
        site: the ops of one dispatch or of several.
    """
    (function,) = walk(site.module.operation, lambda _: False)
    ops = _working(list(walk(function, lambda _: False))[:-1])
    if not all(map(_can_be_merged, ops)):
        return Chain.NONE
    pairs = zip(ops, find_loops(ops), strict=True)
    reductions = [one for one in (_reduction(op, loops) for op, loops in pairs) if one is not None]
    contractions = [one for one in reductions if one.contraction]
    others = [one for one in reductions if not one.contraction]
    rows = {one.kept for one in others}
    if any(not kept for kept in rows) or len(rows) > 1:
        return Chain.NONE
    if not contractions:
        return Chain.ROWS if others else Chain.ELEMENTWISE
    last = reductions[-1]
    if not last.contraction or any(len(one.reduced) > 1 for one in others):
        return Chain.NONE
    if len(contractions) == 1:
        return Chain.HALF_ATTENTION
    # What is read twice, as by a softmax, has the same loops only where the chain makes it.
    first, *between = reductions[:-1]
    attention = first.contraction and between == others and others
    same = all(one.reduced == last.reduced for one in others) and last.reduced <= first.kept
    return Chain.ATTENTION if attention and same else Chain.NONE


def has_window(site: IsolatedSite) -> bool:
    """Whether a window slides over data in a site, as in convolutions and pooling.

    Args:
        site: the ops of one dispatch or of several.
    """
    ops = walk(site.module.operation)
    return any(uses_of_loops(map_)[1] for op in ops for map_ in indexing_maps(op))


def sums_windows(site: IsolatedSite) -> bool:
    """Whether an op of a site reduces over windows of more than one element, and of such several.

    Args:
        site: the ops of one dispatch or of several.
    """
    for op in walk(site.module.operation):
        compound = set().union(*(uses_of_loops(map_)[1] for map_ in indexing_maps(op)))
        if compound:
            (loops,) = find_loops([op])
            wide = [loops.reduction[one] for one in compound if loops.extents[one] != 1]
            if any(wide) and not all(wide):
                return True
    return False


def has_product(site: IsolatedSite) -> bool:
    """Whether an op of a site adds up products of two operands.

    Args:
        site: the ops of one dispatch or of several.
    """
    ops = [(op, indexing_maps(op)) for op in walk(site.module.operation)]
    return any(bool(maps) and is_product_sum(op, maps) for op, maps in ops)


def _working(ops: Sequence[ir.Operation]) -> list[ir.Operation]:
    """The ops without those that only fill."""
    filled: set[ir.Value] = set()
    found = []
    for op in ops:
        if all(value in filled for value in needed(op)):
            filled |= set(op.results)
        else:
            found.append(op)
    return found


def _can_be_merged(op: ir.Operation) -> bool:
    """Whether its loops say all that it reads: no windows, nothing at computed places."""
    if op.name in (*_RESHAPES, _SOFTMAX):
        return True
    maps = indexing_maps(op)
    inside = {value for one in walk(op) for value in one.operands}
    reads = any(isinstance(value.type, ir.RankedTensorType) for value in inside)
    return bool(maps) and not reads and not any(uses_of_loops(map_)[1] for map_ in maps)


def _reduction(op: ir.Operation, loops: OpLoops) -> _Reduction | None:
    sides: tuple[set[int], set[int]] = (set(), set())
    for shared, extent, reduced in zip(loops.shared, loops.extents, loops.reduction, strict=True):
        if extent != 1:
            sides[reduced].add(shared)
    if not sides[1]:
        return None
    maps = indexing_maps(op)
    product = bool(maps) and is_product_sum(op, maps) and op.operands[0] != op.operands[1]
    return _Reduction(frozenset(sides[0]), frozenset(sides[1]), product)
