"""Matrix products: plain, batched, split along k, with a vector, and with steps fused behind."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from tilewright.argument import ArgumentType
from tilewright.kernels.epilogue import emit_steps, fits_integers, flops_of, reference_steps
from tilewright.kernels.operation import (
    ALL_TYPES,
    FLOATS,
    Array,
    Axes,
    Dimension,
    ElementTypes,
    Operation,
    OperationKind,
)

if TYPE_CHECKING:
    from tilewright.kernels.program_builder import ProgramBuilder

M = Dimension("m", about="rows of the result")
N = Dimension("n", about="columns of the result")
K = Dimension("k", about="terms of each sum")
BATCH = Dimension("batch", about="how many of them, or images")

# The bias is added by the step of this name.
_BIAS = "add"


class Window(NamedTuple):
    """See `Contraction.windows`."""

    result: str
    window: str
    stride: str
    dilation: str
    padding: str


class Contraction(OperationKind):
    """Sums of products of two operands, with elementwise steps fused behind.

    steps: what is fused, the first of which adds a bias along `channel`, an axis of the result.
    windows: for an axis of the first operand that a window slides along, the axes of the result and
    of the second operand that it is indexed by, and the dimensions that say how: with padding taken
    off, `axis = result * stride + window * dilation - padding`.
    """

    steps: tuple[str, ...] = ()
    channel = ""
    windows: Mapping[str, Window] = MappingProxyType({})

    def reduced(self, operation: Operation) -> tuple[str, ...]:
        """The axes that are summed over.

        Args:
            operation: of this kind.

        Returns:
            Their names, in the order in which the operands have them.
        """
        lhs, rhs, result = self.variant_axes(operation.variant)
        return tuple(a for a in dict.fromkeys((*lhs, *rhs)) if a not in {*result, *self.windows})

    def padding(self, operation: Operation) -> tuple[int, ...]:
        """Zeros before and behind each axis of the first operand.

        Args:
            operation: of this kind.

        Returns:
            A number for each axis, as the operand is stored.
        """
        return tuple(
            operation[self.windows[axis].padding] if axis in self.windows else 0
            for axis in operation.axes[0]
        )

    @property
    def step_words(self) -> list[str]:
        """The steps as names of kinds have them: adding the bias is called by its operand."""
        return ["bias" if step == _BIAS else step for step in self.steps]

    def types(self, variant: str) -> tuple[ElementTypes, ...]:
        return ALL_TYPES if fits_integers(self.steps) else FLOATS

    def arguments(self, operation: Operation) -> tuple[ArgumentType, ...]:
        operands = super().arguments(operation)
        if not self.steps:
            return operands
        return (*operands, ArgumentType(operation.types.result, operation.shape((self.channel,))))

    def flops(self, operation: Operation) -> int:
        points = math.prod(operation.result.shape or ())
        return points * (2 * self.reduction_length(operation) + flops_of(self.steps))

    def emit(self, operation: Operation, build: ProgramBuilder, arguments: Sequence[Any]) -> Any:
        product = self.emit_product(operation, build, arguments[:2])
        if not self.steps:
            return product
        axes = operation.axes[-1]
        every = tuple(range(len(axes)))
        return build.generic(
            (product, arguments[2]),
            (every, (axes.index(self.channel),), every),
            operation.result,
            lambda scalars, value, bias, _: emit_steps(self.steps, scalars, value, bias),
        )

    def reference(self, operation: Operation, inputs: Sequence[Array]) -> Array:
        product = self.reference_product(operation, inputs[:2])
        if not self.steps:
            return product
        behind = product.ndim - 1 - operation.axes[-1].index(self.channel)
        bias = inputs[2].reshape(-1, *(1,) * behind)
        return reference_steps(self.steps, product, bias)

    @abc.abstractmethod
    def emit_product(
        self, operation: Operation, build: ProgramBuilder, operands: Sequence[Any]
    ) -> Any:
        """Build the sums of products, without the steps behind.

        Args:
            operation: of this kind.
            build: where ops are inserted now.
            operands: the program's first two arguments, as stored.

        Returns:
            The value of the sums.
        """

    @abc.abstractmethod
    def reference_product(self, operation: Operation, operands: Sequence[Array]) -> Array:
        """The sums of products by NumPy, without the steps behind.

        Args:
            operation: of this kind.
            operands: in float64 or int64, as stored.

        Returns:
            An array of the result's shape.
        """


class MatrixProduct(Contraction):
    """What is `lhs @ rhs` of NumPy, for operands that are stored row-major."""

    transposable: tuple[int, ...] = (0, 1)
    axes: tuple[Axes, ...] = (("m", "k"), ("k", "n"), ("m", "n"))
    channel = "n"

    def reduction_length(self, operation: Operation) -> int:
        return operation["k"]

    def emit_product(
        self, operation: Operation, build: ProgramBuilder, operands: Sequence[Any]
    ) -> Any:
        return build.matmul(operands[0], operands[1], operation.result, operation.loops)

    def reference_product(self, operation: Operation, operands: Sequence[Array]) -> Array:
        lhs, rhs = operation.row_major(operands)
        return lhs @ rhs


class Matmul(MatrixProduct):
    """`result[m, n] = sum over k of lhs[m, k] * rhs[k, n]`, with steps fused behind."""

    dimensions = (M, N, K)

    def __init__(self, steps: tuple[str, ...] = ()) -> None:
        self.steps = steps
        self.name = "_".join(["matmul", *self.step_words])
        self.about = "a matrix product"
        self.shapes = (
            {"m": 512, "n": 512, "k": 512},
            {"m": 384, "n": 128, "k": 512},
            {"m": 100, "n": 70, "k": 130},
        )
        if steps:
            self.about += f" with {' and '.join(self.step_words)} fused"
            self.shapes = ({"m": 384, "n": 512, "k": 128}, {"m": 100, "n": 70, "k": 130})


class BatchMatmul(MatrixProduct):
    """`result[b, m, n] = sum over k of lhs[b, m, k] * rhs[b, k, n]`."""

    name = "batch_matmul"
    about = "matrix products, one for each of a batch"
    dimensions = (BATCH, M, N, K)
    axes = (("batch", "m", "k"), ("batch", "k", "n"), ("batch", "m", "n"))
    shapes = (
        {"batch": 12, "m": 128, "n": 128, "k": 64},
        {"batch": 3, "m": 50, "n": 70, "k": 90},
    )


class SplitKMatmul(MatrixProduct):
    """A matrix product, or one for each of a batch, whose sums are split into slices that are added
    up at the end.

    The split is part of the program: k becomes (slices, k / slices), the slices are a batch of
    products, and a second dispatch adds them.
    """

    split_k_mode = "parallel"

    def __init__(self, batched: bool = False) -> None:
        own = BatchMatmul if batched else Matmul
        self.name = "batch_matmul_splitk" if batched else "matmul_splitk"
        self.about = "in slices along k, which a second dispatch adds up"
        self.about = f"{'matrix products' if batched else 'a matrix product'} {self.about}"
        slices = Dimension("slices", "splitk", about="slices that k is split into")
        self.dimensions = (*own.dimensions, slices)
        self.axes = own.axes
        self.shapes = (
            {"m": 128, "n": 128, "k": 4096, "slices": 4},
            {"m": 128, "n": 128, "k": 4096, "slices": 16},
            {"m": 50, "n": 70, "k": 780, "slices": 3},
        )
        if batched:
            self.shapes = tuple({**shape, "batch": 3} for shape in self.shapes[1:])

    def reason_against(self, operation: Operation) -> str:
        k, slices = operation["k"], operation["slices"]
        return "" if k % slices == 0 else f"k = {k} cannot be split into {slices} equal slices"

    def flops(self, operation: Operation) -> int:
        points = math.prod(operation.result.shape or ())
        return points * (2 * operation["k"] + operation["slices"])

    def reduction_length(self, operation: Operation) -> int:
        # Along the way of one term: its slice, then the slices.
        return operation["k"] // operation["slices"] + operation["slices"]

    def emit_product(
        self, operation: Operation, build: ProgramBuilder, operands: Sequence[Any]
    ) -> Any:
        k, slices = operation["k"], operation["slices"]
        *kept, _, _ = (d.name for d in self.dimensions)
        # Loops: slice, those of the result, k of the slice. The slices come right before k in an
        # operand.
        loop = {name: (i + 1,) for i, name in enumerate(kept)} | {"k": (0, len(kept) + 1)}
        split = [
            build.split(operand, axes.index("k"), slices, k // slices)
            for operand, axes in zip(operands, operation.axes, strict=False)
        ]
        loops = [[i for axis in axes for i in loop[axis]] for axes in operation.axes[:2]]
        result = operation.result
        partial = ArgumentType(result.element_type, (slices, *(result.shape or ())))
        products = build.generic(
            split,
            (*loops, range(len(kept) + 1)),
            partial,
            lambda scalars, x, y, total: scalars.add(total, scalars.multiply(x, y)),
            initial=0,
        )
        return build.generic(
            (products,),
            ((len(kept), *range(len(kept))), range(len(kept))),
            result,
            lambda scalars, x, total: scalars.add(total, x),
            initial=0,
        )


class Matvec(MatrixProduct):
    """`result[m] = sum over k of lhs[m, k] * rhs[k]`."""

    name = "matvec"
    about = "a matrix times a vector"
    dimensions = (M, K)
    axes = (("m", "k"), ("k",), ("m",))
    transposable = (0,)
    shapes = ({"m": 1024, "k": 2048}, {"m": 333, "k": 517})

    def emit_product(
        self, operation: Operation, build: ProgramBuilder, operands: Sequence[Any]
    ) -> Any:
        matrix, vector = operands
        return build.matvec(matrix, vector, operation.result, operation.transposed(0))


KINDS: tuple[OperationKind, ...] = (
    Matmul(),
    BatchMatmul(),
    SplitKMatmul(),
    SplitKMatmul(batched=True),
    Matvec(),
    Matmul(("add",)),
    Matmul(("add", "relu")),
    Matmul(("add", "gelu")),
)
