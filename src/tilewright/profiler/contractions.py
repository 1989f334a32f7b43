"""Matrix products: plain, batched, split along k, with a vector, and with steps fused behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tilewright.argument import ArgumentType
from tilewright.profiler.epilogue import emit_steps, fits_integers, flops_of, reference_steps
from tilewright.profiler.operation import (
    ALL_TYPES,
    FLOATS,
    Array,
    Dimension,
    ElementTypes,
    Operation,
    OperationKind,
    swap_last,
)

if TYPE_CHECKING:
    from tilewright.profiler.builder import ProgramBuilder

M = Dimension("m", about="rows of the result")
N = Dimension("n", about="columns of the result")
K = Dimension("k", about="terms of each sum")
BATCH = Dimension("batch", about="how many of them, or images")

# The bias is added along the columns.
_BIAS = "add"


def _operand(operation: Operation, position: int, *shape: int) -> ArgumentType:
    """An operand's type; its last two sizes change places where it is stored transposed."""
    if operation.transposed(position):
        shape = (*shape[:-2], shape[-1], shape[-2])
    return ArgumentType(operation.types.operand, shape)


def _plain(operation: Operation, inputs: Sequence[Array]) -> tuple[Array, Array]:
    """Both operands of a product as if they were stored row-major."""
    lhs, rhs = inputs[:2]
    return (
        swap_last(lhs) if operation.transposed(0) else lhs,
        swap_last(rhs) if operation.transposed(1) else rhs,
    )


def _maps(operation: Operation, *batch: int) -> tuple[tuple[int, ...], ...]:
    """The loops that index both operands and the result; loops: batch, m, n, k."""
    m, n, k = (len(batch) + i for i in range(3))
    lhs, rhs = (m, k), (k, n)
    return (
        (*batch, *(lhs[::-1] if operation.transposed(0) else lhs)),
        (*batch, *(rhs[::-1] if operation.transposed(1) else rhs)),
        (*batch, m, n),
    )


class Matmul(OperationKind):
    """`result[m, n] = sum over k of lhs[m, k] * rhs[k, n]`, with steps fused behind."""

    about = "a matrix product"
    dimensions = (M, N, K)
    transposable = (0, 1)

    def __init__(self, steps: tuple[str, ...] = ()) -> None:
        self.steps = steps
        # The step that adds the bias is called by its operand.
        words = ["bias" if step == _BIAS else step for step in steps]
        self.name = "_".join(["matmul", *words])
        self.shapes = (
            {"m": 512, "n": 512, "k": 512},
            {"m": 384, "n": 128, "k": 512},
            {"m": 100, "n": 70, "k": 130},
        )
        if steps:
            self.about = f"a matrix product with {' and '.join(words)} fused"
            self.shapes = ({"m": 384, "n": 512, "k": 128}, {"m": 100, "n": 70, "k": 130})

    def types(self, variant: str) -> tuple[ElementTypes, ...]:
        return ALL_TYPES if fits_integers(self.steps) else FLOATS

    def arguments(self, operation: Operation) -> tuple[ArgumentType, ...]:
        m, n, k = operation.sizes
        bias = ArgumentType(operation.types.result, (n,))
        operands = (_operand(operation, 0, m, k), _operand(operation, 1, k, n))
        return (*operands, bias) if self.steps else operands

    def result(self, operation: Operation) -> ArgumentType:
        m, n, _ = operation.sizes
        return ArgumentType(operation.types.result, (m, n))

    def flops(self, operation: Operation) -> int:
        m, n, k = operation.sizes
        return m * n * (2 * k + flops_of(self.steps))

    def reduction_length(self, operation: Operation) -> int:
        return operation["k"]

    def emit(self, operation: Operation, build: ProgramBuilder, arguments: Sequence[Any]) -> Any:
        result = self.result(operation)
        lhs, rhs = arguments[:2]
        product = build.matmul(lhs, rhs, result, _maps(operation))
        if not self.steps:
            return product
        return build.generic(
            (product, arguments[2]),
            ((0, 1), (1,), (0, 1)),
            result,
            lambda scalars, value, bias, _: emit_steps(self.steps, scalars, value, bias),
        )

    def reference(self, operation: Operation, inputs: Sequence[Array]) -> Array:
        lhs, rhs = _plain(operation, inputs)
        product = lhs @ rhs
        return reference_steps(self.steps, product, inputs[2]) if self.steps else product


class BatchMatmul(OperationKind):
    """`result[b, m, n] = sum over k of lhs[b, m, k] * rhs[b, k, n]`."""

    name = "batch_matmul"
    about = "matrix products, one for each of a batch"
    dimensions = (BATCH, M, N, K)
    transposable = (0, 1)
    shapes = (
        {"batch": 12, "m": 128, "n": 128, "k": 64},
        {"batch": 3, "m": 50, "n": 70, "k": 90},
    )

    def arguments(self, operation: Operation) -> tuple[ArgumentType, ...]:
        b, m, n, k = operation.sizes
        return (_operand(operation, 0, b, m, k), _operand(operation, 1, b, k, n))

    def result(self, operation: Operation) -> ArgumentType:
        b, m, n, _ = operation.sizes
        return ArgumentType(operation.types.result, (b, m, n))

    def flops(self, operation: Operation) -> int:
        b, m, n, k = operation.sizes
        return 2 * b * m * n * k

    def reduction_length(self, operation: Operation) -> int:
        return operation["k"]

    def emit(self, operation: Operation, build: ProgramBuilder, arguments: Sequence[Any]) -> Any:
        lhs, rhs = arguments
        return build.matmul(lhs, rhs, self.result(operation), _maps(operation, 0))

    def reference(self, operation: Operation, inputs: Sequence[Array]) -> Array:
        lhs, rhs = _plain(operation, inputs)
        return lhs @ rhs


class SplitKMatmul(OperationKind):
    """A matrix product whose sums are split into slices that are added up at the end.

    The split is part of the program: k becomes (slices, k / slices), the slices are a batch of
    products, and a second dispatch adds them.
    """

    name = "matmul_splitk"
    about = "a matrix product in slices along k, which a second dispatch adds up"
    dimensions = (M, N, K, Dimension("slices", "splitk", about="slices that k is split into"))
    transposable = (0, 1)
    shapes = (
        {"m": 128, "n": 128, "k": 4096, "slices": 4},
        {"m": 128, "n": 128, "k": 4096, "slices": 16},
        {"m": 50, "n": 70, "k": 780, "slices": 3},
    )

    def reason_against(self, operation: Operation) -> str:
        k, slices = operation["k"], operation["slices"]
        return "" if k % slices == 0 else f"k = {k} cannot be split into {slices} equal slices"

    def arguments(self, operation: Operation) -> tuple[ArgumentType, ...]:
        m, n, k, _ = operation.sizes
        return (_operand(operation, 0, m, k), _operand(operation, 1, k, n))

    def result(self, operation: Operation) -> ArgumentType:
        m, n, _, _ = operation.sizes
        return ArgumentType(operation.types.result, (m, n))

    def flops(self, operation: Operation) -> int:
        m, n, k, slices = operation.sizes
        return m * n * (2 * k + slices)

    def reduction_length(self, operation: Operation) -> int:
        # Along the way of one term: its slice, then the slices.
        _, _, k, slices = operation.sizes
        return k // slices + slices

    def emit(self, operation: Operation, build: ProgramBuilder, arguments: Sequence[Any]) -> Any:
        _, _, k, slices = operation.sizes
        split, loops = [], []
        # Loops: slice, m, n, k of the slice. In an operand, the slices come right before k.
        for position, free in ((0, 1), (1, 2)):
            k_first = (position == 0) == operation.transposed(position)
            split.append(build.split(arguments[position], 0 if k_first else 1, slices, k // slices))
            loops.append((0, 3, free) if k_first else (free, 0, 3))
        result = self.result(operation)
        partial = ArgumentType(result.element_type, (slices, *(result.shape or ())))
        products = build.generic(
            split,
            (*loops, (0, 1, 2)),
            partial,
            lambda scalars, x, y, total: scalars.add(total, scalars.multiply(x, y)),
            initial=0,
        )
        return build.generic(
            (products,),
            ((2, 0, 1), (0, 1)),
            result,
            lambda scalars, x, total: scalars.add(total, x),
            initial=0,
        )

    def reference(self, operation: Operation, inputs: Sequence[Array]) -> Array:
        lhs, rhs = _plain(operation, inputs)
        return lhs @ rhs


class Matvec(OperationKind):
    """`result[m] = sum over k of lhs[m, k] * rhs[k]`."""

    name = "matvec"
    about = "a matrix times a vector"
    dimensions = (M, K)
    transposable = (0,)
    shapes = ({"m": 1024, "k": 2048}, {"m": 333, "k": 517})

    def arguments(self, operation: Operation) -> tuple[ArgumentType, ...]:
        m, k = operation.sizes
        return (_operand(operation, 0, m, k), ArgumentType(operation.types.operand, (k,)))

    def result(self, operation: Operation) -> ArgumentType:
        return ArgumentType(operation.types.result, (operation["m"],))

    def flops(self, operation: Operation) -> int:
        m, k = operation.sizes
        return 2 * m * k

    def reduction_length(self, operation: Operation) -> int:
        return operation["k"]

    def emit(self, operation: Operation, build: ProgramBuilder, arguments: Sequence[Any]) -> Any:
        matrix, vector = arguments
        return build.matvec(matrix, vector, self.result(operation), operation.transposed(0))

    def reference(self, operation: Operation, inputs: Sequence[Array]) -> Array:
        matrix, vector = inputs
        return (matrix.T if operation.transposed(0) else matrix) @ vector


KINDS: Mapping[str, OperationKind] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            Matmul(),
            BatchMatmul(),
            SplitKMatmul(),
            Matvec(),
            Matmul(("add",)),
            Matmul(("add", "relu")),
            Matmul(("add", "gelu")),
        )
    }
)
