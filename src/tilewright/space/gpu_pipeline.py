"""What pipelines for GPUs have in common whose spaces are of our own: the compiler states no
constraints for the dispatch.

A pipeline is a class: its knobs and rules, the threads that follow from them, and how values of the
knobs are written into the attributes of the compiler's own choice.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilewright.attributes import Tree, attribute, parse_attribute, print_attribute, quoted
from tilewright.gpu import (
    LOWERING_CONFIG,
    STAGES_OPTION,
    GpuCompilationInfo,
    GpuTemplate,
    GpuTiles,
)
from tilewright.space.arrays import FloatArray
from tilewright.space.constraints import Computed, Constraint, declared
from tilewright.space.gpu_cost import columns, tile_prior
from tilewright.space.knobs import ChoiceKnob, Knob, TileKnob, knob_term
from tilewright.space.pipeline import Pipeline, Unfit, space_near
from tilewright.space.search_space import SearchSpace
from tilewright.space.terms import Term, product, term
from tilewright.target import ROCM, GpuTarget
from tilewright.tiling import Translation, translation_info
from tilewright.trial import Configuration, Value
from tilewright.workload import Workload

# The workgroup's sizes, which follow from other knobs in every pipeline: a user may hold them too.
WORKGROUP_SIZES = ("workgroup_size_x", "workgroup_size_y", "workgroup_size_z")

TILED_LOOPS = ("m", "n", "k")
"""The loops of a matrix product."""


def tile_number(loop: str) -> str:
    """What a tile of one of these loops is called that follows from several knobs."""
    return f"tile_{loop}"


# Waves that an execution unit is to hold (AMD); which operands go through shared memory; whether
# shared memory is laid out against bank conflicts.
WAVES, PROMOTE, BANK_CONFLICTS = "waves_per_eu", "promote_operands", "reduce_bank_conflicts"

# The levels at which pipelines for CUDA and HIP walk along reductions.
_STEPS = ("reduction", "partial_reduction", "serial")

# Stages in which copies to shared memory are prefetched. IREE 3.13 does so on AMD's GPUs alone (for
# CUDA it takes the option and makes the same code), and makes no more of them.
STAGES, STAGE_COUNTS = STAGES_OPTION, (1, 2, 3)

# What no constraint says: a candidate of thousands of instructions in a row takes minutes to
# compile.
MAX_INTRINSICS = 1024


@dataclass
class Draft:
    """What a configuration writes: attributes of ops as trees, and the translation info."""

    trees: dict[tuple[int, str], Tree]
    workgroup_size: tuple[int, ...]
    subgroup_size: int
    options: dict[str, Tree]
    settings: dict[str, Tree]

    def tree(self, op: int, name: str = LOWERING_CONFIG) -> Tree:
        """An attribute of one op, to be changed."""
        return self.trees[op, name]

    def translation_info(self, pipeline: Tree) -> str:
        """The text of the translation_info attribute."""
        settings = dict(self.settings)
        if self.options:
            settings["gpu_pipeline_options"] = attribute(
                "#iree_gpu.pipeline_options", **self.options
            )
        made = translation_info(pipeline, settings, self.workgroup_size, self.subgroup_size)
        return print_attribute(made)


class GpuPipeline(Pipeline):
    """A pipeline with knobs and rules of our own.

    A subclass gives the pipeline's `attribute`, adds knobs and rules in `declare`, which raises
    Unfit where it is not one for the dispatch, sets `threads` there (for each dimension of the
    workgroup, x first, what it follows from), and writes values of the knobs in `write`.

    `tree` is the root op's lowering configuration; `at` has the last loop of each role. `tiles`,
    the knobs that are workgroup tiles by loop, make the prior; `matrix` tells it whether matrix
    instructions compute. `numbers` are others that follow from knobs, and may be restricted.
    `start_is_own`: whether the knobs' first values stand for the compiler's own choice, if they are
    a member.
    """

    attribute: ClassVar[Tree]
    matrix: ClassVar[bool] = False

    def __init__(self, template: GpuTemplate, workload: Workload, target: GpuTarget) -> None:
        self.template, self.workload, self.target = template, workload, target
        self.root = template.root_op
        self.tree = template.tree(template.root)
        self.at = {dim.role: i for i, dim in enumerate(workload.dims)}
        self.subgroup_size = template.own.subgroup_size
        self.start_is_own = True
        self.tiles: dict[int, str] = {}
        self.numbers: dict[str, Computed] = {}
        self._knobs: list[Knob] = []
        self._rules: list[Constraint] = []
        self._start: dict[str, Value] = {}
        self.declare()
        self.threads = (*self.threads, fixed(1), fixed(1), fixed(1))[:3]
        start = Configuration.of(self._start)
        self.space = space_near(
            self.name,
            self._knobs,
            self._rules,
            start,
            prior_many=self._prior if self.tiles else None,
            computed=dict(zip(WORKGROUP_SIZES, self.threads, strict=True)) | self.numbers,
        )
        self.is_own = self.start_is_own and self.space.default == start

    @property
    def tile_names(self) -> Mapping[str, str]:
        names, have = self.workload.loop_names, self.space.restrictable
        knobs = {names[i]: tile for i, tile in self.tiles.items() if i < len(names)}
        found: dict[str, str] = {}
        for loop in TILED_LOOPS:
            for name in (tile_number(loop), knobs.get(loop, ""), f"reduction_{loop}"):
                if name in have:
                    found.setdefault(loop, name)
        return found

    @abstractmethod
    def declare(self) -> None:
        """Add the knobs and rules, and set the threads; raises Unfit."""

    @abstractmethod
    def write(self, draft: Draft, values: Mapping[str, Any]) -> None:
        """Put values of the knobs into a draft, which begins as the compiler's own choice."""

    # -- for `declare` -------------------------------------------------------------------------

    def need(self, *facts: object) -> None:
        """Raises Unfit unless all of these are true."""
        if not all(facts):
            raise Unfit(self.name)

    def knob(self, knob: Knob, start: Value) -> None:
        """Add a knob, with its value in the compiler's own choice."""
        self._knobs.append(knob)
        self._start[knob.name] = start

    def tile(self, name: str, sizes: Iterable[int], own: int, limit: int | None = None) -> None:
        """Add a tile knob.

        Args:
            name: of the knob.
            sizes: from 1; the compiler's own is added.
            own: the compiler's own size, 0 where it does not tile (which is a tile of 1).
            limit: a user may ask for any size up to this; None for those given alone.
        """
        self.knob(TileKnob(name, values=tuple(sorted({*sizes, own or 1})), limit=limit), own or 1)

    def rule(
        self,
        name: str,
        knobs: Sequence[str],
        check: Callable[..., Any],
        reason: Callable[..., str],
    ) -> None:
        """Add a constraint.

        Args:
            name: of the constraint.
            knobs: what it looks at.
            check: whether values of the knobs are allowed; given terms for them, it makes one.
            reason: why values are rejected, with the numbers.
        """
        condition = term(check(*map(self.term, knobs)))
        self._rules.append(declared(name, knobs, condition, reason))

    def term(self, knob: str) -> Term:
        """The value of a knob, for rules."""
        return knob_term(next(one for one in self._knobs if one.name == knob))

    def thread_tiles(self, loop: int, largest: tuple[int, int], own: tuple[int, int]) -> None:
        """Add the tiles of a loop for a workgroup and for a thread, of which one divides the other.

        Args:
            loop: its position.
            largest: the largest tiles of a workgroup and of a thread.
            own: the compiler's own, in that order; 0 where it does not tile.
        """
        name, extent = self.workload.loop_names[loop], max(1, self.root.extents[loop])
        group, thread = f"workgroup_{name}", f"thread_{name}"
        self.tile(group, divisor_sizes(extent, largest[0]), own[0])
        self.tile(thread, divisor_sizes(extent, largest[1]), own[1])
        self.rule(
            f"{thread} divides {group}",
            (thread, group),
            lambda t, w: w % t == 0,
            lambda t, w: f"{t} does not divide {w}",
        )
        self.tiles[loop] = group

    def divides_loop(self, knob: str, extent: int) -> None:
        """Add the rule that a tile divides its loop."""
        self.rule(
            f"{knob} divides its loop",
            (knob,),
            lambda t: extent % t == 0,
            lambda t: f"{t} does not divide {extent}",
        )

    def limit_threads(self, least: int, most: int) -> None:
        """Add the rule on how many threads a workgroup has; `threads` are set."""
        scopes = [one.knobs for one in self.threads]

        def count(*values: Any) -> Any:
            left = iter(values)
            return product(
                one.compute(*(next(left) for _ in scope))
                for one, scope in zip(self.threads, scopes, strict=True)
            )

        self.rule(
            "threads of a workgroup",
            [name for scope in scopes for name in scope],
            lambda *v: (count(*v) <= most) & (count(*v) >= least),
            lambda *v: f"{int(count(*v))} threads, allowed are {least} to {most}",
        )

    def waves(self) -> None:
        """Add the number of waves on AMD's GPUs."""
        if self.target.backend == ROCM:
            self.knob(waves_knob(), 0)

    # -- from a configuration to what the compiler reads ---------------------------------------

    def _prior(self, configs: Sequence[Configuration]) -> FloatArray:
        values = {name: np.asarray(column) for name, column in columns(configs).items()}
        threads = np.ones(len(configs))
        for one in self.threads:
            threads = threads * one.of(values)
        tiles = {i: values[name].astype(np.float64) for i, name in self.tiles.items()}
        return tile_prior(self.workload, self.target, self.root, tiles, threads, self.matrix)

    def _draft(self, values: Mapping[str, Any]) -> Draft:
        own = self.template.own
        draft = Draft(
            {(i, name): copy.deepcopy(tree) for i, name, tree in self.template.trees},
            tuple(int(one.of(values)) for one in self.threads),
            self.subgroup_size,
            {name: parse_attribute(text) for name, text in own.options},
            {name: parse_attribute(text) for name, text in own.settings},
        )
        self.write(draft, values)
        draft.settings.update(waves_setting(values))
        return draft

    def tiles_of(self, configuration: Configuration) -> GpuTiles:
        """What a configuration of the pipeline amounts to.

        Args:
            configuration: a member of its space.
        """
        values = dict(configuration.items)
        draft = self._draft(values)
        tree = draft.tree(self.template.root)
        levels = tree.get("tile_sizes")
        outer = levels or [tree.get("workgroup", ())]
        inner = levels or [tree.get(name, ()) for name in _STEPS]
        found: dict[bool, list[int]] = {False: [], True: []}
        for loop, summed in enumerate(self.root.reduction):
            lists = inner if summed else outer
            sizes = [sizes[loop] for sizes in lists if loop < len(sizes) and sizes[loop]]
            found[summed].append(sizes[0] if sizes else 0)
        stages = values.get(STAGES, draft.options.get(STAGES, 1))
        stages = values.get("pipeline_depth", stages)
        intrinsics = self.template.own.intrinsics if self.matrix else ()
        return GpuTiles(
            tuple(found[False]),
            tuple(found[True]),
            max(1, int(str(stages))),
            intrinsics[0].name if intrinsics else "",
        )

    def configure(self, configuration: Configuration) -> GpuCompilationInfo:
        values = dict(configuration.items)
        draft = self._draft(values)
        return GpuCompilationInfo(
            Translation(self.name.partition(".")[0]),
            (),
            root=self.template.root,
            info=draft.translation_info(self.attribute),
            attributes=tuple(
                (i, name, print_attribute(tree)) for (i, name), tree in draft.trees.items()
            ),
            summary="; ".join(f"{k.name} {values[k.name]}" for k in self._knobs),
            workgroup_size=draft.workgroup_size,
        )


class OwnChoiceAlone(Pipeline):
    """The compiler's own choice, where no other space has it: a space of one point."""

    name = "compiler"
    is_own = True

    def __init__(self, template: GpuTemplate) -> None:
        self._configuration = template.configuration
        self.space = SearchSpace(self.name, (), (), Configuration(()))

    def configure(self, configuration: Configuration) -> GpuCompilationInfo:
        return self._configuration


def sums_as_instructed(template: GpuTemplate, workload: Workload) -> bool:
    """Whether the result has the type of the sums of the matrix instruction that the compiler
    chose: where that is wider, IREE 3.13 compiles nothing, its own choice included.

    Args:
        template: the dispatch as the compiler configures it.
        workload: what it computes.
    """
    chosen = template.own.intrinsics[:1]
    if workload.kind not in ("contraction", "convolution") or not chosen:
        return True
    return chosen[0].sums == workload.element_types[-1]


def fixed(value: int) -> Computed:
    """A number that no knob changes."""
    return Computed((), lambda: value)


def own_stages(options: Mapping[str, str]) -> int:
    """The stages in which the compiler's own choice prefetches; 1 is no prefetching."""
    return max(1, int(options.get(STAGES, 1)))


def waves_knob() -> Knob:
    """How many waves an execution unit of AMD's is to hold; 0 leaves it to the compiler."""
    return ChoiceKnob(WAVES, (0, 1, 2, 4))


def waves_setting(values: Mapping[str, Value]) -> dict[str, Tree]:
    """What the translation says of the waves."""
    waves = values.get(WAVES)
    return {"llvm_func_attrs": {"amdgpu-waves-per-eu": quoted(str(waves))}} if waves else {}


def divisor_sizes(extent: int, limit: int) -> set[int]:
    """Sizes for a tile of a loop: its divisors up to a limit, thinned to 12, or powers of two where
    it has hardly any."""
    divisors = [d for d in range(1, min(extent, limit) + 1) if extent % d == 0]
    if len(divisors) < 3 and extent > 4:
        divisors += powers(min(extent, limit))
    found = sorted(set(divisors))
    if len(found) > 12:
        two = [d for d in found if d & (d - 1) == 0]
        rest = [d for d in found if d not in two]
        step = max(1, -(-len(rest) // max(1, 12 - len(two))))
        found = [*two, *rest[::-1][::step]]
    return set(found)


def multiples(unit: int, extent: int, limit: int) -> list[int]:
    """Multiples of a unit up to a limit that divide a loop."""
    return [s for s in range(unit, min(extent, limit) + 1, unit) if extent % s == 0]


def powers(most: int) -> list[int]:
    """The powers of two up to a number."""
    return [1 << i for i in range(most.bit_length()) if 1 << i <= most]
