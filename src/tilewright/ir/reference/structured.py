"""Any linalg op with indexing maps and a scalar body, `linalg.generic` and named ops alike.

Three ways to evaluate one, each over boxes of the iteration space so that temporaries stay small:
all loops parallel (the body over the box); a reduction whose body combines the accumulator with
something that does not depend on it (a ufunc's `reduce`, or a matrix product, see `contraction`);
and any other reduction (its loops one point at a time, in order, the parallel loops at once).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from iree.compiler import ir

from tilewright.ir.reference import contraction
from tilewright.ir.reference.access import (
    Box,
    OperandAccess,
    boxes,
    full_box,
    index_array,
    indexing_maps,
    iterator_kinds,
    loop_sizes,
    plain_dims,
    row_major,
)
from tilewright.ir.reference.body import Body, Lookup
from tilewright.ir.reference.elements import Array, Element, Unsupported, unsigned, wrap

# Points of the iteration space that are evaluated at once: with float64 and a dozen live values of
# the body about 100 MB, and small enough to stay mostly in cache for short bodies.
_POINTS = 1 << 20
# Reduction points that the one-at-a-time way takes before it is a hang rather than an answer.
_MAX_SEQUENTIAL = 2_000_000


@dataclass(frozen=True)
class Structure:
    """What the evaluation needs of an op: a map per operand (inputs first), and the loop kinds."""

    accesses: tuple[OperandAccess, ...]
    outputs: int
    reduction: tuple[bool, ...]


def is_structured(op: ir.Operation) -> bool:
    """Whether the op is one of linalg's with indexing maps and a region.

    Args:
        op: any.
    """
    return (
        op.name.startswith("linalg.")
        and len(op.regions) == 1
        and len(op.regions[0].blocks) == 1
        and bool(op.results)
        and bool(indexing_maps(op))
    )


def structure(op: ir.Operation) -> Structure:
    """The loop structure of a structured op.

    The loops of a named op that no output depends on are its reductions.

    Args:
        op: a structured op.
    """
    accesses = tuple(map(OperandAccess, indexing_maps(op)))
    outputs = len(op.results)
    kinds = iterator_kinds(op)
    if kinds is None:
        kept = frozenset().union(*(a.uses for a in accesses[-outputs:]))
        kinds = [d not in kept for d in range(accesses[0].loops)]
    return Structure(accesses, outputs, tuple(kinds))


def evaluate(op: ir.Operation, operands: Sequence[Array], captured: Lookup) -> list[Array]:
    """The results of a structured op for its operands (inputs, then the initial outputs).

    Args:
        op: a structured op.
        operands: inputs, then the initial outputs.
        captured: values that the body takes from outside.

    Returns:
        One array for each output.

    Raises:
        Unsupported: the op does something that is not known here.
    """
    plan = structure(op)
    body = Body(op.regions[0].blocks[0], captured)
    arrays = list(map(row_major, operands))
    sizes = loop_sizes(plan.accesses, [x.shape for x in arrays], op.name)
    repeated = _repeated(plan, body, arrays, sizes)
    if repeated is not None:
        return [repeated]
    results = [np.array(x, order="C") for x in arrays[-plan.outputs :]]
    run = _Run(op.name, plan, body, sizes, arrays[: -plan.outputs], results)
    if 0 in sizes:
        return results
    if not any(plan.reduction):
        run.parallel()
        return results
    combiners = [run.combiner(j) for j in range(plan.outputs)]
    if all(c is not None for c in combiners):
        for j, found in enumerate(combiners):
            assert found is not None
            run.reduce(j, found)
    else:
        run.sequential()
    return results


def _repeated(
    plan: Structure, body: Body, arrays: Sequence[Array], sizes: tuple[int, ...]
) -> Array | None:
    """What an op makes that repeats its input along loops that this does not depend on, as a view:
    an importer's weight for each of 197 rows would be 2.6 GiB."""
    inputs = len(arrays) - plan.outputs
    if any(plan.reduction) or plan.outputs > 1 or body.yields[0] >= inputs or 0 in sizes:
        return None
    access, result = plan.accesses[body.yields[0]], plan.accesses[-1]
    axes = [loop for _, loop in plain_dims(result.map)]
    if sorted(axes) != list(range(len(sizes))) or not access.is_linear:
        return None
    view = access.view(arrays[body.yields[0]], full_box(sizes))
    repeats = any(n == 1 < size for n, size in zip(view.shape, sizes, strict=True))
    return np.broadcast_to(view, sizes).transpose(axes) if repeats else None


@dataclass(frozen=True)
class Accumulation:
    """`accumulator = accumulator (name) term`, minus the term when it is `negated`."""

    name: str
    term: int
    negated: bool
    element: Element


# How a combining operation reduces many terms. Sums and products of integers wrap at the end.
_UFUNCS: dict[str, np.ufunc] = {
    "arith.addf": np.add,
    "arith.subf": np.add,
    "arith.mulf": np.multiply,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "arith.addi": np.add,
    "arith.subi": np.add,
    "arith.muli": np.multiply,
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.maxui": np.maximum,
    "arith.minui": np.minimum,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
}


@dataclass
class _Run:
    """One evaluation. `results` start as the initial outputs and are written in place."""

    name: str
    plan: Structure
    body: Body
    sizes: tuple[int, ...]
    inputs: list[Array]
    results: list[Array]

    def arguments(self, box: Box, needed: frozenset[int]) -> dict[int, Array]:
        """Views of the operands that are needed, over the box."""
        operands = [*self.inputs, *self.results]
        return {
            a: self.plan.accesses[a].view(operands[a], box) for a in needed if a < len(operands)
        }

    def evaluate(self, slots: Sequence[int], box: Box) -> list[Array]:
        needed = frozenset[int]().union(*(self.body.depends(s)[0] for s in slots))
        loops = len(self.sizes)
        return self.body.evaluate(
            slots, self.arguments(box, needed), lambda d: index_array(d, box, loops)
        )

    def output(self, j: int, box: Box) -> Array:
        access = self.plan.accesses[len(self.inputs) + j]
        return access.view(self.results[j], box, writeable=True)

    def write(self, j: int, box: Box, value: Array) -> None:
        """Store a value that varies over the box's parallel loops only."""
        target = self.output(j, box)
        if value.ndim:
            # A loop that the output does not depend on has one point here.
            value = value[tuple(slice(0, 1) if n == 1 else slice(None) for n in target.shape)]
        target[...] = value

    def parallel(self) -> None:
        for box in boxes(self.sizes, _POINTS):
            values = self.evaluate(self.body.yields, box)
            for j, value in enumerate(values):
                self.write(j, box, value)

    def combiner(self, j: int) -> Accumulation | None:
        """How output `j` is accumulated, when its new value is a known combination of the old one
        and a term that depends on no accumulator."""
        body, step = self.body, self.body.producer.get(self.body.yields[j])
        if step is None or step.name not in _UFUNCS or len(step.inputs) != 2:
            return None
        if not self.plan.accesses[len(self.inputs) + j].is_linear:
            return None
        accumulator = len(self.inputs) + j
        subtracts = step.name in ("arith.subf", "arith.subi")
        sides = (1,) if subtracts else (1, 0)
        for side in sides:
            term = step.inputs[side]
            reads_accumulator = any(a >= len(self.inputs) for a in body.depends(term)[0])
            if step.inputs[1 - side] == accumulator and not reads_accumulator:
                return Accumulation(step.name, term, subtracts, step.element)
        return None

    def reduce(self, j: int, how: Accumulation) -> None:
        factors = None
        if how.name in ("arith.addf", "arith.subf", "arith.addi", "arith.subi"):
            factors = contraction.recognise(self.body, how.term, how.element)
        if factors is not None:
            product = contraction.contract(
                self.body,
                factors,
                [(a, x) for a, x in zip(self.plan.accesses, self.inputs, strict=False)],
                self.sizes,
                self.plan.reduction,
                how.element,
            )
            if product is not None:
                self.accumulate(j, how, full_box(self.sizes), product)
                return
        axes = tuple(d for d, r in enumerate(self.plan.reduction) if r)
        ufunc = _UFUNCS[how.name]
        for box in boxes(self.sizes, _POINTS):
            (term,) = self.evaluate([how.term], box)
            whole = np.broadcast_to(term, tuple(hi - lo for lo, hi in box))
            self.accumulate(
                j, how, box, ufunc.reduce(_ordered(whole, how), axis=axes, keepdims=True)
            )

    def accumulate(self, j: int, how: Accumulation, box: Box, part: Array) -> None:
        """Combine the reduction over the box into the output."""
        target = self.output(j, box)
        part = part[tuple(slice(0, 1) if n == 1 else slice(None) for n in target.shape)]
        if how.negated:
            part = -part
        total = np.asarray(_UFUNCS[how.name](_ordered(target, how), part))
        target[...] = total if how.element.is_float else wrap(total, how.element.width)

    def sequential(self) -> None:
        """Run the reduction loops in order, one point at a time."""
        space = [n if r else 1 for n, r in zip(self.sizes, self.plan.reduction, strict=True)]
        kept = tuple(1 if r else n for n, r in zip(self.sizes, self.plan.reduction, strict=True))
        points = int(np.prod(space))
        if points > _MAX_SEQUENTIAL:
            raise Unsupported(f"{self.name}: {points} steps of a reduction that has no known form")
        for part in boxes(kept, _POINTS):
            for point in np.ndindex(*space):
                box = tuple(
                    (at, at + 1) if r else span
                    for at, span, r in zip(point, part, self.plan.reduction, strict=True)
                )
                values = [np.array(v) for v in self.evaluate(self.body.yields, box)]
                for j, value in enumerate(values):
                    self.write(j, box, value)


def _ordered(values: Array, how: Accumulation) -> Array:
    """The terms in the form in which the combiner's ufunc orders or adds them."""
    if how.name in ("arith.maxui", "arith.minui"):
        return unsigned(values, how.element.width)
    if values.dtype == np.bool_:
        return values.astype(np.int64)
    return values
