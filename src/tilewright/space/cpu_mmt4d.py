"""`Mmt4dTilingExpert`: matrix products of data that is packed into tiles (data tiling)."""

from __future__ import annotations

from tilewright.space.cpu_rules import fits_only_own
from tilewright.space.cpu_tiles import PipelineRules
from tilewright.workload import Workload


def _inner_tiles(workload: Workload) -> frozenset[int]:
    """The last three loops run inside the packed tiles; the layout fixes them."""
    count = len(workload.dims)
    return frozenset(range(max(0, count - 3), count))


RULES = PipelineRules(
    "Mmt4dTilingExpert",
    ("distribution", "vector_common_parallel", "vector_reduction"),
    fixed_loops=_inner_tiles,
)

fits = fits_only_own("Mmt4dTilingExpert")
