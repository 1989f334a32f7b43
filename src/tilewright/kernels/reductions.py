"""Reductions along the rows of a matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.kernels.contractions import K, M
from tilewright.kernels.operation import Array, Operation, OperationKind

if TYPE_CHECKING:
    from tilewright.kernels.program_builder import ProgramBuilder


class Reduction(OperationKind):
    """`result[m] = sum (or maximum) over k of input[m, k]`."""

    name = "reduction"
    about = "the sums or maxima of a matrix's rows (of its columns, stored transposed)"
    dimensions = (M, K)
    operands = ("input",)
    axes = (("m", "k"), ("m",))
    transposable = (0,)
    variants = ("sum", "max")
    shapes = ({"m": 512, "k": 1024}, {"m": 129, "k": 517})

    def flops(self, operation: Operation) -> int:
        return math.prod(operation.sizes)

    def reduction_length(self, operation: Operation) -> int:
        return operation["k"] if operation.variant == "sum" else 1

    def emit(self, operation: Operation, build: ProgramBuilder, arguments: Sequence[Any]) -> Any:
        sums = operation.variant == "sum"
        return build.generic(
            arguments,
            operation.loops,
            operation.result,
            lambda scalars, x, total: (scalars.add if sums else scalars.maximum)(total, x),
            initial=0 if sums else build.lowest(operation.types.result),
        )

    def reference(self, operation: Operation, inputs: Sequence[Array]) -> Array:
        (values,) = operation.row_major(inputs)
        return np.asarray(values.sum(-1) if operation.variant == "sum" else values.max(-1))


KINDS: tuple[OperationKind, ...] = (Reduction(),)
