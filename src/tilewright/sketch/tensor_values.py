"""Tensors of a program as a translation goes: computed, or still a rule for their elements.

Operations that only move elements (transposes, broadcasts, reshapes, slices, fills) become index
arithmetic of whoever reads them; what computes is a stage.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tilewright.schedule.arith import Arithmetic
from tilewright.schedule.expr import Const, Expr
from tilewright.schedule.functions import conjunction, if_then_else
from tilewright.schedule.tensor import IterVar, Tensor, TensorRead, compute
from tilewright.sketch.untranslatable import Untranslatable

Indices: TypeAlias = Sequence[Expr]
Element: TypeAlias = Callable[[Indices], Expr]


class Workshop:
    """What all tensors of one translation share: names, and the bounds of axes."""

    def __init__(self) -> None:
        self.arithmetic = Arithmetic()
        self._taken: dict[str, int] = {}

    def name(self, wanted: str) -> str:
        """The name, with a number where it is taken.

        Args:
            wanted: the name that is wanted.
        """
        count = self._taken.get(wanted, 0)
        self._taken[wanted] = count + 1
        return f"{wanted}_{count}" if count else wanted

    def bind(self, axes: Sequence[IterVar]) -> None:
        """Learn the bounds of axes.

        Args:
            axes: each with its range.
        """
        for axis in axes:
            assert axis.dom is not None
            self.arithmetic.bind(axis, axis.dom.min, axis.dom.min + axis.dom.extent - 1)

    def stage(self, shape: Sequence[int], name: str, element: Element) -> Tensor:
        """A stage that computes every element.

        Args:
            shape: of the result.
            name: of the stage, made its own.
            element: gives the expression of the element at some indices; a reduction too.
        """

        def computed(*axes: IterVar) -> Expr:
            self.bind(axes)
            return element(axes)

        made: Tensor = compute(tuple(shape), computed, name=self.name(name))
        return made


class TensorValue(ABC):
    """A tensor of the program.

    shape, dtype: as its type says.
    """

    shape: tuple[int, ...]
    dtype: str

    @abstractmethod
    def read(self, indices: Indices) -> Expr:
        """The element at some indices.

        Args:
            indices: of type index, one for each dimension.
        """

    @property
    def constant(self) -> Const | None:
        """The number that all of its elements are, where it is one."""
        return None


class Held(TensorValue):
    """An argument, or what a stage computes."""

    def __init__(self, tensor: Tensor, workshop: Workshop) -> None:
        self.tensor = tensor
        self.shape = tensor.shape
        self.dtype = tensor.dtype
        self._workshop = workshop

    def read(self, indices: Indices) -> Expr:
        """See :meth:`TensorValue.read`; indices in their plainest form."""
        arithmetic = self._workshop.arithmetic
        return TensorRead(self.tensor, tuple(arithmetic.simplify(i) for i in indices))


class Uniform(TensorValue):
    """One value in all places: a fill, a splat, a constant."""

    def __init__(self, shape: Sequence[int], value: Expr) -> None:
        self.shape = tuple(shape)
        self.dtype = value.dtype
        self._value = value

    def read(self, indices: Indices) -> Expr:
        """See :meth:`TensorValue.read`."""
        return self._value

    @property
    def constant(self) -> Const | None:
        """See :attr:`TensorValue.constant`."""
        return self._value if isinstance(self._value, Const) else None


class Unwritten(TensorValue):
    """A tensor that nothing has been written to."""

    def __init__(self, shape: Sequence[int], dtype: str) -> None:
        self.shape = tuple(shape)
        self.dtype = dtype

    def read(self, indices: Indices) -> Expr:
        """Refuses."""
        raise Untranslatable("tensor.empty", "its elements are read before they are written")


class Moved(TensorValue):
    """Another tensor's elements in other places."""

    def __init__(
        self, source: TensorValue, shape: Sequence[int], place: Callable[[Indices], Indices]
    ) -> None:
        """`place` gives the indices of `source` for indices of this."""
        self.shape = tuple(shape)
        self.dtype = source.dtype
        self._source = source
        self._place = place

    def read(self, indices: Indices) -> Expr:
        """See :meth:`TensorValue.read`."""
        return self._source.read(self._place(indices))

    @property
    def constant(self) -> Const | None:
        """See :attr:`TensorValue.constant`."""
        return self._source.constant


class ComputedValue(TensorValue):
    """Elements by an expression each; a stage once somebody reads them."""

    def __init__(
        self, workshop: Workshop, name: str, shape: Sequence[int], dtype: str, element: Element
    ) -> None:
        self.shape = tuple(shape)
        self.dtype = dtype
        self._workshop = workshop
        self._name = name
        self._element = element
        self._held: Held | None = None

    def read(self, indices: Indices) -> Expr:
        """See :meth:`TensorValue.read`."""
        return self.held.read(indices)

    @property
    def held(self) -> Held:
        """The stage that computes it."""
        if self._held is None:
            tensor = self._workshop.stage(self.shape, self._name, self._element)
            self._held = Held(tensor, self._workshop)
        return self._held


def inside(workshop: Workshop, indices: Indices, spans: Sequence[tuple[int, int]]) -> Expr:
    """The condition that indices lie in a box; of what always holds nothing is left.

    Args:
        workshop: knows the bounds of the indices.
        indices: one for each dimension.
        spans: the first index of each dimension and the one behind the last.
    """
    conditions = []
    for place, (low, high) in zip(indices, spans, strict=True):
        form = workshop.arithmetic.linear(place)
        plain = workshop.arithmetic.expr(form)
        if form.low < low:
            conditions.append(plain >= low)
        if form.high >= high:
            conditions.append(plain < high)
    return conjunction(conditions)


def either(condition: Expr, value: Expr, other: Callable[[], Expr]) -> Expr:
    """A value where a condition holds, else another, which is not computed there.

    Args:
        condition: a bool.
        value: where it holds.
        other: makes the other one, where it is needed.
    """
    if isinstance(condition, Const):
        return value if condition.value else other()
    return if_then_else(condition, value, other())
