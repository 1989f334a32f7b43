"""Softmax, and attention, which has one inside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.kernels.contractions import BATCH, M, N
from tilewright.kernels.operation import (
    FLOATS,
    SAME,
    Array,
    Dimension,
    ElementTypes,
    Operation,
    OperationKind,
)

if TYPE_CHECKING:
    from tilewright.kernels.program_builder import ProgramBuilder


class Softmax(OperationKind):
    """`result[m, n] = exp(x[m, n] - max_n x) / sum_n exp(x[m, n] - max_n x)`."""

    name = "softmax"
    about = "softmax along a matrix's rows"
    dimensions = (M, N)
    operands = ("input",)
    axes = (("m", "n"), ("m", "n"))
    shapes = ({"m": 384, "n": 384}, {"m": 129, "n": 517})

    def types(self, variant: str) -> tuple[ElementTypes, ...]:
        return SAME

    def flops(self, operation: Operation) -> int:
        # Maximum, difference, exp, sum, quotient.
        return 5 * math.prod(operation.sizes)

    def reduction_length(self, operation: Operation) -> int:
        return operation["n"]

    def emit(self, operation: Operation, build: ProgramBuilder, arguments: Sequence[Any]) -> Any:
        return build.softmax(arguments[0], operation.result, 1)

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
    axes = (("batch", "m", "k1"), ("batch", "k2", "k1"), ("batch", "k2", "n"), ("batch", "m", "n"))
    transposable = (1, 2)
    shapes = (
        {"batch": 4, "m": 128, "n": 64, "k1": 64, "k2": 128},
        {"batch": 2, "m": 64, "n": 32, "k1": 48, "k2": 96},
    )

    def types(self, variant: str) -> tuple[ElementTypes, ...]:
        return FLOATS

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
        query, key, value = arguments
        *operands, result = operation.loops
        scale = operation["k1"] ** -0.5
        # The scale is an operand of its own, which no loop indexes.
        return build.attention(query, key, value, scale, operation.result, (*operands, (), result))

    def reference(self, operation: Operation, inputs: Sequence[Array]) -> Array:
        query, keys, values = operation.row_major(inputs)
        scores = query @ keys.swapaxes(-1, -2) * operation["k1"] ** -0.5
        return _softmax(scores) @ values


KINDS: tuple[OperationKind, ...] = (Softmax(), Attention())
