"""`Mmt4dTilingExpert`: matrix products of data that is packed into tiles (data tiling)."""

from __future__ import annotations

from tilewright.space.cpu_rules import fits_only_own
from tilewright.space.cpu_tiles import PipelineRules
from tilewright.workload import Workload


def _fixed(workload: Workload, level: str) -> frozenset[int]:
    """The last three loops run inside the packed tiles; the layout fixes them.

    A vector never spans a batch: with 2 the compiler unrolls all that is in it, which was seen to
    take two minutes where one batch at a time takes half a second.
    """
    count = len(workload.dims)
    inner = frozenset(range(max(0, count - 3), count))
    if level != "vector_common_parallel":
        return inner
    return inner | frozenset(workload.by_role("batch"))


RULES = PipelineRules(
    "Mmt4dTilingExpert",
    ("distribution", "vector_common_parallel", "vector_reduction"),
    fixed_loops=_fixed,
)

fits = fits_only_own("Mmt4dTilingExpert")
