"""TileAndFuse with thread tiles: products and convolutions without matrix instructions,
elementwise work, pooling.

Each workgroup has a tile of the parallel loops, each thread a tile of that, and reductions are
walked in steps. The compiler states no constraints for these; the rules here are its refusals.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.gpu import GpuTemplate
from tilewright.gpu_target import GpuTarget
from tilewright.space.constraints import Constraint, product_at_most
from tilewright.space.gpu_cost import TilePrior
from tilewright.space.gpu_explicit import Draft, Recipe, divides, fixed, rule, tile_values
from tilewright.space.gpu_member import Computed
from tilewright.space.interface import FloatArray
from tilewright.space.knobs import BoolKnob, ChoiceKnob, Knob, TileKnob
from tilewright.trial import Value
from tilewright.workload import Workload

_PIPELINE = "#iree_gpu.pipeline<TileAndFuse>"
_MAX_THREADS = 1024
# Points that a thread unrolls between two steps of a reduction: more take long to compile.
_MAX_UNROLLED = 2048
_MAX_WORKGROUP_TILE = 512
_MAX_THREAD_TILE = 16
_MAX_REDUCTION_TILE = 64

PROMOTE, REORDER, WAVES = "promote_operands", "reorder_workgroups", "waves_per_eu"


def simt_recipe(template: GpuTemplate, workload: Workload, target: GpuTarget) -> Recipe | None:
    """None for a dispatch whose own configuration has no thread tiles."""
    tree = template.tree(template.root)
    if (
        template.translation.pipeline != "TileAndFuse"
        or not isinstance(tree, dict)
        or "thread" not in tree
        or "mma_kind" in tree
    ):
        return None
    loops = _Loops(template, workload, tree)
    knobs: list[Knob] = []
    start: dict[str, Value] = {}
    rules: list[Constraint] = []
    for loop in loops.parallel:
        name, extent = loops.names[loop], loops.extents[loop]
        workgroup, thread = f"workgroup_{name}", f"thread_{name}"
        knobs.append(
            TileKnob(
                workgroup, values=tile_values(extent, _MAX_WORKGROUP_TILE, loops.workgroup[loop])
            )
        )
        knobs.append(
            TileKnob(thread, values=tile_values(extent, _MAX_THREAD_TILE, loops.thread[loop]))
        )
        start |= {workgroup: loops.workgroup[loop], thread: loops.thread[loop]}
        rules.append(divides(thread, workgroup))
    for loop in loops.reductions:
        name = f"reduction_{loops.names[loop]}"
        knobs.append(
            TileKnob(
                name,
                values=tile_values(loops.extents[loop], _MAX_REDUCTION_TILE, loops.reduction[loop]),
            )
        )
        start[name] = loops.reduction[loop]
    if not loops.parallel:
        return None
    threads = [f"thread_{loops.names[i]}" for i in loops.parallel]
    groups = [f"workgroup_{loops.names[i]}" for i in loops.parallel]
    steps = [f"reduction_{loops.names[i]}" for i in loops.reductions]
    pairs = tuple(n for pair in zip(groups, threads, strict=True) for n in pair)

    def count(*values: Any) -> Any:
        total: Any = np.int64(1)
        for whole, part in zip(values[::2], values[1::2], strict=True):
            total = total * (np.asarray(whole, dtype=np.int64) // np.asarray(part))
        return total

    least = min(target.subgroup, loops.points)
    rules.append(
        rule(
            "threads of a workgroup",
            pairs,
            lambda *v: (count(*v) <= _MAX_THREADS) & (count(*v) >= least),
            lambda *v: f"{int(count(*v))} threads, allowed are {least} to {_MAX_THREADS}",
        )
    )
    rules.append(product_at_most("registers of a thread", threads, target.registers))
    if steps:
        rules.append(product_at_most("unrolled points", [*threads, *steps], _MAX_UNROLLED))
    inputs = template.root_op.operand_loops[:-1]
    products = workload.kind in ("contraction", "convolution") and len(inputs) == 2
    if products:
        knobs.append(BoolKnob(PROMOTE))
        start[PROMOTE] = "promote_operands" in tree
        rules.append(_memory_rule(loops, groups, steps, inputs, template, target))
    if target.backend == "rocm":
        knobs.append(ChoiceKnob(WAVES, (0, 1, 2, 4)))
        start[WAVES] = 0

    def write(draft: Draft, values: Mapping[str, Value]) -> None:
        config = draft.tree(template.root)
        for loop in loops.parallel:
            config["workgroup"][loop] = values[f"workgroup_{loops.names[loop]}"]
            config["thread"][loop] = values[f"thread_{loops.names[loop]}"]
        for loop in loops.reductions:
            config["reduction"][loop] = values[f"reduction_{loops.names[loop]}"]
        if values.get(PROMOTE):
            config["promote_operands"] = [0, 1]
        else:
            config.pop("promote_operands", None)
        if values.get(WAVES):
            draft.settings["llvm_func_attrs"] = f'{{"amdgpu-waves-per-eu" = "{values[WAVES]}"}}'

    prior = TilePrior(
        workload, target, template.root_op.operand_loops, template.root_op.element_bits, False
    )

    def estimate(values: Mapping[str, Any], number: FloatArray) -> FloatArray:
        tiles = {
            i: np.asarray(values[f"workgroup_{loops.names[i]}"], dtype=np.float64)
            for i in loops.parallel
        }
        return prior(tiles, number)

    return Recipe(
        "TileAndFuse.thread",
        _PIPELINE,
        tuple(knobs),
        tuple(rules),
        start,
        write,
        (Computed(pairs, count), fixed(1), fixed(1)),
        is_own=True,
        prior=estimate,
    )


class _Loops:
    """The loops of the root op with the compiler's own tiles."""

    def __init__(self, template: GpuTemplate, workload: Workload, tree: Mapping[str, Any]) -> None:
        root = template.root_op
        self.names = workload.loop_names
        self.extents = [max(1, e) for e in root.extents]
        count = len(self.extents)
        self.workgroup = _padded(tree.get("workgroup", ()), count)
        self.thread = _padded(tree.get("thread", ()), count)
        self.reduction = _padded(tree.get("reduction", ()), count)
        self.parallel = [
            i
            for i in range(count)
            if not root.reduction[i] and self.workgroup[i] and self.thread[i]
        ]
        self.reductions = [i for i in range(count) if root.reduction[i] and self.reduction[i]]
        self.points = int(np.prod([self.extents[i] for i in self.parallel] or [1]))


def _padded(sizes: Any, count: int) -> list[int]:
    """A list of sizes with a number for every loop; a list is also written in full."""
    found = [s if isinstance(s, int) else 0 for s in sizes]
    return (found + [0] * count)[:count]


def _memory_rule(
    loops: _Loops,
    groups: list[str],
    steps: list[str],
    inputs: tuple[tuple[int, ...], ...],
    template: GpuTemplate,
    target: GpuTarget,
) -> Constraint:
    """Operands that are promoted must fit into shared memory."""
    which = [f"workgroup_{loops.names[i]}" for i in loops.parallel]
    which += [f"reduction_{loops.names[i]}" for i in loops.reductions]
    position = {loop: at for at, loop in enumerate([*loops.parallel, *loops.reductions])}
    element = max(1, template.root_op.element_bits // 8)

    def used(promote: Any, *sizes: Any) -> Any:
        total: Any = np.int64(0)
        for operand in inputs:
            block: Any = np.int64(element)
            for loop in operand:
                tiled = loop in position
                block = block * (np.asarray(sizes[position[loop]]) if tiled else 1)
            total = total + block
        return np.where(np.asarray(promote), total, 0)

    return rule(
        "promoted operands fit into shared memory",
        [PROMOTE, *groups, *steps],
        lambda *v: used(*v) <= target.workgroup_memory,
        lambda *v: f"{int(used(*v))} bytes, the device has {target.workgroup_memory}",
    )
