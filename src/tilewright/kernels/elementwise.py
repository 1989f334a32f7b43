"""Chains of elementwise steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilewright.kernels.contractions import M, N
from tilewright.kernels.epilogue import STEPS, emit_steps, fits_integers, flops_of, reference_steps
from tilewright.kernels.operation import (
    ALL_TYPES,
    FLOATS,
    Array,
    ElementTypes,
    Operation,
    OperationKind,
)

if TYPE_CHECKING:
    from tilewright.kernels.program_builder import ProgramBuilder


class Elementwise(OperationKind):
    """A chain of steps, each on what the one before gave: `add_relu` is `max(lhs + rhs, 0)`."""

    name = "elementwise"
    about = f"a chain of elementwise steps, any of {', '.join(STEPS)} joined by _"
    dimensions = (M, N)
    axes = (("m", "n"), ("m", "n"), ("m", "n"))
    transposable = (1,)
    variants = ("add", "add_relu", "mul_sub_relu", "add_gelu", "mul_sigmoid_mul")
    shapes = ({"m": 512, "n": 768}, {"m": 129, "n": 517})

    def has_variant(self, variant: str) -> bool:
        steps = variant.split("_")
        # Without a binary step the second operand would not be read.
        return all(s in STEPS for s in steps) and any(STEPS[s].binary for s in steps)

    def types(self, variant: str) -> tuple[ElementTypes, ...]:
        return ALL_TYPES if fits_integers(_steps(variant)) else FLOATS

    def flops(self, operation: Operation) -> int:
        return math.prod(operation.sizes) * flops_of(_steps(operation.variant))

    def reduction_length(self, operation: Operation) -> int:
        return 1

    def emit(self, operation: Operation, build: ProgramBuilder, arguments: Sequence[Any]) -> Any:
        steps = _steps(operation.variant)
        return build.generic(
            arguments,
            operation.loops,
            operation.result,
            lambda scalars, x, y, _: emit_steps(steps, scalars, x, y),
        )

    def reference(self, operation: Operation, inputs: Sequence[Array]) -> Array:
        lhs, rhs = operation.row_major(inputs)
        return reference_steps(_steps(operation.variant), lhs, rhs)


def _steps(variant: str) -> tuple[str, ...]:
    return tuple(variant.split("_"))


KINDS: tuple[OperationKind, ...] = (Elementwise(),)
