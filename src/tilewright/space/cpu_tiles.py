"""CPU pipelines: their spaces are made from the loops of a dispatch's root op.

Every pipeline of IREE's CPU backend reads tile sizes per loop at some of the six levels; the
pipelines differ in which levels they read and in a few rules of their own. A subclass of
`CpuPipeline` names those; this module makes knobs, constraints and the prior from them, and turns a
configuration back into what the compiler reads.

Knobs are named after level and loop: `distribution_m`, `vector_common_parallel_n`,
`vector_reduction_k`, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np

from tilewright.space import cost_model, sizes
from tilewright.space.arrays import FloatArray, IntArray
from tilewright.space.constraints import Constraint, declared, product_at_most
from tilewright.space.cpu_descriptors import describe_tilings, tiling_names
from tilewright.space.descriptors import Descriptors
from tilewright.space.geometry import LoopNest, TileGeometry
from tilewright.space.knobs import BoolKnob, ChoiceKnob, Knob, TileKnob, knob_term
from tilewright.space.pipeline import Pipeline, Unfit
from tilewright.space.search_space import SearchSpace
from tilewright.space.terms import Term, product, term, variable, where
from tilewright.target import Target
from tilewright.tiling import (
    LEVELS,
    PEELING,
    REDUCTION_LEVELS,
    CompilationInfo,
    DispatchTemplate,
    Tiling,
    Translation,
)
from tilewright.trial import Configuration
from tilewright.workload import Workload

INNER = "vector_inner_parallel"
NO_LOOP = "none"


class CpuPipeline(Pipeline):
    """The space of one pipeline for one dispatch, and the way from a configuration to tilings.

    `levels` are those that the pipeline reads, `peeling` whether it peels loops, `inner_parallel`
    whether a parallel loop can be tiled inside the reduction.
    """

    levels: ClassVar[tuple[str, ...]]
    peeling: ClassVar[bool] = False
    inner_parallel: ClassVar[bool] = False

    def __init__(self, template: DispatchTemplate, workload: Workload, target: Target) -> None:
        self.is_own = self.name == template.translation.pipeline
        if template.root_op.tiling is None or not (self.is_own or self.fits(template, workload)):
            raise Unfit(self.name)
        self.template = template
        self.workload = workload
        self.target = target
        self.names = workload.loop_names
        self.extents = tuple(max(1, e) for e in template.root_op.extents)
        self.reduction = template.root_op.reduction
        self.base = self._base_tiling()
        self.knobs: list[Knob] = []
        self._make_knobs()
        self.knob_names = {knob.name for knob in self.knobs}
        self.default = self._default_configuration()
        self._nest = LoopNest.of(template.root_op, workload, target)
        self.space = SearchSpace(
            self.name,
            self.knobs,
            self._constraints(),
            self.default,
            prior_many=self.prior_many,
            # A dispatch on scalars has no loops, and nothing to describe.
            descriptors=Descriptors(tiling_names(self.names), self.describe_many)
            if self.extents
            else None,
        )

    @property
    def tile_names(self) -> Mapping[str, str]:
        of = {"m": "distribution_m", "n": "distribution_n", "k": "cache_reduction_k"}
        return {loop: knob for loop, knob in of.items() if knob in self.knob_names}

    # -- what pipelines differ in --------------------------------------------------------------

    @classmethod
    def fits(cls, template: DispatchTemplate, workload: Workload) -> bool:
        """Whether it compiles a dispatch that the compiler itself gives to another pipeline."""
        return False

    def fixed_loops(self, level: str) -> frozenset[int]:
        """The loops that keep the compiler's sizes at a level."""
        return frozenset()

    def own_rules(self) -> Sequence[Constraint]:
        """What the pipeline refuses beside what all do; the knobs are there already."""
        return ()

    # -- knobs ---------------------------------------------------------------------------------

    def _base_tiling(self) -> dict[str, tuple[int, ...]]:
        """The compiler's tiling of the root at the levels that this pipeline reads.

        For another pipeline than the compiler's own it is where the search starts: the
        compiler's sizes where it gives some, else one vector of work per step.
        """
        own = self.template.root_op.tiling or Tiling()
        count = len(self.extents)
        base = {level: tuple(own.size(level, i) for i in range(count)) for level in self.levels}
        if not self.is_own and not any(base.get("distribution", ())):
            base["distribution"] = tuple(
                0 if r else e for e, r in zip(self.extents, self.reduction, strict=True)
            )
        return base

    def _loops(self, reduction: bool) -> list[int]:
        """The loops of a kind that can be tiled at all: those that run more than once."""
        return [
            i
            for i, (extent, is_sum) in enumerate(zip(self.extents, self.reduction, strict=True))
            if extent > 1 and is_sum == reduction
        ]

    def _innermost(self, loop: int) -> bool:
        """Whether the loop walks the memory of some operand one element at a time."""
        inner = self.template.root_op.operand_inner
        return loop in inner if any(i >= 0 for i in inner) else loop == len(self.extents) - 1

    def _make_knobs(self) -> None:
        lanes = self.target.lanes(self.template.root_op.element_bits)
        for level in self.levels:
            if level == INNER:
                continue
            fixed = self.fixed_loops(level)
            for loop in self._loops(level in REDUCTION_LEVELS):
                extent, default = self.extents[loop], self.base[level][loop]
                if loop in fixed:
                    continue
                if level == "distribution":
                    domain = sizes.distribution_sizes(extent, self.target.cores, default)
                elif level == "vector_common_parallel":
                    domain = sizes.vector_sizes(extent, lanes, default, self._innermost(loop))
                elif level == "vector_reduction":
                    domain = sizes.reduction_sizes(extent, lanes, default, self._innermost(loop))
                else:
                    domain = sizes.cache_sizes(extent, default)
                # The compiler's own tile can be larger than the loop.
                most = max(extent, *domain)
                name = f"{level}_{self.names[loop]}"
                self.knobs.append(TileKnob(name, domain, full=most, limit=most))
        parallel = [self.names[i] for i in self._loops(reduction=False)]
        if self.inner_parallel and len(parallel) > 1:
            self.knobs.append(ChoiceKnob(INNER, (NO_LOOP, *parallel)))
        if self.peeling:
            self.knobs.append(BoolKnob(PEELING))

    def _default_configuration(self) -> Configuration:
        values: dict[str, int | str | bool | tuple[int, ...]] = {}
        for level in self.levels:
            for loop, size in enumerate(self.base.get(level, ())):
                name = f"{level}_{self.names[loop]}"
                if name in self.knob_names:
                    values[name] = size
        if INNER in self.knob_names:
            values[INNER] = NO_LOOP
        if PEELING in self.knob_names:
            values[PEELING] = PEELING in self.template.translation.options and self.is_own
        return Configuration.of(values)

    # -- constraints ---------------------------------------------------------------------------

    def _constraints(self) -> list[Constraint]:
        found = [*self._order_constraints(), *self._size_constraints(), *self.own_rules()]
        values = dict(self.default.items)
        # A rule that the compiler's own choice breaks is not a rule for this dispatch.
        return [c for c in found if c.violation(values) is None]

    def knob_term(self, name: str) -> Term:
        """The value of a knob, for rules."""
        return knob_term(next(one for one in self.knobs if one.name == name))

    def knob(self, level: str, loop: int) -> str | None:
        """The name of the knob of a loop at a level, None where there is none."""
        name = f"{level}_{self.names[loop]}"
        return name if name in self.knob_names else None

    def _order_constraints(self) -> list[Constraint]:
        """Along one loop each level tiles what the level before it left.

        A vector tile is at most the next power of two above the distribution tile: masked vectors
        are rounded up to powers of two, so a size between is still a choice of its own; anything
        above gives the same code.
        """
        found = []
        for loop, extent in enumerate(self.extents):
            outer = self.knob("distribution", loop)
            cache = self.knob("cache_parallel", loop) or self.knob("cache_reduction", loop)
            vector = self.knob("vector_common_parallel", loop) or self.knob(
                "vector_reduction", loop
            )
            for label, large, small, holds, why in (
                ("vector_within_distribution", outer, vector, _less_than_twice,
                 "a vector tile of {} is twice the distribution tile of {} or more"),
                ("cache_within_distribution", outer, cache, _splits,
                 "a cache tile of {} does not split the distribution tile of {}"),
                ("vector_within_cache", cache, vector, _within_cache,
                 "a vector tile of {} is larger than the cache tile of {}"),
            ):  # fmt: skip
                if large and small:
                    name = f"{label}_{self.names[loop]}"
                    found.append(_nested(name, large, small, holds, why, extent))
        return found

    def _size_constraints(self) -> list[Constraint]:
        """The vector tiles of all loops together stay below the compiler's limit on vectors.

        IREE's `LLVMCPUVerifyVectorSizeLegality` takes the iteration space of a contraction for a
        vector of the accumulator's type. Attention becomes two contractions, one with the loops of
        the queries and keys, one with those of the values.
        """
        every = range(len(self.extents))
        if self.workload.kind != "attention":
            return self._vector_limit("vector_bytes", every)
        roles = [dim.role for dim in self.workload.dims]
        return [
            *self._vector_limit("query_key_vector_bytes", [i for i in every if roles[i] != "n"]),
            *self._vector_limit("value_vector_bytes", [i for i in every if roles[i] != "k1"]),
        ]

    def _vector_limit(self, label: str, loops: Sequence[int]) -> list[Constraint]:
        bits = self.template.root_op.element_bits
        names: list[str] = []
        extents: list[int] = []
        fixed = 1
        for loop in loops:
            extent = self.extents[loop]
            level = "vector_reduction" if self.reduction[loop] else "vector_common_parallel"
            if level not in self.levels:
                continue
            name = self.knob(level, loop)
            if name:
                names.append(name)
                extents.append(extent)
            else:
                fixed *= self.base[level][loop] or extent
        if not names:
            return []
        limit_bytes = self.target.max_vector_bytes
        limit = limit_bytes * 8 // bits

        def reason(*values: int) -> str:
            sizes_ = [v or e for v, e in zip(values, extents, strict=True)]
            terms = " * ".join(f"{n} {v}" for n, v in zip(names, sizes_, strict=True))
            rest = f" * {fixed} in the other loops" if fixed != 1 else ""
            total = math.prod(sizes_) * fixed * bits // 8
            return (
                f"a vector tile of {terms}{rest} elements of {bits} bits takes {total} bytes; the "
                f"compiler's limit is below {limit_bytes}"
            )

        if any(0 in _values(self.knobs, name) for name in names):
            tiles = map(_whole, map(variable, names), extents)
            return [declared(label, names, product([fixed, *tiles]) < limit, reason)]
        return [product_at_most(label, names, limit - 1, factor=fixed, reason=reason)]

    # -- from a configuration to what the compiler reads ---------------------------------------

    def tiling(self, configuration: Configuration) -> Tiling:
        """The root op's tiling for a configuration of this space."""
        by_level = zip(LEVELS, self.tile_sizes([configuration])[0].tolist(), strict=True)
        return Tiling.of({k: tuple(v) for k, v in by_level if k in self.levels})

    def tile_sizes(self, configurations: Sequence[Configuration]) -> IntArray:
        """The root op's tile sizes, shape (configurations, levels, loops), the levels in the order
        of :data:`tilewright.tiling.LEVELS`; 0 is not tiled."""
        base = np.zeros((len(LEVELS), len(self.extents)), dtype=np.int64)
        for level, tiles in self.base.items():
            base[LEVELS.index(level)] = tiles
        out = np.repeat(base[None], len(configurations), axis=0)
        values = [dict(c.items) for c in configurations]
        for row, level in enumerate(LEVELS):
            for loop, own in enumerate(base[row].tolist()):
                name = f"{level}_{self.names[loop]}"
                if name in self.knob_names:
                    given = [v.get(name) for v in values]
                    out[:, row, loop] = [s if isinstance(s, int) else own for s in given]
        if INNER in self.knob_names:
            chosen = np.array([str(v.get(INNER, NO_LOOP)) for v in values], dtype=np.str_)
            inner, vector = LEVELS.index(INNER), LEVELS.index("vector_common_parallel")
            for loop, name in enumerate(self.names):
                at = chosen == name
                out[at, inner, loop] = out[at, vector, loop]
                out[at, vector, loop] = 0
        return out

    def configure(self, configuration: Configuration) -> CompilationInfo:
        """The whole dispatch's configuration."""
        options = self.template.translation.options if self.is_own else ()
        kept = tuple(o for o in options if o != PEELING or not self.peeling)
        if configuration.values.get(PEELING) is True:
            kept = (*kept, PEELING)
        translation = Translation(self.name, kept)
        return self.template.configure(self.tiling(configuration), translation)

    def prior_many(self, configurations: Sequence[Configuration]) -> FloatArray:
        """Minus the logarithm of the guessed cycles of each configuration."""
        if not self.extents or not configurations:
            return np.zeros(len(configurations), dtype=np.float64)
        return cost_model.prior(TileGeometry(self._nest, self.tile_sizes(configurations)))

    def describe_many(self, configurations: Sequence[Configuration]) -> FloatArray:
        """See :func:`tilewright.space.cpu_descriptors.describe_tilings`."""
        peeling = [dict(c.items).get(PEELING) is True for c in configurations]
        geometry = TileGeometry(self._nest, self.tile_sizes(configurations))
        return describe_tilings(geometry, np.array(peeling, dtype=np.float64))


def _values(knobs: Sequence[Knob], name: str) -> tuple[int, ...]:
    return next(k.values for k in knobs if isinstance(k, TileKnob) and k.name == name)


def _whole(size: Term, extent: int) -> Term:
    return term(where(size == 0, extent, size))


def _nested(
    name: str, large: str, small: str, holds: Callable[..., Term], why: str, extent: int
) -> Constraint:
    """A rule between the tiles of two levels along one loop of `extent`."""
    return declared(
        name,
        (large, small),
        holds(variable(large), variable(small), extent),
        # Only cache tiles of 0 do not tile at all.
        lambda outer, inner: why.format(inner or extent, outer or extent),
    )


def _less_than_twice(outer: Term, vector: Term, extent: int) -> Term:
    return _whole(vector, extent) < 2 * _whole(outer, extent)


def _splits(outer: Term, cache: Term, extent: int) -> Term:
    return cache < _whole(outer, extent)


def _within_cache(cache: Term, vector: Term, extent: int) -> Term:
    return (cache == 0) | (_whole(vector, extent) <= cache)
