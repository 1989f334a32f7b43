"""Operands of a structured op seen over its iteration space, through their affine indexing maps.

A view has one axis per loop, of length 1 where the operand does not depend on that loop, so that
NumPy's broadcasting does the rest. Linear maps (permutations, windows such as `d1 * 2 + d4`,
diagonals, constants) are strided views of the operand, without a copy; maps with `mod` or a
division are gathered through index arrays.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import linalg
from numpy.lib.stride_tricks import as_strided

from tilewright.attributes import items_of, parse_attribute
from tilewright.ir.reference.elements import Array, Unsupported

# Half-open range of each loop.
Box = tuple[tuple[int, int], ...]


def indexing_maps(op: ir.Operation) -> list[ir.AffineMap]:
    """The indexing maps of an op (linalg ops, attention).

    Args:
        op: a compute op.

    Returns:
        One affine map per operand; none for an op that has none.
    """
    if "indexing_maps" in op.attributes:
        return [a.value for a in ir.ArrayAttr(op.attributes["indexing_maps"])]
    if op.name.startswith("linalg.") and len(op.regions):
        try:
            found = linalg.get_indexing_maps(op)
        except (TypeError, ValueError, RuntimeError):
            return []
        return [a.value for a in found] if found is not None else []
    return []


def iterator_kinds(op: ir.Operation) -> list[bool] | None:
    """For each loop whether it is a reduction, for ops that say so themselves.

    Args:
        op: a compute op.

    Returns:
        One truth value per loop, outermost first; None for an op that does not say.
    """
    if "iterator_types" not in op.attributes:
        return None
    return list(_kinds(str(op.attributes["iterator_types"])))


@cache
def _kinds(text: str) -> tuple[bool, ...]:
    """See `iterator_kinds`. Programs have few of these attributes, and are asked for them often."""
    kinds = parse_attribute(text)
    assert isinstance(kinds, list)
    return tuple("reduction" in items_of(kind) for kind in kinds)


def loops_in(expression: ir.AffineExpr) -> set[int]:
    """The loops that an expression of an indexing map uses.

    Args:
        expression: the expression.

    Returns:
        Their positions.
    """
    if isinstance(expression, ir.AffineDimExpr):
        return {expression.position}
    if isinstance(expression, ir.AffineBinaryExpr):
        return loops_in(expression.lhs) | loops_in(expression.rhs)
    return set()


def plain_dims(map_: ir.AffineMap) -> Iterator[tuple[int, int]]:
    """The axes that one loop alone walks.

    Args:
        map_: an operand's indexing map.

    Yields:
        (axis of the operand, loop).
    """
    for axis, expression in enumerate(map_.results):
        if isinstance(expression, ir.AffineDimExpr):
            yield axis, expression.position


def evaluate_expr(expr: ir.AffineExpr, dims: Sequence[Any], symbols: Sequence[Any] = ()) -> Any:
    """The value of an affine expression for given values (numbers or arrays) of its variables.

    Args:
        expr: an `ir.AffineExpr`.
        dims: values of its dimensions: numbers, or arrays that broadcast.
        symbols: values of its symbols.
    """
    if isinstance(expr, ir.AffineDimExpr):
        return dims[expr.position]
    if isinstance(expr, ir.AffineSymbolExpr):
        return symbols[expr.position]
    if isinstance(expr, ir.AffineConstantExpr):
        return int(expr.value)
    binary = ir.AffineBinaryExpr(expr)
    left = evaluate_expr(binary.lhs, dims, symbols)
    right = evaluate_expr(binary.rhs, dims, symbols)
    if isinstance(expr, ir.AffineAddExpr):
        return left + right
    if isinstance(expr, ir.AffineMulExpr):
        return left * right
    if isinstance(expr, ir.AffineModExpr):
        return left % right
    if isinstance(expr, ir.AffineFloorDivExpr):
        return left // right
    return -(-left // right)


@dataclass(frozen=True)
class IndexExpr:
    """One result of an indexing map: `linear` holds (coefficient of each loop, constant), or is
    None where the expression has a `mod` or a division; `uses` are the loops that it depends on."""

    expr: ir.AffineExpr
    uses: frozenset[int]
    linear: tuple[tuple[int, ...], int] | None


class OperandAccess:
    """An indexing map, taken apart once for the views that are made through it."""

    def __init__(self, map_: ir.AffineMap) -> None:
        if map_.n_symbols:
            raise Unsupported("an indexing map with symbols")
        self.map = map_
        self.loops: int = map_.n_dims
        self.results = tuple(_index_expr(expr, self.loops) for expr in map_.results)

    @property
    def uses(self) -> frozenset[int]:
        """The loops that the operand depends on."""
        return frozenset().union(*(r.uses for r in self.results))

    @property
    def is_linear(self) -> bool:
        return all(r.linear is not None for r in self.results)

    def view(self, array: Array, box: Box, *, writeable: bool = False) -> Array:
        """The operand over the iterations of a box: one axis per loop, of length 1 where it does
        not depend on that loop.

        Args:
            array: the operand, as `row_major` gives it.
            box: range of each loop.
            writeable: the view writes through to `array`; only linear maps have one.

        Raises:
            Unsupported: an index would leave the array (the program would read outside its tensor).
        """
        if array.ndim != len(self.results):
            raise Unsupported(
                f"an indexing map with {len(self.results)} results on {array.ndim} axes"
            )
        used = self.uses
        shape = tuple(hi - lo if d in used else 1 for d, (lo, hi) in enumerate(box))
        if 0 in shape or not self.is_linear:
            if writeable:
                raise Unsupported("writing through a map with mod or a division")
            return self._gather(array, box, shape)
        strides = [0] * self.loops
        begin, start = [], 0
        for axis, result in enumerate(self.results):
            assert result.linear is not None
            coefficients, constant = result.linear
            first = constant + sum(c * lo for c, (lo, _) in zip(coefficients, box, strict=True))
            steps = [c * (n - 1) for c, n in zip(coefficients, shape, strict=True)]
            low = first + sum(min(s, 0) for s in steps)
            high = first + sum(max(s, 0) for s in steps)
            if low < 0 or high >= array.shape[axis]:
                raise Unsupported(
                    f"indices {low} to {high} of an axis of length {array.shape[axis]}"
                )
            begin.append(slice(first, None))
            start += first * array.strides[axis]
            for d, c in enumerate(coefficients):
                strides[d] += c * array.strides[axis]
        if not array.flags.c_contiguous:
            # What is repeated has no buffer as large as its shape.
            return as_strided(array[tuple(begin)], shape, strides, writeable=writeable)
        view: Array = np.ndarray(shape, array.dtype, array, start, strides)
        return view

    def _gather(self, array: Array, box: Box, shape: tuple[int, ...]) -> Array:
        if 0 in shape:
            return np.empty(shape, array.dtype)
        dims = [index_array(d, box, self.loops) for d in range(self.loops)]
        index = tuple(np.asarray(evaluate_expr(r.expr, dims)) for r in self.results)
        picked = array[index] if index else array
        return np.asarray(picked).reshape(shape)


def row_major(array: Array) -> Array:
    """An array as `OperandAccess.view` takes it.

    Args:
        array: any.

    Returns:
        It, C-contiguous; as it is where elements are repeated along axes, which take memory once.
    """
    repeated = any(s == 0 and n > 1 for s, n in zip(array.strides, array.shape, strict=True))
    return array if repeated else np.asarray(array, order="C")


def index_array(loop: int, box: Box, loops: int) -> Array:
    """The values of one loop over the box, along that loop's axis.

    Args:
        loop: its number.
        box: range of each loop.
        loops: how many there are.
    """
    lo, hi = box[loop]
    shape = [1] * loops
    shape[loop] = hi - lo
    return np.arange(lo, hi, dtype=np.int64).reshape(shape)


def _index_expr(expr: ir.AffineExpr, loops: int) -> IndexExpr:
    linear = _linear(expr, loops)
    if linear is None:
        return IndexExpr(expr, frozenset(loops_in(expr)), None)
    return IndexExpr(expr, frozenset(d for d, c in enumerate(linear[0]) if c), linear)


def _linear(expr: ir.AffineExpr, loops: int) -> tuple[tuple[int, ...], int] | None:
    if isinstance(expr, ir.AffineConstantExpr):
        return (0,) * loops, int(expr.value)
    if isinstance(expr, ir.AffineDimExpr):
        return tuple(int(d == expr.position) for d in range(loops)), 0
    if not isinstance(expr, ir.AffineAddExpr | ir.AffineMulExpr):
        return None
    left, right = _linear(expr.lhs, loops), _linear(expr.rhs, loops)
    if left is None or right is None:
        return None
    if isinstance(expr, ir.AffineAddExpr):
        return tuple(a + b for a, b in zip(left[0], right[0], strict=True)), left[1] + right[1]
    # MLIR keeps the constant of a product on the right.
    return tuple(a * right[1] for a in left[0]), left[1] * right[1]


def loop_sizes(
    accesses: Sequence[OperandAccess], shapes: Sequence[tuple[int, ...]], what: str
) -> tuple[int, ...]:
    """Trip counts of the loops from the shapes of the operands that they index alone.

    A size of -1 is one that is not known; so is a loop's for which no operand knows it.

    Args:
        accesses: the operands' indexing maps.
        shapes: of the operands.
        what: the op, for messages.

    Raises:
        Unsupported: operands disagree, or a loop indexes no axis by itself.
    """
    loops = accesses[0].loops
    sizes: list[int | None] = [None] * loops
    for access, shape in zip(accesses, shapes, strict=True):
        for axis, loop in plain_dims(access.map):
            if sizes[loop] in (None, -1):
                sizes[loop] = shape[axis]
            elif shape[axis] not in (-1, sizes[loop]):
                raise Unsupported(f"{what}: operands disagree on loop {loop}")
    if any(n is None for n in sizes):
        raise Unsupported(f"{what}: a loop that indexes no axis of any operand by itself")
    return tuple(n for n in sizes if n is not None)


def full_box(sizes: Sequence[int]) -> Box:
    """The box of all iterations.

    Args:
        sizes: of the loops.
    """
    return tuple((0, n) for n in sizes)


def boxes(sizes: Sequence[int], limit: int) -> Iterator[Box]:
    """Cut the iteration space into boxes of at most `limit` points, outer loops first.

    Args:
        sizes: of the loops.
        limit: points.
    """
    tile = list(sizes)
    points = int(np.prod(sizes, dtype=object)) if sizes else 1
    if points == 0:
        return
    for d, n in enumerate(sizes):
        if points <= limit:
            break
        inner = points // n
        tile[d] = max(1, limit // inner) if inner else n
        points = inner * tile[d] if tile[d] > 1 else inner
    spans = (
        [(low, min(low + step, n)) for low in range(0, n, step)]
        for n, step in zip(sizes, tile, strict=True)
    )
    yield from itertools.product(*spans)
