"""The words in which kinds say their programs; the dialects of MLIR are known here only.

Runs in compile workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from iree.compiler import ir
from iree.compiler.dialects import arith, linalg, tensor
from iree.compiler.dialects import math as functions

from tilewright.argument import ArgumentType
from tilewright.ir.walk import iterator_types

Loops = Sequence[int]
Body = Callable[..., Any]

_TYPES = {
    "f64": ir.F64Type,
    "f32": ir.F32Type,
    "f16": ir.F16Type,
    "bf16": ir.BF16Type,
}


class ProgramBuilder:
    """Tensor operations at the current insertion point. Loops are numbered from the outermost; an
    operand's loops say which of them index its dimensions."""

    def element_type(self, name: str) -> ir.Type:
        """The type of MLIR.

        Args:
            name: such as `f32`, `bf16`, `i8`.
        """
        if name in _TYPES:
            return _TYPES[name].get()
        return ir.IntegerType.get_signless(int(name.removeprefix("i")))

    def tensor_type(self, argument: ArgumentType) -> ir.Type:
        """The type of MLIR, a ranked tensor.

        Args:
            argument: shape and element type.
        """
        shape = list(argument.shape or ())
        return ir.RankedTensorType.get(shape, self.element_type(argument.element_type))

    def lowest(self, element_type: str) -> float | int:
        """The neutral element of a maximum.

        Args:
            element_type: its name.
        """
        if element_type.startswith("i"):
            return -(1 << (int(element_type[1:]) - 1))
        return -math.inf

    def empty(self, result: ArgumentType) -> ir.Value:
        """A tensor without values.

        Args:
            result: its type.
        """
        return tensor.EmptyOp(
            list(result.shape or ()), self.element_type(result.element_type)
        ).result

    def filled(self, result: ArgumentType, value: float | int) -> ir.Value:
        """A tensor of one value.

        Args:
            result: its type.
            value: that of every element.
        """
        scalars = Scalars(self.element_type(result.element_type))
        return linalg.fill(scalars.constant(value), outs=[self.empty(result)])

    def matmul(
        self, lhs: ir.Value, rhs: ir.Value, result: ArgumentType, loops: Sequence[Loops]
    ) -> ir.Value:
        """`linalg.matmul`, or with three loops for an operand `linalg.batch_matmul`, onto zeros.

        Args:
            lhs: the first operand, [m, k] or [k, m], with a batch in front for three loops.
            rhs: the second, likewise.
            result: the type of the product.
            loops: of both operands and the result.

        Returns:
            The product.
        """
        multiply = linalg.matmul if len(loops[0]) == 2 else linalg.batch_matmul
        out = self.filled(result, 0)
        return multiply(lhs, rhs, outs=[out], indexing_maps=self._maps(loops))

    def matvec(
        self, matrix: ir.Value, vector: ir.Value, result: ArgumentType, transposed: bool
    ) -> ir.Value:
        """`linalg.matvec`; of a matrix that is stored transposed `linalg.vecmat`.

        Args:
            matrix: [m, k], or [k, m] where it is transposed.
            vector: [k].
            result: the type of the product.
            transposed: whether the matrix is stored so.

        Returns:
            The product.
        """
        out = self.filled(result, 0)
        if transposed:
            return linalg.vecmat(vector, matrix, outs=[out])
        return linalg.matvec(matrix, vector, outs=[out])

    def convolution(
        self,
        name: str,
        image: ir.Value,
        filters: ir.Value,
        result: ArgumentType,
        strides: tuple[int, int],
        dilations: tuple[int, int],
    ) -> ir.Value:
        """The op `linalg.<name>` onto zeros.

        Args:
            name: such as `conv_2d_nhwc_hwcf`, which is one of the dialect's.
            image: padded.
            filters: as the name says.
            result: the type of the result.
            strides: vertical, horizontal.
            dilations: vertical, horizontal.

        Returns:
            The result.
        """
        out = self.filled(result, 0)
        convolve = getattr(linalg, name)
        return convolve(image, filters, outs=[out], strides=strides, dilations=dilations)

    def pad(self, value: ir.Value, amounts: Sequence[int]) -> ir.Value:
        """Zeros around a tensor: `amounts` before and behind each dimension.

        Args:
            value: a tensor.
            amounts: for each dimension.

        Returns:
            The larger tensor.
        """
        type_ = ir.RankedTensorType(value.type)
        shape = [size + 2 * more for size, more in zip(type_.shape, amounts, strict=True)]
        padded = ir.RankedTensorType.get(shape, type_.element_type)
        operation = tensor.PadOp(padded, value, [], [], list(amounts), list(amounts))
        index = ir.IndexType.get()
        block = operation.operation.regions[0].blocks.append(*[index] * len(shape))
        with ir.InsertionPoint(block):
            tensor.YieldOp(Scalars(type_.element_type).constant(0))
        return operation.result

    def split(self, value: ir.Value, dimension: int, outer: int, inner: int) -> ir.Value:
        """A dimension of a tensor as two.

        Args:
            value: a tensor.
            dimension: which; its size is `outer` times `inner`.
            outer: size of the first of both.
            inner: size of the second.

        Returns:
            The same values in one more dimension.
        """
        type_ = ir.RankedTensorType(value.type)
        shape = [*type_.shape[:dimension], outer, inner, *type_.shape[dimension + 1 :]]
        index = ir.IntegerType.get_signless(64)
        groups = [
            [i] if i < dimension else [i, i + 1] if i == dimension else [i + 1]
            for i in range(type_.rank)
        ]
        reassociation = ir.ArrayAttr.get(
            [ir.ArrayAttr.get([ir.IntegerAttr.get(index, i) for i in group]) for group in groups]
        )
        result = ir.RankedTensorType.get(shape, type_.element_type)
        return tensor.ExpandShapeOp(result, value, reassociation, [], shape).result

    def generic(
        self,
        inputs: Sequence[ir.Value],
        loops: Sequence[Loops],
        result: ArgumentType,
        body: Body,
        initial: float | int | None = None,
    ) -> ir.Value:
        """`linalg.generic` over the loops of the inputs and, last, of the result.

        `body(scalars, *elements, accumulator)` gives the element of the result, everything in its
        type. Loops that the result does not have are reductions, which begin at `initial`.

        Args:
            inputs: tensors.
            loops: of each input and, last, of the result.
            result: the type of the result.
            body: computes an element.
            initial: what reductions begin at; None: there are none.

        Returns:
            The result.
        """
        out = self.empty(result) if initial is None else self.filled(result, initial)
        count = 1 + max(loop for operand in loops for loop in operand)
        kinds = [
            linalg.IteratorType.parallel if loop in loops[-1] else linalg.IteratorType.reduction
            for loop in range(count)
        ]
        operation = linalg.GenericOp(
            [out.type],
            list(inputs),
            [out],
            self._maps(loops),
            iterator_types([kind.name for kind in kinds]),
        )
        elements = [ir.ShapedType(v.type).element_type for v in (*inputs, out)]
        block = operation.regions[0].blocks.append(*elements)
        with ir.InsertionPoint(block):
            scalars = Scalars(elements[-1])
            linalg.YieldOp([body(scalars, *map(scalars.cast, block.arguments))])
        return operation.results[0]

    def softmax(self, value: ir.Value, result: ArgumentType, dimension: int) -> ir.Value:
        """`linalg.softmax`.

        Args:
            value: a tensor.
            result: its type.
            dimension: along which it sums up to 1.
        """
        out = self.empty(result)
        return linalg.SoftmaxOp([out.type], value, out, dimension).result[0]

    def attention(
        self,
        query: ir.Value,
        key: ir.Value,
        value: ir.Value,
        scale: float,
        result: ArgumentType,
        loops: Sequence[Loops],
    ) -> ir.Value:
        """`iree_linalg_ext.attention`, of which the bindings have no class; no change to the scores
        before softmax.

        Args:
            query: [batch, m, k1].
            key: [batch, k2, k1], or as `loops` say.
            value: [batch, k2, n], or as `loops` say.
            scale: what scores are multiplied by.
            result: the type of the result, [batch, m, n].
            loops: of the three operands, of the scale (none), of the result.

        Returns:
            The result.
        """
        kind = ir.ShapedType(query.type).element_type
        out = self.empty(result)
        factor = Scalars(kind).constant(scale)
        operation = ir.Operation.create(
            "iree_linalg_ext.attention",
            results=[out.type],
            operands=[query, key, value, factor, out],
            attributes={"indexing_maps": self._maps(loops)},
            regions=1,
        )
        block = operation.regions[0].blocks.append(ir.F32Type.get())
        with ir.InsertionPoint(block):
            ir.Operation.create("iree_linalg_ext.yield", operands=list(block.arguments))
        return operation.results[0]

    def _maps(self, loops: Sequence[Loops]) -> ir.Attribute:
        count = 1 + max(loop for operand in loops for loop in operand)
        return ir.ArrayAttr.get(
            [
                ir.AffineMapAttr.get(
                    ir.AffineMap.get(count, 0, [ir.AffineDimExpr.get(i) for i in operand])
                )
                for operand in loops
            ]
        )


class Scalars:
    """Arithmetic on scalars of one type, float or signed integer, where ops are inserted now."""

    def __init__(self, type_: ir.Type) -> None:
        self._type = type_
        self._is_float = not isinstance(type_, ir.IntegerType)

    def constant(self, value: float | int) -> ir.Value:
        """A constant.

        Args:
            value: converted to the type.
        """
        number = float(value) if self._is_float else int(value)
        return arith.ConstantOp(self._type, number).result

    def cast(self, value: ir.Value) -> ir.Value:
        """A value of a narrower type (or this one) in this type.

        Args:
            value: a scalar.
        """
        if value.type == self._type:
            return value
        return (arith.ExtFOp if self._is_float else arith.ExtSIOp)(self._type, value).result

    def add(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """a + b.

        Args:
            a: a scalar.
            b: a scalar.
        """
        return (arith.AddFOp if self._is_float else arith.AddIOp)(a, b).result

    def subtract(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """a - b.

        Args:
            a: a scalar.
            b: a scalar.
        """
        return (arith.SubFOp if self._is_float else arith.SubIOp)(a, b).result

    def multiply(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """a * b.

        Args:
            a: a scalar.
            b: a scalar.
        """
        return (arith.MulFOp if self._is_float else arith.MulIOp)(a, b).result

    def maximum(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The greater of both.

        Args:
            a: a scalar.
            b: a scalar.
        """
        return (arith.MaximumFOp if self._is_float else arith.MaxSIOp)(a, b).result

    # For floats only.

    def divide(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """a / b.

        Args:
            a: a scalar.
            b: a scalar.
        """
        return arith.DivFOp(a, b).result

    def negate(self, a: ir.Value) -> ir.Value:
        """-a.

        Args:
            a: a scalar.
        """
        return arith.NegFOp(a).result

    def exp(self, a: ir.Value) -> ir.Value:
        """e to the power of a.

        Args:
            a: a scalar.
        """
        return functions.ExpOp(a).result

    def tanh(self, a: ir.Value) -> ir.Value:
        """The hyperbolic tangent.

        Args:
            a: a scalar.
        """
        return functions.TanhOp(a).result

    def erf(self, a: ir.Value) -> ir.Value:
        """The error function.

        Args:
            a: a scalar.
        """
        return functions.ErfOp(a).result
