"""What a strategy knows of a space, whichever way it is made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.space.arrays import BoolArray, FloatArray
from tilewright.space.constraints import Violation
from tilewright.space.knobs import Knob
from tilewright.space.sampling import SizeEstimate
from tilewright.trial import Configuration, Value


class Space(ABC):
    """A set of valid configurations that can be sampled, stepped through and ordered.

    Nothing here enumerates the space; everything that draws takes a generator and is
    deterministic under its seed. `default` is the compiler's own choice.
    """

    name: str
    knobs: tuple[Knob, ...]
    default: Configuration

    @property
    def default_is_member(self) -> bool:
        """True unless the user's restriction excludes the default (which stays a finalist)."""
        return self.contains(self.default)

    @property
    def anchors(self) -> tuple[Configuration, ...]:
        """What is worth a look around before anything is known; the default is the first."""
        return (self.default,)

    @property
    def restrictable(self) -> tuple[str, ...]:
        """What a user may restrict: the knobs, and numbers that follow from them."""
        return tuple(knob.name for knob in self.knobs)

    def admits(self, knob: str, value: Value) -> bool:
        """Whether a user may restrict a knob to this value.

        Args:
            knob: its name.
            value: that it would be held to.
        """
        return any(own.name == knob and own.admits(value) for own in self.knobs)

    @property
    @abstractmethod
    def has_prior(self) -> bool:
        """Whether the prior tells configurations apart."""

    @property
    @abstractmethod
    def feature_names(self) -> tuple[str, ...]:
        """What :meth:`encode_many` gives."""

    @property
    @abstractmethod
    def descriptor_names(self) -> tuple[str, ...]:
        """What :meth:`describe_many` gives, equal for spaces of one kind of workload."""

    @property
    @abstractmethod
    def order_size(self) -> int:
        """Number of ranks of :meth:`ordered`; an upper bound of the number of valid points."""

    @abstractmethod
    def violations(self, config: Configuration) -> list[Violation]:
        """Every reason why the configuration is not a member; empty for a member.

        Args:
            config: any values for the knobs.
        """

    def contains(self, config: Configuration) -> bool:
        """Whether the configuration is a member.

        Args:
            config: any values for the knobs.
        """
        return bool(self.contains_many([config])[0])

    @abstractmethod
    def contains_many(self, configs: Sequence[Configuration]) -> BoolArray:
        """Which of many configurations are members.

        Args:
            configs: any values for the knobs.

        Returns:
            Shape (configurations,).
        """

    @abstractmethod
    def sample(self, rng: np.random.Generator, n: int) -> list[Configuration]:
        """`n` independent members, uniform over the valid set (repeats are possible).

        Fewer only when the space is empty or a million candidates did not hit it.

        Args:
            rng: decides the draws.
            n: how many, 0 or more.
        """

    @abstractmethod
    def ordered(self, ranks: Sequence[int]) -> list[Configuration | None]:
        """Members by rank (0 to `order_size` - 1) in a fixed order; None where a rank is invalid.

        Every member has exactly one rank.

        Args:
            ranks: in any order.

        Returns:
            As many, in the order of `ranks`.
        """

    @abstractmethod
    def neighbours(
        self, config: Configuration, rng: np.random.Generator, reach: int = 1
    ) -> Iterator[Configuration]:
        """Members that differ in one knob, then in two coupled knobs.

        Coupled knobs share a constraint. Within each group the order is random; each neighbour
        comes once.

        Args:
            config: where the steps begin; one that is no member is repaired first.
            rng: decides the order.
            reach: how many steps a knob may go.
        """

    @abstractmethod
    def step_many(
        self, configs: Sequence[Configuration], rng: np.random.Generator, reach: int = 1
    ) -> list[Configuration]:
        """One random neighbour of each member: a step in one knob or in two coupled ones.

        Args:
            configs: where the steps begin.
            rng: decides the steps.
            reach: how many steps a knob may go.

        Returns:
            As many configurations; the same one where no step was found in a few tries, and where
            it is no member.
        """

    @abstractmethod
    def nearest_valid(self, config: Configuration) -> Configuration:
        """A member close to the configuration (itself, if it is one).

        Args:
            config: any values for the knobs.
        """

    def prior(self, config: Configuration) -> float:
        """How promising a configuration looks, higher is better; 0 for all without a prior.

        Best given as minus the logarithm of an estimated time: strategies compare it with the
        logarithm of measured times.

        Args:
            config: a member.
        """
        return float(self.prior_many([config])[0])

    @abstractmethod
    def prior_many(self, configs: Sequence[Configuration]) -> FloatArray:
        """The prior of many, shape (configurations,).

        Args:
            configs: members.
        """

    def encode(self, config: Configuration) -> FloatArray:
        """Features, in the order of `feature_names`: the knobs, sizes as log2.

        Args:
            config: a member.

        Returns:
            Shape (features,).
        """
        return np.asarray(self.encode_many([config])[0])

    @abstractmethod
    def encode_many(self, configs: Sequence[Configuration]) -> FloatArray:
        """Features of many, shape (configurations, features).

        Args:
            configs: members.
        """

    @abstractmethod
    def describe_many(self, configs: Sequence[Configuration]) -> FloatArray:
        """What configurations amount to, shape (configurations, descriptors): numbers that mean
        the same in other spaces with descriptors of that name. Features, where a space has none.
        A descriptor called `prior` is the prior.

        Args:
            configs: members.
        """

    @abstractmethod
    def size_estimate(self, rng: np.random.Generator) -> SizeEstimate:
        """How many members there are; counted, or estimated from a sample drawn with `rng`.

        Args:
            rng: decides the sample that an estimate rests on.
        """

    @abstractmethod
    def rejections(self, rng: np.random.Generator, n: int = 4096) -> dict[str, float]:
        """Share of all combinations of values that each constraint alone rejects.

        One combination may be rejected by several, so the shares do not add up to the whole.

        Args:
            rng: decides the sample.
            n: how many combinations are looked at.
        """

    @abstractmethod
    def restrict(self, values: Mapping[str, Sequence[Value]]) -> Restriction:
        """The space with the named knobs held to the given values.

        Args:
            values: what each knob may be, by its name.
        """


@dataclass(frozen=True)
class Restriction:
    """A restricted space, and remarks for the user on what had no effect."""

    space: Space
    notes: tuple[str, ...] = ()
