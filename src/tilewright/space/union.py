"""The union of several spaces: the choice between pipelines where more than one fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from tilewright.errors import UnknownNameError, UserError
from tilewright.space.constraints import Violation
from tilewright.space.interface import FloatArray, Restriction, Space
from tilewright.space.knobs import ChoiceKnob, Knob
from tilewright.space.sampling import SizeEstimate
from tilewright.trial import Configuration, Value

MEMBER_KNOB = "pipeline"


class UnionSpace:
    """Disjoint union: a configuration is one of a member space plus the knob `pipeline`, which
    names the member.

    Members have different names, and no knob called `pipeline`. Sampling is uniform over the whole
    union by the members' size estimates. Features of the same name are shared between members; a
    feature that a member does not have is 0. `default` names the member whose default is the
    compiler's own choice (the first unless given).
    """

    def __init__(self, name: str, members: Sequence[Space], default: str | None = None) -> None:
        self._setup(name, tuple(members), tuple(m.name for m in members))
        chosen = members[0].name if default is None else default
        if chosen not in self._members:
            raise ValueError(f"union '{name}': the default names no member: '{chosen}'")
        self.default = self._tag(chosen, self._members[chosen].default)

    def _setup(self, name: str, members: tuple[Space, ...], vocabulary: tuple[str, ...]) -> None:
        if not members:
            raise ValueError(f"union '{name}' has no members")
        self.name = name
        self.members = members
        self._members = {m.name: m for m in members}
        if len(self._members) < len(members):
            raise ValueError(f"union '{name}' has two members of the same name")
        self._choice = ChoiceKnob(MEMBER_KNOB, tuple(self._members), vocabulary=vocabulary)
        knobs: dict[str, Knob] = {MEMBER_KNOB: self._choice}
        for member in members:
            for knob in member.knobs:
                if knob.name == MEMBER_KNOB:
                    raise ValueError(f"member '{member.name}' has a knob '{MEMBER_KNOB}'")
                knobs.setdefault(knob.name, knob)
        self.knobs: tuple[Knob, ...] = tuple(knobs.values())

    @staticmethod
    def _tag(name: str, config: Configuration) -> Configuration:
        return Configuration.of({**dict(config.items), MEMBER_KNOB: name})

    def split(self, config: Configuration) -> tuple[Space | None, Configuration]:
        """The member (None if it names no member) and its own configuration."""
        values = dict(config.items)
        name = values.pop(MEMBER_KNOB, None)
        member = self._members.get(name) if isinstance(name, str) else None
        return member, Configuration.of(values)

    # -- membership ----------------------------------------------------------------------------

    @property
    def default_is_member(self) -> bool:
        return self.contains(self.default)

    def violations(self, config: Configuration) -> list[Violation]:
        member, own = self.split(config)
        if member is not None:
            return member.violations(own)
        named = dict(config.items).get(MEMBER_KNOB)
        text = f"{MEMBER_KNOB} = {named} is not one of {self._choice.allowed()}"
        return [Violation("domain", text)]

    def contains(self, config: Configuration) -> bool:
        member, own = self.split(config)
        return member is not None and member.contains(own)

    # -- sampling and order --------------------------------------------------------------------

    @cached_property
    def _sizes(self) -> tuple[SizeEstimate, ...]:
        # A fixed seed: sampling must depend on the caller's generator alone.
        return tuple(m.size_estimate(np.random.default_rng(0)) for m in self.members)

    def sample(self, rng: np.random.Generator, n: int) -> list[Configuration]:
        weights = np.array([float(s.points) for s in self._sizes])
        if weights.sum() == 0:
            return []
        counts = rng.multinomial(n, weights / weights.sum())
        drawn = [
            self._tag(m.name, c)
            for m, k in zip(self.members, counts, strict=True)
            for c in m.sample(rng, int(k))
        ]
        return [drawn[i] for i in rng.permutation(len(drawn))]

    @property
    def order_size(self) -> int:
        return sum(m.order_size for m in self.members)

    def ordered(self, ranks: Sequence[int]) -> list[Configuration | None]:
        out: list[Configuration | None] = [None] * len(ranks)
        first = 0
        for member in self.members:
            end = first + member.order_size
            at = [i for i, r in enumerate(ranks) if first <= r < end]
            for i, c in zip(at, member.ordered([ranks[i] - first for i in at]), strict=True):
                out[i] = None if c is None else self._tag(member.name, c)
            first = end
        return out

    def size_estimate(self, rng: np.random.Generator) -> SizeEstimate:
        """Sum over the members (the interval is the sum of theirs: a wide one)."""
        parts = [m.size_estimate(rng) for m in self.members]
        return SizeEstimate(
            sum(p.points for p in parts),
            sum(p.low for p in parts),
            sum(p.high for p in parts),
            all(p.exact for p in parts),
            sum(p.total for p in parts),
        )

    def rejections(self, rng: np.random.Generator, n: int = 4096) -> dict[str, float]:
        """Shares within each member, under `member.constraint`."""
        return {
            f"{m.name}.{name}": share
            for m in self.members
            for name, share in m.rejections(rng, n).items()
        }

    # -- steps ---------------------------------------------------------------------------------

    def neighbours(
        self, config: Configuration, rng: np.random.Generator, reach: int = 1
    ) -> Iterator[Configuration]:
        """The member's own neighbours, then the nearest configuration of every other member."""
        if not self.contains(config):
            config = self.nearest_valid(config)
        member, own = self.split(config)
        assert member is not None
        for step in member.neighbours(own, rng, reach):
            yield self._tag(member.name, step)
        for other in self.members:
            if other is not member:
                yield self._tag(other.name, other.nearest_valid(own))

    def nearest_valid(self, config: Configuration) -> Configuration:
        member, own = self.split(config)
        if member is None:
            member = self.members[0]
        return self._tag(member.name, member.nearest_valid(own))

    # -- numbers -------------------------------------------------------------------------------

    @property
    def has_prior(self) -> bool:
        return any(m.has_prior for m in self.members)

    def prior(self, config: Configuration) -> float:
        member, own = self.split(config)
        return 0.0 if member is None else member.prior(own)

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        names = [*self._choice.feature_names, *(f for m in self.members for f in m.feature_names)]
        return tuple(dict.fromkeys(names))

    @cached_property
    def _columns(self) -> dict[str, list[int]]:
        at = {f: i for i, f in enumerate(self.feature_names)}
        return {m.name: [at[f] for f in m.feature_names] for m in self.members}

    def encode(self, config: Configuration) -> FloatArray:
        member, own = self.split(config)
        out = np.zeros(len(self.feature_names), dtype=np.float64)
        if member is not None:
            choice = self._choice.encode(member.name)
            out[: len(choice)] = choice
            out[self._columns[member.name]] = member.encode(own)
        return out

    def encode_many(self, configs: Sequence[Configuration]) -> FloatArray:
        rows = [self.encode(c) for c in configs]
        return np.array(rows, dtype=np.float64).reshape(len(configs), len(self.feature_names))

    # -- restriction ---------------------------------------------------------------------------

    def restrict(self, values: Mapping[str, Sequence[Value]]) -> Restriction:
        """Restrict every member that has the knob; `pipeline` picks the members.

        A member that allows none of it is dropped with a note; UserError when none is left, or
        when no member has the knob.
        """
        for name in values:
            if all(name != k.name for k in self.knobs):
                allowed = [k.name for k in self.knobs]
                raise UnknownNameError("knob", name, allowed, f"search space '{self.name}'")
        chosen: set[Value] = set(self._members)
        if MEMBER_KNOB in values:
            chosen = set(self._choice.restrict(values[MEMBER_KNOB]).values)
        kept: list[Space] = []
        notes: list[str] = []
        errors: list[UserError] = []
        for member in self.members:
            if member.name not in chosen:
                continue
            own = {k: v for k, v in values.items() if any(k == m.name for m in member.knobs)}
            try:
                restriction = member.restrict(own)
            except UserError as error:
                errors.append(error)
                notes.append(f"'{member.name}' is left out: {error}")
                continue
            kept.append(restriction.space)
            notes += restriction.notes
        if not kept:
            raise errors[0]
        space = UnionSpace.__new__(UnionSpace)
        vocabulary = tuple(str(v) for v in self._choice.vocabulary)
        space._setup(self.name, tuple(kept), vocabulary)
        space.default = self.default
        return Restriction(space, tuple(notes))
