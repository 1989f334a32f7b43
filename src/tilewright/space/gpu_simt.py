"""TileAndFuse with thread tiles: products and convolutions without matrix instructions,
elementwise work, pooling.

Each workgroup has a tile of the parallel loops, each thread a tile of that, and reductions are
walked in steps. The compiler states no constraints for these; the rules here are its refusals.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.attributes import attribute
from tilewright.gpu import GPU_PIPELINE
from tilewright.space.constraints import Computed, product_at_most
from tilewright.space.gpu_pipeline import PROMOTE, Draft, GpuPipeline, divisor_sizes
from tilewright.space.knobs import BoolKnob
from tilewright.space.terms import product, where

_MAX_THREADS = 1024
# Points that a thread unrolls between two steps of a reduction: twice as many take some ten seconds
# to compile.
_MAX_UNROLLED = 4096
_MAX_TILES = (512, 16)
_MAX_REDUCTION_TILE = 64


class ThreadTiles(GpuPipeline):
    """For dispatches whose own configuration has thread tiles."""

    name = "TileAndFuse.thread"
    attribute = attribute(GPU_PIPELINE, "TileAndFuse")

    def declare(self) -> None:
        self.need(
            self.template.translation.pipeline == "TileAndFuse",
            isinstance(self.tree, dict) and "thread" in self.tree and "mma_kind" not in self.tree,
        )
        root, names = self.root, self.workload.loop_names
        count = len(root.extents)
        group, thread, step = (
            _padded(self.tree.get(level, ()), count)
            for level in ("workgroup", "thread", "reduction")
        )
        parallel = [i for i in range(count) if not root.reduction[i] and group[i] and thread[i]]
        self.need(parallel)
        for loop in parallel:
            self.thread_tiles(loop, _MAX_TILES, (group[loop], thread[loop]))
        self.steps = {
            i: f"reduction_{names[i]}" for i in range(count) if root.reduction[i] and step[i]
        }
        for loop, name in self.steps.items():
            extent = max(1, root.extents[loop])
            sizes = divisor_sizes(extent, _MAX_REDUCTION_TILE)
            self.tile(name, sizes, step[loop], limit=extent)
        self.thread_of = {i: f"thread_{names[i]}" for i in parallel}
        pairs = tuple(n for i in parallel for n in (self.tiles[i], self.thread_of[i]))
        self.threads = (Computed(pairs, _quotients),)
        points = int(np.prod([max(1, root.extents[i]) for i in parallel]))
        self.limit_threads(min(self.target.subgroup, points), _MAX_THREADS)
        threads = list(self.thread_of.values())
        self._rules.append(product_at_most("registers of a thread", threads, self.target.registers))
        if self.steps:
            unrolled = [*threads, *self.steps.values()]
            self._rules.append(product_at_most("unrolled points", unrolled, _MAX_UNROLLED))
        inputs = root.operand_loops[:-1]
        if self.workload.kind in ("contraction", "convolution") and len(inputs) == 2:
            self.knob(BoolKnob(PROMOTE), PROMOTE in self.tree)
            self._promoted_fit(inputs)
        self.waves()

    def _promoted_fit(self, inputs: tuple[tuple[int, ...], ...]) -> None:
        """Operands that are promoted must fit into shared memory."""
        tiled = {**self.tiles, **self.steps}
        position = {loop: at for at, loop in enumerate(tiled)}
        element = max(1, self.root.element_bits // 8)
        limit = self.target.workgroup_memory

        def used(promote: Any, *sizes: Any) -> Any:
            total: Any = 0
            for operand in inputs:
                block: Any = element
                for loop in operand:
                    block = block * (sizes[position[loop]] if loop in position else 1)
                total = total + block
            return where(promote, total, 0)

        self.rule(
            "promoted operands fit into shared memory",
            [PROMOTE, *tiled.values()],
            lambda *v: used(*v) <= limit,
            lambda *v: f"{int(used(*v))} bytes, the device has {limit}",
        )

    def write(self, draft: Draft, values: Mapping[str, Any]) -> None:
        config = draft.tree(self.template.root)
        for level, knobs in (
            ("workgroup", self.tiles),
            ("thread", self.thread_of),
            ("reduction", self.steps),
        ):
            for loop, name in knobs.items():
                config[level][loop] = values[name]
        config.pop(PROMOTE, None)
        if values.get(PROMOTE):
            config[PROMOTE] = [0, 1]


def _quotients(*values: Any) -> Any:
    """The product of workgroup tiles over thread tiles, given by turns."""
    return product(whole // part for whole, part in zip(values[::2], values[1::2], strict=True))


def _padded(sizes: Any, count: int) -> list[int]:
    """A list of sizes with a number for every loop; a list is also written in full."""
    found = [s if isinstance(s, int) else 0 for s in sizes]
    return (found + [0] * count)[:count]


PIPELINES: tuple[type[GpuPipeline], ...] = (ThreadTiles,)
