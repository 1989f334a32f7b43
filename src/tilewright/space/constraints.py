"""Named rules that say why a configuration is invalid.

A constraint declares its scope, the knobs it looks at, so that a space can decide it locally:
constraints of small scope are tabulated once, a :class:`Fold` is counted by dynamic programming,
and only what is left needs whole configurations. Unpromising is not invalid: what merely looks slow
belongs in the space's prior.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.errors import UserError
from tilewright.space.arrays import BoolArray
from tilewright.space.terms import Term, evaluator, product, variable
from tilewright.trial import Value


@dataclass(frozen=True)
class Violation:
    """Which constraint rejects a configuration, and why, with the numbers."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True)
class Fold:
    """A constraint decided by scanning its knobs in order with a small integer state.

    The state starts at `start`, becomes `step(state, value)` for each knob in turn, and the
    constraint holds when `accept(state)`. All work on NumPy arrays. The fewer distinct states there
    are, the cheaper: clip those that can no longer be accepted to a single one.
    """

    start: int
    step: Callable[[Any, Any], Any]
    accept: Callable[[Any], Any]

    def run(self, values: Sequence[Any]) -> Any:
        """Whether values of the knobs, in their order, satisfy the constraint."""
        state: Any = np.int64(self.start)
        for value in values:
            state = self.step(state, value)
        return self.accept(state)


@dataclass(frozen=True)
class Constraint:
    """A named rule over the knobs in `knobs`.

    `check(*values)` and `reason(*values)` take the values of those knobs in that order. With
    `vectorised` set, `check` is also given NumPy arrays of equal (or broadcastable) shape and
    returns a boolean array: `lambda m, n: (m * n <= 4096) & (m >= 8)`. Set it whenever the
    expression allows; a scalar check is called once for each combination.

    `fold`, if given, must decide exactly as `check` does; see :func:`product_at_most`. `condition`
    is the rule as data, which :func:`declared` makes the check of: `tilewright.space.smtlib` writes
    spaces with it for other solvers.
    """

    name: str
    knobs: tuple[str, ...]
    check: Callable[..., Any]
    reason: Callable[..., str]
    vectorised: bool = False
    fold: Fold | None = None
    condition: Term | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.knobs or len(set(self.knobs)) != len(self.knobs):
            raise ValueError(
                f"constraint '{self.name}' needs different knobs as its scope, got {self.knobs}"
            )

    def holds(self, values: Mapping[str, Value]) -> bool:
        """Whether one configuration satisfies the rule."""
        return bool(self.check(*(values[k] for k in self.knobs)))

    def violation(self, values: Mapping[str, Value]) -> Violation | None:
        """None when the rule holds, else its name with the reason."""
        if self.holds(values):
            return None
        return Violation(self.name, self.reason(*(values[k] for k in self.knobs)))

    def mask(self, columns: Sequence[npt.NDArray[Any]]) -> BoolArray:
        """Decide many configurations: one 1-d array of values for each knob of the scope."""
        n = len(columns[0])
        if self.vectorised:
            return np.broadcast_to(np.asarray(self.check(*columns), dtype=np.bool_), (n,))
        rows = zip(*(c.tolist() for c in columns), strict=True)
        return np.fromiter((bool(self.check(*row)) for row in rows), dtype=np.bool_, count=n)


@dataclass(frozen=True)
class Computed:
    """A number that follows from knobs, such as the threads of a workgroup; a user may hold it to
    some values as well. `compute` takes the values of `knobs`, also as NumPy arrays."""

    knobs: tuple[str, ...]
    compute: Callable[..., Any]

    def of(self, values: Mapping[str, Any]) -> Any:
        """The number for values (or arrays of them) of the knobs, by name."""
        return self.compute(*(values[k] for k in self.knobs))

    def one_of(self, name: str, allowed: Sequence[Value], where: str) -> list[Constraint]:
        """The rule that the number is one of some values.

        Args:
            name: what the number is called.
            allowed: the values; those that are no integers do not count.
            where: begins the message of an error.

        Returns:
            No rule where the number is one of the values whatever the knobs are.

        Raises:
            UserError: where no knob changes the number, and it is another.
        """
        wanted = np.array([v for v in allowed if isinstance(v, int)], dtype=np.int64)

        def reason(*values: Any) -> str:
            shown = ", ".join(map(str, wanted))
            return f"{name} is {int(self.compute(*values))}, not one of {shown}"

        def check(*values: Any) -> Any:
            return np.isin(np.asarray(self.compute(*values)), wanted)

        if self.knobs:
            return [Constraint(name, self.knobs, check, reason, vectorised=True)]
        if not check():
            raise UserError(f"{where}: {reason()}")
        return []


def declared(
    name: str, knobs: Sequence[str], condition: Term, reason: Callable[..., str]
) -> Constraint:
    """A constraint from its condition.

    Args:
        name: of the constraint.
        knobs: its scope: those of the condition, in the order in which `reason` takes their values.
        condition: what must hold.
        reason: says why values are rejected.
    """
    check = evaluator(condition, knobs)
    return Constraint(name, tuple(knobs), check, reason, vectorised=True, condition=condition)


def product_at_most(
    name: str,
    knobs: Sequence[str],
    limit: int,
    *,
    factor: int = 1,
    reason: Callable[..., str] | None = None,
    unit: str = "",
) -> Constraint:
    """`factor * product of the knobs <= limit`: vector sizes, stack and register footprints.

    It carries a :class:`Fold` over the product so far, clipped above the limit, so that any number
    of knobs under such a bound is still counted and sampled exactly: tile sizes have few distinct
    products.

    Args:
        name: of the constraint.
        knobs: whose values are multiplied; integers from 0.
        limit: the largest product allowed.
        factor: what the product begins with.
        reason: says why values are rejected; by default the product in numbers.
        unit: of the product, for that default.
    """
    over = limit + 1

    def step(state: Any, value: Any) -> Any:
        return np.minimum(state * value, over)

    def accept(state: Any) -> Any:
        return state <= limit

    def numbers(*values: int) -> str:
        product = factor
        for v in values:
            product *= v
        terms = " * ".join(f"{k} {v}" for k, v in zip(knobs, values, strict=True))
        head = f"{factor} * " if factor != 1 else ""
        suffix = f" {unit}" if unit else ""
        return f"{head}{terms} = {product}{suffix}, more than {limit}{suffix}"

    fold = Fold(min(factor, over), step, accept)
    whole = product([factor, *map(variable, knobs)])
    return Constraint(
        name=name,
        knobs=tuple(knobs),
        check=lambda *values: fold.run(values),
        reason=reason or numbers,
        vectorised=True,
        fold=fold,
        condition=whole <= limit,
    )
