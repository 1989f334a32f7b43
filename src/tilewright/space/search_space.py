"""A search space: knobs, the constraints between them, the compiler's own choice, and a prior."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.errors import UnknownNameError, UserError
from tilewright.space import moves
from tilewright.space.constraints import Constraint, Violation
from tilewright.space.interface import FloatArray, Restriction
from tilewright.space.knobs import Knob
from tilewright.space.sampling import SizeEstimate, ValidSet
from tilewright.trial import Configuration, Value

Prior = Callable[[Configuration], float]


class SearchSpace:
    """The valid configurations of one pipeline for one workload; see :class:`~.interface.Space`.

    `default` is the compiler's own choice and always a member: the constructor raises ValueError
    when a domain lacks its value or a constraint rejects it (a rule that rejects what the compiler
    does is a wrong rule). Only :meth:`restrict` can make a space that its default is not in.
    """

    def __init__(
        self,
        name: str,
        knobs: Sequence[Knob],
        constraints: Sequence[Constraint],
        default: Configuration,
        prior: Prior | None = None,
    ) -> None:
        self._setup(name, tuple(knobs), tuple(constraints), default, prior)
        wrong = self.violations(default)
        if wrong:
            raise ValueError(
                f"search space '{name}': the compiler's own choice must be a member, but "
                + "; ".join(map(str, wrong))
            )

    def _setup(
        self,
        name: str,
        knobs: tuple[Knob, ...],
        constraints: tuple[Constraint, ...],
        default: Configuration,
        prior: Prior | None,
    ) -> None:
        self.name = name
        self.knobs = knobs
        self.constraints = constraints
        self.default = default
        self._prior = prior
        self._by_name = {k.name: k for k in knobs}
        if len(self._by_name) < len(knobs):
            raise ValueError(f"search space '{name}' has two knobs of the same name")
        if len({c.name for c in constraints}) < len(constraints):
            raise ValueError(f"search space '{name}' has two constraints of the same name")
        for c in constraints:
            for knob in c.knobs:
                if knob not in self._by_name:
                    raise ValueError(f"constraint '{c.name}' of '{name}': no knob '{knob}'")

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
        return moves.coupled_pairs(self._varied, self.constraints)

    # -- membership ----------------------------------------------------------------------------

    @cached_property
    def default_is_member(self) -> bool:
        return self.contains(self.default)

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
        return (
            len(values) == len(self.knobs)
            and all(k.name in values and k.index(values[k.name]) is not None for k in self.knobs)
            and all(c.holds(values) for c in self.constraints)
        )

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
        steps = moves.neighbours(
            dict(config.items), self._varied, self._pairs, self._touching, rng, reach
        )
        return map(Configuration.of, steps)

    def nearest_valid(self, config: Configuration) -> Configuration:
        """The nearest member found: by steps in the knobs that break a constraint, else the
        nearest of 256 samples. Distance is the sum of differences of the encoding (log2 of sizes).
        Knobs the configuration lacks take the default's value, others are dropped."""
        wanted = dict(self.default.items)
        wanted |= {k: v for k, v in config.items if k in self._by_name}
        start = {k.name: k.nearest(wanted[k.name]) for k in self.knobs}
        target = self.encode(Configuration.of(wanted))

        def distance(values: Mapping[str, Value]) -> float:
            return float(np.abs(self.encode(Configuration.of(values)) - target).sum())

        repaired = moves.repair(start, self._varied, self.constraints, distance)
        if repaired is not None:
            return Configuration.of(repaired)
        near = self.sample(np.random.default_rng(0), 256)
        if self.default_is_member:
            near.append(self.default)
        if not near:
            raise ValueError(f"search space '{self.name}': no valid configuration found")
        return min(near, key=lambda c: distance(dict(c.items)))

    # -- numbers -------------------------------------------------------------------------------

    @property
    def has_prior(self) -> bool:
        return self._prior is not None

    def prior(self, config: Configuration) -> float:
        return 0.0 if self._prior is None else float(self._prior(config))

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(f for k in self.knobs if k.effect for f in k.feature_names)

    def encode(self, config: Configuration) -> FloatArray:
        values = dict(config.items)
        features = [f for k in self.knobs if k.effect for f in k.encode(values[k.name])]
        return np.array(features, dtype=np.float64)

    def encode_many(self, configs: Sequence[Configuration]) -> FloatArray:
        rows = [self.encode(c) for c in configs]
        return np.array(rows, dtype=np.float64).reshape(len(configs), len(self.feature_names))

    # -- restriction ---------------------------------------------------------------------------

    def restrict(self, values: Mapping[str, Sequence[Value]]) -> Restriction:
        """The space with the named knobs held to these values.

        A knob without effect is accepted, left alone, and noted. The default need not be in the
        result (`default_is_member`). UserError for an unknown knob, a value that is not allowed,
        or when nothing valid is left, naming the constraint that rejects the rest.
        """
        knobs = {k.name: k for k in self.knobs}
        notes = []
        for name, wanted in values.items():
            knob = knobs.get(name)
            if knob is None:
                raise UnknownNameError("knob", name, knobs, f"search space '{self.name}'")
            if knob.effect:
                knobs[name] = knob.restrict(wanted)
            else:
                why = f" ({knob.note})" if knob.note else ""
                notes.append(f"{name}: has no effect in '{self.name}'{why}")
        space = self._with(tuple(knobs.values()), self.constraints)
        if space._is_empty():
            raise UserError(self._nothing_left(space, values))
        return Restriction(space, tuple(notes))

    def _with(self, knobs: tuple[Knob, ...], constraints: tuple[Constraint, ...]) -> SearchSpace:
        space = SearchSpace.__new__(SearchSpace)
        space._setup(self.name, knobs, constraints, self.default, self._prior)
        return space

    def _is_empty(self) -> bool:
        if self.order_size == 0:
            return True
        return not self.default_is_member and not self.sample(np.random.default_rng(0), 1)

    def _nothing_left(self, space: SearchSpace, values: Mapping[str, Sequence[Value]]) -> str:
        """Name the constraint without which something would be left, with an example."""
        given = ", ".join(f"{k} = {list(v)}" for k, v in values.items())
        head = f"search space '{self.name}': {given} leaves no valid configuration"
        for culprit in space.constraints:
            others = tuple(c for c in space.constraints if c is not culprit)
            near = space._with(space.knobs, others).sample(np.random.default_rng(0), 1)
            if near:
                violation = culprit.violation(dict(near[0].items))
                return f"{head}: {violation or culprit.name}"
        return f"{head}: {', '.join(c.name for c in space.constraints)} exclude each other's values"
