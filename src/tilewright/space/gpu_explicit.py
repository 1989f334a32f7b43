"""Spaces of our own for dispatches on a GPU for which the compiler states no constraints.

A generator gives knobs, rules, and a function that writes the values of the knobs into the
attributes of the compiler's own choice; this module makes a member space of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.gpu import LOWERING_CONFIG, Entries, GpuCompilationInfo, GpuTemplate, Tree, render
from tilewright.space.constraints import Constraint
from tilewright.space.gpu_cost import columns
from tilewright.space.gpu_member import WORKGROUP_SIZES, Computed, GpuSpace
from tilewright.space.interface import FloatArray
from tilewright.space.knobs import Knob
from tilewright.space.search_space import PriorMany
from tilewright.tiling import Translation
from tilewright.trial import Configuration, Value

Values = Mapping[str, Any]


@dataclass
class Draft:
    """What a configuration writes: attributes of ops as trees, and the translation info."""

    trees: dict[tuple[int, str], Tree]
    workgroup_size: tuple[int, int, int]
    subgroup_size: int
    options: dict[str, str]
    settings: dict[str, str]

    def tree(self, op: int, name: str = LOWERING_CONFIG) -> Tree:
        return self.trees[op, name]


@dataclass(frozen=True)
class Recipe:
    """A generator's answer for one dispatch.

    `write` puts values of the knobs into a draft, which begins as the compiler's own choice.
    `start` are the values of the knobs that stand for it, or the nearest there are. `threads`: for
    each dimension of the workgroup the knobs that it follows from and how (arrays are given too).
    """

    name: str
    pipeline: str
    knobs: tuple[Knob, ...]
    constraints: tuple[Constraint, ...]
    start: Mapping[str, Value]
    write: Callable[[Draft, Mapping[str, Value]], None]
    threads: tuple[Computed, Computed, Computed]
    is_own: bool = False
    prior: Callable[[Mapping[str, Any], FloatArray], FloatArray] | None = None
    subgroup_size: int | None = None
    settings: Entries = field(default=())


class ExplicitMember:
    """The space of a recipe. Raises ValueError where its rules leave no configuration."""

    def __init__(self, recipe: Recipe, template: GpuTemplate) -> None:
        self.name = recipe.name
        self.recipe = recipe
        self.template = template
        self.computed = dict(zip(WORKGROUP_SIZES, recipe.threads, strict=True))
        start = Configuration.of(recipe.start)
        values = dict(start.items)
        inside = all(k.index(values[k.name]) is not None for k in recipe.knobs)
        own = inside and all(c.holds(values) for c in recipe.constraints)
        self.matches_own = recipe.is_own and own
        if not own:
            start = self._any(start)
        self.space = GpuSpace(
            self.name,
            recipe.knobs,
            recipe.constraints,
            start,
            computed=self.computed,
            prior_many=self._prior(),
        )

    def _any(self, near: Configuration) -> Configuration:
        """A member near the values to start from."""
        free = GpuSpace.of(self.name, self.recipe.knobs, self.recipe.constraints, near)
        if not free.sample(np.random.default_rng(0), 1):
            raise ValueError(f"{self.name}: the rules leave no configuration")
        return free.nearest_valid(near)

    def _prior(self) -> PriorMany | None:
        estimate = self.recipe.prior
        if estimate is None:
            return None

        def of(configs: Sequence[Configuration]) -> FloatArray:
            values = {n: np.asarray(column) for n, column in columns(configs).items()}
            threads = np.ones(len(configs))
            for one in self.recipe.threads:
                threads = threads * one.compute(*(values[k] for k in one.knobs))
            return estimate(values, threads)

        return of

    def configure(self, configuration: Configuration) -> GpuCompilationInfo:
        values = dict(configuration.items)
        own = self.template.own
        x, y, z = (int(c.compute(*(values[k] for k in c.knobs))) for c in self.recipe.threads)
        draft = Draft(
            {(i, name): copy.deepcopy(tree) for i, name, tree in self.template.trees},
            (x, y, z),
            own.subgroup_size if self.recipe.subgroup_size is None else self.recipe.subgroup_size,
            dict(own.options),
            {**dict(own.settings), **dict(self.recipe.settings)},
        )
        self.recipe.write(draft, values)
        return GpuCompilationInfo(
            Translation(self.name.partition(".")[0]),
            (),
            root=self.template.root,
            info=translation_info(self.recipe.pipeline, draft),
            attributes=tuple((i, name, render(tree)) for (i, name), tree in draft.trees.items()),
            summary="; ".join(f"{k.name} {values[k.name]}" for k in self.recipe.knobs),
            workgroup_size=draft.workgroup_size,
        )


def translation_info(pipeline: str, draft: Draft) -> str:
    """The text of the translation_info attribute of a draft."""
    settings = dict(draft.settings)
    if draft.options:
        options = ", ".join(f"{name} = {text}" for name, text in draft.options.items())
        settings["gpu_pipeline_options"] = f"#iree_gpu.pipeline_options<{options}>"
    entries = ", ".join(f"{name} = {text}" for name, text in settings.items())
    subgroup = f" subgroup_size = {draft.subgroup_size}" if draft.subgroup_size else ""
    sizes = ", ".join(map(str, draft.workgroup_size))
    return (
        f"#iree_codegen.translation_info<pipeline = {pipeline} workgroup_size = [{sizes}]"
        f"{subgroup}{', {' + entries + '}' if entries else ''}>"
    )


def rule(
    name: str,
    knobs: Sequence[str],
    check: Callable[..., Any],
    reason: Callable[..., str],
) -> Constraint:
    """A constraint on NumPy arrays of the knobs' values."""
    return Constraint(
        name, tuple(knobs), lambda *v: check(*map(np.asarray, v)), reason, vectorised=True
    )


def divides(small: str, large: str, extent: int | None = None) -> Constraint:
    """The tile `small` divides the tile `large`."""
    return rule(
        f"{small} divides {large}",
        (small, large),
        lambda s, n: n % s == 0,
        lambda s, n: f"{s} does not divide {n}",
    )


def fixed(value: int) -> Computed:
    return Computed((), lambda: value)


def tile_values(extent: int, limit: int, own: int = 0) -> tuple[int, ...]:
    """Sizes for a tile of a loop: its divisors up to a limit, thinned to 12, or powers of two where
    it has hardly any; the compiler's own size too."""
    divisors = [d for d in range(1, min(extent, limit) + 1) if extent % d == 0]
    if len(divisors) < 3 and extent > 4:
        divisors += [1 << i for i in range(limit.bit_length()) if 1 << i <= min(extent, limit)]
    found = sorted(set(divisors))
    if len(found) > 12:
        powers = [d for d in found if d & (d - 1) == 0]
        rest = [d for d in found if d not in powers]
        step = max(1, -(-len(rest) // max(1, 12 - len(powers))))
        found = sorted({*powers, *rest[::-1][::step]})
    return tuple(sorted({*found, own} - {0}))
