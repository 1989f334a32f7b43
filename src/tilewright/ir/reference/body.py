"""The region of a structured op as a straight line of vectorised steps.

A block is compiled once: every operation becomes a `BodyStep` that reads and writes numbered
slots, and `scf.if` is flattened into both of its branches and a select (bodies have no side
effects). The steps can then be evaluated for any set of slots over arrays of any broadcastable
shapes, and inspected (`contraction` looks for a sum of products, `structured` for how a reduction
combines).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from iree.compiler import ir

from tilewright.ir.reference.elements import Array, Element, Unsupported, constant, element_of
from tilewright.ir.reference.scalar import Kernel, kernel

Lookup = Callable[[Any], Array]


@dataclass(frozen=True)
class BodyStep:
    """One operation: `outputs = run(*inputs)` over slots; `element` is the first result's type."""

    name: str
    run: Kernel
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    element: Element


class Body:
    """A compiled block. Slots 0 to `arguments - 1` are its block arguments."""

    def __init__(self, block: ir.Block, captured: Lookup) -> None:
        """`captured` gives the value of anything that is defined outside the block."""
        self._captured = captured
        self._slots: dict[Any, int] = {}
        self._count = 0
        self.arguments = len(block.arguments)
        self.argument_elements = [element_of(a.type) for a in block.arguments]
        for argument in block.arguments:
            self._slots[argument] = self._new_slot()
        self.constants: dict[int, Array] = {}
        self.indices: dict[int, int] = {}
        self.steps: list[BodyStep] = []
        self.producer: dict[int, BodyStep] = {}
        self.yields = tuple(self._compile(block))
        self._depends: dict[int, tuple[frozenset[int], frozenset[int]]] = {}

    def _new_slot(self) -> int:
        self._count += 1
        return self._count - 1

    def _slot(self, value: Any) -> int:
        if value not in self._slots:
            slot = self._slots[value] = self._new_slot()
            self.constants[slot] = self._captured(value)
        return self._slots[value]

    def _compile(self, block: ir.Block) -> list[int]:
        """Append the steps of a block; returns the slots that its terminator yields."""
        for op_view in block.operations:
            op = op_view.operation
            if op.name in ("linalg.yield", "iree_linalg_ext.yield", "scf.yield", "tensor.yield"):
                return [self._slot(v) for v in op.operands]
            self._compile_op(op)
        return []

    def _compile_op(self, op: ir.Operation) -> None:
        if op.name == "arith.constant":
            self._define(op, self.constants, constant(op.attributes["value"]))
        elif op.name in ("linalg.index", "iree_linalg_ext.index"):
            self._define(op, self.indices, int(op.attributes["dim"]))
        elif op.name == "scf.if":
            self._compile_if(op)
        else:
            run = extract if op.name == "tensor.extract" else kernel(op)
            if run is None:
                raise Unsupported(f"{op.name} in the body of {op.parent.operation.name}")
            self._append(op.name, run, [self._slot(v) for v in op.operands], op.results)

    def _define(self, op: ir.Operation, table: dict[int, Any], value: Any) -> None:
        slot = self._slots[op.results[0]] = self._new_slot()
        table[slot] = value

    def _append(
        self, name: str, run: Kernel, inputs: Sequence[int], results: Iterable[Any]
    ) -> None:
        results = list(results)
        outputs = tuple(self._new_slot() for _ in results)
        self._slots.update(zip(results, outputs, strict=True))
        step = BodyStep(name, run, tuple(inputs), outputs, element_of(results[0].type))
        self.steps.append(step)
        self.producer.update(dict.fromkeys(outputs, step))

    def _compile_if(self, op: ir.Operation) -> None:
        if any(len(r.blocks) != 1 for r in op.regions):
            raise Unsupported(
                f"scf.if without an else branch in the body of {op.parent.operation.name}"
            )
        condition = self._slot(op.operands[0])
        then, other = (self._compile(r.blocks[0]) for r in op.regions)
        for result, a, b in zip(op.results, then, other, strict=True):
            self._append("arith.select", np.where, (condition, a, b), [result])

    def depends(self, slot: int) -> tuple[frozenset[int], frozenset[int]]:
        """(block arguments, loops read through an index) that a slot's value depends on.

        Args:
            slot: an argument or a value of the body.
        """
        if slot not in self._depends:
            arguments: frozenset[int] = frozenset()
            loops: frozenset[int] = frozenset()
            if slot < self.arguments:
                arguments = frozenset((slot,))
            elif slot in self.indices:
                loops = frozenset((self.indices[slot],))
            elif slot in self.producer:
                below = [self.depends(i) for i in self.producer[slot].inputs]
                arguments = arguments.union(*(a for a, _ in below))
                loops = loops.union(*(x for _, x in below))
            self._depends[slot] = (arguments, loops)
        return self._depends[slot]

    def evaluate(
        self,
        slots: Sequence[int],
        arguments: Mapping[int, Array],
        index_of: Callable[[int], Array] | None = None,
    ) -> list[Array]:
        """Values of slots of the body, computing only what they need.

        Args:
            slots: whose values are wanted.
            arguments: arrays of the block's arguments; those that are not needed may be left out.
            index_of: gives the array of a loop's indices.

        Raises:
            Unsupported: an index is read where there are no loops.
        """
        values: dict[int, Any] = {**self.constants, **arguments}
        for slot in self._needed(slots):
            if slot in values:
                continue
            if slot in self.indices:
                if index_of is None:
                    raise Unsupported("a loop index where there are no loops")
                values[slot] = index_of(self.indices[slot])
                continue
            step = self.producer[slot]
            result = step.run(*(values[i] for i in step.inputs))
            results = result if len(step.outputs) > 1 else (result,)
            values.update(zip(step.outputs, results, strict=True))
        return [np.asarray(values[s]) for s in slots]

    def _needed(self, slots: Sequence[int]) -> list[int]:
        """The slots to compute for `slots`, in program order."""
        needed: set[int] = set()
        stack = list(slots)
        while stack:
            slot = stack.pop()
            if slot not in needed:
                needed.add(slot)
                if slot in self.producer:
                    stack.extend(self.producer[slot].inputs)
        # Indices before the steps: slots are numbered in program order, branches included.
        return sorted(s for s in needed if s in self.producer or s in self.indices)


def extract(tensor: Array, *indices: Array) -> Array:
    """Elements of a tensor at arrays of indices.

    Both sides of a select are computed here, also where the one that reads out of bounds is not
    taken: what is read out there is NaN, so that a use of it shows (for integers, some element).

    Args:
        tensor: of any rank.
        indices: one array for each axis, which broadcast.
    """
    if not indices:
        return tensor
    clamped, inside = clamp(indices, tensor.shape)
    read = np.asarray(tensor[clamped])
    return np.where(inside, read, np.nan) if tensor.dtype == np.float64 else read


def clamp(indices: Sequence[Array], shape: Sequence[int]) -> tuple[tuple[Array, ...], Array]:
    """Indices moved into a shape, and where all of them were inside already.

    Args:
        indices: one array for each axis, which broadcast.
        shape: as many axes.
    """
    clamped = tuple(np.clip(i, 0, n - 1) for i, n in zip(indices, shape, strict=True))
    inside = [np.equal(i, c) for i, c in zip(indices, clamped, strict=True)]
    return clamped, np.asarray(np.logical_and.reduce(np.broadcast_arrays(*inside)))
