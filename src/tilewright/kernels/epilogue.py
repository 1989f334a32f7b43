"""Elementwise steps, as programs and as NumPy: what is fused to a kernel, and chains on their own.

A step works on the running value and, where it takes one, on a second operand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.kernels.operation import Array

if TYPE_CHECKING:
    from tilewright.kernels.program_builder import Scalars


@dataclass(frozen=True)
class EpilogueStep:
    """One elementwise step.

    emit(scalars, value, other), reference(value, other): the result; `other` is the second operand,
    which steps with `binary` unset do not look at. flops: arithmetic operations. integer: whether
    it is there for integers.
    """

    emit: Callable[[Scalars, Any, Any], Any]
    reference: Callable[[Array, Array], Array]
    flops: int = 1
    binary: bool = False
    integer: bool = True


def _gelu(scalars: Scalars, x: Any, _: Any) -> Any:
    """x/2 (1 + erf(x / sqrt 2)): D. Hendrycks, K. Gimpel, "Gaussian Error Linear Units", 2016."""
    scaled = scalars.multiply(x, scalars.constant(0.5**0.5))
    twice = scalars.add(scalars.erf(scaled), scalars.constant(1.0))
    return scalars.multiply(scalars.multiply(x, scalars.constant(0.5)), twice)


def _gelu_reference(x: Array, _: Array) -> Array:
    # The interpreter's own error function: NumPy has none. It shares nothing with IREE's.
    from tilewright.ir.reference.scalar import erf

    return np.asarray(0.5 * x * (1.0 + erf(x * 0.5**0.5)))


def _sigmoid(scalars: Scalars, x: Any, _: Any) -> Any:
    one = scalars.constant(1.0)
    return scalars.divide(one, scalars.add(one, scalars.exp(scalars.negate(x))))


STEPS: Mapping[str, EpilogueStep] = {
    "add": EpilogueStep(lambda s, x, y: s.add(x, y), lambda x, y: x + y, binary=True),
    "sub": EpilogueStep(lambda s, x, y: s.subtract(x, y), lambda x, y: x - y, binary=True),
    "mul": EpilogueStep(lambda s, x, y: s.multiply(x, y), lambda x, y: x * y, binary=True),
    "relu": EpilogueStep(
        lambda s, x, _: s.maximum(x, s.constant(0)), lambda x, _: np.maximum(x, 0)
    ),
    "gelu": EpilogueStep(_gelu, _gelu_reference, 5, integer=False),
    "exp": EpilogueStep(
        lambda s, x, _: s.exp(x), lambda x, _: np.asarray(np.exp(x)), integer=False
    ),
    "tanh": EpilogueStep(
        lambda s, x, _: s.tanh(x), lambda x, _: np.asarray(np.tanh(x)), integer=False
    ),
    "sigmoid": EpilogueStep(
        _sigmoid, lambda x, _: np.asarray(1 / (1 + np.exp(-x))), 4, integer=False
    ),
}


def emit_steps(steps: tuple[str, ...], scalars: Scalars, value: Any, other: Any) -> Any:
    """Build a chain of steps on scalars.

    Args:
        steps: names in `STEPS`, in order.
        scalars: arithmetic in the type of the result.
        value: what the first step works on.
        other: the second operand of those that have one.

    Returns:
        The last step's scalar.
    """
    for name in steps:
        value = STEPS[name].emit(scalars, value, other)
    return value


def reference_steps(steps: tuple[str, ...], value: Array, other: Array) -> Array:
    """What NumPy says of a chain of steps.

    Args:
        steps: names in `STEPS`, in order.
        value: what the first step works on, [...].
        other: the second operand of those that have one; broadcast.

    Returns:
        The last step's array, [...].
    """
    for name in steps:
        value = STEPS[name].reference(value, other)
    return value


def flops_of(steps: tuple[str, ...]) -> int:
    """Arithmetic operations for each element.

    Args:
        steps: names in `STEPS`.
    """
    return sum(STEPS[name].flops for name in steps)


def fits_integers(steps: tuple[str, ...]) -> bool:
    """Whether all steps are there for integers.

    Args:
        steps: names in `STEPS`.
    """
    return all(STEPS[name].integer for name in steps)
