"""TileAndFuse with matrix intrinsics where the compiler states no constraints.

IREE 3.13 crashes when it is to state those of a batched product. The knobs are named as the
compiler names them elsewhere, and the rules are its own for a product without a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.argument import dtype_of
from tilewright.attributes import attribute, parse_attribute
from tilewright.gpu import GPU_PIPELINE, GpuTiles
from tilewright.space.constraints import Computed
from tilewright.space.gpu_pipeline import (
    BANK_CONFLICTS,
    MAX_INTRINSICS,
    STAGE_COUNTS,
    STAGES,
    Draft,
    GpuPipeline,
    divisor_sizes,
    own_stages,
    tile_number,
)
from tilewright.space.knobs import BoolKnob, ChoiceKnob
from tilewright.space.terms import Term, look_up, numbered
from tilewright.target import ROCM
from tilewright.trial import Configuration

INTRINSIC = "mma_kind"
# The compiler's limits: of a tile, of a step, of the subgroups of a workgroup.
_MAX_TILE, _MAX_STEP, _MAX_SUBGROUPS = 512, 512, 10
# What tiles that are padded divide, beside the loops themselves.
_ROUND = 64
_PADDING = "padding"
_NO_CONFLICTS = "no_reduce_shared_memory_bank_conflicts"


class BatchedProduct(GpuPipeline):
    """For products by matrix intrinsics of two loops."""

    name = "TileAndFuse"
    attribute = attribute(GPU_PIPELINE, "TileAndFuse")
    matrix = True

    def declare(self) -> None:
        template, tree, root, target = self.template, self.tree, self.root, self.target
        intrinsics, options = template.own.intrinsics, dict(template.own.options)
        self.need(
            not template.programs,
            template.translation.pipeline == "TileAndFuse",
            intrinsics,
            options.get("use_igemm_convolution") != "true",
            isinstance(tree, dict),
        )
        shared = [i for i, size in enumerate(tree["subgroup"]) if size]
        steps = [i for i, size in enumerate(tree["reduction"]) if size]
        self.need(len(shared) == 2, len(steps) == 1)
        (m, n), k = shared, steps[0]
        self.loops = {"workgroup": (m, n), "subgroup": (m, n), "reduction": (k,)}
        self.names = {"workgroup": "wg", "subgroup": "sg", "reduction": "red"}
        self.intrinsics = {i.name: i for i in intrinsics}
        self.shapes = {i.name: (i.m, i.n, i.k) for i in intrinsics}
        self.knob(ChoiceKnob(INTRINSIC, tuple(self.shapes)), intrinsics[0].name)
        # Where the compiler pads, tiles need not divide the loops.
        self.is_padded = _PADDING in tree
        for loop in (m, n):
            extent = root.extents[loop]
            sizes = divisor_sizes(extent, _MAX_TILE)
            if self.is_padded:
                sizes |= divisor_sizes(-(-extent // _ROUND) * _ROUND, _MAX_TILE)
            self.tile(f"wg_{loop}", sizes, tree["workgroup"][loop])
            self.tile(f"sg_{loop}", divisor_sizes(32, 32), tree["subgroup"][loop])
        self.tile(f"red_{k}", divisor_sizes(64, 64), tree["reduction"][k])
        self.knob(BoolKnob(BANK_CONFLICTS), options.get(_NO_CONFLICTS) != "true")
        if target.backend == ROCM:
            self.tile(STAGES, STAGE_COUNTS[:2], own_stages(options))
        self.waves()
        self.tiles = {i: f"wg_{i}" for i in (m, n)}
        tiles = (f"wg_{m}", f"sg_{m}", f"wg_{n}", f"sg_{n}")
        width, memory = target.subgroup, target.workgroup_memory
        element = dtype_of(self.workload.element_types[0]).itemsize
        rows, columns, depth = root.extents[m], root.extents[n], root.extents[k]
        shape = self._shape

        def threads(kind: Any, wm: Any, sm: Any, wn: Any, sn: Any) -> Any:
            return wm // (sm * shape(kind, 0)) * (wn // (sn * shape(kind, 1))) * width

        def whole(kind: Any, wm: Any, sm: Any, wn: Any, sn: Any) -> Any:
            at_m, at_n = sm * shape(kind, 0), sn * shape(kind, 1)
            subgroups = (wm // at_m) * (wn // at_n)
            some = (wm >= at_m) & (wn >= at_n) & (subgroups <= _MAX_SUBGROUPS)
            return some & (wm % at_m == 0) & (wn % at_n == 0) & (subgroups * width <= 1024)

        self.threads = (Computed((INTRINSIC, *tiles), threads),)
        self.numbers[tile_number("k")] = Computed(
            (INTRINSIC, f"red_{k}"), lambda kind, r: r * shape(kind, 2)
        )
        for name, knobs, check, reason in (
            (
                "subgroups have whole intrinsics",
                (INTRINSIC, *tiles),
                whole,
                f"the tiles are no multiples, or of more than {_MAX_SUBGROUPS} subgroups",
            ),
            (
                "tiles divide the loops",
                (f"wg_{m}", f"wg_{n}"),
                lambda wm, wn: self.is_padded | ((rows % wm == 0) & (columns % wn == 0)),
                f"{rows} x {columns} is no multiple",
            ),
            (
                "the step divides the sum",
                (INTRINSIC, f"red_{k}"),
                lambda i, r: (
                    (self.is_padded | (depth % (r * shape(i, 2)) == 0))
                    & (r * shape(i, 2) <= _MAX_STEP)
                ),
                f"{depth} is no multiple of the step, or the step is above {_MAX_STEP}",
            ),
            (
                "shared memory",
                (INTRINSIC, f"wg_{m}", f"wg_{n}", f"red_{k}"),
                lambda i, wm, wn, r: (wm + wn) * r * shape(i, 2) * element <= memory,
                f"the operands' tiles take more than {memory} bytes",
            ),
            (
                "accumulators of a thread",
                (INTRINSIC, f"sg_{m}", f"sg_{n}"),
                lambda i, sm, sn: sm * sn * shape(i, 0) * shape(i, 1) <= target.registers * width,
                f"more than {target.registers} registers",
            ),
            (
                "unrolled intrinsics",
                (f"sg_{m}", f"sg_{n}", f"red_{k}"),
                lambda sm, sn, r: sm * sn * r <= MAX_INTRINSICS,
                f"more than {MAX_INTRINSICS} instructions",
            ),
        ):
            self.rule(name, knobs, check, _with_values(knobs, reason))

    def _shape(self, kind: Any, axis: int) -> Any:
        """The m, n or k of intrinsics: by their names, arrays of them, or a term."""
        at = kind if isinstance(kind, Term) else numbered(kind, tuple(self.shapes))
        return look_up(at, [shape[axis] for shape in self.shapes.values()])

    def write(self, draft: Draft, values: Mapping[str, Any]) -> None:
        config = draft.tree(self.template.root)
        config[INTRINSIC] = parse_attribute(self.intrinsics[values[INTRINSIC]].attribute)
        for level, loops in self.loops.items():
            for loop in loops:
                config[level][loop] = values[f"{self.names[level]}_{loop}"]
        (k,) = self.loops["reduction"]
        sizes = [1] * len(self.root.extents)
        for loop in self.loops["workgroup"]:
            sizes[loop] = values[f"wg_{loop}"]
        sizes[k] = values[f"red_{k}"] * self.shapes[values[INTRINSIC]][2]
        if any(have % size for have, size in zip(self.root.extents, sizes, strict=True)):
            config[_PADDING] = sizes
        else:
            config.pop(_PADDING, None)
        draft.options[_NO_CONFLICTS] = not values[BANK_CONFLICTS]
        if STAGES in values:
            draft.options[STAGES] = values[STAGES]

    def tiles_of(self, configuration: Configuration) -> GpuTiles:
        # Steps are in units of the intrinsic.
        name = str(dict(configuration.items)[INTRINSIC])
        found = super().tiles_of(configuration)
        steps = tuple(size * self.shapes[name][2] for size in found.reduction)
        return replace(found, reduction=steps, intrinsic=name)


def _with_values(knobs: Sequence[str], reason: str) -> Any:
    def say(*values: Any) -> str:
        named = ", ".join(f"{k} {v}" for k, v in zip(knobs, values, strict=True))
        return f"{named}: {reason}"

    return say


PIPELINES: tuple[type[GpuPipeline], ...] = (BatchedProduct,)
