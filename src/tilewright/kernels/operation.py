"""Operations to be measured, as plain data: element types, dimensions, what a kind must say.

An operation is a kind with sizes, element types and layouts: what is computed, and nothing of how.
The kinds themselves are in the modules registered in :mod:`tilewright.kernels.kinds`; each says
which operations there are, the program that computes one, and what NumPy says of the result.

An operation is named `matmul_768x512x1024_f16t_f16t_f16t`: the kind, its variant where it has
several (`conv2d_nhwc_hwcf_…`, `reduction_sum_…`), the sizes of its dimensions in their order, and
for each operand and the result an element type with a letter: `t` stored row-major, `n` transposed.
Dimensions that are not the extent of anything are written apart, with a word before them:
`conv2d_nhwc_hwcf_1x56x56x64x64_k3x3_s1x1_d1x1_p1x1_f32t_f32t_f32t` has the filter's size, strides,
dilations and padding, `matmul_splitk_128x128x4096_splitk4_f32t_f32t_f32t` the number of slices.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import NDArray

from tilewright.argument import ArgumentType
from tilewright.errors import UnknownNameError, UserError
from tilewright.toolchain import KEEP_F64

if TYPE_CHECKING:
    from tilewright.kernels.program_builder import ProgramBuilder

Array = NDArray[Any]
Axes = tuple[str, ...]
A = TypeVar("A", bound=Any)

ROW_MAJOR, TRANSPOSED = "t", "n"
"""Letters of an operand's layout, as the BLAS libraries for GPUs write them and IREE's first
dispatch profiler did."""


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


def parse_types(text: str, option: str = "--types") -> ElementTypes:
    """Element types by their name.

    Args:
        text: such as `f32`, `i8`, `f16-f32`.
        option: what named them, for messages.

    Raises:
        UnknownNameError: there are no such types.
    """
    known = {types.name: types for types in ALL_TYPES}
    if text not in known:
        raise UnknownNameError("element type", text, known, option)
    return known[text]


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

    dimensions: in the order in which names list them, which is that of the loops of its programs,
        outermost first. operands: what the inputs are called, those that have a layout. axes: the
        dimensions of each operand and, last, of the result, all stored row-major. transposable:
        positions of the operands that can be stored with their last two axes exchanged.
    variants: forms of the kind that differ in more than sizes. shapes: the predefined ones, by
        dimension (what is left out takes its default). aliases: further names of dimensions in
        options and shape files; one that stands for several sets all of them to one value.
    """

    name: str
    about: str
    dialect = "linalg"
    dimensions: tuple[Dimension, ...]
    operands: tuple[str, ...] = ("lhs", "rhs")
    axes: tuple[Axes, ...]
    transposable: tuple[int, ...] = ()
    variants: tuple[str, ...] = ("",)
    shapes: tuple[Mapping[str, int], ...]
    aliases: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    # How sums are split into slices; '' where they are not.
    split_k_mode = ""

    def types(self, variant: str) -> tuple[ElementTypes, ...]:
        """The element types that the variant has.

        Args:
            variant: one of the kind's.
        """
        return ALL_TYPES

    def has_variant(self, variant: str) -> bool:
        """Whether there is this variant.

        Args:
            variant: a word of a name.
        """
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
        """Why there is no operation of these sizes; '' when there is.

        Args:
            operation: of this kind, with any sizes of at least the least.
        """
        return ""

    def variant_axes(self, variant: str) -> tuple[Axes, ...]:
        """`axes`, for kinds whose variants differ in them.

        Args:
            variant: one of the kind's.
        """
        return self.axes

    def extent(self, operation: Operation, axis: str) -> int:
        """The size along an axis.

        Args:
            operation: of this kind.
            axis: one of its axes.
        """
        return operation[axis]

    def arguments(self, operation: Operation) -> tuple[ArgumentType, ...]:
        """The arguments of the program, operands first.

        Args:
            operation: of this kind.

        Returns:
            Their types, as they are stored.
        """
        *operands, _ = operation.axes
        return tuple(
            ArgumentType(operation.types.operand, operation.shape(axes)) for axes in operands
        )

    @abc.abstractmethod
    def flops(self, operation: Operation) -> int:
        """Arithmetic operations: a multiply-add counts two, a function such as exp one.

        Args:
            operation: of this kind.
        """

    @abc.abstractmethod
    def reduction_length(self, operation: Operation) -> int:
        """The longest chain of additions that an element of the result goes through.

        Args:
            operation: of this kind.
        """

    def working_type(self, operation: Operation) -> str:
        """The coarsest type that values are rounded to on their way to the result.

        Args:
            operation: of this kind.

        Returns:
            The name of an element type.
        """
        return operation.types.result

    def accumulation_type(self, operation: Operation) -> str:
        """The type in which terms are added up.

        Args:
            operation: of this kind.

        Returns:
            The name of an element type.
        """
        return operation.types.result

    @abc.abstractmethod
    def emit(self, operation: Operation, build: ProgramBuilder, arguments: Sequence[Any]) -> Any:
        """Build the operation on the program's arguments; its result.

        Args:
            operation: of this kind.
            build: where ops are inserted now.
            arguments: values of the types of `arguments`.

        Returns:
            A value of the result's type.
        """

    @abc.abstractmethod
    def reference(self, operation: Operation, inputs: Sequence[Array]) -> Array:
        """The result by NumPy: inputs and result in float64, or in int64 for integer types.

        Written from the operation's definition, not from its program: a program that computes
        something else is found out.

        Args:
            operation: of this kind.
            inputs: of the arguments, as stored.

        Returns:
            An array of the result's shape.
        """

    def __repr__(self) -> str:
        return f"<kind {self.name}>"


@dataclass(frozen=True)
class Operation:
    """A kind with a size for each of its dimensions, element types, and a layout letter for each
    operand."""

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
        """The sizes by the names of the dimensions."""
        names = (d.name for d in self.kind.dimensions)
        return MappingProxyType(dict(zip(names, self.sizes, strict=True)))

    @property
    def name(self) -> str:
        """What identifies it (see the module); :func:`kinds.parse_operation` reads it back."""
        words = [self.kind.name, *([self.variant] if self.variant else [])]
        sizes = iter(self.sizes)
        for word, dimensions in grouped_dimensions(self.kind):
            words.append(word + "x".join(str(next(sizes)) for _ in dimensions))
        words += [self.types.operand + letter for letter in self.layout]
        return "_".join([*words, self.types.result + ROW_MAJOR])

    def transposed(self, operand: int) -> bool:
        """Whether an operand is stored with its last two axes exchanged.

        Args:
            operand: its position.
        """
        return self.layout[operand] == TRANSPOSED

    @property
    def axes(self) -> tuple[Axes, ...]:
        """The axes of each operand as it is stored and, last, of the result."""
        *operands, result = self.kind.variant_axes(self.variant)
        return (
            *(
                (*axes[:-2], axes[-1], axes[-2]) if self.transposed(i) else axes
                for i, axes in enumerate(operands)
            ),
            result,
        )

    @property
    def loops(self) -> tuple[tuple[int, ...], ...]:
        """The loops that index each operand and, last, the result; loops are numbered as the
        dimensions."""
        number = {d.name: i for i, d in enumerate(self.kind.dimensions)}
        return tuple(tuple(number[axis] for axis in axes) for axes in self.axes)

    def shape(self, axes: Axes) -> tuple[int, ...]:
        """The sizes along axes.

        Args:
            axes: names of axes of the kind.
        """
        return tuple(self.kind.extent(self, axis) for axis in axes)

    def row_major(self, values: Sequence[A]) -> list[A]:
        """Values of the arguments (anything with `swapaxes`) as views that are stored row-major.

        Args:
            values: one for each argument; those that are no operands stay as they are.
        """
        return [
            value.swapaxes(-1, -2) if i < len(self.layout) and self.transposed(i) else value
            for i, value in enumerate(values)
        ]

    @property
    def arguments(self) -> tuple[ArgumentType, ...]:
        """The types of the program's arguments."""
        return self.kind.arguments(self)

    @property
    def result(self) -> ArgumentType:
        """The type of the program's result."""
        return ArgumentType(self.types.result, self.shape(self.axes[-1]))

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of iree-compile without which it would compile something else."""
        return (KEEP_F64,) if "f64" in (self.types.operand, self.types.result) else ()

    @property
    def flops(self) -> int:
        """Arithmetic operations of one run."""
        return self.kind.flops(self)

    @property
    def bytes(self) -> int:
        """Bytes of all arguments and the result, each once."""
        return sum(one.bytes for one in (*self.arguments, self.result))


def grouped_dimensions(kind: OperationKind) -> Iterator[tuple[str, list[Dimension]]]:
    """Dimensions that a name has together, with the word before them.

    Args:
        kind: whose dimensions.

    Returns:
        Pairs of the word and the dimensions behind it, in their order.
    """
    for word, dimensions in itertools.groupby(kind.dimensions, lambda d: d.word):
        yield word, list(dimensions)


def make_operation(
    kind: OperationKind, dims: Mapping[str, int], types: ElementTypes, layout: str, variant: str
) -> Operation:
    """An operation, checked.

    Args:
        kind: what it computes.
        dims: sizes by the names of dimensions; what is left out takes its default.
        types: one of the kind's element types.
        layout: a letter for each operand, one of the kind's layouts.
        variant: one of the kind's variants.

    Returns:
        The operation.

    Raises:
        UserError: a size is missing, too small, or there is no operation of these sizes.
    """
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
