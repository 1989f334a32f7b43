"""Builds the search space of a CPU pipeline from the loops of a dispatch's root op.

Every pipeline of IREE's CPU backend reads tile sizes per loop at some of the six levels; the
pipelines differ in which levels they read and in a few rules of their own. A generator module names
those (`PipelineRules`); this module makes knobs, constraints and the prior from them, and turns a
configuration back into what the compiler reads.

Knobs are named after level and loop: `distribution_m`, `vector_common_parallel_n`,
`vector_reduction_k`, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.space import cost_model, sizes
from tilewright.space.constraints import Constraint, product_at_most
from tilewright.space.cpu_descriptors import describe_tilings, tiling_names
from tilewright.space.descriptors import Descriptors
from tilewright.space.geometry import FloatArray, IntArray, LoopNest, TileGeometry
from tilewright.space.knobs import BoolKnob, ChoiceKnob, Knob, PermutationKnob, TileKnob
from tilewright.space.search_space import SearchSpace
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
INTERCHANGE = "interchange"
NO_LOOP = "none"

ExtraConstraints = Callable[["PipelineSpace"], Sequence[Constraint]]


@dataclass(frozen=True)
class PipelineRules:
    """What one pipeline reads: its levels, whether it peels, and rules of its own.

    `fixed_loops` gives the loops whose tiles the data layout fixes (the inner dimensions of packed
    data): they keep the compiler's sizes.
    """

    pipeline: str
    levels: tuple[str, ...]
    peeling: bool = False
    inner_parallel: bool = False
    extra_constraints: ExtraConstraints | None = None
    fixed_loops: Callable[[Workload, str], frozenset[int]] = field(
        default=lambda workload, level: frozenset()
    )


class PipelineSpace:
    """The space of one pipeline for one dispatch, and the way from a configuration to tilings."""

    def __init__(
        self,
        rules: PipelineRules,
        template: DispatchTemplate,
        workload: Workload,
        target: Target,
    ) -> None:
        self.rules = rules
        self.template = template
        self.workload = workload
        self.target = target
        self.names = workload.loop_names
        self.extents = tuple(max(1, e) for e in template.root_op.extents)
        self.reduction = template.root_op.reduction
        self.own = rules.pipeline == template.translation.pipeline
        self.base = self._base_tiling()
        self.knobs: list[Knob] = []
        self._make_knobs()
        self.knob_names = {knob.name for knob in self.knobs}
        self.default = self._default_configuration()
        self._nest = LoopNest.of(template.root_op, workload, target)
        self.space = SearchSpace(
            rules.pipeline,
            self.knobs,
            self._constraints(),
            self.default,
            prior_many=self.prior_many,
            # A dispatch on scalars has no loops, and nothing to describe.
            descriptors=Descriptors(tiling_names(self.names), self.describe_many)
            if self.extents
            else None,
        )

    # -- knobs ---------------------------------------------------------------------------------

    def _base_tiling(self) -> dict[str, tuple[int, ...]]:
        """The compiler's tiling of the root at the levels that this pipeline reads.

        For another pipeline than the compiler's own it is where the search starts: the
        compiler's sizes where it gives some, else one vector of work per step.
        """
        own = self.template.root_op.tiling or Tiling()
        count = len(self.extents)
        base = {
            level: tuple(own.size(level, i) for i in range(count)) for level in self.rules.levels
        }
        if not self.own and not any(base.get("distribution", ())):
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
        for level in self.rules.levels:
            if level == INNER:
                continue
            fixed = self.rules.fixed_loops(self.workload, level)
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
        if self.rules.inner_parallel and len(parallel) > 1:
            self.knobs.append(ChoiceKnob(INNER, (NO_LOOP, *parallel)))
        if self.rules.peeling:
            self.knobs.append(BoolKnob(PEELING))
        if 1 < len(self.extents) <= 12:
            self.knobs.append(
                PermutationKnob(
                    INTERCHANGE,
                    len(self.extents),
                    effect=False,
                    note="IREE 3.13's CPU pipelines accept a loop order and do not read it",
                )
            )

    def _default_configuration(self) -> Configuration:
        values: dict[str, int | str | bool | tuple[int, ...]] = {}
        for level in self.rules.levels:
            for loop, size in enumerate(self.base.get(level, ())):
                name = f"{level}_{self.names[loop]}"
                if name in self.knob_names:
                    values[name] = size
        if INNER in self.knob_names:
            values[INNER] = NO_LOOP
        if PEELING in self.knob_names:
            values[PEELING] = PEELING in self.template.translation.options and self.own
        if INTERCHANGE in self.knob_names:
            values[INTERCHANGE] = tuple(range(len(self.extents)))
        return Configuration.of(values)

    # -- constraints ---------------------------------------------------------------------------

    def _constraints(self) -> list[Constraint]:
        found = [*self._order_constraints(), *self._size_constraints()]
        if self.rules.extra_constraints is not None:
            found += self.rules.extra_constraints(self)
        values = dict(self.default.items)
        # A rule that the compiler's own choice breaks is not a rule for this dispatch.
        return [c for c in found if c.violation(values) is None]

    def knob(self, level: str, loop: int) -> str | None:
        """The name of the knob of a loop at a level, None where there is none."""
        name = f"{level}_{self.names[loop]}"
        return name if name in self.knob_names else None

    def _order_constraints(self) -> list[Constraint]:
        """Along one loop each level tiles what the level before it left."""
        found = []
        for loop, extent in enumerate(self.extents):
            name = self.names[loop]
            outer = self.knob("distribution", loop)
            cache = self.knob("cache_parallel", loop) or self.knob("cache_reduction", loop)
            vector = self.knob("vector_common_parallel", loop) or self.knob(
                "vector_reduction", loop
            )
            if outer and vector:
                found.append(
                    _vector_within(f"vector_within_distribution_{name}", outer, vector, extent)
                )
            if outer and cache:
                found.append(
                    _cache_within(f"cache_within_distribution_{name}", outer, cache, extent)
                )
            if cache and vector:
                found.append(
                    _vector_within_cache(f"vector_within_cache_{name}", cache, vector, extent)
                )
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
            if level not in self.rules.levels:
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

            def check(*values: Any) -> Any:
                product: Any = np.int64(fixed)
                for value, extent in zip(values, extents, strict=True):
                    product = product * _whole(value, extent)
                return product < limit

            return [Constraint(label, tuple(names), check, reason, vectorised=True)]
        return [product_at_most(label, names, limit - 1, factor=fixed, reason=reason)]

    # -- from a configuration to what the compiler reads ---------------------------------------

    def tiling(self, configuration: Configuration) -> Tiling:
        """The root op's tiling for a configuration of this space."""
        by_level = zip(LEVELS, self.tile_sizes([configuration])[0].tolist(), strict=True)
        return Tiling.of({k: tuple(v) for k, v in by_level if k in self.rules.levels})

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
        """The whole dispatch's configuration; the compiler's own, exactly, for the default."""
        if self.own and configuration == self.default:
            return self.template.default
        options = self.template.translation.options if self.own else ()
        kept = tuple(o for o in options if o != PEELING or not self.rules.peeling)
        if configuration.values.get(PEELING) is True:
            kept = (*kept, PEELING)
        translation = Translation(self.rules.pipeline, kept)
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


def _whole(value: Any, extent: int) -> Any:
    size = np.asarray(value)
    return np.where(size == 0, extent, size)


def _vector_within(name: str, outer: str, vector: str, extent: int) -> Constraint:
    """A vector tile at most the next power of two above the distribution tile.

    Masked vectors are rounded up to powers of two, so a size between is still a choice of its own;
    anything above gives the same code.
    """

    def check(d: Any, v: Any) -> Any:
        return _whole(v, extent) < 2 * _whole(d, extent)

    return Constraint(
        name,
        (outer, vector),
        check,
        lambda d, v: (
            f"a vector tile of {v or extent} is twice the distribution tile of "
            f"{d or extent} or more"
        ),
        vectorised=True,
    )


def _cache_within(name: str, outer: str, cache: str, extent: int) -> Constraint:
    def check(d: Any, c: Any) -> Any:
        return np.asarray(c) < _whole(d, extent)

    return Constraint(
        name,
        (outer, cache),
        check,
        lambda d, c: f"a cache tile of {c} does not split the distribution tile of {d or extent}",
        vectorised=True,
    )


def _vector_within_cache(name: str, cache: str, vector: str, extent: int) -> Constraint:
    def check(c: Any, v: Any) -> Any:
        block = np.asarray(c)
        return (block == 0) | (_whole(v, extent) <= block)

    return Constraint(
        name,
        (cache, vector),
        check,
        lambda c, v: f"a vector tile of {v or extent} is larger than the cache tile of {c}",
        vectorised=True,
    )
