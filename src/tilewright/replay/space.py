"""A recorded space as strategies see it: the search space of today, held to what was recorded.

Nothing of the space itself is stored: prior, encoding, descriptors and neighbours are made anew
from the recorded dispatch. What they say of the few members that there are is looked up in tables,
which all runs of a process share, so that a simulated trial costs next to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from tilewright.errors import UnknownNameError, UserError
from tilewright.replay.recording import KnobValues, RecordedDispatch, Recording
from tilewright.space.arrays import BoolArray, FloatArray, IntArray
from tilewright.space.constraints import Constraint, Violation
from tilewright.space.descriptors import PRIOR
from tilewright.space.generators import dispatch_space
from tilewright.space.interface import Restriction, Space
from tilewright.space.knobs import BoolKnob, ChoiceKnob, Knob, TileKnob
from tilewright.space.sampling import SizeEstimate
from tilewright.space.search_space import SearchSpace
from tilewright.space.union import MEMBER_KNOB
from tilewright.trial import Configuration, Value

Numbers = Callable[[Sequence[Configuration]], FloatArray]


class Tables:
    """What a space says of its recorded members, computed once.

    `members` have the numbers 0, 1, …; arrays have a row for each. `foreign`: all that is known of
    the space is its members, so that it is they that answer what would otherwise be sampled.
    """

    def __init__(
        self, inner: Space, members: Sequence[Configuration], foreign: bool = False
    ) -> None:
        self.inner = inner
        self.foreign = foreign
        self.members = tuple(members)
        self.row = {config: i for i, config in enumerate(self.members)}
        self._known: dict[Numbers, FloatArray] = {}
        self._steps: dict[tuple[Configuration, int], tuple[IntArray, ...]] = {}

    @cached_property
    def is_complete(self) -> bool:
        """Whether every member of the space is recorded."""
        if self.foreign:
            return True
        if self.inner.order_size > len(self.members):
            return False
        found = self.inner.ordered(range(self.inner.order_size))
        return all(config is None or config in self.row for config in found)

    def look_up(self, compute: Numbers, configs: Sequence[Configuration]) -> FloatArray:
        """What `compute` gives of configurations, looked up.

        Args:
            compute: a method of `inner`, shape (configurations, numbers) or (configurations,); it
                is asked once for all members, and again where a configuration is no member.
            configs: whose rows are wanted.
        """
        rows = [self.row.get(config, -1) for config in configs]
        if -1 in rows or not rows:
            return compute(configs)
        if compute not in self._known:
            self._known[compute] = compute(self.members)
        return np.asarray(self._known[compute][rows])

    def steps(self, config: Configuration, reach: int) -> tuple[IntArray, ...]:
        """The numbers of a configuration's neighbours, in the groups that they come in: those that
        differ in one knob, in two, and the rest."""
        key = config, reach
        found = self._steps.get(key)
        if found is None:
            groups: tuple[list[int], ...] = ([], [], [])
            here = self.nearest(config)
            for step in self.inner.neighbours(here, np.random.default_rng(0), reach):
                at = self.row.get(step)
                if at is not None:
                    groups[min(_differing(here, step), 3) - 1].append(at)
            found = self._steps[key] = tuple(np.array(g, dtype=np.int64) for g in groups)
        return found

    def nearest(self, config: Configuration) -> Configuration:
        """A member close to the configuration (itself, if it is one)."""
        if config in self.row:
            return config
        near = config if self.foreign else self.inner.nearest_valid(config)
        if near in self.row:
            return near
        encoded = self.look_up(self.inner.encode_many, self.members)
        gaps = np.abs(encoded - self.inner.encode(near)).sum(axis=1)
        return self.members[int(gaps.argmin())]


def _differing(one: Configuration, other: Configuration) -> int:
    """Knobs in which two configurations differ (at least 1); those of two pipelines in all."""
    mine, theirs = dict(one.items), dict(other.items)
    if mine.keys() != theirs.keys() or mine.get(MEMBER_KNOB) != theirs.get(MEMBER_KNOB):
        return len(mine) + 1
    return max(1, sum(mine[name] != theirs[name] for name in mine))


class RecordedSpace(Space):
    """The recorded members of a space; a :class:`tilewright.space.Space`.

    `default` is shown as the compiler's own choice; `prior` False shows a space without a prior.
    """

    def __init__(self, tables: Tables, default: Configuration, prior: bool = True) -> None:
        self.tables = tables
        self.default = default
        self.name = tables.inner.name
        self.knobs = tables.inner.knobs
        self._with_prior = prior and tables.inner.has_prior

    @property
    def members(self) -> tuple[Configuration, ...]:
        """The recorded configurations, in their order."""
        return self.tables.members

    def seen_as(self, *, default: Configuration, prior: bool) -> RecordedSpace:
        """The same members with another default, or without a prior; shares the tables."""
        return RecordedSpace(self.tables, default, prior)

    # -- membership ----------------------------------------------------------------------------

    def violations(self, config: Configuration) -> list[Violation]:
        if self.contains(config):
            return []
        wrong = self.tables.inner.violations(config)
        return wrong or [Violation("recorded", "the configuration was not recorded")]

    def contains(self, config: Configuration) -> bool:
        return config in self.tables.row

    def contains_many(self, configs: Sequence[Configuration]) -> BoolArray:
        return np.array([config in self.tables.row for config in configs], dtype=np.bool_)

    # -- sampling and order --------------------------------------------------------------------

    def sample(self, rng: np.random.Generator, n: int) -> list[Configuration]:
        if not self.members:
            return []
        return [self.members[i] for i in rng.integers(len(self.members), size=n).tolist()]

    @property
    def order_size(self) -> int:
        return len(self.members)

    def ordered(self, ranks: Sequence[int]) -> list[Configuration | None]:
        return [self.members[rank] for rank in ranks]

    def size_estimate(self, rng: np.random.Generator) -> SizeEstimate:
        count = len(self.members)
        total = math.prod(knob.cardinality for knob in self.knobs if knob.effect)
        return SizeEstimate(count, count, count, True, total)

    def rejections(self, rng: np.random.Generator, n: int = 4096) -> dict[str, float]:
        return self.tables.inner.rejections(rng, n)

    # -- steps ---------------------------------------------------------------------------------

    def neighbours(
        self, config: Configuration, rng: np.random.Generator, reach: int = 1
    ) -> Iterator[Configuration]:
        for group in self.tables.steps(config, reach):
            for at in rng.permutation(group).tolist():
                yield self.members[at]

    def step_many(
        self, configs: Sequence[Configuration], rng: np.random.Generator, reach: int = 1
    ) -> list[Configuration]:
        moved = self.tables.inner.step_many(configs, rng, reach)
        if self.tables.is_complete:
            return moved
        return [
            there if there in self.tables.row else here
            for here, there in zip(configs, moved, strict=True)
        ]

    def nearest_valid(self, config: Configuration) -> Configuration:
        return self.tables.nearest(config)

    # -- numbers -------------------------------------------------------------------------------

    @property
    def has_prior(self) -> bool:
        return self._with_prior

    def prior_many(self, configs: Sequence[Configuration]) -> FloatArray:
        if not self._with_prior or not configs:
            return np.zeros(len(configs), dtype=np.float64)
        return self.tables.look_up(self.tables.inner.prior_many, configs)

    @property
    def feature_names(self) -> tuple[str, ...]:
        return self.tables.inner.feature_names

    def encode_many(self, configs: Sequence[Configuration]) -> FloatArray:
        return self.tables.look_up(self.tables.inner.encode_many, configs)

    @property
    def descriptor_names(self) -> tuple[str, ...]:
        return self.tables.inner.descriptor_names

    def describe_many(self, configs: Sequence[Configuration]) -> FloatArray:
        found = self.tables.look_up(self.tables.inner.describe_many, configs)
        if not self._with_prior and PRIOR in self.descriptor_names:
            # Else a model would read from its features what it must not know.
            found[:, self.descriptor_names.index(PRIOR)] = 0.0
        return found

    # -- restriction ---------------------------------------------------------------------------

    def restrict(self, values: Mapping[str, Sequence[Value]]) -> Restriction:
        """The recorded members that have these values."""
        for name in values:
            if all(name != knob.name for knob in self.knobs):
                allowed = [knob.name for knob in self.knobs]
                raise UnknownNameError("knob", name, allowed, f"search space '{self.name}'")
        kept = [
            member
            for member in self.members
            if all(dict(member.items).get(name) in allowed for name, allowed in values.items())
        ]
        if not kept:
            given = ", ".join(f"{name} = {list(allowed)}" for name, allowed in values.items())
            raise UserError(f"search space '{self.name}': {given} leaves nothing that was recorded")
        made = self.tables.inner.restrict(values)
        tables = Tables(made.space, kept, self.tables.foreign)
        space = RecordedSpace(tables, self.default, self._with_prior)
        return Restriction(space, made.notes)


# -- from a recording ------------------------------------------------------------------------------


def open_space(recording: Recording) -> tuple[RecordedSpace, tuple[str, ...]]:
    """The search space of a recording, and remarks on what of it is left out.

    Recorded configurations that today's constraints reject are no members. UserError when today's
    space of the dispatch has nothing to do with what was recorded.
    """
    if len(recording) == 0:
        raise UserError(f"{recording.name}: there is nothing in this recording")
    subject = recording.subject
    inner = _foreign(recording) if subject is None else _rebuilt(recording, subject)
    valid = inner.contains_many(recording.configurations)
    members = [c for c, ok in zip(recording.configurations, valid, strict=True) if ok]
    if not members:
        raise UserError(
            f"{recording.name}: today's constraints reject every recorded configuration; record "
            "the space anew"
        )
    tables = Tables(inner, members, subject is None)
    notes = []
    if len(members) < len(recording):
        notes.append(
            f"{len(recording) - len(members)} of {len(recording)} recorded configurations are "
            "rejected by today's constraints and left out"
        )
    if not tables.is_complete:
        notes.append("today's space has configurations that were not recorded; they are left out")
    default = recording.default
    return RecordedSpace(tables, members[0] if default is None else default), tuple(notes)


def _rebuilt(recording: Recording, subject: RecordedDispatch) -> Space:
    """Today's space of the recorded dispatch, held to the recorded values."""
    made = dispatch_space(subject.template, subject.workload, subject.target)
    if made is None:
        raise UserError(
            f"{recording.name}: this version has no search space for {subject.workload.name} with "
            f"pipeline {subject.template.translation.pipeline}"
        )
    space = made.space
    default = dict(space.default.items)
    recorded = {knob.name: knob.values for knob in recording.knobs}
    unknown = [name for name in recorded if all(name != knob.name for knob in space.knobs)]
    if unknown:
        raise UserError(
            f"{recording.name}: today's space of {subject.workload.name} has no knob "
            f"'{unknown[0]}'; record the space anew"
        )
    held: dict[str, Sequence[Value]] = {}
    for knob in space.knobs:
        if knob.name in recorded:
            values: Sequence[Value] = recorded[knob.name]
        elif knob.name in default:
            values = (default[knob.name],)
        else:
            continue
        if knob.effect:
            held[knob.name] = values
    return space.restrict(held).space


def _foreign(recording: Recording) -> SearchSpace:
    """A space over the knobs of another tool's recording, whose rules are not known: what was
    recorded is a member."""
    knobs = tuple(_knob(knob) for knob in recording.knobs)
    names = tuple(knob.name for knob in knobs)
    members = {tuple(dict(c.items).get(name) for name in names) for c in recording.configurations}
    recorded = Constraint(
        "recorded",
        names,
        lambda *values: values in members,
        lambda *values: "the configuration was not recorded",
    )
    return SearchSpace(recording.name, knobs, (recorded,), recording.configurations[0])


def _knob(recorded: KnobValues) -> Knob:
    values = recorded.values
    if all(type(v) is bool for v in values):
        return BoolKnob(recorded.name, tuple(values))
    sizes = tuple(v for v in values if type(v) is int and v >= 0)
    if len(sizes) == len(values):
        return TileKnob(recorded.name, tuple(sorted(sizes)))
    return ChoiceKnob(recorded.name, values)
