"""`DoubleTilingExpert`: tile, fuse and vectorise at up to six levels. The general pipeline."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from tilewright.space.constraints import Constraint, declared
from tilewright.space.cpu_tiles import INNER, CpuPipeline
from tilewright.space.terms import (
    Term,
    either,
    evaluator,
    least,
    product,
    term,
    variable,
    where,
)
from tilewright.tiling import LEVELS, DispatchTemplate
from tilewright.workload import Workload

# Where it was seen what the compiler makes of initial values; elsewhere nothing is ruled out.
_INITIALISED = ("contraction", "convolution")
_ALTERNATIVE_FOR = ("convolution", "depthwise_convolution", "grouped_convolution", "pooling")


class DoubleTiling(CpuPipeline):
    """All that has no pipeline of its own; convolutions too, which it also compiles."""

    name = "DoubleTilingExpert"
    levels = LEVELS
    peeling = True
    inner_parallel = True

    @classmethod
    def fits(cls, template: DispatchTemplate, workload: Workload) -> bool:
        return workload.kind in _ALTERNATIVE_FOR and template.root_op.name.startswith("linalg.")

    def own_rules(self) -> Sequence[Constraint]:
        """The initial values of a cache tile are one vector, which the compiler limits.

        A loop over tiles of the reduction (`cache_reduction`) has the result's initial values
        before it, outside the vector tiles. They are as large as the tile that the parallel levels
        before leave; only the loop of `vector_inner_parallel` has its vector tile there too. (Seen
        in IREE 3.13: of 150 drawn configurations of matrix products and a convolution that tile the
        reduction so, all above the limit failed to compile, and none below it.)
        """
        if self.workload.kind not in _INITIALISED:
            return []
        loops = [i for i, extent in enumerate(self.extents) if extent > 1]
        reductions = [
            name
            for i in loops
            if self.reduction[i] and (name := self.knob("cache_reduction", i)) is not None
        ]
        parallel = [i for i in loops if not self.reduction[i]]
        levels = ("distribution", "cache_parallel", "vector_common_parallel")
        tiles = [[self.knob(level, i) for level in levels] for i in parallel]
        knobs = [name for names in tiles for name in names if name is not None]
        if not reductions or not parallel or len(knobs) < len(levels) * len(parallel):
            return []
        inner = [INNER] if INNER in self.knob_names else []
        limit_bytes = self.target.max_vector_bytes
        bits = self.template.root_op.element_bits
        if math.prod(self.extents[i] for i in parallel) * bits < 8 * limit_bytes:
            return []

        def sides() -> list[Term]:
            """The tile's size along each parallel loop."""
            chosen = self.knob_term(INNER) if inner else None
            found = []
            for loop, names in zip(parallel, tiles, strict=True):
                outer, cache, vector = (variable(str(name)) for name in names)
                tile = _within(cache, _within(outer, term(self.extents[loop])))
                if chosen is not None:
                    tile = term(where(chosen == self.names[loop], _within(vector, tile), tile))
                found.append(tile)
            return found

        sizes = sides()
        cached = functools.reduce(either, (variable(name) != 0 for name in reductions))
        fits = product(sizes) * bits < 8 * limit_bytes
        scope = (*reductions, *inner, *knobs)
        computed = [evaluator(size, scope) for size in sizes]

        def reason(*values: Any) -> str:
            tile = [int(side(*values)) for side in computed]
            return (
                f"with a tiled {', '.join(reductions)} the initial values of a tile of "
                f"{'x'.join(map(str, tile))} elements of {bits} bits are one vector of "
                f"{math.prod(tile) * bits // 8} bytes; the compiler's limit is below {limit_bytes}"
            )

        return [declared("initial_values_bytes", scope, ~cached | fits, reason)]


def _within(size: Term, whole: Term) -> Term:
    """A tile's size in what there is to tile; 0 is not tiled."""
    return term(where(size == 0, whole, least(size, whole)))


PIPELINES: tuple[type[CpuPipeline], ...] = (DoubleTiling,)
