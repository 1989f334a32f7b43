"""Which stages of an expression are one: elementwise work belongs to who reads it.

A stage that another reads at one place only, and no more often than it has elements, becomes part
of it; a conversion becomes part of all that read it; a reduction whose elements are only moved is
computed where they go. A reduction over dimensions that were joined runs over each of them again.
What several stages need, or one needs again and again, stays by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilewright.schedule.arith import Arithmetic
from tilewright.schedule.expr import COMPARISONS, Binary, Cast, Const, Expr, Select, index, same
from tilewright.schedule.linear import Linear
from tilewright.schedule.tensor import (
    ComputeOp,
    IterVar,
    Reduce,
    Tensor,
    TensorRead,
    reads,
)
from tilewright.schedule.types import INDEX
from tilewright.schedule.walk import children, transform

# A stage that is read under a condition is computed where the condition holds; all places at which
# it could be are counted, and may be so many times more than its elements.
_GUARDED = 4


def fuse(outputs: Sequence[Tensor], arithmetic: Arithmetic) -> None:
    """Put stages into others, in place.

    Args:
        outputs: of the expression; they stay what they are.
        arithmetic: knows the bounds of all axes.
    """
    # Readers first: what two stages read is read by one when these have become one.
    for op in reversed(ordered(outputs)):
        if any(tensor in outputs for tensor in op.outputs) or len(op.outputs) > 1:
            continue
        (tensor,) = op.outputs
        readers = {stage: _reads_of(stage, tensor) for stage in ordered(outputs)}
        readers = {stage: found for stage, found in readers.items() if found}
        if op.reduction is not None:
            _move(op, readers, arithmetic)
        elif _only_converts(op) or _belongs(op, readers):
            for stage in readers:
                _put(op, stage, arithmetic)
    for op in ordered(outputs):
        if op.reduction is not None:
            _split(op, arithmetic)


def ordered(outputs: Sequence[Tensor]) -> list[ComputeOp]:
    """The stages of an expression, each behind what it reads.

    Args:
        outputs: of the expression.
    """
    found: dict[ComputeOp, None] = {}

    def visit(tensor: Tensor) -> None:
        op = tensor.op
        if isinstance(op, ComputeOp) and op not in found:
            for below in op.input_tensors:
                visit(below)
            found[op] = None

    for tensor in outputs:
        visit(tensor)
    return list(found)


def _reads_of(stage: ComputeOp, tensor: Tensor) -> list[TensorRead]:
    return [read for body in stage.body for read in reads(body) if read.tensor is tensor]


def _only_converts(op: ComputeOp) -> bool:
    """Whether elements are those of another tensor in another type."""
    body = op.body[0]
    while isinstance(body, Cast):
        body = body.value
    return isinstance(body, TensorRead)


def _belongs(op: ComputeOp, readers: dict[ComputeOp, list[TensorRead]]) -> bool:
    """Whether an elementwise stage is read at one place of one other elementwise stage, and not
    more often than it has elements."""
    if len(readers) > 1:
        return False
    ((reader, found),) = readers.items()
    if reader.reduction is not None or not _alike(found):
        return False
    times = prod(reader.outputs[0].shape) / prod(op.outputs[0].shape)
    return times <= 1 or (times <= _GUARDED and not _unguarded(reader, op.outputs[0]))


def _alike(found: Sequence[TensorRead]) -> bool:
    first = found[0].indices
    return all(all(same(a, b) for a, b in zip(first, read.indices, strict=True)) for read in found)


def _unguarded(reader: ComputeOp, tensor: Tensor) -> bool:
    """Whether a tensor is read whatever the conditions are."""
    seen: set[Expr] = set()
    left: list[Expr] = list(reader.body)
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, TensorRead) and node.tensor is tensor:
            return True
        guarded = isinstance(node, Select) and node.guarded
        left += [node.condition] if guarded and isinstance(node, Select) else children(node)
    return False


def moved(body: Expr, places: dict[Expr, Expr], arithmetic: Arithmetic) -> Expr:
    """An expression at other places, in its plainest form.

    Args:
        body: of a stage.
        places: by what stands for them there.
        arithmetic: knows the bounds of all axes.
    """

    def change(node: Expr) -> Expr | None:
        if node in places:
            return places[node]
        match node:
            case TensorRead():
                indices = tuple(arithmetic.simplify(i) for i in node.indices)
                return TensorRead(node.tensor, indices)
            case Binary() if node.op in COMPARISONS and node.a.dtype == INDEX:
                return arithmetic.simplify(node)
            case Select(guarded=True):
                condition = arithmetic.simplify(node.condition)
                if isinstance(condition, Const):
                    return node.a if condition.value else node.b
                return replace(node, condition=condition)
        return None

    return transform(body, change)


def _set(op: ComputeOp) -> None:
    for tensor in op.outputs:
        tensor.op = op


def _put(op: ComputeOp, reader: ComputeOp, arithmetic: Arithmetic) -> None:
    """Puts a stage into one that reads it: for equal places one expression."""
    made: list[tuple[TensorRead, Expr]] = []

    def change(node: Expr) -> Expr | None:
        if not isinstance(node, TensorRead) or node.tensor is not op.outputs[0]:
            return None
        for read, value in made:
            if _alike([read, node]):
                return value
        places: dict[Expr, Expr] = dict(zip(op.axis, node.indices, strict=True))
        value = moved(op.body[0], places, arithmetic)
        made.append((node, value))
        return value

    _set(reader.with_body(tuple(transform(body, change) for body in reader.body)))


def _move(
    op: ComputeOp, readers: dict[ComputeOp, list[TensorRead]], arithmetic: Arithmetic
) -> None:
    """Computes a reduction where its elements go, when all of them go to one place each."""
    ((reader, found), *others) = readers.items()
    body, (output, *more) = reader.body[0], reader.outputs
    reduction = op.reduction
    assert reduction is not None
    if others or more or len(found) > 1 or body is not found[0]:
        return
    if prod(output.shape) != prod(op.outputs[0].shape):
        return
    for place in found[0].indices:
        if any(atom.kind != "var" for atom in arithmetic.linear(place).terms):
            return
    places: dict[Expr, Expr] = dict(zip(op.axis, found[0].indices, strict=True))
    there = moved(reduction, places, arithmetic)
    assert isinstance(there, Reduce)
    output.name = op.name
    _set(ComputeOp(op.name, reader.outputs, reader.axis, (there,), op.tag, op.attrs))


def _split(op: ComputeOp, arithmetic: Arithmetic) -> None:
    """Splits reduced axes whose quotients and remainders are what is read."""
    reduction = op.reduction
    assert reduction is not None
    indices = [i for source in reduction.sources for read in reads(source) for i in read.indices]
    axes, places = taken_apart(reduction.axes, indices, arithmetic)
    if not places:
        return
    there = [moved(body, places, arithmetic) for body in op.body]
    _set(op.with_body(tuple(replace(b, axes=tuple(axes)) for b in there if isinstance(b, Reduce))))


def taken_apart(
    axes: Sequence[IterVar], indices: Sequence[Expr], arithmetic: Arithmetic
) -> tuple[list[IterVar], dict[Expr, Expr]]:
    """Axes with one for each dimension that they run over.

    Args:
        axes: of a stage.
        indices: in which quotients and remainders of them stand.
        arithmetic: knows the bounds of all axes, and then of the new ones.

    Returns:
        The axes, new ones in the places of those that run over several dimensions; and by each of
        these what it is of the new ones.
    """
    found: list[IterVar] = []
    places: dict[Expr, Expr] = {}
    for axis in axes:
        assert axis.dom is not None
        parts = _dimensions(axis, indices, arithmetic)
        if len(parts) < 2 or axis.dom.min:
            found.append(axis)
            continue
        whole: Expr = index(0)
        for number, extent in enumerate(parts):
            part = IterVar(f"{axis.name}{chr(ord('a') + number)}", (0, extent), axis.kind)
            arithmetic.bind(part, 0, extent - 1)
            found.append(part)
            whole = whole * extent + part
        places[axis] = arithmetic.simplify(whole)
    return found, places


def _dimensions(axis: IterVar, indices: Sequence[Expr], arithmetic: Arithmetic) -> list[int]:
    """The extents of the dimensions that an axis runs over, outermost first; itself where it is
    one, or where they are not seen."""
    assert axis.dom is not None
    extent = axis.dom.extent
    divisors: set[int] = set()

    def look(form: Linear) -> None:
        for atom in form.terms:
            if axis not in atom.variables or atom.kind == "var":
                continue
            for kind in ("floordiv", "floormod"):
                divided = atom.divided(kind)
                if divided is not None:
                    inner, divisor = divided
                    quotient = _quotient_of(inner, axis)
                    if quotient:
                        divisors.add(quotient * divisor)
                    look(inner)

    for place in indices:
        look(arithmetic.linear(place))
    parts: list[int] = []
    last = 1
    for divisor in [*sorted(divisors), extent]:
        if divisor % last or extent % divisor:
            return [extent]
        if divisor > last:
            parts.insert(0, divisor // last)
            last = divisor
    return parts


def _quotient_of(form: Linear, axis: IterVar) -> int:
    """What an axis is divided by to give a sum: 1 where it is the sum; 0 where it is another."""
    if form.constant or list(form.terms.values()) != [1]:
        return 0
    (atom,) = form.terms
    if atom.kind == "var":
        return int(atom.args[0] is axis)
    divided = atom.divided("floordiv")
    return _quotient_of(divided[0], axis) * divided[1] if divided else 0
