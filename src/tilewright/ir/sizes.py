"""Sizes that are known at run time only, for one run whose arguments are known.

A program with dynamic shapes computes them by index arithmetic from the sizes of its arguments.
Given these, the arithmetic is evaluated here: in the program's entry function, to learn the
operands of each dispatch, and within a configured dispatch, whose sizes are the ordinals of its
workload.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from iree.compiler import ir

from tilewright.ir.reference.elements import Unsupported, constant
from tilewright.ir.reference.scalar import kernel
from tilewright.ir.reference.tensors import (
    UNKNOWN_SIZES,
    dropped_to,
    mixed,
    reassociation,
    segments,
    shape_of,
)

ORDINAL = "iree_tensor_ext.dispatch.workload.ordinal"
_SAME = ("util.assume.int", "util.optimization_barrier")
# The operand whose shape a result has.
_SHAPE_OF = {
    "tensor.cast": 0,
    "tensor.insert_slice": 1,
    "flow.dispatch.tie_shape": 0,
    "flow.tensor.encode": 0,
    "flow.tensor.transfer": 0,
    "iree_codegen.load_from_buffer": 0,
    "iree_encoding.set_encoding": 0,
    "iree_encoding.unset_encoding": 0,
}
# The first of the operands that are the sizes which a result's type leaves open.
_SIZES_FROM = {"tensor.empty": 0, "hal.interface.binding.subspan": 1, "hal.tensor.import": 1}

ArgumentSizes = Sequence[tuple[int, ...] | int | None]
"""For each argument of a function: a tensor's shape, an integer's value, None if neither."""


class SizeEvaluator:
    """Evaluates index values and shapes; None (or -1 in a shape) for what data decides.

    arguments: what is known of block arguments, by value.
    workload: the workload of the dispatch, by ordinal.
    """

    def __init__(
        self,
        arguments: Mapping[ir.Value, tuple[int, ...] | int] | None = None,
        workload: Sequence[int | None] = (),
    ) -> None:
        self._arguments = dict(arguments or {})
        self._workload = tuple(workload)
        self._known: dict[ir.Value, int | None] = {}

    @staticmethod
    def of_entry(function: ir.Operation, arguments: ArgumentSizes) -> SizeEvaluator:
        """Sizes in an entry function at the flow phase, whose arguments are buffer views.

        Args:
            function: the function.
            arguments: what is known of its arguments; an asynchronous function's fences are left
                out.

        Returns:
            What evaluates sizes in it.
        """
        block = function.regions[0].blocks[0]
        values = [a for a in block.arguments if str(a.type) != "!hal.fence"]
        pairs = zip(values, arguments, strict=False)
        return SizeEvaluator({value: known for value, known in pairs if known is not None})

    def value(self, value: ir.Value) -> int | None:
        """The value of an integer or index.

        Args:
            value: any value of the function.

        Returns:
            None if it is not known.
        """
        if value not in self._known:
            self._known[value] = None  # stands while it is computed: loops have no value
            self._known[value] = self._compute(value)
        return self._known[value]

    def shape(self, value: ir.Value) -> tuple[int, ...]:
        """The shape of a tensor or memref.

        Args:
            value: any value of the function.

        Returns:
            -1 for sizes that are not known; () for a scalar.
        """
        type_ = value.type
        if not isinstance(type_, ir.ShapedType) or not type_.has_rank:
            return ()
        static = shape_of(type_, UNKNOWN_SIZES)
        if -1 not in static:
            return static
        known = self._source_shape(value)
        if known is None or len(known) != len(static):
            return static
        return tuple(k if s < 0 else s for s, k in zip(static, known, strict=True))

    # -- index arithmetic ----------------------------------------------------------------------

    def _compute(self, value: ir.Value) -> int | None:
        owner = value.owner
        if isinstance(owner, ir.Block):
            known = self._arguments.get(value)
            return known if isinstance(known, int) else None
        op = owner.operation
        if op.name == ORDINAL:
            at = ir.IntegerAttr(op.attributes["ordinal"]).value
            known = self._workload[at] if at < len(self._workload) else None
            return known if known is not None else self.value(op.operands[0])
        if op.name == "hal.buffer_view.dim":
            view = self._arguments.get(op.operands[0])
            at = ir.IntegerAttr(op.attributes["index"]).value
            return view[at] if isinstance(view, tuple) and at < len(view) else None
        if op.name == "tensor.dim":
            axis = self.value(op.operands[1])
            shape = self.shape(op.operands[0])
            inside = axis is not None and axis < len(shape) and shape[axis] >= 0
            return shape[axis] if axis is not None and inside else None
        if op.name in _SAME:
            return self.value(op.operands[ir.OpResult(value).result_number])
        if op.name == "arith.constant":
            attribute = op.attributes["value"]
            return int(constant(attribute)) if isinstance(attribute, ir.IntegerAttr) else None
        if not isinstance(value.type, ir.IndexType | ir.IntegerType) or len(op.results) != 1:
            return None
        return self._arithmetic(op)

    def _arithmetic(self, op: ir.Operation) -> int | None:
        run: Callable[..., object] | None
        try:
            run = kernel(op)
        except Unsupported:
            return None
        if run is None:
            return None
        operands = [self.value(v) for v in op.operands]
        if any(v is None for v in operands):
            return None
        try:
            return int(np.asarray(run(*(np.asarray(v) for v in operands))))
        except (Unsupported, ArithmeticError, ValueError):
            return None

    # -- shapes --------------------------------------------------------------------------------

    def _source_shape(self, value: ir.Value) -> tuple[int, ...] | None:
        """The shape by the op that makes the value; None for an op that is not known."""
        owner = value.owner
        if isinstance(owner, ir.Block):
            known = self._arguments.get(value)
            return known if isinstance(known, tuple) else None
        op = owner.operation
        name, operands = op.name, list(op.operands)
        if name in _SIZES_FROM:
            return self._filled(value.type, operands[_SIZES_FROM[name] :])
        if name in _SHAPE_OF:
            return self.shape(operands[_SHAPE_OF[name]])
        if name == "iree_tensor_ext.dispatch.tensor.load":
            *_, sizes, _ = segments(op, operands)
            return self._slice(op, sizes, value.type)
        if name == "tensor.extract_slice":
            _, _, sizes, _ = segments(op, operands)
            return self._slice(op, sizes, value.type)
        if name == "tensor.expand_shape":
            return self._mixed(op, "static_output_shape", operands[1:])
        if name == "tensor.collapse_shape":
            return self._collapsed(op)
        if name in ("flow.dispatch", "flow.tensor.reshape"):
            return self._filled(value.type, segments(op, operands)[-1])
        if name in ("linalg.pack", "linalg.unpack") or not name.startswith(
            ("linalg.", "iree_linalg_ext.")
        ):
            return None
        # Structured ops write to as many operands as they have results, the last ones.
        number = ir.OpResult(value).result_number
        if len(op.results) > len(operands):
            return None
        return self.shape(operands[len(operands) - len(op.results) + number])

    def _filled(self, type_: ir.Type, dynamic: Sequence[ir.Value]) -> tuple[int, ...] | None:
        """A shaped type with its dynamic sizes in order."""
        known = (-1 if size is None else size for size in map(self.value, dynamic))
        return shape_of(type_, itertools.chain(known, UNKNOWN_SIZES))

    def _mixed(
        self, op: ir.Operation, static: str, dynamic: Sequence[ir.Value]
    ) -> tuple[int, ...] | None:
        values = [self.value(v) for v in dynamic]
        return None if None in values else tuple(mixed(op, static, values))

    def _slice(
        self, op: ir.Operation, sizes: Sequence[ir.Value], type_: ir.Type
    ) -> tuple[int, ...] | None:
        extents = self._mixed(op, "static_sizes", sizes)
        try:
            return None if extents is None else dropped_to(extents, type_)
        except Unsupported:
            return None

    def _collapsed(self, op: ir.Operation) -> tuple[int, ...]:
        source = self.shape(op.operands[0])
        products = []
        for group in reassociation(op):
            parts = [source[i] for i in group]
            products.append(-1 if min(parts, default=1) < 0 else int(np.prod(parts, dtype=object)))
        return tuple(products)
