"""The SPIR-V pipelines (Vulkan, Metal): BaseVectorize, products with promoted operands, cooperative
matrices, and reductions of rows (products of a matrix and a vector among them).

Their tile sizes are lists by level: workgroup, then subgroup or thread, then reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.gpu import GpuTemplate
from tilewright.gpu_target import GpuTarget
from tilewright.space.constraints import Constraint, product_at_most
from tilewright.space.gpu_cost import TilePrior
from tilewright.space.gpu_explicit import Draft, Recipe, divides, fixed, rule, tile_values
from tilewright.space.gpu_member import Computed
from tilewright.space.interface import FloatArray
from tilewright.space.knobs import ChoiceKnob, Knob, TileKnob
from tilewright.trial import Value
from tilewright.workload import Workload

_MAX_THREADS = 256
_MAX_THREAD_TILE = 16
DEPTH, STAGE = "pipeline_depth", "store_stage"


def _pipeline(name: str) -> str:
    return f"#iree_gpu.spirv_pipeline<{name}>"


def _levels(template: GpuTemplate) -> list[list[int]] | None:
    tree = template.tree(template.root)
    levels = tree.get("tile_sizes") if isinstance(tree, dict) else None
    if not isinstance(levels, list) or not all(isinstance(level, list) for level in levels):
        return None
    return levels


def _full(level: list[int], count: int) -> list[int]:
    return (list(level) + [0] * count)[:count]


def base_vectorize(template: GpuTemplate, workload: Workload, target: GpuTarget) -> Recipe | None:
    """Thread tiles: elementwise work, and products without anything better."""
    if template.translation.pipeline not in ("BaseVectorize", "MatmulPromoteVectorize"):
        return None
    levels = _levels(template)
    root = template.root_op
    count = len(root.extents)
    if levels is None or count == 0:
        return None
    own = template.translation.pipeline == "BaseVectorize"
    if not own and workload.kind != "contraction":
        return None
    names = workload.loop_names
    parallel = [i for i in range(count) if not root.reduction[i] and root.extents[i] > 1][-3:]
    reductions = [i for i in range(count) if root.reduction[i]]
    if not parallel or (reductions and (workload.kind != "contraction" or len(reductions) > 1)):
        return None
    groups = _full(levels[0], count)
    threads = _full(levels[1] if own and len(levels) > 1 else [], count)
    knobs: list[Knob] = []
    rules: list[Constraint] = []
    start: dict[str, Value] = {}
    for i in parallel:
        extent, name = root.extents[i], names[i]
        knobs += [
            TileKnob(f"workgroup_{name}", values=tile_values(extent, 256, groups[i])),
            TileKnob(f"thread_{name}", values=tile_values(extent, _MAX_THREAD_TILE, threads[i])),
        ]
        rules.append(divides(f"thread_{name}", f"workgroup_{name}"))
        rules.append(_divides_loop(f"workgroup_{name}", extent))
        start[f"workgroup_{name}"] = groups[i] or 1
        start[f"thread_{name}"] = threads[i] or 1
    for i in reductions:
        size = _full(levels[-1], count)[i]
        knobs.append(
            TileKnob(f"reduction_{names[i]}", values=tile_values(root.extents[i], 64, size))
        )
        rules.append(_divides_loop(f"reduction_{names[i]}", root.extents[i]))
        start[f"reduction_{names[i]}"] = size or 1
    tiles = [f"thread_{names[i]}" for i in parallel]
    rules.append(product_at_most("registers of a thread", tiles, 64))
    sizes = [
        Computed((f"workgroup_{names[i]}", f"thread_{names[i]}"), lambda w, t: w // t)
        for i in reversed(parallel)
    ]
    rules.append(_thread_rule(sizes))

    def write(draft: Draft, values: Mapping[str, Value]) -> None:
        level = [[0] * count for _ in range(3 if reductions else 2)]
        for i in range(count):
            if root.reduction[i]:
                level[-1][i] = int(str(values[f"reduction_{names[i]}"]))
            elif i in parallel:
                level[0][i] = int(str(values[f"workgroup_{names[i]}"]))
                level[1][i] = int(str(values[f"thread_{names[i]}"]))
            else:
                level[0][i] = level[1][i] = 1
        draft.tree(template.root)["tile_sizes"] = level
        draft.settings.clear()

    padded = [*sizes, fixed(1), fixed(1)][:3]
    return Recipe(
        "BaseVectorize",
        _pipeline("BaseVectorize"),
        tuple(knobs),
        tuple(rules),
        start,
        write,
        (padded[0], padded[1], padded[2]),
        is_own=own,
        prior=_prior(template, workload, target, "workgroup", parallel),
        subgroup_size=None if own else 0,
    )


def promoted(template: GpuTemplate, workload: Workload, target: GpuTarget) -> Recipe | None:
    """MatmulPromoteVectorize: operands go through shared memory; threads share the tile evenly."""
    levels = _levels(template)
    if template.translation.pipeline != "MatmulPromoteVectorize" or levels is None:
        return None
    root = template.root_op
    at = {dim.role: i for i, dim in enumerate(workload.dims)}
    count = len(root.extents)
    if any(role not in at for role in ("m", "n", "k")) or len(levels) != 1:
        return None
    own = _full(levels[0], count)
    size = template.own.workgroup_size
    names = ("workgroup_m", "workgroup_n", "reduction_k")
    values = dict(zip(names, (own[at["m"]], own[at["n"]], own[at["k"]]), strict=True))
    knobs: list[Knob] = [
        TileKnob(name, values=tile_values(root.extents[at[role]], limit, values[name]))
        for name, role, limit in zip(names, ("m", "n", "k"), (256, 256, 64), strict=True)
    ]
    # The compiler refuses a single thread along the rows ("fewer GPU threads than iterations").
    knobs += [
        TileKnob("threads_m", values=(1, 2, 4, 8, 16, 32)),
        TileKnob("threads_n", values=(2, 4, 8, 16, 32)),
    ]
    start: dict[str, Value] = {**values, "threads_n": size[0], "threads_m": size[1]}
    depth = dict(template.own.settings)
    for name, most in ((DEPTH, 3), (STAGE, 1)):
        if name in depth:
            first = 1 if name == DEPTH else 0
            knobs.append(ChoiceKnob(name, tuple(range(first, most + 1))))
            start[name] = int(depth[name].partition(" ")[0])
    element = max(1, root.element_bits // 8)
    limit = target.workgroup_memory
    rules: list[Constraint] = [
        _divides_loop(name, root.extents[at[role]])
        for name, role in zip(names, ("m", "n", "k"), strict=True)
    ]
    for axis in ("m", "n"):
        rules.append(
            rule(
                f"threads share workgroup_{axis} evenly",
                (f"threads_{axis}", f"workgroup_{axis}"),
                lambda t, w: (w % t == 0) & (w // t <= _MAX_THREAD_TILE),
                lambda t, w: f"{w} by {t} threads, at most {_MAX_THREAD_TILE} each",
            )
        )
    # Rows of an operand are copied in vectors of four elements by all threads.
    copied = (
        ("workgroup_m", "reduction_k"),
        ("reduction_k", "workgroup_n"),
    )
    for a, b in copied:
        rules.append(
            rule(
                f"threads copy {a} x {b} evenly",
                (a, b, "threads_m", "threads_n"),
                lambda r, c, tm, tn: (c % 4 == 0) & ((r * c // 4) % (tm * tn) == 0),
                lambda r, c, tm, tn: f"{r} x {c} in vectors of 4 by {tm * tn} threads",
            )
        )
    stages = (DEPTH,) if DEPTH in start else ()
    rules.append(
        rule(
            "shared memory",
            (*names, *stages),
            lambda m, n, k, *d: _shared(m, n, k, *d) * element <= limit,
            lambda m, n, k, *d: f"{_shared(m, n, k, *d) * element} bytes of {limit}",
        )
    )
    threads = [Computed((f"threads_{axis}",), lambda t: t) for axis in ("n", "m")]
    rules.append(_thread_rule(threads))

    def write(draft: Draft, chosen: Mapping[str, Value]) -> None:
        tile = list(own)
        for name, role in zip(names, ("m", "n", "k"), strict=True):
            tile[at[role]] = int(str(chosen[name]))
        draft.tree(template.root)["tile_sizes"] = [tile]
        for name in (DEPTH, STAGE):
            if name in chosen:
                draft.settings[name] = f"{chosen[name]} : i64"

    return Recipe(
        "MatmulPromoteVectorize",
        _pipeline("MatmulPromoteVectorize"),
        tuple(knobs),
        tuple(rules),
        start,
        write,
        (threads[0], threads[1], fixed(1)),
        is_own=True,
        prior=_prior(template, workload, target, "workgroup", [at["m"], at["n"]]),
    )


def cooperative(template: GpuTemplate, workload: Workload, target: GpuTarget) -> Recipe | None:
    """CooperativeMatrixVectorize: subgroups share a workgroup's tile, each of whole matrices."""
    levels = _levels(template)
    if template.translation.pipeline != "CooperativeMatrixVectorize" or levels is None:
        return None
    root = template.root_op
    at = {dim.role: i for i, dim in enumerate(workload.dims)}
    if len(levels) != 4 or any(role not in at for role in ("m", "n", "k")):
        return None
    if len(root.extents) != 3:
        return None
    unit = _full(levels[3], 3)
    group, sub = _full(levels[0], 3), _full(levels[1], 3)
    depth = _full(levels[2], 3)
    m, n, k = at["m"], at["n"], at["k"]
    knobs: list[Knob] = []
    rules: list[Constraint] = []
    start: dict[str, Value] = {"reduction_k": depth[k]}
    knobs.append(TileKnob("reduction_k", values=_units(root.extents[k], unit[k], 128, depth[k])))
    for axis, loop in (("m", m), ("n", n)):
        subgroups, tiles = f"subgroups_{axis}", f"tiles_{axis}"
        each = max(1, sub[loop] // unit[loop])
        number = max(1, group[loop] // sub[loop])
        knobs += [
            TileKnob(subgroups, values=(1, 2, 4)),
            TileKnob(tiles, values=(1, 2, 4, 8)),
        ]
        start |= {subgroups: number, tiles: each}
        size, extent = unit[loop], root.extents[loop]
        rules.append(
            rule(
                f"the tile divides {axis}",
                (subgroups, tiles),
                lambda s, t, size=size, extent=extent: extent % (s * t * size) == 0,
                lambda s, t, size=size, extent=extent: f"{s * t * size} does not divide {extent}",
            )
        )
    settings = dict(template.own.settings)
    for name, values in ((DEPTH, (0, 1, 2)), (STAGE, (0, 1))):
        if name in settings:
            knobs.append(ChoiceKnob(name, values))
            start[name] = int(settings[name].partition(" ")[0])
    element = max(1, root.element_bits // 8)
    width = target.subgroup
    rules.append(
        rule(
            "shared memory",
            ("subgroups_m", "tiles_m", "subgroups_n", "tiles_n", "reduction_k"),
            lambda sm, tm, sn, tn, kk: (
                2 * (sm * tm * unit[m] + sn * tn * unit[n]) * kk * 2 * element
                <= 2 * target.workgroup_memory
            ),
            lambda sm, tm, sn, tn, kk: "the tiles do not fit",
        )
    )
    rules.append(
        rule(
            "threads copy the tiles evenly",
            ("subgroups_m", "tiles_m", "subgroups_n", "tiles_n", "reduction_k"),
            lambda sm, tm, sn, tn, kk: (
                ((sm * tm * unit[m] * kk // 8) % (sm * sn * width) == 0)
                & ((sn * tn * unit[n] * kk // 8) % (sm * sn * width) == 0)
            ),
            lambda sm, tm, sn, tn, kk: "tiles in vectors of 8 are no multiple of the threads",
        )
    )
    rules.append(product_at_most("accumulators", ("tiles_m", "tiles_n"), 16))

    def write(draft: Draft, values: Mapping[str, Value]) -> None:
        number = {name: int(str(value)) for name, value in values.items()}
        workgroup, subgroup = [0, 0, 0], [0, 0, 0]
        for axis, loop in (("m", m), ("n", n)):
            subgroup[loop] = number[f"tiles_{axis}"] * unit[loop]
            workgroup[loop] = subgroup[loop] * number[f"subgroups_{axis}"]
        step = [0, 0, 0]
        step[k] = number["reduction_k"]
        draft.tree(template.root)["tile_sizes"] = [
            workgroup[: len(levels[0])],
            subgroup[: len(levels[1])],
            step,
            unit,
        ]
        for name in (DEPTH, STAGE):
            if name in number:
                draft.settings[name] = f"{number[name]} : i64"

    return Recipe(
        "CooperativeMatrixVectorize",
        _pipeline("CooperativeMatrixVectorize"),
        tuple(knobs),
        tuple(rules),
        start,
        write,
        (
            Computed(("subgroups_n",), lambda s: s * width),
            Computed(("subgroups_m",), lambda s: s),
            fixed(1),
        ),
        is_own=True,
    )


def subgroup_reduce(template: GpuTemplate, workload: Workload, target: GpuTarget) -> Recipe | None:
    """SubgroupReduce: a workgroup for each row, walked in steps of its threads' vectors."""
    if template.translation.pipeline != "SubgroupReduce":
        return None
    levels = _levels(template)
    if levels is None or len(levels) != 2:
        return None
    along = [i for i, size in enumerate(levels[1]) if size]
    if len(along) != 1:
        return None
    loop = along[0]
    extent = template.root_op.extents[loop]
    step, threads = levels[1][loop], template.own.workgroup_size[0]
    width = target.subgroup
    counts = tuple(sorted({threads, *(width << i for i in range(6) if width << i <= 1024)}))
    vectors = tuple(sorted({max(1, step // threads), 1, 2, 4}))
    knobs = (TileKnob("threads", values=counts), TileKnob("vector", values=vectors))
    rules = (
        rule(
            "a step divides the row",
            ("threads", "vector"),
            lambda t, v: extent % (t * v) == 0,
            lambda t, v: f"{t * v} does not divide {extent}",
        ),
    )

    def write(draft: Draft, values: Mapping[str, Value]) -> None:
        size = int(str(values["threads"])) * int(str(values["vector"]))
        for tree in draft.trees.values():
            own = tree.get("tile_sizes") if isinstance(tree, dict) else None
            if own and len(own) > 1:
                own[1] = [size if old == step else old for old in own[1]]

    return Recipe(
        "SubgroupReduce",
        _pipeline("SubgroupReduce"),
        knobs,
        rules,
        {"threads": threads, "vector": max(1, step // threads)},
        write,
        (Computed(("threads",), lambda t: t), fixed(1), fixed(1)),
        is_own=True,
    )


SPIRV_RECIPES = (base_vectorize, promoted, cooperative, subgroup_reduce)


def _shared(m: Any, n: Any, k: Any, *depth: Any) -> Any:
    """Elements in shared memory: both operands, as often as steps are in flight, rows padded."""
    copies = np.maximum(1, depth[0]) if depth else 1
    return ((k + 4) * m + (n + 4) * k) * copies


def _divides_loop(name: str, extent: int) -> Constraint:
    return rule(
        f"{name} divides its loop",
        (name,),
        lambda t: extent % t == 0,
        lambda t: f"{t} does not divide {extent}",
    )


def _thread_rule(sizes: list[Computed]) -> Constraint:
    knobs = tuple(k for one in sizes for k in one.knobs)

    def count(*values: Any) -> Any:
        total: Any = np.int64(1)
        at = 0
        for one in sizes:
            total = total * one.compute(*map(np.asarray, values[at : at + len(one.knobs)]))
            at += len(one.knobs)
        return total

    return rule(
        "threads of a workgroup",
        knobs,
        lambda *v: (count(*v) <= _MAX_THREADS) & (count(*v) >= 8),
        lambda *v: f"{int(count(*v))} threads, allowed are 8 to {_MAX_THREADS}",
    )


def _units(extent: int, unit: int, limit: int, own: int) -> tuple[int, ...]:
    sizes = {s for s in range(unit, min(extent, limit) + 1, unit) if extent % s == 0}
    return tuple(sorted({*sizes, own}))


def _prior(
    template: GpuTemplate, workload: Workload, target: GpuTarget, level: str, loops: list[int]
) -> Callable[[Mapping[str, Any], FloatArray], FloatArray]:
    prior = TilePrior(
        workload, target, template.root_op.operand_loops, template.root_op.element_bits, False
    )
    names = workload.loop_names

    def estimate(values: Mapping[str, Any], threads: FloatArray) -> FloatArray:
        tiles = {
            i: np.asarray(values[f"{level}_{names[i]}"], dtype=np.float64)
            for i in loops
            if f"{level}_{names[i]}" in values
        }
        return prior(tiles, threads)

    return estimate
