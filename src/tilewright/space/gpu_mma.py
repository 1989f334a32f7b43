"""TileAndFuse with matrix intrinsics where the compiler states no constraints.

IREE 3.13 crashes when it is to state those of a batched product. The knobs are named as the
compiler names them elsewhere, and the rules are its own for a product without a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.argument import dtype_of
from tilewright.gpu import GpuTemplate
from tilewright.gpu_target import GpuTarget
from tilewright.space.constraints import Constraint
from tilewright.space.gpu_cost import TilePrior
from tilewright.space.gpu_explicit import Draft, Recipe, fixed, rule, tile_values
from tilewright.space.gpu_member import Computed
from tilewright.space.gpu_rules import MAX_INTRINSICS, WAVES
from tilewright.space.gpu_smt import BANK_CONFLICTS
from tilewright.space.interface import FloatArray
from tilewright.space.knobs import BoolKnob, ChoiceKnob, Knob, TileKnob
from tilewright.trial import Value
from tilewright.workload import Workload

INTRINSIC = "mma_kind"
# The compiler's limits: of a tile, of a step, of the subgroups of a workgroup.
_MAX_TILE, _MAX_STEP, _MAX_SUBGROUPS = 512, 512, 10


def mma_recipe(template: GpuTemplate, workload: Workload, target: GpuTarget) -> Recipe | None:
    """None where there are constraints, or no product by matrix intrinsics of two loops."""
    tree = template.tree(template.root)
    intrinsics = template.own.intrinsics
    if template.programs or template.translation.pipeline != "TileAndFuse" or not intrinsics:
        return None
    root = template.root_op
    options = dict(template.own.options)
    if options.get("use_igemm_convolution") == "true" or "padding" in tree:
        return None
    shared = [i for i, size in enumerate(tree["subgroup"]) if size]
    steps = [i for i, size in enumerate(tree["reduction"]) if size]
    if len(shared) != 2 or len(steps) != 1:
        return None
    (m, n), k = shared, steps[0]
    names = [i.name for i in intrinsics]
    shapes = np.array([(i.m, i.n, i.k) for i in intrinsics], dtype=np.int64)
    position = {name: i for i, name in enumerate(names)}
    own = {
        f"wg_{m}": tree["workgroup"][m],
        f"wg_{n}": tree["workgroup"][n],
        f"sg_{m}": tree["subgroup"][m],
        f"sg_{n}": tree["subgroup"][n],
        f"red_{k}": tree["reduction"][k],
    }
    start: dict[str, Value] = {INTRINSIC: names[0], **own}
    knobs: list[Knob] = [ChoiceKnob(INTRINSIC, tuple(names))]
    for loop in (m, n):
        extent = root.extents[loop]
        knobs.append(
            TileKnob(f"wg_{loop}", values=tile_values(extent, _MAX_TILE, own[f"wg_{loop}"]))
        )
        knobs.append(TileKnob(f"sg_{loop}", values=tile_values(32, 32, own[f"sg_{loop}"])))
    knobs.append(TileKnob(f"red_{k}", values=tile_values(64, 64, own[f"red_{k}"])))
    knobs.append(BoolKnob(BANK_CONFLICTS))
    start[BANK_CONFLICTS] = options.get("no_reduce_shared_memory_bank_conflicts") != "true"
    if target.backend == "rocm":
        knobs.append(ChoiceKnob(WAVES, (0, 1, 2, 4)))
        start[WAVES] = 0
    width = target.subgroup
    element = dtype_of(workload.element_types[0]).itemsize
    tiles = (f"wg_{m}", f"sg_{m}", f"wg_{n}", f"sg_{n}")
    every = (INTRINSIC, *tiles, f"red_{k}")

    def shape(kind: Any, axis: int) -> Any:
        if isinstance(kind, str):
            return shapes[position[kind], axis]
        labels, inverse = np.unique(np.asarray(kind).astype(str), return_inverse=True)
        return shapes[[position[str(one)] for one in labels], axis][inverse]

    def subgroups(kind: Any, wm: Any, sm: Any, wn: Any, sn: Any) -> tuple[Any, Any]:
        return wm // (sm * shape(kind, 0)), wn // (sn * shape(kind, 1))

    def threads(kind: Any, wm: Any, sm: Any, wn: Any, sn: Any) -> Any:
        rows, columns = subgroups(kind, *map(np.asarray, (wm, sm, wn, sn)))
        return rows * columns * width

    def whole(kind: Any, wm: Any, sm: Any, wn: Any, sn: Any) -> Any:
        rows, columns = subgroups(kind, wm, sm, wn, sn)
        fits = (wm == rows * sm * shape(kind, 0)) & (wn == columns * sn * shape(kind, 1))
        return fits & (rows >= 1) & (columns >= 1) & (rows * columns <= _MAX_SUBGROUPS)

    def depth(kind: Any, step: Any) -> Any:
        return np.asarray(step) * shape(kind, 2)

    rules: list[Constraint] = [
        _rule(
            "subgroups have whole intrinsics",
            (INTRINSIC, *tiles),
            lambda kind, *t: whole(kind, *t) & (threads(kind, *t) <= 1024),
            f"the tiles are no multiples, or of more than {_MAX_SUBGROUPS} subgroups",
        ),
        _rule(
            "tiles divide the loops",
            (f"wg_{m}", f"wg_{n}"),
            lambda wm, wn: (root.extents[m] % wm == 0) & (root.extents[n] % wn == 0),
            f"{root.extents[m]} x {root.extents[n]} is no multiple",
        ),
        _rule(
            "the step divides the sum",
            (INTRINSIC, f"red_{k}"),
            lambda kind, r: (root.extents[k] % depth(kind, r) == 0) & (depth(kind, r) <= _MAX_STEP),
            f"{root.extents[k]} is no multiple of the step, or the step is above {_MAX_STEP}",
        ),
        _rule(
            "shared memory",
            (INTRINSIC, f"wg_{m}", f"wg_{n}", f"red_{k}"),
            lambda kind, wm, wn, r: (wm + wn) * depth(kind, r) * element <= target.workgroup_memory,
            f"the operands' tiles take more than {target.workgroup_memory} bytes",
        ),
        _rule(
            "accumulators of a thread",
            (INTRINSIC, f"sg_{m}", f"sg_{n}"),
            lambda kind, sm, sn: (
                sm * sn * shape(kind, 0) * shape(kind, 1) <= target.registers * width
            ),
            f"more than {target.registers} registers",
        ),
        _rule(
            "unrolled intrinsics",
            (f"sg_{m}", f"sg_{n}", f"red_{k}"),
            lambda sm, sn, r: sm * sn * r <= MAX_INTRINSICS,
            f"more than {MAX_INTRINSICS} instructions",
        ),
    ]

    def write(draft: Draft, values: Mapping[str, Value]) -> None:
        config = draft.tree(template.root)
        chosen = intrinsics[position[str(values[INTRINSIC])]]
        config[INTRINSIC] = chosen.attribute
        for loop in (m, n):
            config["workgroup"][loop] = values[f"wg_{loop}"]
            config["subgroup"][loop] = values[f"sg_{loop}"]
        config["reduction"][k] = values[f"red_{k}"]
        conflicts = "no_reduce_shared_memory_bank_conflicts"
        draft.options[conflicts] = "false" if values[BANK_CONFLICTS] else "true"
        if values.get(WAVES):
            draft.settings["llvm_func_attrs"] = f'{{"amdgpu-waves-per-eu" = "{values[WAVES]}"}}'

    prior = TilePrior(workload, target, root.operand_loops, root.element_bits, matrix=True)

    def estimate(values: Mapping[str, Any], number: FloatArray) -> FloatArray:
        return prior({i: np.asarray(values[f"wg_{i}"], np.float64) for i in (m, n)}, number)

    return Recipe(
        "TileAndFuse",
        template.own.pipeline,
        tuple(knobs),
        tuple(rules),
        start,
        write,
        (Computed(every[:-1], threads), fixed(1), fixed(1)),
        is_own=True,
        prior=estimate,
    )


def _rule(name: str, knobs: tuple[str, ...], check: Any, reason: str) -> Constraint:
    return rule(
        name,
        knobs,
        check,
        lambda *v: f"{', '.join(f'{k} {x}' for k, x in zip(knobs, v, strict=True))}: {reason}",
    )
