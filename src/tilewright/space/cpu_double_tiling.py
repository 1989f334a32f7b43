"""`DoubleTilingExpert`: tile, fuse and vectorise at up to six levels. The general pipeline."""

from __future__ import annotations

from tilewright.space.cpu_tiles import PipelineRules
from tilewright.tiling import LEVELS, DispatchTemplate
from tilewright.workload import Workload

RULES = PipelineRules("DoubleTilingExpert", LEVELS, peeling=True, inner_parallel=True)

_ALTERNATIVE_FOR = ("convolution", "depthwise_convolution", "grouped_convolution", "pooling")


def fits(template: DispatchTemplate, workload: Workload) -> bool:
    """Besides where it is the compiler's own choice: for convolutions, which it also compiles."""
    return workload.kind in _ALTERNATIVE_FOR and template.root_op.name.startswith("linalg.")
