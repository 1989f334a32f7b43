"""Which loops of the ops of a dispatch are the same loop.

The ops of a dispatch share loops through the tensors they pass on: the row loop of a bias
addition is the row loop of the matmul that it follows. This follows IREE's own
`IterationDimTracker`, which decides the same when the compiler carries the tiling of the root op
over to the others: loops are joined where one op uses the result of another, and nowhere else. Two
ops that read the same input, or write to the same `tensor.empty`, have nothing in common: in
A·Aᵀ the rows and columns of the product both walk the rows of A.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir

from tilewright.ir.reference.access import indexing_maps, iterator_kinds, loops_in, plain_dims
from tilewright.ir.reference.extended import outer_order
from tilewright.ir.reference.tensors import reassociation
from tilewright.ir.sizes import SizeEvaluator

Ratio = tuple[int, int]
"""Numerator and denominator of a factor between tile sizes."""

SAME: Ratio = (1, 1)


@dataclass(frozen=True)
class OpLoops:
    """The loops of one op, outermost first.

    `extents`: trip counts (-1 unknown); `reduction`: whether the loop combines values or has to
    run in order; `shared`: a number for each loop, equal for loops that are the same in several
    ops; `scales`: a tile of this loop is one of the shared loop times this ratio (packing and
    unpacking step through whole inner tiles).
    """

    extents: tuple[int, ...]
    reduction: tuple[bool, ...]
    shared: tuple[int, ...]
    scales: tuple[Ratio, ...] = ()


class _Classes:
    """Equivalence classes of loop numbers (union-find)."""

    def __init__(self) -> None:
        self._parent: list[int] = []

    def new(self, count: int) -> list[int]:
        first = len(self._parent)
        self._parent += range(first, first + count)
        return list(range(first, first + count))

    def find(self, i: int) -> int:
        while self._parent[i] != i:
            self._parent[i] = self._parent[self._parent[i]]
            i = self._parent[i]
        return i

    def join(self, a: int, b: int) -> None:
        self._parent[self.find(b)] = self.find(a)


def uses_of_loops(map_: ir.AffineMap) -> tuple[set[int], set[int]]:
    """The loops that a map uses, and those of them in one expression with another loop.

    Args:
        map_: an indexing map.

    Returns:
        Two sets of positions, the second part of the first.
    """
    used: set[int] = set()
    compound: set[int] = set()
    for expression in map_.results:
        loops = loops_in(expression)
        used |= loops
        if len(loops) > 1:
            compound |= loops
    return used, compound


def find_loops(ops: Sequence[ir.Operation], sizes: SizeEvaluator | None = None) -> list[OpLoops]:
    """The loops of every op, with the numbers of those they share.

    Args:
        ops: the compute ops of a dispatch, in program order.
        sizes: knows the sizes that the types leave open.

    Returns:
        The loops of each op.
    """
    tracker = _Tracker(sizes or SizeEvaluator())
    read = [tracker.read(op) for op in ops]
    return [
        OpLoops(
            loops.extents,
            loops.reduction,
            tuple(tracker.classes.find(i) for i in loops.shared),
            loops.scales,
        )
        for loops in read
    ]


class _Tracker:
    """Goes through the ops of a dispatch and remembers which loops made their results.

    `made`: for every result so far, the loop behind each of its dimensions; -1 for one that none
    of the shared loops walks alone.
    """

    def __init__(self, sizes: SizeEvaluator) -> None:
        self.classes = _Classes()
        self.shape_of = sizes.shape
        self.made: dict[ir.Value, list[int]] = {}

    def read(self, op: ir.Operation) -> OpLoops:
        maps = indexing_maps(op)
        if maps:
            return self._with_maps(op, maps)
        if op.name == "linalg.pack":
            return self._pack(op)
        if op.name == "linalg.unpack":
            return self._unpack(op)
        if op.name in _RESHAPES:
            return self._reshape(op)
        return self._without_maps(op)

    def _with_maps(self, op: ir.Operation, maps: list[ir.AffineMap]) -> OpLoops:
        count = maps[0].n_dims
        loops = self.classes.new(count)
        extents = [-1] * count
        operands = list(op.operands)[: len(maps)]
        for map_, value in zip(maps, operands, strict=True):
            shape, made = self.shape_of(value), self.made.get(value)
            for dimension, loop in plain_dims(map_):
                if dimension < len(shape):
                    extents[loop] = shape[dimension]
                if made is not None:
                    self._join(loops[loop], made[dimension])
        outputs = maps[-max(1, len(op.results)) :]
        kinds = iterator_kinds(op)
        if kinds is None or len(kinds) != count:
            written = {loop for map_ in outputs for _, loop in plain_dims(map_)}
            kinds = [i not in written for i in range(count)]
        for result, map_ in zip(op.results, outputs, strict=False):
            dims = [-1] * len(map_.results)
            for dimension, loop in plain_dims(map_):
                dims[dimension] = loops[loop]
            self.made[result] = dims
        return OpLoops(tuple(extents), tuple(kinds), tuple(loops))

    def _join(self, loop: int, other: int) -> None:
        if other >= 0:
            self.classes.join(other, loop)

    def _pack(self, op: ir.Operation) -> OpLoops:
        """A loop for each outer dimension of the result: a tile of it is whole inner tiles."""
        source, result = op.operands[0], op.results[0]
        rank = len(self.shape_of(source))
        inner, order = _inner_tiles(op, rank), outer_order(op, rank)
        made = self.made.get(source, [-1] * rank)
        loops = self.classes.new(rank)
        for loop, dimension in zip(loops, order, strict=True):
            self._join(loop, made[dimension])
        self.made[result] = [-1] * len(self.shape_of(result))
        return OpLoops(
            self.shape_of(result)[:rank],
            (False,) * rank,
            tuple(loops),
            tuple((1, inner[dimension]) for dimension in order),
        )

    def _unpack(self, op: ir.Operation) -> OpLoops:
        """A loop for each dimension of the result, in which the source steps by inner tiles."""
        source, result = op.operands[0], op.results[0]
        rank = len(self.shape_of(result))
        inner, order = _inner_tiles(op, rank), outer_order(op, rank)
        made = self.made.get(source)
        loops = self.classes.new(rank)
        scales = [SAME] * rank
        if made is not None:
            for outer, dimension in enumerate(order):
                self._join(loops[dimension], made[outer])
                scales[dimension] = (inner[dimension], 1)
        # What follows an unpack of this dispatch's own data counts in other steps than the root.
        self.made[result] = loops if made is None else [-1] * rank
        return OpLoops(self.shape_of(result), (False,) * rank, tuple(loops), tuple(scales))

    def _reshape(self, op: ir.Operation) -> OpLoops:
        """No loops; dimensions keep theirs where they are split off or joined with those of 1."""
        source, result = op.operands[0], op.results[0]
        ranks = [len(self.shape_of(value)) for value in (source, result)]
        wide = self.shape_of(source if ranks[0] > ranks[1] else result)
        made, dims = self.made.get(source), [-1] * ranks[1]
        for narrow, group in enumerate(reassociation(op)):
            large = [one for one in group if wide[one] != 1]
            if made is not None and len(large) == 1:
                before, after = (large[0], narrow) if ranks[0] > ranks[1] else (narrow, large[0])
                dims[after] = made[before]
        self.made[result] = dims
        return OpLoops((), (), ())

    def _without_maps(self, op: ir.Operation) -> OpLoops:
        """Ops of other kinds have a loop for each dimension of the tensor they go through."""
        domain = _domain(op)
        extents = self.shape_of(domain)
        count = len(extents)
        loops = self.classes.new(count)
        for value in op.operands:
            made = self.made.get(value)
            if made is not None and len(made) == count:
                for loop, other in zip(loops, made, strict=True):
                    self._join(loop, other)
        for result in op.results:
            if len(self.shape_of(result)) == count:
                self.made[result] = loops
        ordered = [i == _ordered_dimension(op) for i in range(count)]
        return OpLoops(extents, tuple(ordered), tuple(loops))


_RESHAPES = ("tensor.collapse_shape", "tensor.expand_shape")
_THROUGH_INPUT = (
    "iree_linalg_ext.arg_compare",
    "iree_linalg_ext.map_scatter",
    "iree_linalg_ext.map_store",
    "iree_linalg_ext.scatter",
    "iree_linalg_ext.topk",
    "iree_linalg_ext.topk_v2",
)
_ORDERED = (
    "iree_linalg_ext.arg_compare",
    "iree_linalg_ext.scan",
    "iree_linalg_ext.sort",
    "iree_linalg_ext.topk",
    "iree_linalg_ext.topk_v2",
    "linalg.softmax",
)


def _domain(op: ir.Operation) -> ir.Value:
    """The tensor whose dimensions an op without indexing maps loops over."""
    if op.name in _THROUGH_INPUT or not len(op.results):
        return op.operands[0]
    return op.results[0]


def _ordered_dimension(op: ir.Operation) -> int:
    """The dimension along which an op without indexing maps compares or adds up; -1: none."""
    if op.name not in _ORDERED or "dimension" not in op.attributes:
        return -1
    return int(ir.IntegerAttr(op.attributes["dimension"]).value)


def _inner_tiles(op: ir.Operation, rank: int) -> list[int]:
    """For each dimension of the unpacked tensor its inner tile; 1 where it is not tiled."""
    positions = list(ir.DenseI64ArrayAttr(op.attributes["inner_dims_pos"]))
    tiles = list(ir.DenseI64ArrayAttr(op.attributes["static_inner_tiles"]))
    found = [1] * rank
    for position, tile in zip(positions, tiles, strict=True):
        found[position] = max(1, tile)
    return found
