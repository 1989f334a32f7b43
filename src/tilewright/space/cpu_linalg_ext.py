"""`LinalgExtTileAndVectorize`: attention and other ops of the LinalgExt dialect."""

from __future__ import annotations

from tilewright.space.cpu_rules import fits_only_own
from tilewright.space.cpu_tiles import PipelineRules

RULES = PipelineRules(
    "LinalgExtTileAndVectorize",
    ("distribution", "vector_common_parallel", "vector_reduction"),
)

fits = fits_only_own("LinalgExtTileAndVectorize")
