"""Knobs: a named choice with its domain.

Each kind owns how it enumerates, steps, encodes and restricts itself, so that spaces and strategies
have no `if` on knob kinds. Inside a space a value is known by its index in the knob's domain; the
arithmetic of sampling and counting is done on indices, the constraints see values.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tilewright.errors import UserError
from tilewright.space.arrays import IntArray, as_column
from tilewright.space.terms import Term, variable
from tilewright.trial import Value


def value_key(value: Value) -> tuple[type, Value]:
    """Key under which values are compared: Python holds `True == 1`, a knob does not.

    Args:
        value: of any knob.
    """
    return type(value), value


def knob_term(knob: Knob) -> Term:
    """The value of a knob in conditions; of one that chooses among names, the position of one.

    Args:
        knob: of integers, truth values or names.
    """
    named = isinstance(knob, ChoiceKnob) and any(isinstance(v, str) for v in knob.vocabulary)
    return variable(knob.name, knob.vocabulary if isinstance(knob, ChoiceKnob) and named else ())


@dataclass(frozen=True)
class Knob(ABC):
    """One choice. `effect=False` tells a knob that changes nothing here; `note` says why.

    A knob without effect stays part of every configuration but is never varied by sampling,
    neighbours or counting: each of its values would give the same program.
    """

    name: str
    values: Any = ()
    _: dataclasses.KW_ONLY
    effect: bool = True
    note: str = ""

    @property
    def cardinality(self) -> int:
        """Number of values in the domain."""
        return len(self.values)

    def value(self, index: int) -> Value:
        """The value at a position of the domain (0 to cardinality - 1)."""
        found: Value = self.values[index]
        return found

    @abstractmethod
    def index(self, value: Value) -> int | None:
        """Position of a value in the domain, None when it is not there."""

    @abstractmethod
    def neighbours(self, value: Value, reach: int = 1) -> tuple[Value, ...]:
        """Other values of the domain at most `reach` steps away, nearest first.

        `value` itself need not be in the domain (a restriction may have removed it).
        """

    @abstractmethod
    def encode(self, value: Value) -> tuple[float, ...]:
        """Numeric features, as many as `feature_names`; defined for any value of the kind."""

    @property
    @abstractmethod
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features, e.g. `tile_m` or `pipeline=DoubleTilingExpert`."""

    def with_values(self, values: Sequence[Value]) -> Self:
        """The same knob over another (already checked) domain; encoding stays the same."""
        return dataclasses.replace(self, values=tuple(values))

    def allowed(self) -> str:
        """What a user may write for this knob, in words."""
        return ", ".join(_show(v) for v in self.values)

    def column(self, indices: IntArray) -> npt.NDArray[Any]:
        """The values at many positions, as an array that vectorised constraints can use."""
        return self._table[indices]

    @cached_property
    def _table(self) -> npt.NDArray[Any]:
        return as_column([self.value(i) for i in range(self.cardinality)])

    def admits(self, value: Value) -> bool:
        """Whether a user may restrict the knob to this value."""
        return self.index(value) is not None

    def sample(self, rng: np.random.Generator) -> Value:
        """A uniformly drawn value."""
        return self.value(int(rng.integers(self.cardinality)))

    def mutated(self, value: Value, rng: np.random.Generator, leap: float) -> Value:
        """Another value, for a search that mutates.

        Args:
            value: where the step begins.
            rng: decides it.
            leap: the probability of any value instead of a step of up to two.
        """
        near = self.neighbours(value, 2)
        if near and rng.random() >= leap:
            return near[int(rng.integers(len(near)))]
        return self.sample(rng)

    def parse(self, text: str) -> Value:
        """The value that a user means by a text; the text itself where it is no other."""
        return text

    def nearest(self, value: Value) -> Value:
        """The value of the domain whose encoding is nearest (the first of equals)."""
        if self.index(value) is not None:
            return value
        here = np.array(self.encode(value))
        return min(
            (self.value(i) for i in range(self.cardinality)),
            key=lambda v: float(np.abs(np.array(self.encode(v)) - here).sum()),
        )

    def restrict(self, values: Iterable[Value]) -> Self:
        """The knob with only these values; UserError naming the first that is not allowed."""
        wanted = list(dict.fromkeys(value_key(v) for v in values))
        if not wanted:
            raise UserError(f"knob '{self.name}': no value given (allowed: {self.allowed()})")
        for _, v in wanted:
            if not self.admits(v):
                raise UserError(
                    f"knob '{self.name}': {_show(v)} is not allowed{self._hint(v)}"
                    f" (given: {_show_all([w for _, w in wanted])}; allowed: {self.allowed()})"
                )
        return self.with_values([v for _, v in wanted])

    def _hint(self, value: Value) -> str:
        names = {str(self.value(i)): None for i in range(min(self.cardinality, 1000))}
        near = difflib.get_close_matches(str(value), list(names), n=1, cutoff=0.5)
        return f"; did you mean {near[0]}?" if near else ""


@dataclass(frozen=True)
class ChoiceKnob(Knob):
    """A categorical choice: every other value is one step away; one feature for each value."""

    values: tuple[Value, ...] = ()
    vocabulary: tuple[Value, ...] = field(default=(), kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError(f"knob '{self.name}' has no values")
        if len({value_key(v) for v in self.values}) < len(self.values):
            raise ValueError(f"knob '{self.name}' has a value twice: {self.values}")
        if not self.vocabulary:
            object.__setattr__(self, "vocabulary", self.values)

    @cached_property
    def _positions(self) -> dict[tuple[type, Value], int]:
        return {value_key(v): i for i, v in enumerate(self.values)}

    def index(self, value: Value) -> int | None:
        return self._positions.get(value_key(value))

    def neighbours(self, value: Value, reach: int = 1) -> tuple[Value, ...]:
        return tuple(v for v in self.values if value_key(v) != value_key(value))

    def encode(self, value: Value) -> tuple[float, ...]:
        key = value_key(value)
        return tuple(float(value_key(v) == key) for v in self.vocabulary)

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}={v}" for v in self.vocabulary)


@dataclass(frozen=True)
class BoolKnob(ChoiceKnob):
    """A choice between off and on; one feature, 0 or 1."""

    values: tuple[Value, ...] = (False, True)

    def parse(self, text: str) -> Value:
        return {"true": True, "false": False}.get(text.lower(), text)

    def encode(self, value: Value) -> tuple[float, ...]:
        return (float(value is True),)

    @property
    def feature_names(self) -> tuple[str, ...]:
        return (self.name,)


@dataclass(frozen=True)
class TileKnob(Knob):
    """Ordered sizes: neighbours are the next smaller and larger; the feature is log2 of the size.

    `values` are ascending integers, none below 0. `full` is the size that a tile of 0 ("do not
    tile") stands for: with it 0 is ordered and encoded as that size, and belongs last. `limit`
    widens what a user may restrict the knob to: any size from 1 to `limit`, since the domain is
    only our pick of them; without it the values of the domain alone.
    """

    values: tuple[int, ...] = ()
    full: int = field(default=0, kw_only=True)
    limit: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError(f"knob '{self.name}' has no values")
        if any(isinstance(v, bool) or not isinstance(v, int) or v < 0 for v in self.values):
            raise ValueError(f"knob '{self.name}': sizes are integers from 0, got {self.values}")
        order = [self._order(v) for v in self.values]
        if order != sorted(set(order)):
            raise ValueError(f"knob '{self.name}': sizes must ascend, got {self.values}")

    def _order(self, value: int) -> tuple[int, bool]:
        # A full tile written as 0 comes after the same size written as a number.
        return (self.full, True) if value == 0 and self.full else (value, False)

    def _size(self, value: Value) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            return 1
        return self._order(value)[0]

    def parse(self, text: str) -> Value:
        return int(text) if text.isascii() and text.isdigit() else text

    @cached_property
    def _positions(self) -> dict[int, int]:
        return {v: i for i, v in enumerate(self.values)}

    def index(self, value: Value) -> int | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return None
        return self._positions.get(value)

    def neighbours(self, value: Value, reach: int = 1) -> tuple[Value, ...]:
        at = self.index(value)
        if at is None:
            below = sum(self._size(v) < self._size(value) for v in self.values)
            down, up = below - 1, below
        else:
            down, up = at - 1, at + 1
        out: list[Value] = []
        for step in range(reach):
            out += [self.values[i] for i in (down - step, up + step) if 0 <= i < len(self.values)]
        return tuple(out)

    def encode(self, value: Value) -> tuple[float, ...]:
        size = self._size(value)
        return (math.log2(size) if size > 0 else -1.0,)

    @property
    def feature_names(self) -> tuple[str, ...]:
        return (self.name,)

    def with_values(self, values: Sequence[Value]) -> Self:
        sizes = sorted((v for v in values if isinstance(v, int)), key=self._order)
        return dataclasses.replace(self, values=tuple(sizes))

    def admits(self, value: Value) -> bool:
        if self.index(value) is not None:
            return True
        if isinstance(value, bool) or not isinstance(value, int) or self.limit is None:
            return False
        return 1 <= value <= self.limit

    def allowed(self) -> str:
        if self.limit is None:
            return super().allowed()
        return f"1 to {self.limit}" + (", 0 for no tiling" if 0 in self.values else "")

    def _hint(self, value: Value) -> str:
        if isinstance(value, bool) or not isinstance(value, int):
            return ""
        if self.limit is not None:
            return f"; the nearest is {min(max(value, 1), self.limit)}"
        return f"; the nearest is {self.nearest(max(value, 0))}"


@dataclass(frozen=True)
class PermutationKnob(Knob):
    """An order of `n` loops (loop interchange); neighbours swap two loops.

    A value holds at position p the loop that runs at depth p. One step swaps adjacent loops, a
    reach of r any two at most r apart. Features are the depth of each loop. Values are numbered in
    lexicographic order (Lehmer code), the identity first, so that nothing of size n! is stored.
    """

    n: int = 1
    values: tuple[tuple[int, ...], ...] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not 1 <= self.n <= 12:
            raise ValueError(f"knob '{self.name}': a permutation of 1 to 12 loops, got {self.n}")

    @property
    def cardinality(self) -> int:
        return math.factorial(self.n) if self.values is None else len(self.values)

    def value(self, index: int) -> Value:
        if self.values is not None:
            return super().value(index)
        left = list(range(self.n))
        out = []
        for k in range(self.n - 1, -1, -1):
            position, index = divmod(index, math.factorial(k))
            out.append(left.pop(position))
        return tuple(out)

    def index(self, value: Value) -> int | None:
        if not self._is_permutation(value):
            return None
        assert isinstance(value, tuple)
        if self.values is not None:
            return self.values.index(value) if value in self.values else None
        left = list(range(self.n))
        rank = 0
        for k, item in enumerate(value):
            position = left.index(item)
            left.pop(position)
            rank += position * math.factorial(self.n - 1 - k)
        return rank

    def _is_permutation(self, value: Value) -> bool:
        return isinstance(value, tuple) and sorted(value) == list(range(self.n))

    def column(self, indices: IntArray) -> npt.NDArray[Any]:
        # No table of all n! values: decode just the ones asked for.
        out = np.empty(indices.size, dtype=object)
        out[:] = [self.value(int(i)) for i in indices.ravel()]
        return out.reshape(indices.shape)

    def neighbours(self, value: Value, reach: int = 1) -> tuple[Value, ...]:
        if not self._is_permutation(value):
            return ()
        assert isinstance(value, tuple)
        if self.values is not None:
            return tuple(v for v in self.values if v != value)
        out: list[Value] = []
        for a, b in sorted(combinations(range(self.n), 2), key=lambda p: p[1] - p[0]):
            if b - a <= reach:
                swapped = list(value)
                swapped[a], swapped[b] = swapped[b], swapped[a]
                out.append(tuple(swapped))
        return tuple(out)

    def nearest(self, value: Value) -> Value:
        if self.values is None:
            return value if self._is_permutation(value) else tuple(range(self.n))
        return super().nearest(value)

    def encode(self, value: Value) -> tuple[float, ...]:
        if not self._is_permutation(value):
            return tuple(float(i) for i in range(self.n))
        assert isinstance(value, tuple)
        return tuple(float(value.index(loop)) for loop in range(self.n))

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}[{loop}]" for loop in range(self.n))

    def allowed(self) -> str:
        if self.values is not None:
            return super().allowed()
        return f"permutations of 0 to {self.n - 1}"

    def _hint(self, value: Value) -> str:
        return ""


def _show(value: Value) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


def _show_all(values: Sequence[Value]) -> str:
    return f"[{', '.join(_show(v) for v in values)}]"
