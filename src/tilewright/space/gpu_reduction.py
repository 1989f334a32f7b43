"""VectorDistribute for reductions, softmax, norms, and products with a vector.

A row is walked in steps; in each, every lane of every subgroup loads a small vector of it. All ops
of the dispatch that the compiler distributes so are given the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.gpu import LOWERING_CONFIG, GpuTemplate
from tilewright.gpu_target import GpuTarget
from tilewright.space.constraints import Constraint
from tilewright.space.gpu_explicit import Draft, Recipe, fixed, rule, tile_values
from tilewright.space.gpu_member import Computed
from tilewright.space.knobs import Knob, TileKnob
from tilewright.trial import Value
from tilewright.workload import Workload

_PIPELINE = "#iree_gpu.pipeline<VectorDistribute>"
SUBGROUPS, VECTOR, STEP, ROWS = "subgroups", "vector", "step", "rows"
_MAX_ROWS = 8


def reduction_recipe(template: GpuTemplate, workload: Workload, target: GpuTarget) -> Recipe | None:
    """None for a dispatch whose ops are not distributed along one loop."""
    tree = template.tree(template.root)
    if template.translation.pipeline != "VectorDistribute" or _along(tree) is None:
        return None
    along = _along(tree)
    assert along is not None
    lanes = tree["lane_basis"][0][along]
    extent = template.root_op.extents[along]
    own: dict[str, int] = {
        SUBGROUPS: tree["subgroup_basis"][0][along],
        VECTOR: tree["thread"][along],
        STEP: _steps(tree)[along],
    }
    if lanes < 2 or extent < 2 or not all(own.values()):
        return None
    most = 1024 // lanes
    knobs: list[Knob] = [
        TileKnob(SUBGROUPS, values=_powers(most, own[SUBGROUPS])),
        TileKnob(VECTOR, values=_powers(16, own[VECTOR])),
        TileKnob(STEP, values=_multiples(extent, lanes, own[STEP])),
    ]
    start: dict[str, Value] = {**own}
    rows = _row_loop(template, tree)
    if rows is not None:
        size = int(tree["workgroup"][rows])
        knobs.append(
            TileKnob(ROWS, values=tile_values(template.root_op.extents[rows], _MAX_ROWS, size))
        )
        start[ROWS] = size

    def write(draft: Draft, values: Mapping[str, Value]) -> None:
        for (_, name), one in draft.trees.items():
            at = _along(one) if name == LOWERING_CONFIG else None
            if at is None:
                continue
            one["subgroup_basis"][0][at] = values[SUBGROUPS]
            one["thread"][at] = values[VECTOR]
            _steps(one)[at] = int(str(values[STEP]))
        if rows is not None:
            draft.tree(template.root)["workgroup"][rows] = values[ROWS]

    return Recipe(
        "VectorDistribute.reduction",
        _PIPELINE,
        tuple(knobs),
        _rules(lanes),
        start,
        write,
        (Computed((SUBGROUPS,), lambda s: s * lanes), fixed(1), fixed(1)),
        is_own=True,
    )


def _rules(lanes: int) -> tuple[Constraint, ...]:
    return (
        rule(
            "a step is whole vectors of all lanes",
            (SUBGROUPS, VECTOR, STEP),
            lambda s, v, p: p % (s * v * lanes) == 0,
            lambda s, v, p: f"{p} is no multiple of {s} * {v} * {lanes} lanes",
        ),
        rule(
            "elements of a thread in a step",
            (SUBGROUPS, STEP),
            lambda s, p: p // (s * lanes) <= 64,
            lambda s, p: f"{p // (s * lanes)}, more than 64",
        ),
    )


def _along(tree: Any) -> int | None:
    """The one loop that lanes, subgroups and threads share out; None for another distribution."""
    if not isinstance(tree, dict) or "mma_kind" in tree:
        return None
    needed = ("lane_basis", "subgroup_basis", "thread")
    if any(name not in tree for name in needed) or not _steps(tree):
        return None
    for basis in ("lane_basis", "subgroup_basis"):
        counts, order = tree[basis]
        if order != list(range(len(counts))):
            return None
    steps = [i for i, size in enumerate(_steps(tree)) if size]
    shared = [i for i, size in enumerate(tree["thread"]) if size > 0]
    if len(steps) != 1 or shared != steps:
        return None
    others = [
        count
        for basis in ("lane_basis", "subgroup_basis")
        for i, count in enumerate(tree[basis][0])
        if i != steps[0]
    ]
    return steps[0] if all(count == 1 for count in others) else None


def _steps(tree: Any) -> list[int]:
    """The step of each loop, under either of the names that the pipeline has for it."""
    found: list[int] = tree.get("partial_reduction") or tree.get("serial") or []
    return found


def _row_loop(template: GpuTemplate, tree: Any) -> int | None:
    """The last parallel loop that is given out to workgroups."""
    sizes = tree.get("workgroup", [])
    loops = [i for i, size in enumerate(sizes) if size and not template.root_op.reduction[i]]
    return loops[-1] if loops else None


def _powers(most: int, own: int) -> tuple[int, ...]:
    return tuple(sorted({own, *(1 << i for i in range(most.bit_length()) if 1 << i <= most)}))


def _multiples(extent: int, lanes: int, own: int) -> tuple[int, ...]:
    """Steps of whole rows of lanes that divide the row."""
    sizes = {s for s in range(lanes, min(extent, 1 << 14) + 1, lanes) if extent % s == 0}
    return tuple(sorted({*sizes, own}))
