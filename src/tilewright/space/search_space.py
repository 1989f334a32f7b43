"""A search space: knobs, the constraints between them, the compiler's own choice, and a prior."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.errors import UnknownNameError, UserError
from tilewright.space.arrays import BoolArray, FloatArray, IntArray, as_column
from tilewright.space.constraints import Computed, Constraint, Violation
from tilewright.space.descriptors import Descriptors
from tilewright.space.interface import Restriction, Space
from tilewright.space.knobs import Knob, value_key
from tilewright.space.repair import repaired
from tilewright.space.sampling import SizeEstimate, ValidSet
from tilewright.trial import Configuration, Value

Prior = Callable[[Configuration], float]
PriorMany = Callable[[Sequence[Configuration]], FloatArray]
Values = dict[str, Value]

# Draws for a random step before a configuration stays where it is.
_STEP_TRIES = 6
# Share of random steps that move two coupled knobs at once.
_DOUBLE_STEPS = 0.3
# Neighbours checked together, doubled for every further piece.
_FIRST_PIECE = 32
# Nearest valid ones that are kept: searches ask for those of their best again and again.
_MOST_NEAREST = 256


@dataclass(frozen=True)
class Changed:
    """Members of a space that configurations are changed to.

    of: the number of the configuration that each is one of. columns: by knob their values.
    """

    of: IntArray
    columns: Mapping[str, npt.NDArray[Any]]

    def at(self, number: int) -> Configuration:
        """One of the members."""
        return Configuration.of(
            {name: column[number : number + 1].tolist()[0] for name, column in self.columns.items()}
        )


class SearchSpace(Space):
    """The valid configurations of one pipeline for one workload; see :class:`~.interface.Space`."""

    def __init__(
        self,
        name: str,
        knobs: Sequence[Knob],
        constraints: Sequence[Constraint],
        default: Configuration,
        prior: Prior | None = None,
        *,
        prior_many: PriorMany | None = None,
        descriptors: Descriptors | None = None,
        computed: Mapping[str, Computed] | None = None,
        default_outside: bool = False,
        also: Sequence[Configuration] = (),
    ) -> None:
        """The space of the knobs' combinations that satisfy the constraints.

        Args:
            name: what it is called in messages, and in a union.
            knobs: of different names.
            constraints: of different names, over these knobs.
            default: the compiler's own choice; a member (a rule that rejects what the compiler does
                is a wrong rule) unless `default_outside`, which is for what a user's restriction
                leaves.
            prior: how promising a configuration looks, higher is better.
            prior_many: the same for many configurations at once, which is faster.
            descriptors: what configurations amount to; without them the features say it.
            computed: numbers that follow from knobs, which a user may restrict as well.
            default_outside: whether the default need not be a member.
            also: others that are worth a trial before anything is known.

        Raises:
            ValueError: for two knobs or constraints of one name, a constraint on a knob that there
                is not, or a default that is no member: a domain lacks its value, or a constraint
                rejects it.
        """
        if prior is not None and prior_many is None:
            prior_many = _one_by_one(prior)
        self.name = name
        self.knobs = tuple(knobs)
        self.constraints = tuple(constraints)
        self.default = default
        self._prior = prior_many
        self._descriptors = descriptors
        self._computed = dict(computed or {})
        self._also = tuple(also)
        self._codes: dict[str, dict[tuple[type, Value], tuple[float, ...]]] = {
            k.name: {} for k in knobs
        }
        self._nearest: dict[Configuration, Configuration] = {}
        self._by_name = {k.name: k for k in knobs}
        if len(self._by_name) < len(knobs):
            raise ValueError(f"search space '{name}' has two knobs of the same name")
        if len({c.name for c in constraints}) < len(constraints):
            raise ValueError(f"search space '{name}' has two constraints of the same name")
        for c in constraints:
            for knob in c.knobs:
                if knob not in self._by_name:
                    raise ValueError(f"constraint '{c.name}' of '{name}': no knob '{knob}'")
        wrong = [] if default_outside else self.violations(default)
        if wrong:
            raise ValueError(
                f"search space '{name}': the compiler's own choice must be a member, but "
                + "; ".join(map(str, wrong))
            )

    @property
    def anchors(self) -> tuple[Configuration, ...]:
        return (self.default, *(one for one in self._also if self.contains(one)))

    # -- what is varied ------------------------------------------------------------------------

    @cached_property
    def _searched(self) -> tuple[Knob, ...]:
        """The knobs, those without effect held at the default's value."""
        fixed = dict(self.default.items)
        return tuple(k if k.effect else k.with_values([fixed[k.name]]) for k in self.knobs)

    @cached_property
    def _varied(self) -> tuple[Knob, ...]:
        return tuple(k for k in self._searched if k.cardinality > 1)

    @cached_property
    def _valid(self) -> ValidSet:
        return ValidSet(self._searched, self.constraints)

    @cached_property
    def _touching(self) -> dict[str, tuple[Constraint, ...]]:
        return {k.name: tuple(c for c in self.constraints if k.name in c.knobs) for k in self.knobs}

    @cached_property
    def _pairs(self) -> list[tuple[Knob, Knob]]:
        """Pairs of knobs that share a constraint, in the order of the knobs."""
        scopes = [set(c.knobs) for c in self.constraints]
        return [
            (a, b)
            for a, b in combinations(self._varied, 2)
            if any({a.name, b.name} <= scope for scope in scopes)
        ]

    # -- membership ----------------------------------------------------------------------------

    def violations(self, config: Configuration) -> list[Violation]:
        """Why the configuration is not a member. Values outside their domain come first; the
        constraints are then not asked, since they may rely on the domains."""
        values = dict(config.items)
        wrong = [
            Violation("knobs", f"no knob '{name}' in '{self.name}'")
            for name in values
            if name not in self._by_name
        ]
        for knob in self.knobs:
            if knob.name not in values:
                wrong.append(Violation("knobs", f"no value for knob '{knob.name}'"))
            elif knob.index(values[knob.name]) is None:
                text = f"{knob.name} = {values[knob.name]} is not one of {knob.allowed()}"
                wrong.append(Violation("domain", text))
        if wrong:
            return wrong
        return [v for c in self.constraints if (v := c.violation(values)) is not None]

    def contains(self, config: Configuration) -> bool:
        values = dict(config.items)
        return self._in_domains(config) and all(c.holds(values) for c in self.constraints)

    def contains_many(self, configs: Sequence[Configuration]) -> BoolArray:
        inside = np.array([self._in_domains(c) for c in configs], dtype=np.bool_)
        inside[inside] = self._satisfy([c for c, ok in zip(configs, inside, strict=True) if ok])
        return inside

    def _satisfy(self, configs: Sequence[Configuration]) -> BoolArray:
        """Which configurations, of values of the domains, satisfy the constraints."""
        valid = np.ones(len(configs), dtype=np.bool_)
        if configs:
            columns = {name: as_column(v) for name, v in self._values(configs).items()}
            for constraint in self.constraints:
                valid &= constraint.mask([columns[k] for k in constraint.knobs])
        return valid

    def _in_domains(self, config: Configuration) -> bool:
        values = dict(config.items)
        return len(values) == len(self.knobs) and all(
            k.name in values and k.index(values[k.name]) is not None for k in self.knobs
        )

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(sorted(self._by_name))

    def _values(self, configs: Sequence[Configuration]) -> dict[str, tuple[Value, ...]]:
        """The values of each knob in many configurations; the default's where one has none."""
        rows = []
        for config in configs:
            names, values = zip(*config.items, strict=True) if config.items else ((), ())
            if names != self._names:
                own = {**dict(self.default.items), **dict(config.items)}
                values = tuple(own[n] for n in self._names)
            rows.append(values)
        return dict(zip(self._names, zip(*rows, strict=True), strict=True)) if rows else {}

    # -- sampling and order --------------------------------------------------------------------

    def _configurations(self, rows: Any) -> list[Configuration]:
        order = sorted(range(len(self.knobs)), key=lambda i: self.knobs[i].name)
        named = [(i, self._searched[i]) for i in order]
        return [
            Configuration(tuple((k.name, k.value(row[i])) for i, k in named))
            for row in rows.tolist()
        ]

    def sample(self, rng: np.random.Generator, n: int) -> list[Configuration]:
        return self._configurations(self._valid.draw(rng, n))

    @property
    def order_size(self) -> int:
        return self._valid.order_size

    def ordered(self, ranks: Sequence[int]) -> list[Configuration | None]:
        rows = self._valid.unrank(ranks)
        valid = self._valid.passes(rows, self._valid.wide)
        members = iter(self._configurations(rows[valid]))
        return [next(members) if ok else None for ok in valid]

    def size_estimate(self, rng: np.random.Generator) -> SizeEstimate:
        return self._valid.estimate(rng)

    def rejections(self, rng: np.random.Generator, n: int = 4096) -> dict[str, float]:
        return self._valid.rejections(rng, n)

    # -- steps ---------------------------------------------------------------------------------

    def neighbours(
        self, config: Configuration, rng: np.random.Generator, reach: int = 1
    ) -> Iterator[Configuration]:
        if not self.contains(config):
            config = self.nearest_valid(config)
        values = dict(config.items)
        steps = {k.name: k.neighbours(values[k.name], reach) for k in self._varied}
        single: list[Values] = [{name: v} for name, vs in steps.items() for v in vs]
        yield from self._valid_changes(values, single, rng)
        double: list[Values] = [
            {a.name: va, b.name: vb}
            for a, b in self._pairs
            for va in steps[a.name]
            for vb in steps[b.name]
        ]
        yield from self._valid_changes(values, double, rng)

    def _valid_changes(
        self, values: Values, changes: Sequence[Values], rng: np.random.Generator
    ) -> Iterator[Configuration]:
        """Valid values with each of the changes that leaves them valid, in random order; only the
        constraints of the knobs that moved are checked again, for a piece of the changes at a
        time."""
        order = rng.permutation(len(changes)).tolist()
        first, size = 0, _FIRST_PIECE
        while first < len(order):
            piece = [changes[i] for i in order[first : first + size]]
            yield from self._changed(values, piece)
            first, size = first + size, 2 * size

    def changed_once(self, configs: Sequence[Configuration]) -> Changed:
        """The members that differ from configurations in one knob at most, those of each in the
        order of the knobs and of their values.

        Args:
            configs: of values of the domains, members or not.
        """
        count, first = sum(knob.cardinality for knob in self.knobs), 0
        values = [dict(config.items) for config in configs]
        columns = {}
        for knob in self.knobs:
            domain = self._domains[knob.name]
            places = np.array([knob.index(own[knob.name]) for own in values], dtype=np.int64)
            column = np.repeat(domain[places], count).reshape(len(configs), count)
            column[:, first : first + knob.cardinality] = domain
            columns[knob.name] = column.reshape(-1)
            first += knob.cardinality
        valid = np.ones(len(configs) * count, dtype=np.bool_)
        for rule in self.constraints:
            valid &= rule.mask([columns[knob] for knob in rule.knobs])
        of = np.repeat(np.arange(len(configs)), count)
        return Changed(of[valid], {name: column[valid] for name, column in columns.items()})

    @cached_property
    def _domains(self) -> dict[str, npt.NDArray[Any]]:
        """The values of each knob."""
        every = {knob.name: map(knob.value, range(knob.cardinality)) for knob in self.knobs}
        return {name: as_column(list(values)) for name, values in every.items()}

    def _changed(self, values: Values, changes: Sequence[Values]) -> Iterator[Configuration]:
        """The values with each of the changes that satisfies the constraints of all knobs that any
        of these moves."""
        valid = np.ones(len(changes), dtype=np.bool_)
        touched = {c.name: c for one in changes for name in one for c in self._touching[name]}
        asked = dict.fromkeys(k for rule in touched.values() for k in rule.knobs)
        columns = {k: as_column([c.get(k, values[k]) for c in changes]) for k in asked}
        for rule in touched.values():
            valid &= rule.mask([columns[k] for k in rule.knobs])
        for change, ok in zip(changes, valid.tolist(), strict=True):
            if ok:
                yield Configuration.of(values | change)

    def step_many(
        self, configs: Sequence[Configuration], rng: np.random.Generator, reach: int = 1
    ) -> list[Configuration]:
        out = list(configs)
        inside = [i for i, config in enumerate(out) if self._in_domains(config)]
        waiting = inside if self._varied else []
        for _ in range(_STEP_TRIES):
            if not waiting:
                break
            draws = rng.random((len(waiting), 4)).tolist()
            moved = [self._moved(out[i], d, reach) for i, d in zip(waiting, draws, strict=True)]
            stayed = []
            for i, config, valid in zip(waiting, moved, self._satisfy(moved), strict=True):
                if valid and config != out[i]:
                    out[i] = config
                else:
                    stayed.append(i)
            waiting = stayed
        return out

    def _moved(self, config: Configuration, draws: Sequence[float], reach: int) -> Configuration:
        """The configuration with one knob, or two coupled ones, elsewhere; valid or not."""
        which, double, first, second = draws
        knobs: tuple[Knob, ...]
        if self._pairs and double < _DOUBLE_STEPS:
            knobs = self._pairs[int(which * len(self._pairs))]
        else:
            knobs = (self._varied[int(which * len(self._varied))],)
        values = dict(config.items)
        for knob, draw in zip(knobs, (first, second), strict=False):
            near = knob.neighbours(values[knob.name], reach)
            if near:
                values[knob.name] = near[int(draw * len(near))]
        return Configuration(tuple(values.items()))

    def nearest_valid(self, config: Configuration) -> Configuration:
        """The nearest member found: by steps in the knobs that break a constraint, else the
        nearest of 256 samples. Distance is the sum of differences of the encoding (log2 of sizes).
        Knobs the configuration lacks take the default's value, others are dropped."""
        wanted = dict(self.default.items)
        wanted |= {k: v for k, v in config.items if k in self._by_name}
        # By what is asked for alone: of what others look for here, most is of no knob of this one.
        key = Configuration.of(wanted)
        found = self._nearest.get(key)
        if found is None:
            if len(self._nearest) == _MOST_NEAREST:
                self._nearest.clear()
            found = self._nearest[key] = self._find_nearest(wanted)
        return found

    def _find_nearest(self, wanted: Values) -> Configuration:
        """See `nearest_valid`."""
        start = {k.name: k.nearest(wanted[k.name]) for k in self.knobs}

        def gap(knob: Knob, value: Value) -> float:
            here, there = self._code(knob, value), self._code(knob, wanted[knob.name])
            return sum(abs(a - b) for a, b in zip(here, there, strict=True))

        found = repaired(self._varied, self.constraints, start, gap)
        if found is not None:
            return Configuration.of(found)
        near = self.sample(np.random.default_rng(0), 256)
        if self.default_is_member:
            near.append(self.default)
        if not near:
            raise ValueError(f"search space '{self.name}': no valid configuration found")
        target = self.encode(Configuration.of(wanted))
        return near[int(np.abs(self.encode_many(near) - target).sum(axis=1).argmin())]

    # -- numbers -------------------------------------------------------------------------------

    @property
    def has_prior(self) -> bool:
        return self._prior is not None

    def prior_many(self, configs: Sequence[Configuration]) -> FloatArray:
        if self._prior is None or not configs:
            return np.zeros(len(configs), dtype=np.float64)
        return np.asarray(self._prior(configs), dtype=np.float64)

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(f for k in self.knobs if k.effect for f in k.feature_names)

    def encode_many(self, configs: Sequence[Configuration]) -> FloatArray:
        if not configs or not self.feature_names:
            return np.zeros((len(configs), len(self.feature_names)), dtype=np.float64)
        values = self._values(configs)
        columns = [
            np.array([self._code(k, v) for v in values[k.name]], dtype=np.float64)
            for k in self.knobs
            if k.effect
        ]
        return np.concatenate(columns, axis=1)

    def _code(self, knob: Knob, value: Value) -> tuple[float, ...]:
        """The features of one value; kept, since few values stand in many configurations."""
        known = self._codes[knob.name]
        key = value_key(value)
        code = known.get(key)
        if code is None:
            code = known[key] = knob.encode(value)
        return code

    @property
    def descriptor_names(self) -> tuple[str, ...]:
        return self.feature_names if self._descriptors is None else self._descriptors.names

    def describe_many(self, configs: Sequence[Configuration]) -> FloatArray:
        if self._descriptors is None:
            return self.encode_many(configs)
        if not configs:
            return np.zeros((0, len(self._descriptors.names)), dtype=np.float64)
        return self._descriptors.describe(configs)

    # -- restriction ---------------------------------------------------------------------------

    def restrict(self, values: Mapping[str, Sequence[Value]]) -> Restriction:
        """The space with the named knobs held to these values.

        A knob without effect is accepted, left alone, and noted. The default need not be in the
        result (`default_is_member`). UserError for an unknown knob, a value that is not allowed,
        or when nothing valid is left, naming the constraint that rejects the rest.
        """
        knobs = {k.name: k for k in self.knobs}
        rules = list(self.constraints)
        where = f"search space '{self.name}'"
        notes = []
        for name, wanted in values.items():
            knob, computed = knobs.get(name), self._computed.get(name)
            if computed is not None:
                again = "'" * sum(rule.name.rstrip("'") == name for rule in rules)
                rules += computed.one_of(name + again, wanted, where)
            elif knob is None:
                raise UnknownNameError("knob", name, knobs, where)
            elif knob.effect:
                knobs[name] = knob.restrict(wanted)
            else:
                why = f" ({knob.note})" if knob.note else ""
                notes.append(f"{name}: has no effect in '{self.name}'{why}")
        space = self._with(tuple(knobs.values()), rules)
        if space._is_empty():
            raise UserError(self._nothing_left(space, values))
        return Restriction(space, tuple(notes))

    @property
    def restrictable(self) -> tuple[str, ...]:
        return (*self._by_name, *self._computed)

    def admits(self, knob: str, value: Value) -> bool:
        return knob in self._computed or super().admits(knob, value)

    def as_member(self, name: str, level: float) -> SearchSpace:
        """The space under another name, with a prior that is comparable with that of others.

        Args:
            name: what it is called in a union.
            level: what the prior shall be for the default; differences stay as they are.

        Returns:
            A space of the same configurations.
        """
        own, default = self._prior, self.default
        shift = level - (float(own([default])[0]) if own is not None else 0.0)

        def prior(configs: Sequence[Configuration]) -> FloatArray:
            found = np.zeros(len(configs), dtype=np.float64) if own is None else own(configs)
            return np.asarray(found + shift)

        return SearchSpace(
            name,
            self.knobs,
            self.constraints,
            default,
            prior_many=prior,
            descriptors=self._descriptors,
            computed=self._computed,
            default_outside=True,
            also=self._also,
        )

    def _with(self, knobs: Sequence[Knob], constraints: Sequence[Constraint]) -> SearchSpace:
        return SearchSpace(
            self.name,
            knobs,
            constraints,
            self.default,
            prior_many=self._prior,
            descriptors=self._descriptors,
            computed=self._computed,
            default_outside=True,
            also=self._also,
        )

    def _is_empty(self) -> bool:
        if self.order_size == 0:
            return True
        return not self.default_is_member and not self.sample(np.random.default_rng(0), 1)

    def _nothing_left(self, space: SearchSpace, values: Mapping[str, Sequence[Value]]) -> str:
        """Name the constraint without which something would be left, with an example."""
        given = ", ".join(f"{k} = {list(v)}" for k, v in values.items())
        head = f"search space '{self.name}': {given} leaves no valid configuration"
        for culprit in space.constraints:
            others = [c for c in space.constraints if c is not culprit]
            near = space._with(space.knobs, others).sample(np.random.default_rng(0), 1)
            if near:
                violation = culprit.violation(dict(near[0].items))
                return f"{head}: {violation or culprit.name}"
        return f"{head}: {', '.join(c.name for c in space.constraints)} exclude each other's values"


def _one_by_one(prior: Prior) -> PriorMany:
    return lambda configs: np.array([prior(c) for c in configs], dtype=np.float64)
