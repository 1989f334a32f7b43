"""VectorDistribute for reductions, softmax, norms, and products with a vector.

A row is walked in steps; in each, every lane of every subgroup loads a small vector of it. All ops
of the dispatch that the compiler distributes so are given the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.attributes import attribute
from tilewright.gpu import GPU_PIPELINE, LOWERING_CONFIG
from tilewright.space.constraints import Computed
from tilewright.space.gpu_pipeline import Draft, GpuPipeline, divisor_sizes, multiples, powers

SUBGROUPS, VECTOR, STEP, ROWS = "subgroups", "vector", "step", "rows"
_MAX_ROWS = 8


class RowReduction(GpuPipeline):
    """For dispatches whose ops are all distributed along one loop."""

    name = "VectorDistribute.reduction"
    attribute = attribute(GPU_PIPELINE, "VectorDistribute")

    def declare(self) -> None:
        tree, extents = self.tree, self.root.extents
        along = _along(tree)
        self.need(self.template.translation.pipeline == "VectorDistribute", along is not None)
        assert along is not None
        lanes, extent = tree["lane_basis"][0][along], extents[along]
        subgroups, vector = tree["subgroup_basis"][0][along], tree["thread"][along]
        step = _steps(tree)[along]
        self.need(lanes >= 2, extent >= 2, subgroups, vector, step)
        self.tile(SUBGROUPS, powers(1024 // lanes), subgroups)
        self.tile(VECTOR, powers(16), vector)
        self.tile(STEP, multiples(lanes, extent, 1 << 14), step)
        # The last parallel loop that is given out to workgroups.
        given = [
            i for i, s in enumerate(tree.get("workgroup", [])) if s and not self.root.reduction[i]
        ]
        self.rows = given[-1] if given else None
        if self.rows is not None:
            sizes = divisor_sizes(extents[self.rows], _MAX_ROWS)
            self.tile(ROWS, sizes, int(tree["workgroup"][self.rows]))
        self.threads = (Computed((SUBGROUPS,), lambda s: s * lanes),)
        self.rule(
            "a step is whole vectors of all lanes",
            (SUBGROUPS, VECTOR, STEP),
            lambda s, v, p: p % (s * v * lanes) == 0,
            lambda s, v, p: f"{p} is no multiple of {s} * {v} * {lanes} lanes",
        )
        self.rule(
            "elements of a thread in a step",
            (SUBGROUPS, STEP),
            lambda s, p: p // (s * lanes) <= 64,
            lambda s, p: f"{p // (s * lanes)}, more than 64",
        )

    def write(self, draft: Draft, values: Mapping[str, Any]) -> None:
        for (_, name), one in draft.trees.items():
            at = _along(one) if name == LOWERING_CONFIG else None
            if at is not None:
                one["subgroup_basis"][0][at] = values[SUBGROUPS]
                one["thread"][at] = values[VECTOR]
                _steps(one)[at] = values[STEP]
        if self.rows is not None:
            draft.tree(self.template.root)["workgroup"][self.rows] = values[ROWS]


def _along(tree: Any) -> int | None:
    """The one loop that lanes, subgroups and threads share out; None for another distribution."""
    if not isinstance(tree, dict) or "mma_kind" in tree:
        return None
    needed = ("lane_basis", "subgroup_basis", "thread")
    if any(name not in tree for name in needed) or not _steps(tree):
        return None
    steps = [i for i, size in enumerate(_steps(tree)) if size]
    shared = [i for i, size in enumerate(tree["thread"]) if size > 0]
    if len(steps) != 1 or shared != steps:
        return None
    for basis in ("lane_basis", "subgroup_basis"):
        counts, order = tree[basis]
        others = (count for i, count in enumerate(counts) if i != steps[0])
        if order != list(range(len(counts))) or any(count != 1 for count in others):
            return None
    return steps[0]


def _steps(tree: Any) -> list[int]:
    """The step of each loop, under either of the names that the pipeline has for it."""
    found: list[int] = tree.get("partial_reduction") or tree.get("serial") or []
    return found


PIPELINES: tuple[type[GpuPipeline], ...] = (RowReduction,)
