"""Pipelines for which the compiler states its constraints: their spaces, and the way back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.attributes import ATTRIBUTE, Tree, attribute, print_attribute
from tilewright.gpu import ConstraintProgram, GpuCompilationInfo, GpuTemplate, GpuTiles
from tilewright.space.arrays import FloatArray
from tilewright.space.constraints import Computed
from tilewright.space.gpu_cost import columns, tile_prior
from tilewright.space.gpu_pipeline import (
    BANK_CONFLICTS,
    PROMOTE,
    STAGES,
    TILED_LOOPS,
    WAVES,
    WORKGROUP_SIZES,
    own_stages,
    tile_number,
    waves_setting,
)
from tilewright.space.gpu_stated import ALL_PROMOTED, INTRINSIC, REORDER, SIZES, StatedKnobs
from tilewright.space.gpu_unstated import unstated_rules
from tilewright.space.pipeline import Pipeline, space_near
from tilewright.space.terms import Term, evaluator
from tilewright.target import GpuTarget
from tilewright.tiling import Translation
from tilewright.trial import Configuration, Value
from tilewright.workload import Workload

# Workgroups that share columns follow one another where the columns of the result take more cache
# than its rows. The numbers are those of the dies of an MI300X and of the processors of one.
_TRANSPOSE = attribute("#iree_gpu.conditional_transpose", 8, 38)

# Operands of attention that go through shared memory where queries do not, and how threads copy
# one of them.
_PROMOTED_OPERANDS = (1, 2)
_THREADS = {ATTRIBUTE: "#iree_gpu.derived_thread_config"}
_NO_CONFLICTS = "no_reduce_shared_memory_bank_conflicts"


class StatedPipeline(StatedKnobs, Pipeline):
    """The space of one constraints op of a dispatch."""

    def __init__(
        self,
        program: ConstraintProgram,
        template: GpuTemplate,
        workload: Workload,
        target: GpuTarget,
    ) -> None:
        super().__init__(program, template, workload, target)
        self.computed |= self._tiles()
        self.threads = tuple(self.computed[n] for n in WORKGROUP_SIZES if n in self.computed)
        own = self._own()
        threads = self.computed.get(WORKGROUP_SIZES[0])
        by_loop = threads is not None and len(workload.dims) == len(program.dims)
        self.space = space_near(
            self.name,
            [*map(self.knob, self.free), *self.extras],
            [*self.stated_rules(), *unstated_rules(self)],
            own,
            computed=self.computed,
            prior_many=self._prior if by_loop else None,
        )
        self.is_own = own is not None and own == self.space.default

    def _tiles(self) -> dict[str, Computed]:
        """The tiles of a matrix product's loops in elements, by what they are called."""
        found = {}
        for at, loop in enumerate(self.workload.loop_names[: len(self.program.dims)]):
            name = next((n for n in (f"wg_{at}", f"red_{at}") if n in self.names), None)
            if loop not in TILED_LOOPS or name is None:
                continue
            size: Term = self.terms[name]
            if name.startswith("red_") and self.in_intrinsics:
                size = size * self.intrinsic_size(INTRINSIC, 2)
            scope = self.scope_of(size)
            found[tile_number(loop)] = Computed(scope, evaluator(size, scope))
        return found

    @property
    def tile_names(self) -> Mapping[str, str]:
        numbers = {loop: tile_number(loop) for loop in TILED_LOOPS}
        return {loop: name for loop, name in numbers.items() if name in self.computed}

    def _prior(self, configs: Sequence[Configuration]) -> FloatArray:
        """By the workgroup tiles of the root op's loops."""
        values = {**dict.fromkeys(self.fixed), **columns(configs)}
        tiles = {
            loop: np.asarray(self.fixed.get(name, values[name]), dtype=np.float64)
            for loop, name in self.grid.items()
            if loop < len(self.workload.dims) and not self.workload.dims[loop].reduction
        }
        count = np.asarray(self.computed[WORKGROUP_SIZES[0]].of(values), dtype=np.float64)
        threads = np.broadcast_to(count, (len(configs),))
        root = self.template.root_op
        return tile_prior(self.workload, self.target, root, tiles, threads, matrix=True)

    def _own(self) -> Configuration | None:
        """The compiler's own choice as values of the knobs; None where they cannot give it."""
        assignments = self.template.own.assignments
        found = (
            assignments[self.program.ordinal] if self.program.ordinal < len(assignments) else None
        )
        numbers = dict(found or ())
        if found is None or any(name not in numbers for name in self.free):
            return None
        values: dict[str, Value] = {}
        for name in self.free:
            options = self.options.get(name)
            values[name] = options[numbers[name]] if options else numbers[name]
        own = self.template.own
        extras: dict[str, Value] = {
            BANK_CONFLICTS: dict(own.options).get(_NO_CONFLICTS) != "true",
            REORDER: "transpose"
            if "workgroup_reordering_strategy" in dict(own.entries)
            else "none",
            PROMOTE: ",".join(map(str, own.size(PROMOTE))),
            WAVES: 0,
            STAGES: own_stages(dict(own.options)),
        }
        return Configuration.of(values | {name: extras[name] for name in self.extra_names})

    def assignment(self, values: Mapping[str, Value]) -> dict[str, int]:
        """A value for every knob of the constraints, as the compiler's functions take it."""
        names = tuple(n for n in self.free if n in values)
        numbers = self.values(names, [values[n] for n in names])
        return {
            knob.name: int(
                numbers[knob.name]
                if knob.name in numbers
                else self.model.compute(knob.name, numbers)
            )
            for knob in self.program.knobs
        }

    def _padding(self, assignment: Mapping[str, int]) -> list[int]:
        """The sizes that a product's tiles are padded to where they do not divide the loops: the
        constraints take sizes rounded up to whole intrinsics. Empty where nothing is left over."""
        if self.program.pipeline != "TileAndFuse" or not self.is_padded:
            return []
        shapes = next(k.shapes for k in self.program.knobs if k.name == "mma_idx")
        depth = shapes[assignment["mma_idx"]][2]
        dims = self.program.dims
        steps = [assignment.get(f"red_{i}", 0) * depth for i in range(len(dims))]
        sizes = [assignment.get(f"wg_{i}", 0) or step or 1 for i, step in enumerate(steps)]
        if self.workload.kind == "convolution":
            first = next(i for i, dim in enumerate(self.workload.dims) if dim.reduction)
            dims = (*dims[:first], math.prod(dims[first:]))
            sizes = [*sizes[:first], sizes[-1]]
        return sizes if any(d % size for d, size in zip(dims, sizes, strict=True)) else []

    def tiles_of(self, configuration: Configuration) -> GpuTiles:
        """What a configuration of the pipeline amounts to.

        Args:
            configuration: a member of its space.
        """
        values = dict(configuration.items)
        numbers = self.assignment(values)
        knob = next((k for k in self.program.knobs if k.shapes and k.name in numbers), None)
        name = knob.options[numbers[knob.name]] if knob else ""
        in_intrinsics = knob is not None and self.program.pipeline == "TileAndFuse"
        unit = knob.shapes[numbers[knob.name]][2] if knob and in_intrinsics else 1
        steps = [n for n in numbers if n.startswith("red_")]
        stages = values.get(STAGES, numbers.get(STAGES, 1))
        return GpuTiles(
            tuple(numbers[n] for n in self.grid.values())
            or tuple(numbers[n] for n in ("m_tile", "n_tile") if n in numbers),
            tuple(numbers[n] * unit for n in steps),
            max(1, int(str(stages))),
            name,
        )

    def configure(self, configuration: Configuration) -> GpuCompilationInfo:
        values = dict(configuration.items)
        assignment = self.assignment(values)
        lowering: list[tuple[str, Tree]] = []
        if self.template.translation.pipeline == self.program.pipeline:
            lowering += [(k, v) for k, v in self.template.own.entries if v == "unit"]
        padding = self._padding(assignment)
        if padding:
            lowering.append(("padding", padding))
            if self.workload.kind == "convolution":
                # Of the convolution's own loops: those of the filter are not padded.
                sums = [0 for dim in self.workload.dims if dim.reduction]
                lowering.append(("padding_conv", [*padding[:-1], *sums]))
        if values.get(REORDER) == "transpose":
            lowering.append(("workgroup_reordering_strategy", _TRANSPOSE))
        if values.get(PROMOTE, ALL_PROMOTED) != ALL_PROMOTED:
            lowering.append((PROMOTE, list(_PROMOTED_OPERANDS)))
            lowering.append(("promotion_types", [_THREADS for _ in _PROMOTED_OPERANDS]))
        shown = (f"{n} {values[n]}" for n in (*self.free, *self.extra_names))
        return GpuCompilationInfo(
            Translation(self.program.pipeline),
            (),
            root=self.template.root,
            ordinal=self.program.ordinal,
            assignment=tuple(sorted(assignment.items())),
            lowering=tuple((name, print_attribute(tree)) for name, tree in lowering),
            options=(
                *(((_NO_CONFLICTS, "true"),) if values.get(BANK_CONFLICTS) is False else ()),
                *(((STAGES, str(values[STAGES])),) if STAGES in self.extra_names else ()),
            ),
            settings=tuple((n, print_attribute(tree)) for n, tree in waves_setting(values).items()),
            summary="; ".join(shown),
            workgroup_size=tuple(assignment.get(n, 1) for n in SIZES),
        )
