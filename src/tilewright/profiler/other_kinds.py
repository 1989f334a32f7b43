"""Reductions, softmax, attention, and chains of elementwise steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.argument import ArgumentType
from tilewright.profiler.contractions import BATCH, K, M, N
from tilewright.profiler.epilogue import (
    STEPS,
    emit_steps,
    fits_integers,
    flops_of,
    reference_steps,
)
from tilewright.profiler.operation import (
    ALL_TYPES,
    FLOATS,
    SAME,
    Array,
    Dimension,
    ElementTypes,
    Operation,
    OperationKind,
    swap_last,
)

if TYPE_CHECKING:
    from tilewright.profiler.builder import ProgramBuilder


class Reduction(OperationKind):
    """`result[m] = sum (or maximum) over k of input[m, k]`."""

    name = "reduction"
    about = "the sums or maxima of a matrix's rows (of its columns, stored transposed)"
    dimensions = (M, K)
    operands = ("input",)
    transposable = (0,)
    variants = ("sum", "max")
    shapes = ({"m": 512, "k": 1024}, {"m": 129, "k": 517})

    def arguments(self, operation: Operation) -> tuple[ArgumentType, ...]:
        m, k = operation.sizes
        shape = (k, m) if operation.transposed(0) else (m, k)
        return (ArgumentType(operation.types.operand, shape),)

    def result(self, operation: Operation) -> ArgumentType:
        return ArgumentType(operation.types.result, (operation["m"],))

    def flops(self, operation: Operation) -> int:
        m, k = operation.sizes
        return m * k

    def reduction_length(self, operation: Operation) -> int:
        return operation["k"] if operation.variant == "sum" else 1

    def emit(self, operation: Operation, build: ProgramBuilder, arguments: Sequence[Any]) -> Any:
        sums = operation.variant == "sum"
        return build.generic(
            arguments,
            ((1, 0) if operation.transposed(0) else (0, 1), (0,)),
            self.result(operation),
            lambda scalars, x, total: (scalars.add if sums else scalars.maximum)(total, x),
            initial=0 if sums else build.lowest(operation.types.result),
        )

    def reference(self, operation: Operation, inputs: Sequence[Array]) -> Array:
        axis = 0 if operation.transposed(0) else 1
        (values,) = inputs
        return np.asarray(values.sum(axis) if operation.variant == "sum" else values.max(axis))


class Softmax(OperationKind):
    """`result[m, n] = exp(x[m, n] - max_n x) / sum_n exp(x[m, n] - max_n x)`."""

    name = "softmax"
    about = "softmax along a matrix's rows"
    dimensions = (M, N)
    operands = ("input",)
    shapes = ({"m": 384, "n": 384}, {"m": 129, "n": 517})

    def types(self, variant: str) -> tuple[ElementTypes, ...]:
        return SAME

    def arguments(self, operation: Operation) -> tuple[ArgumentType, ...]:
        return (ArgumentType(operation.types.operand, operation.sizes),)

    def result(self, operation: Operation) -> ArgumentType:
        return ArgumentType(operation.types.result, operation.sizes)

    def flops(self, operation: Operation) -> int:
        # Maximum, difference, exp, sum, quotient.
        m, n = operation.sizes
        return 5 * m * n

    def reduction_length(self, operation: Operation) -> int:
        return operation["n"]

    def emit(self, operation: Operation, build: ProgramBuilder, arguments: Sequence[Any]) -> Any:
        return build.softmax(arguments[0], self.result(operation), 1)

    def reference(self, operation: Operation, inputs: Sequence[Array]) -> Array:
        return _softmax(inputs[0])


def _softmax(values: Array) -> Array:
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


class Attention(OperationKind):
    """`softmax(scale * query key^T) value` for each of a batch; `scale = 1 / sqrt(k1)`."""

    name = "attention"
    about = "scaled dot-product attention"
    dialect = "iree_linalg_ext"
    dimensions = (
        BATCH,
        Dimension("m", about="queries"),
        Dimension("n", about="length of a value"),
        Dimension("k1", about="length of a query and of a key"),
        Dimension("k2", about="keys"),
    )
    operands = ("query", "key", "value")
    transposable = (1, 2)
    shapes = (
        {"batch": 4, "m": 128, "n": 64, "k1": 64, "k2": 128},
        {"batch": 2, "m": 64, "n": 32, "k1": 48, "k2": 96},
    )

    def types(self, variant: str) -> tuple[ElementTypes, ...]:
        return FLOATS

    def arguments(self, operation: Operation) -> tuple[ArgumentType, ...]:
        b, m, n, k1, k2 = operation.sizes
        key = (b, k1, k2) if operation.transposed(1) else (b, k2, k1)
        value = (b, n, k2) if operation.transposed(2) else (b, k2, n)
        return tuple(ArgumentType(operation.types.operand, s) for s in ((b, m, k1), key, value))

    def result(self, operation: Operation) -> ArgumentType:
        b, m, n, _, _ = operation.sizes
        return ArgumentType(operation.types.result, (b, m, n))

    def flops(self, operation: Operation) -> int:
        b, m, n, k1, k2 = operation.sizes
        return 2 * b * m * k2 * (k1 + n)

    def reduction_length(self, operation: Operation) -> int:
        return operation["k1"] + operation["k2"]

    def working_type(self, operation: Operation) -> str:
        # The weights are rounded to the type of the values; scores and sums are f32 throughout.
        narrow = operation.types.operand in ("f16", "bf16")
        return operation.types.operand if narrow else "f32"

    def accumulation_type(self, operation: Operation) -> str:
        return "f32"

    def emit(self, operation: Operation, build: ProgramBuilder, arguments: Sequence[Any]) -> Any:
        # Loops: batch, m, n, k1, k2.
        query, key, value = arguments
        return build.attention(
            query,
            key,
            value,
            operation["k1"] ** -0.5,
            self.result(operation),
            (
                (0, 1, 3),
                (0, 3, 4) if operation.transposed(1) else (0, 4, 3),
                (0, 2, 4) if operation.transposed(2) else (0, 4, 2),
                (),
                (0, 1, 2),
            ),
        )

    def reference(self, operation: Operation, inputs: Sequence[Array]) -> Array:
        query, key, value = inputs
        keys = swap_last(key) if operation.transposed(1) else key
        values = swap_last(value) if operation.transposed(2) else value
        scores = query @ swap_last(keys) * operation["k1"] ** -0.5
        return _softmax(scores) @ values


class Elementwise(OperationKind):
    """A chain of steps, each on what the one before gave: `add_relu` is `max(lhs + rhs, 0)`."""

    name = "elementwise"
    about = f"a chain of elementwise steps, any of {', '.join(STEPS)} joined by _"
    dimensions = (M, N)
    transposable = (1,)
    variants = ("add", "add_relu", "mul_sub_relu", "add_gelu", "mul_sigmoid_mul")
    shapes = ({"m": 512, "n": 768}, {"m": 129, "n": 517})

    def has_variant(self, variant: str) -> bool:
        steps = variant.split("_")
        # Without a binary step the second operand would not be read.
        return all(s in STEPS for s in steps) and any(STEPS[s].binary for s in steps)

    def types(self, variant: str) -> tuple[ElementTypes, ...]:
        return ALL_TYPES if fits_integers(_steps(variant)) else FLOATS

    def arguments(self, operation: Operation) -> tuple[ArgumentType, ...]:
        m, n = operation.sizes
        other = (n, m) if operation.transposed(1) else (m, n)
        return tuple(ArgumentType(operation.types.operand, s) for s in ((m, n), other))

    def result(self, operation: Operation) -> ArgumentType:
        return ArgumentType(operation.types.result, operation.sizes)

    def flops(self, operation: Operation) -> int:
        m, n = operation.sizes
        return m * n * flops_of(_steps(operation.variant))

    def reduction_length(self, operation: Operation) -> int:
        return 1

    def emit(self, operation: Operation, build: ProgramBuilder, arguments: Sequence[Any]) -> Any:
        steps = _steps(operation.variant)
        return build.generic(
            arguments,
            ((0, 1), (1, 0) if operation.transposed(1) else (0, 1), (0, 1)),
            self.result(operation),
            lambda scalars, x, y, _: emit_steps(steps, scalars, x, y),
        )

    def reference(self, operation: Operation, inputs: Sequence[Array]) -> Array:
        lhs, rhs = inputs
        other = rhs.T if operation.transposed(1) else rhs
        return reference_steps(_steps(operation.variant), lhs, other)


def _steps(variant: str) -> tuple[str, ...]:
    return tuple(variant.split("_"))


KINDS: Mapping[str, OperationKind] = MappingProxyType(
    {kind.name: kind for kind in (Reduction(), Softmax(), Attention(), Elementwise())}
)
