"""What a strategy knows of a space, whichever way it is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from tilewright.space.constraints import BoolArray, Violation
from tilewright.space.knobs import Knob
from tilewright.space.sampling import SizeEstimate
from tilewright.trial import Configuration, Value

FloatArray = npt.NDArray[np.float64]


@runtime_checkable
class Space(Protocol):
    """A set of valid configurations that can be sampled, stepped through and ordered.

    Nothing here enumerates the space; everything that draws takes a generator and is
    deterministic under its seed.
    """

    @property
    def name(self) -> str: ...

    @property
    def knobs(self) -> tuple[Knob, ...]: ...

    @property
    def default(self) -> Configuration:
        """The compiler's own choice."""

    @property
    def default_is_member(self) -> bool:
        """True unless the user's restriction excludes the default (which stays a finalist)."""

    @property
    def has_prior(self) -> bool: ...

    @property
    def feature_names(self) -> tuple[str, ...]: ...

    @property
    def descriptor_names(self) -> tuple[str, ...]:
        """What :meth:`describe_many` gives, equal for spaces of one kind of workload."""

    @property
    def order_size(self) -> int:
        """Number of ranks of :meth:`ordered`; an upper bound of the number of valid points."""

    def violations(self, config: Configuration) -> list[Violation]:
        """Every reason why the configuration is not a member; empty for a member."""

    def contains(self, config: Configuration) -> bool: ...

    def contains_many(self, configs: Sequence[Configuration]) -> BoolArray:
        """Which of many configurations are members."""

    def sample(self, rng: np.random.Generator, n: int) -> list[Configuration]:
        """`n` independent members, uniform over the valid set (repeats are possible).

        Fewer only when the space is empty or a million candidates did not hit it.
        """

    def ordered(self, ranks: Sequence[int]) -> list[Configuration | None]:
        """Members by rank (0 to `order_size` - 1) in a fixed order; None where a rank is invalid.

        Every member has exactly one rank.
        """

    def neighbours(
        self, config: Configuration, rng: np.random.Generator, reach: int = 1
    ) -> Iterator[Configuration]:
        """Members that differ in one knob, then in two coupled knobs, by up to `reach` steps.

        Coupled knobs share a constraint. Within each group the order is random; each neighbour
        comes once. A configuration that is no member is repaired first.
        """

    def step_many(
        self, configs: Sequence[Configuration], rng: np.random.Generator, reach: int = 1
    ) -> list[Configuration]:
        """One random neighbour of each member: a step of up to `reach` in one knob or in two
        coupled ones. The configuration itself where none was found in a few tries, and where it
        is no member."""

    def nearest_valid(self, config: Configuration) -> Configuration:
        """A member close to the configuration (itself, if it is one)."""

    def prior(self, config: Configuration) -> float:
        """How promising a configuration looks, higher is better; 0 for all without a prior.

        Best given as minus the logarithm of an estimated time: strategies compare it with the
        logarithm of measured times.
        """

    def prior_many(self, configs: Sequence[Configuration]) -> FloatArray:
        """The prior of many, shape (configurations,)."""

    def encode(self, config: Configuration) -> FloatArray:
        """Features, in the order of `feature_names`: the knobs, sizes as log2."""

    def encode_many(self, configs: Sequence[Configuration]) -> FloatArray:
        """Features of many, shape (configurations, features)."""

    def describe_many(self, configs: Sequence[Configuration]) -> FloatArray:
        """What configurations amount to, shape (configurations, descriptors): numbers that mean
        the same in other spaces with descriptors of that name. Features, where a space has none.
        A descriptor called `prior` is the prior.
        """

    def size_estimate(self, rng: np.random.Generator) -> SizeEstimate: ...

    def rejections(self, rng: np.random.Generator, n: int = 4096) -> dict[str, float]:
        """Share of all combinations of values that each constraint alone rejects.

        One combination may be rejected by several, so the shares do not add up to the whole.
        """

    def restrict(self, values: Mapping[str, Sequence[Value]]) -> Restriction:
        """The space with the named knobs held to the given values."""


@dataclass(frozen=True)
class Restriction:
    """A restricted space, and remarks for the user on what had no effect."""

    space: Space
    notes: tuple[str, ...] = ()
