"""`Mmt4dTilingExpert`: matrix products of data that is packed into tiles (data tiling)."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.space.constraints import Constraint, product_at_most
from tilewright.space.cpu_tiles import CpuPipeline

_VECTORS = "vector_common_parallel"


class Mmt4d(CpuPipeline):
    """Products of packed data, which the compiler itself gives to it."""

    name = "Mmt4dTilingExpert"
    levels = ("distribution", "vector_common_parallel", "vector_reduction")

    def fixed_loops(self, level: str) -> frozenset[int]:
        """The last three loops run inside the packed tiles; the layout fixes them.

        A vector never spans a batch: with 2 the compiler unrolls all that is in it, which was seen
        to take two minutes where one batch at a time takes half a second.
        """
        count = len(self.workload.dims)
        inner = frozenset(range(max(0, count - 3), count))
        return inner | frozenset(self.workload.by_role("batch")) if level == _VECTORS else inner

    def own_rules(self) -> Sequence[Constraint]:
        """No more accumulators than there are registers.

        Beyond, they are stored and loaded in every step, and each packed tile of a step is unrolled
        whole: one of 24 tiles of 16x16 floats took the compiler 2.5 s, one of 4 takes 0.6 s.
        """
        parallel = [i for i, is_sum in enumerate(self.reduction) if not is_sum]
        knobs = [name for loop in parallel if (name := self.knob(_VECTORS, loop))]
        if not knobs:
            return ()
        packed = 1
        for loop in parallel:
            if not self.knob(_VECTORS, loop):
                packed *= max(1, self.base[_VECTORS][loop])
        lanes = self.target.lanes(self.template.root_op.element_bits)
        limit = self.target.vector_registers * lanes

        def reason(*values: int) -> str:
            tiles = " * ".join(f"{n} {v}" for n, v in zip(knobs, values, strict=True))
            return (
                f"{tiles} packed tiles of {packed} elements are accumulated in one step; the "
                f"vector registers hold {limit} elements"
            )

        return [product_at_most("accumulators", knobs, limit, factor=packed, reason=reason)]


PIPELINES: tuple[type[CpuPipeline], ...] = (Mmt4d,)
