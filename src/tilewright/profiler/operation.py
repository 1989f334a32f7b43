"""What is profiled, as plain data: element types, dimensions, operations and what a kind must say.

An operation is a kind with sizes, element types and layouts: what is computed, and nothing of how.
With a configuration it is a dispatch. The kinds themselves are in the modules registered in
:mod:`tilewright.profiler.kinds`; each says which operations there are, the program that computes
one, and what NumPy says of the result.
"""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tilewright.argument import ArgumentType
from tilewright.errors import UserError

if TYPE_CHECKING:
    from tilewright.profiler.builder import ProgramBuilder

Array = NDArray[Any]

ROW_MAJOR, TRANSPOSED = "t", "n"
"""Letters of an operand's layout, as the BLAS libraries for GPUs write them and IREE's first
dispatch profiler did."""


# By default IREE computes f64 programs in f32, arguments and results included.
_KEEP_F64 = "--iree-input-demote-f64-to-f32=false"


@dataclass(frozen=True)
class ElementTypes:
    """The element type of the operands, and that of the result and of all accumulation."""

    operand: str
    result: str

    @property
    def name(self) -> str:
        """As `--types` takes it: `f32`, `i8` (whose sums are i32), `f16-f32`."""
        if self.operand == self.result or (self.operand, self.result) == ("i8", "i32"):
            return self.operand
        return f"{self.operand}-{self.result}"

    @property
    def is_integer(self) -> bool:
        return self.result.startswith("i")


SAME = tuple(ElementTypes(name, name) for name in ("f32", "f64", "f16", "bf16"))
MIXED = (ElementTypes("f16", "f32"), ElementTypes("bf16", "f32"))
INTEGER = (ElementTypes("i8", "i32"),)
FLOATS = (*SAME, *MIXED)
ALL_TYPES = (*FLOATS, *INTEGER)


@dataclass(frozen=True)
class Dimension:
    """One size of an operation.

    word: what stands before it in the operation's name; neighbours with the same word are written
        together (`3x3`, `s2x2`). default: for shapes that do not say. least: the smallest value.
    """

    name: str
    word: str = ""
    default: int | None = None
    least: int = 1
    about: str = ""


class OperationKind(abc.ABC):
    """A kind of operation.

    dimensions: in the order in which names list them. operands: what the inputs are called, those
    that have a layout. transposable: positions of the operands that can be stored transposed.
    variants: forms of the kind that differ in more than sizes. shapes: the predefined ones, by
    dimension (what is left out takes its default). aliases: further names of dimensions in options
    and shape files; one that stands for several sets all of them to one value.
    """

    name: str
    about: str
    dialect = "linalg"
    dimensions: tuple[Dimension, ...]
    operands: tuple[str, ...] = ("lhs", "rhs")
    transposable: tuple[int, ...] = ()
    variants: tuple[str, ...] = ("",)
    shapes: tuple[Mapping[str, int], ...]
    aliases: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    def types(self, variant: str) -> tuple[ElementTypes, ...]:
        """The element types that the variant has."""
        return ALL_TYPES

    def has_variant(self, variant: str) -> bool:
        return variant in self.variants

    @property
    def layouts(self) -> tuple[str, ...]:
        """All layouts, a letter for each operand; row-major throughout is the first."""
        letters = [
            (ROW_MAJOR, TRANSPOSED) if i in self.transposable else (ROW_MAJOR,)
            for i in range(len(self.operands))
        ]
        return tuple("".join(chosen) for chosen in itertools.product(*letters))

    def reason_against(self, operation: Operation) -> str:
        """Why there is no operation of these sizes; '' when there is."""
        return ""

    @abc.abstractmethod
    def arguments(self, operation: Operation) -> tuple[ArgumentType, ...]:
        """The arguments of the program, operands first."""

    @abc.abstractmethod
    def result(self, operation: Operation) -> ArgumentType: ...

    @abc.abstractmethod
    def flops(self, operation: Operation) -> int:
        """Arithmetic operations: a multiply-add counts two, a function such as exp one."""

    @abc.abstractmethod
    def reduction_length(self, operation: Operation) -> int:
        """The longest chain of additions that an element of the result goes through."""

    def working_type(self, operation: Operation) -> str:
        """The coarsest type that values are rounded to on their way to the result."""
        return operation.types.result

    def accumulation_type(self, operation: Operation) -> str:
        """The type in which terms are added up."""
        return operation.types.result

    @abc.abstractmethod
    def emit(self, operation: Operation, build: ProgramBuilder, arguments: Sequence[Any]) -> Any:
        """Build the operation on the program's arguments; its result."""

    @abc.abstractmethod
    def reference(self, operation: Operation, inputs: Sequence[Array]) -> Array:
        """The result by NumPy: inputs and result in float64, or in int64 for integer types.

        Written from the operation's definition, not from its program: a program that computes
        something else is found out.
        """

    def __repr__(self) -> str:
        return f"<kind {self.name}>"


@dataclass(frozen=True)
class Operation:
    """A kind with a size for each of its dimensions, element types, and a layout letter for each
    operand. `name` identifies it (:mod:`tilewright.profiler.names`)."""

    kind: OperationKind
    sizes: tuple[int, ...]
    types: ElementTypes
    layout: str
    variant: str = ""

    def __getitem__(self, dimension: str) -> int:
        """The size of a dimension; KeyError when the kind has no such."""
        return self.dims[dimension]

    @property
    def dims(self) -> Mapping[str, int]:
        names = (d.name for d in self.kind.dimensions)
        return MappingProxyType(dict(zip(names, self.sizes, strict=True)))

    @property
    def name(self) -> str:
        from tilewright.profiler.names import format_operation

        return format_operation(self)

    def transposed(self, operand: int) -> bool:
        return self.layout[operand] == TRANSPOSED

    @property
    def arguments(self) -> tuple[ArgumentType, ...]:
        return self.kind.arguments(self)

    @property
    def result(self) -> ArgumentType:
        return self.kind.result(self)

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of iree-compile without which it would compile something else."""
        return (_KEEP_F64,) if "f64" in (self.types.operand, self.types.result) else ()

    @property
    def flops(self) -> int:
        return self.kind.flops(self)

    @property
    def bytes(self) -> int:
        """Bytes of all arguments and the result, each once."""
        return sum(
            math.prod(t.shape or ()) * t.dtype.itemsize for t in (*self.arguments, self.result)
        )


def make_operation(
    kind: OperationKind, dims: Mapping[str, int], types: ElementTypes, layout: str, variant: str
) -> Operation:
    """An operation, checked; sizes that are left out take their defaults. Raises UserError."""
    sizes = []
    for dimension in kind.dimensions:
        size = dims.get(dimension.name, dimension.default)
        if size is None:
            raise UserError(f"{kind.name}: dimension '{dimension.name}' has no size; give it one")
        if size < dimension.least:
            raise UserError(
                f"{kind.name}: {dimension.name} is {size}, at least {dimension.least} is needed"
            )
        sizes.append(size)
    operation = Operation(kind, tuple(sizes), types, layout, variant)
    reason = kind.reason_against(operation)
    if reason:
        raise UserError(f"{kind.name}: {reason}")
    return operation


def swap_last(array: Array) -> Array:
    """The array with its last two axes exchanged."""
    return array.swapaxes(-1, -2)
