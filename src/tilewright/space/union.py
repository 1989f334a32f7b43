"""The union of several spaces: the choice between pipelines where more than one fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from tilewright.errors import UnknownNameError, UserError
from tilewright.space.arrays import BoolArray, FloatArray
from tilewright.space.constraints import Violation
from tilewright.space.descriptors import PRIOR
from tilewright.space.interface import Restriction, Space
from tilewright.space.knobs import ChoiceKnob, Knob
from tilewright.space.sampling import SizeEstimate
from tilewright.trial import Configuration, Value

MEMBER_KNOB = "pipeline"

# Share of random steps that go to another member.
_MEMBER_STEPS = 1 / 32


class UnionSpace(Space):
    """Disjoint union: a configuration is one of a member space plus the knob `pipeline`, which
    names the member.

    Members have different names, and no knob called `pipeline`. Sampling is uniform over the whole
    union by the members' size estimates, but for members with a share of their own. Features and
    descriptors of the same name are shared between members; one that a member does not have is 0.
    `default` names the member whose default is the compiler's own choice (the first unless given).
    """

    def __init__(
        self,
        name: str,
        members: Sequence[Space],
        default: str | Configuration | None = None,
        *,
        vocabulary: Sequence[str] = (),
        shares: Mapping[str, float] | None = None,
        anchors: Sequence[Configuration] = (),
    ) -> None:
        """The union of `members`.

        Args:
            name: what it is called in messages.
            members: at least one; their names are the values of the knob `pipeline`.
            default: the member whose default is the compiler's own choice (the first unless given),
                or that choice itself, which need not be a member then.
            vocabulary: all names that the choice between members is encoded by; those of the
                members unless given.
            shares: of the draws of a sample that go to a member, by its name, whatever its size.
            anchors: members of the union worth a look around, beside the default.

        Raises:
            ValueError: for no members, two of one name, a knob `pipeline` of a member, or a default
                that names no member.
        """
        if not members:
            raise ValueError(f"union '{name}' has no members")
        self.name = name
        self.members = tuple(members)
        self._members = {m.name: m for m in members}
        if len(self._members) < len(members):
            raise ValueError(f"union '{name}' has two members of the same name")
        self._choice = ChoiceKnob(
            MEMBER_KNOB, tuple(self._members), vocabulary=tuple(vocabulary or self._members)
        )
        knobs: dict[str, Knob] = {MEMBER_KNOB: self._choice}
        for member in members:
            for knob in member.knobs:
                if knob.name == MEMBER_KNOB:
                    raise ValueError(f"member '{member.name}' has a knob '{MEMBER_KNOB}'")
                knobs.setdefault(knob.name, knob)
        self.knobs = tuple(knobs.values())
        if not isinstance(default, Configuration):
            chosen = members[0].name if default is None else default
            if chosen not in self._members:
                raise ValueError(f"union '{name}': the default names no member: '{chosen}'")
            default = self._tag(chosen, self._members[chosen].default)
        self.default = default
        self._shares = {n: one for n, one in (shares or {}).items() if n in self._members}
        self._anchors = tuple(anchors)

    @property
    def anchors(self) -> tuple[Configuration, ...]:
        return (self.default, *(one for one in self._anchors if self.contains(one)))

    @staticmethod
    def _tag(name: str, config: Configuration) -> Configuration:
        return Configuration(tuple(sorted((*config.items, (MEMBER_KNOB, name)))))

    def split(self, config: Configuration) -> tuple[Space | None, Configuration]:
        """The member (None if it names no member) and its own configuration."""
        name = dict(config.items).get(MEMBER_KNOB)
        member = self._members.get(name) if isinstance(name, str) else None
        return member, Configuration(tuple(i for i in config.items if i[0] != MEMBER_KNOB))

    # -- membership ----------------------------------------------------------------------------

    def violations(self, config: Configuration) -> list[Violation]:
        member, own = self.split(config)
        if member is not None:
            return member.violations(own)
        named = dict(config.items).get(MEMBER_KNOB)
        text = f"{MEMBER_KNOB} = {named} is not one of {self._choice.allowed()}"
        return [Violation("domain", text)]

    def contains_many(self, configs: Sequence[Configuration]) -> BoolArray:
        out = np.zeros(len(configs), dtype=np.bool_)
        for member, at, own in self._grouped(configs):
            out[at] = member.contains_many(own)
        return out

    def _grouped(
        self, configs: Sequence[Configuration]
    ) -> list[tuple[Space, list[int], list[Configuration]]]:
        """For each member that is named: positions, and the members' own configurations."""
        groups: dict[str, tuple[Space, list[int], list[Configuration]]] = {}
        for i, config in enumerate(configs):
            member, own = self.split(config)
            if member is not None:
                group = groups.setdefault(member.name, (member, [], []))
                group[1].append(i)
                group[2].append(own)
        return [groups[m.name] for m in self.members if m.name in groups]

    @cached_property
    def pipelines(self) -> tuple[Space, ...]:
        """For each member, the union held to it."""
        return tuple(self._held_to([m]) for m in self.members)

    # -- sampling and order --------------------------------------------------------------------

    @cached_property
    def _sizes(self) -> tuple[SizeEstimate, ...]:
        # A fixed seed: sampling must depend on the caller's generator alone.
        return tuple(m.size_estimate(np.random.default_rng(0)) for m in self.members)

    @cached_property
    def _weights(self) -> FloatArray:
        """How often each member is drawn from, relative to the others."""
        points = np.array([float(s.points) for s in self._sizes])
        own = np.array([self._shares.get(m.name, 0.0) for m in self.members])
        own = np.where(points > 0, own, 0.0)
        rest = np.where(own > 0, 0.0, points)
        if rest.sum() == 0:
            return own
        return np.asarray(own + (1.0 - own.sum()) * rest / rest.sum())

    def sample(self, rng: np.random.Generator, n: int) -> list[Configuration]:
        weights = self._weights
        if weights.sum() == 0:
            return []
        counts = rng.multinomial(n, weights / weights.sum())
        drawn = [
            self._tag(m.name, c)
            for m, k in zip(self.members, counts, strict=True)
            if k
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

    def step_many(
        self, configs: Sequence[Configuration], rng: np.random.Generator, reach: int = 1
    ) -> list[Configuration]:
        """Steps within the member; one in 32 goes to the nearest configuration of another."""
        out = list(configs)
        for member, at, own in self._grouped(configs):
            moved = member.step_many(own, rng, reach)
            others = [m for m in self.members if m is not member]
            leaps = rng.random((len(at), 2)).tolist() if others else [(1.0, 0.0)] * len(at)
            for i, here, step, (leap, which) in zip(at, own, moved, leaps, strict=True):
                if leap < _MEMBER_STEPS:
                    other = others[int(which * len(others))]
                    out[i] = self._tag(other.name, other.nearest_valid(here))
                else:
                    out[i] = self._tag(member.name, step)
        return out

    def nearest_valid(self, config: Configuration) -> Configuration:
        member, own = self.split(config)
        if member is None:
            member = self.members[0]
        return self._tag(member.name, member.nearest_valid(own))

    # -- numbers -------------------------------------------------------------------------------

    @property
    def has_prior(self) -> bool:
        return any(m.has_prior for m in self.members)

    def prior_many(self, configs: Sequence[Configuration]) -> FloatArray:
        out = np.zeros(len(configs), dtype=np.float64)
        for member, at, own in self._grouped(configs):
            out[at] = member.prior_many(own)
        return out

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        return self._shared([m.feature_names for m in self.members])

    @cached_property
    def descriptor_names(self) -> tuple[str, ...]:
        return self._shared([m.descriptor_names for m in self.members])

    def _shared(self, names: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        """The names of all members after those of the choice between them, each once."""
        return tuple(dict.fromkeys([*self._choice.feature_names, *(f for m in names for f in m)]))

    def encode_many(self, configs: Sequence[Configuration]) -> FloatArray:
        return self._numbers(
            configs, self.feature_names, lambda m, own: (m.feature_names, m.encode_many(own))
        )

    def describe_many(self, configs: Sequence[Configuration]) -> FloatArray:
        return self._numbers(configs, self.descriptor_names, self._described)

    def _described(
        self, member: Space, own: Sequence[Configuration]
    ) -> tuple[Sequence[str], FloatArray]:
        names, values = member.descriptor_names, member.describe_many(own)
        if PRIOR in self.descriptor_names and PRIOR not in names and member.has_prior:
            # What the others say of themselves must be said of all of them.
            return (*names, PRIOR), np.column_stack([values, member.prior_many(own)])
        return names, values

    def _numbers(
        self,
        configs: Sequence[Configuration],
        names: Sequence[str],
        of: Callable[[Space, Sequence[Configuration]], tuple[Sequence[str], FloatArray]],
    ) -> FloatArray:
        """What members give under their own names, in the columns of the union."""
        out = np.zeros((len(configs), len(names)), dtype=np.float64)
        column = {name: i for i, name in enumerate(names)}
        for member, at, own in self._grouped(configs):
            given, values = of(member, own)
            out[np.ix_(at, [column[name] for name in given])] = values
            choice = self._choice.encode(member.name)
            out[at, : len(choice)] = choice
        return out

    # -- restriction ---------------------------------------------------------------------------

    def restrict(self, values: Mapping[str, Sequence[Value]]) -> Restriction:
        """Restrict every member that has the knob; `pipeline` picks the members.

        A member that allows none of it is dropped with a note; UserError when none is left, or
        when no member has the knob.
        """
        for name in values:
            if name not in self.restrictable:
                where = f"search space '{self.name}'"
                raise UnknownNameError("knob", name, self.restrictable, where)
        chosen: set[Value] = set(self._members)
        if MEMBER_KNOB in values:
            chosen = set(self._choice.restrict(values[MEMBER_KNOB]).values)
        return self.restrict_each(
            {
                member.name: {k: v for k, v in values.items() if k in member.restrictable}
                for member in self.members
                if member.name in chosen
            }
        )

    def restrict_each(self, values: Mapping[str, Mapping[str, Sequence[Value]]]) -> Restriction:
        """The space with each member held to values of its own.

        Args:
            values: what each knob may be, by member and the knob's name; members that are not
                named are left out.

        Returns:
            The union of what is left, with notes on members of which nothing is left.

        Raises:
            UserError: nothing is left of any member that is restricted.
        """
        kept: list[Space] = []
        notes: list[str] = []
        errors: list[UserError] = []
        for member in self.members:
            if member.name not in values:
                continue
            try:
                restriction = member.restrict(values[member.name])
            except UserError as error:
                errors.append(error)
                notes.append(f"'{member.name}' is left out: {error}")
                continue
            kept.append(restriction.space)
            notes += restriction.notes
        named = any(values[member.name] for member in kept)
        if not kept or (errors and not named):
            # What is left has none of these knobs: not what was asked for.
            raise errors[0]
        return Restriction(self._held_to(kept), tuple(notes))

    def _held_to(self, members: Sequence[Space]) -> UnionSpace:
        """The union of these members alone, with the same default."""
        vocabulary = [str(v) for v in self._choice.vocabulary]
        return UnionSpace(
            self.name,
            members,
            self.default,
            vocabulary=vocabulary,
            shares=self._shares,
            anchors=self._anchors,
        )

    @property
    def restrictable(self) -> tuple[str, ...]:
        own = (knob.name for knob in self.knobs)
        return tuple(dict.fromkeys([*own, *(n for m in self.members for n in m.restrictable)]))

    def admits(self, knob: str, value: Value) -> bool:
        if knob == MEMBER_KNOB:
            return self._choice.admits(value)
        return any(member.admits(knob, value) for member in self.members)
